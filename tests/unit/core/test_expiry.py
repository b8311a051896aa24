"""What has expired goes from a log once a snapshot stands for it, and everything above it stays or is asked for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quorate.core import effects, events
from quorate.core.entry import NOWHERE, Snapshot, Span
from quorate.core.keeping import KEEP_ALL
from quorate.core.raft.messages import AppendEntries, SnapshotChunk
from quorate.core.repairing import HaveEntries, WantEntries
from tests.unit.core.kit import N1, N2, N3, TUNING, Bench, at, entries, of_kind

KEEPING = msgspec.structs.replace(TUNING, keep_behind=KEEP_ALL)
LOG = "1-0 1-1 1-2 1-3 1-4"
SNAPSHOT = Snapshot(at("1-3"), 77, 150)
FAR = Snapshot(at("3-9"), 99, 150)


def follower(log: str = LOG, *, commit: int = 4, **more: Any) -> Bench:
    """What is settled there is known, and published."""
    bench = Bench(N2, log, epoch=3, tuning=KEEPING, commit=commit, **more)
    if log:
        bench.receive(N1, AppendEntries(3, bench.replica.log.head, commit))
    return bench


def test_what_has_expired_goes_when_a_snapshot_of_it_is_on_the_disk() -> None:
    bench = follower()
    assert bench.tell(events.Expired(at("1-2"), 5)) == [effects.TakeSnapshot()]
    ordered = bench.tell(events.SnapshotTaken(SNAPSHOT))
    assert ordered == [effects.RemovePrefix(1, at("1-2"), 5)]
    assert (bench.replica.log.base, bench.replica.log.head) == (at("1-2"), at("1-4"))


def test_what_a_snapshot_covers_and_has_not_expired_stays() -> None:
    bench = follower(snapshot=SNAPSHOT)
    assert bench.tell(events.SnapshotTaken(Snapshot(at("1-4"), 78, 150))) == []
    assert bench.replica.log.base == NOWHERE


def test_what_is_not_settled_here_yet_goes_later() -> None:
    bench = follower(commit=1, snapshot=Snapshot(at("1-1"), 7, 10))
    assert bench.tell(events.Expired(at("1-2"), 5)) == []
    ordered = bench.receive(N1, AppendEntries(3, at("1-4"), 4))
    assert effects.TakeSnapshot() in ordered
    assert bench.tell(events.SnapshotTaken(SNAPSHOT)) == [effects.RemovePrefix(1, at("1-2"), 5)]


def test_an_older_place_is_not_gone_back_to_and_the_same_one_may_be_said_again() -> None:
    bench = follower(snapshot=SNAPSHOT)
    assert bench.tell(events.Expired(at("1-2"), 5)) == [effects.RemovePrefix(1, at("1-2"), 5)]
    assert bench.tell(events.Expired(at("1-1"), 4)) == []
    assert bench.tell(events.Expired(at("1-2"), 5)) == []
    assert bench.replica.log.base == at("1-2")


def test_a_snapshot_that_failed_is_tried_again_when_it_is_said_again() -> None:
    bench = follower()
    assert bench.tell(events.Expired(at("1-2"), 5)) == [effects.TakeSnapshot()]
    assert bench.tell(events.Expired(at("1-2"), 5)) == [], "one is being taken"
    bench.tell(events.SnapshotFailed("the disk is full"))
    assert bench.tell(events.Expired(at("1-2"), 5)) == [effects.TakeSnapshot()]


def test_a_log_that_a_snapshot_replaces_starts_where_what_has_expired_ends() -> None:
    bench = follower("")
    bench.tell(events.Expired(at("2-5"), 55))
    ordered = bench.receive(N1, SnapshotChunk(3, FAR, 0, 150))
    (install,) = of_kind(ordered, effects.InstallSnapshot)
    assert (install.keep, install.start, install.start_checksum) == (False, at("2-5"), 55)
    bench.persist()
    log = bench.replica.log
    assert (log.base, log.head, log.faulty) == (at("2-5"), at("3-9"), (Span(at("2-5"), at("3-9")),))
    assert not bench.replica.can_lead()


def test_what_is_missing_below_an_installed_snapshot_is_asked_of_peers() -> None:
    bench = follower("")
    bench.tell(events.Expired(at("2-5"), 55))
    bench.receive(N1, SnapshotChunk(3, FAR, 0, 150))
    bench.persist()
    asked = [order.message for order in bench.wake() if isinstance(order, effects.Send)]
    span = Span(at("2-5"), at("3-9"))
    assert asked == [WantEntries(3, span)]
    bench.receive(N1, HaveEntries(3, span, entries("2-6 2-7 3-8 3-9")))
    bench.persist()
    assert str(bench.replica.log) == "6..9"
    assert bench.replica.log.epoch_at(7) == 2
    assert not bench.replica.faulty


def test_a_log_that_holds_the_end_of_a_snapshot_keeps_all_that_it_has() -> None:
    bench = follower(commit=0)
    ordered = bench.receive(N1, SnapshotChunk(3, SNAPSHOT, 0, 150))
    (install,) = of_kind(ordered, effects.InstallSnapshot)
    assert (install.keep, install.start) == (True, NOWHERE)
    bench.persist()
    assert str(bench.replica.log) == "0..4"


def test_a_log_does_not_forget_over_a_restart_from_where_on_it_must_be_whole() -> None:
    bench = Bench(
        N2, "1-3 1-4", base=at("1-2"), base_checksum=9, epoch=3, commit=4, tuning=KEEPING, snapshot=SNAPSHOT
    )
    bench.receive(N3, SnapshotChunk(4, FAR, 0, 150))
    bench.persist()
    assert bench.replica.log.base == at("1-2")


@pytest.mark.parametrize("place", ["1-2", "1-3"])
def test_a_place_inside_of_damage_needs_nothing_of_it(place: str) -> None:
    """Peers have removed what is below it: nobody could mend that."""
    bench = follower(snapshot=Snapshot(at("1-4"), 78, 150), faulty=(Span(at("1-0"), at("1-3")),))
    assert bench.tell(events.Expired(at(place), 5)) == [effects.RemovePrefix(1, at(place), 5)]
    assert bench.replica.log.base == at(place)
    assert bench.replica.log.faulty == ((Span(at("1-2"), at("1-3")),) if place == "1-2" else ())
