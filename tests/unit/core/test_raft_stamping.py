"""Timestamps that rise with the log, whoever leads (YB-14)."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core import effects, events
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Ceiling, Header, Kind, Standing
from quorate.core.raft.messages import AppendEntries
from tests.unit.core.kit import N1, N2, TUNING, Bench, Snapshot, at, catch_up, leader, of_kind, replies

STAMPING = msgspec.structs.replace(TUNING, ceiling_s=2.0)
NOON = 1_000_000


def propose(bench: Bench, wall_ms: int, request: int = 1) -> list[effects.Effect]:
    return bench.tell(events.Proposed(request, (Header(0, 0, size=10),), wall_ms))


def settle(bench: Bench) -> list[Reply]:
    return replies(catch_up(bench, N2))


def ceiling(epoch: int, offset: int, upto: int) -> Header:
    return Header(epoch, offset, kind=Kind.CONTROL, control=Ceiling(upto))


def found(upto: int) -> Bench:
    """N1 leads epoch 2, with a ceiling of an earlier leader in its log."""
    bench = Bench(N1, "1-0", epoch=1, tuning=STAMPING)
    bench.miss_leader()
    bench.receive(N2, AppendEntries(1, at("1-0"), 0, (ceiling(1, 1, upto),)))
    bench.persist()
    bench.elect()
    settle(bench)
    return bench


@pytest.mark.behaviour("YB-14")
def test_the_ceiling_is_agreed_on_right_before_the_proposal_that_needs_it() -> None:
    bench = leader(tuning=STAMPING)
    ordered = propose(bench, NOON)
    appended = [append.headers for append in of_kind(ordered, effects.Append)]
    assert appended == [(ceiling(2, 2, NOON + 2000),), (Header(2, 3, size=10),)]
    assert settle(bench) == [Reply(1, Outcome.SETTLED, 3, 2, timestamp=NOON)]


@pytest.mark.behaviour("YB-14")
def test_below_the_ceiling_no_other_entry_is_needed() -> None:
    bench = leader(tuning=STAMPING)
    propose(bench, NOON, 1)
    propose(bench, NOON + 1, 2)
    propose(bench, NOON + 2000, 3)
    assert bench.replica.log.head.offset == 5
    propose(bench, NOON + 2001, 4)
    assert bench.replica.log.head.offset == 7
    assert [reply.timestamp for reply in settle(bench)] == [NOON, NOON + 1, NOON + 2000, NOON + 2001]


@pytest.mark.behaviour("YB-14")
def test_timestamps_rise_though_the_clock_stands_still_or_falls() -> None:
    bench = leader(tuning=STAMPING)
    for request, wall_ms in enumerate((NOON, NOON, NOON - 500, NOON + 10), start=1):
        propose(bench, wall_ms, request)
    assert [reply.timestamp for reply in settle(bench)] == [NOON, NOON + 1, NOON + 2, NOON + 10]


@pytest.mark.behaviour("YB-14")
def test_a_new_leader_waits_the_old_ceiling_out() -> None:
    bench = found(NOON)
    for wall_ms in (0, NOON - 1, NOON):
        why = "a former leader's timestamps reach into the future"
        assert propose(bench, wall_ms) == [Reply(1, Outcome.BUSY, leader=1, why=why)]
    assert replies(propose(bench, NOON + 1, 2)) == []
    assert settle(bench)[0].timestamp == NOON + 1


@pytest.mark.behaviour("YB-14")
def test_its_own_ceiling_it_does_not_wait_for() -> None:
    bench = found(NOON)
    propose(bench, NOON + 1)
    assert bench.replica.ceiling == NOON + 2001
    assert replies(propose(bench, NOON + 2, 2)) == []


@pytest.mark.behaviour("YB-14")
def test_a_ceiling_counts_though_it_is_not_known_to_be_settled() -> None:
    bench = Bench(N1, "1-0", epoch=1, tuning=STAMPING)
    bench.miss_leader()
    bench.receive(N2, AppendEntries(1, at("1-0"), -1, (ceiling(1, 1, NOON),)))
    bench.persist()
    assert bench.replica.commit == -1
    assert bench.replica.ceiling == NOON


@pytest.mark.behaviour("YB-14")
def test_a_ceiling_is_taken_back_with_its_entry() -> None:
    bench = Bench(N1, "1-0", epoch=1, tuning=STAMPING)
    bench.miss_leader()
    bench.receive(N2, AppendEntries(1, at("1-0"), 0, (ceiling(1, 1, NOON),)))
    bench.receive(N2, AppendEntries(2, at("1-0"), 0, (Header(2, 1, size=5),)))
    assert bench.replica.ceiling == 0


@pytest.mark.behaviour("YB-14")
def test_a_ceiling_is_known_from_a_snapshot() -> None:
    snapshot = Snapshot(at("1-0"), 1, 10, Standing(ceiling=NOON))
    bench = Bench(N1, base=at("1-0"), epoch=1, tuning=STAMPING, snapshot=snapshot)
    assert bench.replica.ceiling == NOON
    bench.elect()
    settle(bench)
    assert replies(propose(bench, NOON))[0].outcome is Outcome.BUSY


@pytest.mark.behaviour("YB-14")
def test_who_waits_is_not_ahead_of_anybody() -> None:
    """A proposal that is refused takes no timestamp, and leaves nothing in the log."""
    bench = found(NOON)
    head = bench.replica.log.head
    propose(bench, NOON)
    assert bench.replica.log.head == head


def test_where_none_are_given_out_there_are_none() -> None:
    bench = leader()
    propose(bench, NOON)
    assert bench.replica.log.head.offset == 2
    assert settle(bench) == [Reply(1, Outcome.SETTLED, 2, 2)]
