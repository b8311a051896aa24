"""After a restart, and behind another leader: what stays undecided, what is taken back, what is kept for people."""

from __future__ import annotations

import pytest

from quorate.core import confirm, effects, events
from quorate.core.confirm.messages import AppendEntries, AppendResponse, SnapshotChunk
from quorate.core.effects import Effect, Outcome
from quorate.core.entry import Snapshot, Span
from quorate.core.events import ReadLevel
from quorate.core.reading import StillRequest, StillResponse
from tests.unit.core.confirm_kit import (
    Bench,
    committed,
    flushed,
    following,
    leader,
    new_leader,
    nominate,
    outcomes,
    propose,
    send,
)
from tests.unit.core.kit import N1, N2, N3, NOWHERE, at, of_kind, orders, sent


def former_leader() -> Bench:
    """N1 led epoch 1, and has 1-3 and 1-4 that nobody else has: the document's ID1, coming back."""
    saved = confirm.SavedState(1, N1, NOWHERE, led=1)
    bench = Bench(N1, "1-0P 1-1s 1-2C1 1-3s 1-4s", state=saved)
    bench.miss_leader()
    return bench


# ---- restarts ----


@pytest.mark.behaviour("TT-22")
def test_a_restart_settles_what_a_confirm_in_the_log_names_and_nothing_behind_it() -> None:
    bench = Bench(N1, "1-0P 1-1s 1-2C1 1-3s", epoch=1)
    assert committed(bench.started) == [1]
    assert bench.replica.commit == 1
    assert bench.replica.log.head == at("1-3"), "the rest stays, undecided, until the role is known"


@pytest.mark.behaviour("TT-22")
def test_a_restart_without_a_confirm_settles_nothing() -> None:
    bench = Bench(N1, "1-0P 1-1s 1-2s", epoch=1)
    assert committed(bench.started) == []


@pytest.mark.behaviour("TT-22", "D8")
def test_a_restart_does_not_decide_an_open_rollback() -> None:
    bench = Bench(N1, "1-0P 1-1s 1-2C1 1-3s 1-4R3", epoch=1)
    assert committed(bench.started) == [1]
    bench = Bench(N1, "1-0P 1-1s 1-2C1 1-3s 1-4R3", epoch=1, commit=3)
    assert committed(bench.started) == [2], "whatever was noted of it beside the log"


@pytest.mark.behaviour("TT-29", "D8")
def test_what_a_snapshot_covers_is_settled_whatever_else_the_disk_says() -> None:
    """Its file was flushed, and the power failed before the next round, with which it is noted what is settled."""
    snapshot = Snapshot(at("1-2"), 7, 100)
    bench = Bench(N1, "1-0P 1-1a 1-2a 1-3a", snapshot=snapshot, epoch=1, commit=0)
    assert committed(bench.started) == [2]
    bench.promote(roll_back=True)
    bench.elect(commit=0)
    assert bench.kinds() == "1-0P 1-1a 1-2a 1-3a 2-4P 2-5R3"


@pytest.mark.behaviour("TT-31")
def test_a_confirm_of_what_a_snapshot_covers_is_legal() -> None:
    snapshot = Snapshot(at("1-3"), 7, 100)
    bench = Bench(N1, "1-4C1 1-5C3 1-6s", base=at("1-3"), snapshot=snapshot, epoch=1)
    assert bench.replica.commit == 3
    assert bench.replica.log.head == at("1-6")


@pytest.mark.behaviour("TT-31")
def test_a_log_begins_after_its_snapshot_and_goes_on_with_the_confirm() -> None:
    bench = following("1-0P 1-1s", commit=1)
    ordered = bench.tell(events.SnapshotTaken(Snapshot(at("1-1"), 7, 100)))
    assert of_kind(ordered, effects.RemovePrefix) == [
        effects.RemovePrefix(bench.replica.ordering.issued, at("1-1"))
    ]
    send(bench, at("1-1"), "1-2C1", commit=1)
    bench.persist()
    assert bench.kinds() == "1-2C1"


@pytest.mark.behaviour("TT-23", "TT-22")
def test_whoever_becomes_leader_after_a_restart_confirms_what_it_found() -> None:
    bench = new_leader("1-0P 1-1s 1-2C1 1-3s 1-4s", epoch=1)
    flushed(bench, N2, 4)
    flushed(bench, N2, 5)
    assert bench.kinds() == "1-0P 1-1s 1-2C1 1-3s 1-4s 2-5P 2-6C4"
    assert not bench.replica.log.is_void(4)


# ---- behind another leader ----


@pytest.mark.behaviour("TT-26", "TT-27")
def test_a_former_leader_takes_back_what_the_new_one_has_not_keeps_it_and_snapshots() -> None:
    bench = former_leader()
    ordered = send(bench, at("1-2"), "2-3P2", sender=N2)
    assert orders(ordered)[1:3] == [effects.Cut(3, at("1-2"), aside=True), effects.TakeSnapshot()]
    assert bench.kinds() == "1-0P 1-1s 1-2C1 2-3P2"


@pytest.mark.behaviour("TT-27")
def test_what_a_replica_only_followed_is_cut_and_not_kept() -> None:
    bench = following("1-0P 1-1s", commit=0)
    ordered = send(bench, at("1-0"), "2-1P3", sender=N3)
    assert of_kind(ordered, effects.Cut) == [effects.Cut(3, at("1-0"))]
    assert of_kind(ordered, effects.TakeSnapshot) == []


@pytest.mark.behaviour("TT-27")
def test_a_former_leader_that_took_nothing_has_nothing_to_keep() -> None:
    """Only its PROMOTE is cut: no transaction of anybody."""
    saved = confirm.SavedState(2, N1, NOWHERE, led=2)
    bench = Bench(N1, "1-0P 1-1s 2-2P", state=saved)
    bench.miss_leader()
    ordered = send(bench, at("1-1"), "3-2P2", sender=N2)
    assert of_kind(ordered, effects.Cut) == [effects.Cut(2, at("1-1"))]


@pytest.mark.behaviour("TT-27")
def test_that_it_led_is_saved_before_it_takes_writes() -> None:
    bench = new_leader("1-0P", epoch=1)
    assert bench.replica.saved_state().led == 0
    flushed(bench, N2, 0)
    saved = of_kind(flushed(bench, N2, 1), effects.SaveState)
    assert [effect.state.led for effect in saved] == [2]
    restarted = Bench(N1, "1-0P 2-1P 2-2s", state=saved[0].state)
    assert restarted.replica.led == 2


@pytest.mark.behaviour("TT-26")
def test_what_is_settled_is_never_taken_back() -> None:
    bench = former_leader()
    assert bench.replica.commit == 1
    with pytest.raises(AssertionError, match="settled"):
        bench.replica.cut(at("1-0"))


@pytest.mark.behaviour("TT-28")
def test_where_the_new_leader_no_longer_has_what_is_needed_it_sends_all() -> None:
    """A full rejoin: a snapshot in place of the log, and of everything that could have been taken back."""
    bench = former_leader()
    snapshot = Snapshot(at("2-9"), 7, 10)
    ordered = bench.receive(N2, SnapshotChunk(2, snapshot, 0, 10))
    kept = [(cut.to, cut.aside) for cut in of_kind(ordered, effects.Cut)]
    assert kept == [(at("1-1"), True)], "what it took as a leader is kept all the same (TT-27)"
    assert bench.replica.owed == at("1-4"), "and is answered for, since it may have been promised"
    ordered = bench.persist()
    assert bench.replica.log.head == at("2-9")
    assert bench.replica.commit == 9
    assert committed(ordered) == [9]
    assert sent(ordered, N2)[-1] == AppendResponse(2, True, 9, 9, 9)


@pytest.mark.behaviour("TT-28", "TT-16")
def test_who_is_being_rejoined_says_aye_to_nobody() -> None:
    """Its head says nothing then: neither the log's nor the snapshot's counts."""
    bench = former_leader()
    bench.receive(N2, SnapshotChunk(2, Snapshot(at("2-9"), 7, 10), 0, 10))
    assert bench.replica.installing
    nominate(bench, N3, 3, at("2-9"))
    assert bench.replica.epoch == 3
    assert bench.replica.vote is None


@pytest.mark.behaviour("D6")
def test_a_leader_has_no_lease_since_somebody_may_be_promoted_while_it_lasts() -> None:
    bench = leader()

    def lease(request: int) -> list[Effect]:
        return bench.tell(events.ReadAsked(request, ReadLevel.LEASE))

    lease(1)
    assert outcomes(bench.receive(N2, StillResponse(1, 1, 1.0))) == [(1, Outcome.SETTLED)]
    ordered = lease(2)
    assert outcomes(ordered) == []
    assert StillRequest(1, 2) in sent(ordered, N2), "it asks again"


@pytest.mark.behaviour("TT-28")
def test_a_leader_whose_log_begins_later_offers_its_snapshot() -> None:
    snapshot = Snapshot(at("1-3"), 7, 10)
    bench = new_leader("1-4s", base=at("1-3"), snapshot=snapshot, epoch=1)
    refusal = AppendResponse(2, False, 4, -1, -1, theirs=at("1-1"))
    ordered = bench.receive(N3, refusal)
    probe = sent(ordered, N3)[-1]
    ordered = bench.receive(N3, AppendResponse(2, False, probe.prev.offset, -1, -1, theirs=at("1-1")))
    assert sent(ordered, N3) == [SnapshotChunk(2, snapshot, 0, 10)]


# ---- snapshots, damage ----


@pytest.mark.behaviour("TT-29", "TT-30")
def test_a_snapshot_is_of_what_is_settled_so_no_rollback_reaches_it() -> None:
    """What is applied and not settled is not waited for, and its rollback aborts nothing."""
    bench = following("1-0P 1-1s", commit=1, tuning=confirm.Tuning(heartbeat_s=0.1, snapshot_every=4))
    bench.tell(events.SnapshotTaken(Snapshot(at("1-1"), 7, 100)))
    send(bench, at("1-1"), "1-2s 1-3s 1-4s 1-5s 1-6s", commit=1)
    assert of_kind(bench.persist(), effects.TakeSnapshot) == [], "five unsettled ones are nothing to snapshot"
    send(bench, at("1-6"), "1-7R3", commit=7)
    ordered = bench.persist()
    assert committed(ordered) == [7]
    assert len(of_kind(ordered, effects.TakeSnapshot)) == 1
    assert [bench.replica.log.is_void(offset) for offset in (2, 3, 6, 7)] == [False, True, True, False]


@pytest.mark.behaviour("D8")
def test_damage_may_hide_a_rollback_so_nothing_is_published_past_it() -> None:
    bench = following("1-0P 1-1s 1-2s", commit=0)
    bench.tell(events.Damaged(Span(at("1-1"), at("1-2"))))
    ordered = send(bench, at("1-2"), "1-3s", commit=3) + bench.persist()
    assert bench.replica.commit == 3
    assert committed(ordered) == []


@pytest.mark.behaviour("D8")
def test_where_damage_ends_the_comparison_nothing_is_settled_in_the_midst_of_a_rollback() -> None:
    """1-4 takes 1-2 back and is settled, but cannot be read here; behind it is 1-5, which the next leader lacks."""
    bench = Bench(N2, "1-0P 1-1s 1-2s 1-3s 1-4R2 1-5s", epoch=1, commit=1)
    bench.miss_leader()
    bench.tell(events.Damaged(Span(at("1-2"), at("1-5"))))
    send(bench, at("1-0"), "1-1s 1-2s 1-3s 1-4R2", commit=4)
    assert bench.replica.commit == 1
    bench.miss_leader()
    ordered = bench.receive(N3, AppendEntries(2, at("2-5"), 1, search=True))
    assert [cut.to for cut in of_kind(ordered, effects.Cut)] == [at("1-2")], "what was damaged is given up"
    ordered += bench.persist() + send(bench, at("1-2"), "1-3s", commit=1, sender=N3) + bench.persist()
    assert committed(ordered) == [], "1-2 is void"


@pytest.mark.behaviour("D8")
def test_a_settled_rollback_that_is_damaged_here_and_sent_again_takes_nothing_back() -> None:
    bench = following("1-0P 1-1s 1-2s 1-3R2 1-4s", commit=4)
    bench.tell(events.Damaged(Span(at("1-2"), at("1-4"))))
    ordered = send(bench, at("1-1"), "1-2s 1-3R2 1-4s", commit=4)
    assert of_kind(ordered, effects.Report) == []
    assert bench.replica.counts
    assert [effect.headers[0].id for effect in of_kind(ordered, effects.Repair)] == [at("1-3")]


# ---- all of them ----


@pytest.mark.behaviour("TT-22", "TT-23")
def test_all_restart_with_undecided_ones_and_the_first_leader_settles_them() -> None:
    log = "1-0P 1-1s 1-2s"
    one, two = Bench(N1, log, epoch=1), Bench(N2, log, epoch=1)
    assert one.replica.commit == two.replica.commit == -1
    two.miss_leader()
    two.receive(N1, sent(one.stand(), N2)[-1])
    one.receive(N2, sent(two.persist(), N1)[-1])
    assert one.replica.role.name == "leader"
    one.persist()
    two.receive(N1, AppendEntries(2, at("1-2"), -1, (one.replica.log.window[-1],)))
    flushed(one, N2, 2)
    for message in sent(two.persist(), N1):
        one.receive(N2, message)
    assert one.kinds() == "1-0P 1-1s 1-2s 2-3P 2-4C2"
    assert one.replica.commit == 3


@pytest.mark.behaviour("TT-20")
def test_a_new_leader_brings_the_formers_entries_to_whoever_lacks_them() -> None:
    bench = new_leader("1-0P2 1-1s 1-2s", epoch=1)
    ordered = bench.receive(N3, AppendResponse(2, False, 2, -1, -1, theirs=at("1-0")))
    ordered = bench.receive(N3, AppendResponse(2, True, 0, 0, -1))
    entries = [header for message in sent(ordered, N3) for header in message.headers]
    assert [header.id for header in entries] == [at("1-1"), at("1-2"), at("2-3")]
    assert propose(bench, 1) == [
        effects.Reply(1, Outcome.BUSY, leader=1, why="what former leaders left is not settled yet")
    ]
