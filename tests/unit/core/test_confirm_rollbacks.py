"""ROLLBACK: a decision that is settled by its own quorum, and undoable until then (TT-9 to TT-11, D8)."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.core import commands, confirm, effects, events
from quorate.core.confirm.messages import AppendEntries, AppendResponse
from quorate.core.effects import Outcome
from quorate.core.entry import Header, Kind, Quorums, Rollback, Span
from tests.unit.core.confirm_kit import (
    MANUAL,
    SYNC,
    Bench,
    appended,
    committed,
    flushed,
    following,
    keep_alive,
    leader,
    let_time_pass,
    new_leader,
    outcomes,
    propose,
    reasons,
    reports,
    send,
)
from tests.unit.core.kit import FIVE, N1, N2, N3, NOWHERE, THREE, at, orders, sent

ASYNC = 0
SINGLY = confirm.Tuning(election_timeout_s=1.0, heartbeat_s=0.1, message_entries_max=1)


def with_limbo(**more: Any) -> Bench:
    """A leader with two transactions, flushed here and nowhere else."""
    bench = leader(**more)
    propose(bench, 1)
    propose(bench, 2, ASYNC)
    bench.persist()
    return bench


# ---- too few follow ----


@pytest.mark.behaviour("TT-9", "TT-19")
def test_with_too_few_replicas_the_leader_takes_no_writes_and_says_why() -> None:
    bench = leader()
    propose(bench, 1)
    ordered = let_time_pass(bench, 1.2)
    assert reports(ordered) == ["incomplete quorum: too few of {n1,n2,n3} follow; writes are refused"]
    ordered = propose(bench, 2)
    assert outcomes(ordered) == [(2, Outcome.BUSY)]
    assert reasons(ordered) == ["incomplete quorum: too few replicas follow"]
    keep_alive(bench, N2)
    let_time_pass(bench, 0.2)
    assert outcomes(propose(bench, 3)) == [], "enough are back"


@pytest.mark.behaviour("TT-9")
def test_after_a_while_a_leader_that_is_alone_lets_others_try() -> None:
    bench = leader()
    propose(bench, 1)
    assert outcomes(let_time_pass(bench, 5.0)) == []
    assert bench.replica.role.name == "leader"
    assert outcomes(let_time_pass(bench, 2.0)) == [(1, Outcome.UNKNOWN)]
    assert bench.replica.role.name != "leader"


@pytest.mark.behaviour("TT-9", "TT-12")
def test_where_nothing_is_automatic_a_leader_that_is_alone_leads_until_it_is_told_otherwise() -> None:
    bench = leader(tuning=MANUAL)
    propose(bench, 1)
    let_time_pass(bench, 100.0)
    assert bench.replica.role.name == "leader"


@pytest.mark.behaviour("TT-9", "D9")
def test_a_replica_that_does_not_count_does_not_make_a_quorum_of_followers() -> None:
    bench = leader()
    propose(bench, 1)
    for _ in range(4):
        let_time_pass(bench, 0.5)
        flushed(bench, N2, 0, loose=True)
    assert outcomes(propose(bench, 2)) == [(2, Outcome.BUSY)]


# ---- the order ----


@pytest.mark.behaviour("TT-10")
def test_a_rollback_names_the_first_that_waits_and_is_replicated() -> None:
    bench = with_limbo()
    ordered = bench.command(commands.RollBack(9))
    rollback = Header(1, 3, kind=Kind.CONTROL, control=Rollback(1))
    assert orders(ordered) == [effects.Append(bench.replica.ordering.issued, (rollback,))]
    assert sent(ordered, N2)[-1].headers[-1] == rollback


@pytest.mark.behaviour("TT-10", "D8")
def test_nobody_hears_of_a_rollback_before_it_is_on_a_quorum() -> None:
    bench = with_limbo()
    bench.command(commands.RollBack(9))
    assert outcomes(bench.persist()) == []
    assert outcomes(flushed(bench, N2, 2)) == []
    assert bench.replica.commit == 0
    ordered = flushed(bench, N2, 3)
    assert outcomes(ordered) == [
        (1, Outcome.ROLLED_BACK),
        (2, Outcome.ROLLED_BACK),
        (9, Outcome.SETTLED),
    ]
    assert committed(ordered) == [3]
    assert appended(ordered) == "", "nothing was confirmed"
    assert [bench.replica.log.is_void(offset) for offset in range(4)] == [False, True, True, False]


@pytest.mark.behaviour("TT-10", "D8")
def test_an_acknowledgement_does_not_race_a_rollback_that_is_being_written() -> None:
    """Even the whole ensemble has the transactions by now: the decision is in the log, and it is the only one."""
    bench = with_limbo()
    bench.command(commands.RollBack(9))
    for follower in (N2, N3):
        ordered = flushed(bench, follower, 2)
        assert outcomes(ordered) == []
        assert committed(ordered) == []
    assert bench.replica.commit == 0
    assert bench.kinds() == "1-0P 1-1s 1-2a 1-3R1"


@pytest.mark.behaviour("TT-10")
def test_an_acknowledgement_that_came_first_is_a_decision_too() -> None:
    bench = with_limbo()
    assert outcomes(flushed(bench, N2, 1)) == [(1, Outcome.SETTLED), (2, Outcome.FLUSHED)]
    assert appended(bench.command(commands.RollBack(9))) == "1-3C1 1-4R2", "from the first that is undecided"


@pytest.mark.behaviour("TT-38")
def test_a_rollback_takes_all_later_ones_with_it_asynchronous_ones_too() -> None:
    bench = leader()
    propose(bench, 1, ASYNC)
    bench.persist()
    flushed(bench, N2, 1)
    for request, flags in ((2, SYNC), (3, ASYNC), (4, SYNC)):
        propose(bench, request, flags)
    bench.persist()
    bench.command(commands.RollBack(9))
    bench.persist()
    ordered = flushed(bench, N3, 5)
    assert outcomes(ordered)[:3] == [(request, Outcome.ROLLED_BACK) for request in (2, 3, 4)]
    assert [bench.replica.log.is_void(offset) for offset in range(6)] == [
        False,
        False,
        True,
        True,
        True,
        False,
    ]


@pytest.mark.behaviour("TT-10")
def test_while_a_rollback_is_open_no_transaction_is_taken() -> None:
    bench = with_limbo()
    bench.command(commands.RollBack(9))
    ordered = propose(bench, 3)
    assert outcomes(ordered) == [(3, Outcome.BUSY)]
    assert reasons(ordered) == ["a rollback is not settled yet"]
    bench.persist()
    flushed(bench, N2, 3)
    assert outcomes(propose(bench, 4)) == []


@pytest.mark.behaviour("TT-10", "TT-36")
def test_a_transaction_that_is_settled_in_part_is_not_torn_apart() -> None:
    bench = leader()
    halves = (Header(0, 0, size=10, flags=SYNC), Header(0, 0, size=10, flags=SYNC))
    bench.tell(events.Proposed(1, halves))
    propose(bench, 2)
    bench.persist()
    flushed(bench, N2, 1)
    assert appended(bench.command(commands.RollBack(9))) == "1-4C1 1-5R3"
    bench.persist()
    ordered = flushed(bench, N2, 5)
    assert outcomes(ordered) == [(1, Outcome.SETTLED), (2, Outcome.ROLLED_BACK), (9, Outcome.SETTLED)]


@pytest.mark.behaviour("TT-10")
def test_two_orders_are_one_rollback_and_both_are_answered() -> None:
    bench = with_limbo()
    bench.command(commands.RollBack(8))
    assert appended(bench.command(commands.RollBack(9))) == ""
    bench.persist()
    assert outcomes(flushed(bench, N2, 3))[-2:] == [(8, Outcome.SETTLED), (9, Outcome.SETTLED)]


@pytest.mark.behaviour("TT-10")
def test_with_nothing_to_take_back_there_is_nothing_to_write() -> None:
    bench = leader()
    ordered = bench.command(commands.RollBack(9))
    assert outcomes(ordered) == [(9, Outcome.SETTLED)]
    assert appended(ordered) == ""


@pytest.mark.behaviour("TT-10", "D6")
def test_a_leader_that_has_not_settled_its_promote_rolls_nothing_back() -> None:
    bench = new_leader("1-0P 1-1s", epoch=1)
    ordered = bench.command(commands.RollBack(9))
    assert outcomes(ordered) == [(9, Outcome.BUSY)]
    assert appended(ordered) == ""


@pytest.mark.behaviour("D8")
def test_whoever_waits_for_a_rollback_when_leadership_ends_hears_unknown() -> None:
    bench = with_limbo()
    bench.command(commands.RollBack(9))
    ordered = bench.receive(N3, AppendEntries(4, NOWHERE, -1))
    assert outcomes(ordered) == [(1, Outcome.UNKNOWN), (2, Outcome.UNKNOWN), (9, Outcome.UNKNOWN)]


@pytest.mark.behaviour("TT-11")
def test_after_a_rollback_quorums_are_changed_and_writes_are_taken_again() -> None:
    bench = with_limbo(voters=FIVE, quorums=Quorums(4, 3))
    let_time_pass(bench, 1.5)
    assert outcomes(propose(bench, 3)) == [(3, Outcome.BUSY)]
    bench.command(commands.RollBack(9))
    bench.persist()
    for follower in FIVE[1:4]:
        ordered = flushed(bench, follower, 3)
    assert outcomes(ordered)[-1] == (9, Outcome.SETTLED)
    bench.command(commands.ChangeMembership(10, THREE, quorums=Quorums(2, 2)))
    for _ in range(3):
        bench.persist()
        for follower in FIVE[1:4]:
            ordered = flushed(bench, follower, bench.replica.log.head.offset)
    bench.persist()
    assert bench.replica.membership.ensemble == THREE
    let_time_pass(bench, 0.1)
    propose(bench, 11)
    bench.persist()
    head = bench.replica.log.head.offset
    assert outcomes(flushed(bench, N2, head)) == [(11, Outcome.SETTLED)]


# ---- successors ----


@pytest.mark.behaviour("D8")
def test_a_successor_without_the_rollback_confirms_what_it_would_have_voided() -> None:
    bench = new_leader("1-0P2 1-1s 1-2s", epoch=1)
    flushed(bench, N3, 2)
    ordered = flushed(bench, N3, 3)
    assert appended(ordered) == "2-4C2"
    assert not bench.replica.log.is_void(1)


@pytest.mark.behaviour("D8")
def test_a_successor_with_the_rollback_carries_it_out() -> None:
    bench = new_leader("1-0P2 1-1s 1-2s 1-3R1", epoch=1)
    flushed(bench, N3, 3)
    ordered = flushed(bench, N3, 4)
    assert appended(ordered) == "", "nothing that is valid waits for a CONFIRM"
    assert committed(ordered) == [4]
    assert bench.replica.log.is_void(1)
    assert bench.replica.log.is_void(2)


@pytest.mark.behaviour("D8")
def test_a_successor_does_not_settle_its_way_into_a_rollback() -> None:
    """PROMOTE is behind the ROLLBACK: until it is on a quorum nothing is decided, not even what is older."""
    bench = new_leader("1-0P2 1-1s 1-2s 1-3R1", epoch=1)
    for offset in (1, 2, 3):
        assert committed(flushed(bench, N3, offset)) == []


@pytest.mark.behaviour("TT-23", "D8")
def test_a_successor_confirms_what_its_predecessor_took_after_the_rollback() -> None:
    bench = new_leader("1-0P2 1-1s 1-2R1 1-3s", epoch=1)
    flushed(bench, N3, 3)
    ordered = flushed(bench, N3, 4)
    assert appended(ordered) == "2-5C3"
    assert [bench.replica.log.is_void(offset) for offset in (1, 3)] == [True, False]


@pytest.mark.behaviour("D8")
def test_the_void_stay_void_when_a_later_rollback_follows() -> None:
    bench = new_leader("1-0P2 1-1s 1-2R1 1-3s 1-4s 1-5R4", epoch=1)
    flushed(bench, N3, 5)
    assert appended(flushed(bench, N3, 6)) == "2-7C3"
    void = [offset for offset in range(7) if bench.replica.log.is_void(offset)]
    assert void == [1, 4]


# ---- followers ----


@pytest.mark.behaviour("D8")
def test_a_follower_that_has_not_the_rollback_is_not_told_that_what_it_voids_is_settled() -> None:
    """The leader knows that 3 is settled. What it says of that depends on where each message ends."""
    bench = with_limbo(tuning=SINGLY)
    bench.command(commands.RollBack(9))
    bench.persist()
    flushed(bench, N2, 3)
    assert bench.replica.commit == 3
    bench.receive(N3, AppendResponse(1, False, 2, 0, 0, theirs=at("1-0")))
    ordered = bench.receive(N3, AppendResponse(1, True, 0, 0, 0))
    told = [(message.headers[0].offset, message.commit) for message in sent(ordered, N3)]
    assert told == [(1, 0), (2, 0), (3, 3)]


@pytest.mark.behaviour("D6")
def test_the_word_of_a_former_leader_settles_nothing() -> None:
    """It speaks of its own log, and nobody has compared this one with it since another leads."""
    bench = following("1-0P2 1-1s 2-2P", commit=0, me=N3)
    ordered = bench.receive(N2, AppendEntries(1, at("1-1"), 1))
    assert committed(ordered) == []
    assert bench.replica.commit == 0


@pytest.mark.behaviour("D8")
def test_what_is_durable_inside_a_void_range_is_not_published() -> None:
    bench = following("1-0P")
    send(bench, at("1-0"), "1-1s 1-2s", commit=0)
    transactions = bench.replica.ordering.issued
    send(bench, at("1-2"), "1-3R1", commit=3)
    assert bench.replica.commit == 3
    ordered = bench.tell(events.Persisted(transactions))
    assert bench.replica.durable == at("1-2")
    assert committed(ordered) == []
    assert committed(bench.persist()) == [3]


@pytest.mark.behaviour("D8")
def test_a_refused_rollback_leaves_nothing_settled_that_it_voids() -> None:
    """The disk takes the transactions, and not the ROLLBACK behind them; all is settled."""
    bench = following("1-0P")
    send(bench, at("1-0"), "1-1s 1-2s", commit=0)
    bench.persist()
    send(bench, at("1-2"), "1-3R1", commit=3)
    assert bench.replica.commit == 3
    ordered = bench.tell(events.Failed(bench.replica.ordering.issued, "disk full", at("1-2")))
    assert committed(ordered) == []
    assert bench.replica.commit == 0
    assert committed(bench.persist()) == []


@pytest.mark.behaviour("D8")
def test_a_rollback_that_a_successor_does_not_have_is_cut_and_its_transactions_stay() -> None:
    bench = following("1-0P", commit=0)
    send(bench, at("1-0"), "1-1s 1-2R1", commit=0)
    bench.persist()
    ordered = send(bench, at("1-1"), "2-2P3", commit=2, sender=N3) + bench.persist()
    assert bench.kinds() == "1-0P 1-1s 2-2P3"
    assert committed(ordered) == [1, 2]
    assert not bench.replica.log.is_void(1)


# ---- forced ----


@pytest.mark.behaviour("TT-24", "D8")
def test_a_forced_rollback_is_recorded_under_a_new_epoch() -> None:
    bench = Bench(N1, "1-0P2 1-1s 1-2s", epoch=1)
    bench.promote(7, roll_back=True)
    ordered = bench.elect(N2)
    assert appended(ordered) == "2-3P 2-4R1"
    rollback = bench.replica.log.newest(Rollback)
    assert rollback is not None
    assert rollback.control == Rollback(1, forced=True)
    bench.persist()
    flushed(bench, N2, 2)
    assert committed(flushed(bench, N2, 3)) == [], "PROMOTE alone does not settle what is to be voided"
    ordered = flushed(bench, N2, 4)
    assert outcomes(ordered) == [(7, Outcome.SETTLED)]
    assert [bench.replica.log.is_void(offset) for offset in (1, 2)] == [True, True]
    assert "C" not in bench.kinds()


@pytest.mark.behaviour("TT-24", "D8")
def test_a_forced_rollback_spares_what_a_voter_knows_to_be_settled() -> None:
    bench = Bench(N1, "1-0P2 1-1s 1-2s", epoch=1)
    bench.promote(7, roll_back=True)
    assert appended(bench.elect(N2, commit=1)) == "2-3P 2-4R2"
    bench.persist()
    flushed(bench, N2, 2)
    assert appended(flushed(bench, N2, 4)) == "2-5C1"
    assert [bench.replica.log.is_void(offset) for offset in (1, 2)] == [False, True]


@pytest.mark.behaviour("TT-24")
def test_a_forced_rollback_reaches_what_was_damaged_and_mended() -> None:
    """The headers of that are not in memory any more."""
    bench = Bench(N1, "1-0P2 1-1s 1-2s 1-3s", epoch=1)
    lost = bench.replica.log.window[1:3]
    bench.replica.log.mark_faulty(Span(at("1-0"), at("1-2")))
    bench.replica.log.repaired(tuple(lost))
    bench.promote(7, roll_back=True)
    assert appended(bench.elect(N2, commit=0)) == "2-4P 2-5R1"


@pytest.mark.behaviour("TT-24")
def test_a_forced_rollback_spares_what_a_confirm_in_the_log_names() -> None:
    bench = Bench(N1, "1-0P2 1-1s 1-2s 1-3C1", epoch=1)
    bench.promote(7, roll_back=True)
    assert appended(bench.elect(N2)) == "2-4P 2-5R2"


@pytest.mark.behaviour("TT-24")
def test_a_leader_can_be_promoted_again_to_force_a_rollback() -> None:
    bench = with_limbo()
    ordered = bench.promote(7, roll_back=True)
    assert outcomes(ordered) == [(1, Outcome.UNKNOWN), (2, Outcome.UNKNOWN)]
    assert appended(bench.elect(N2)) == "2-3P 2-4R1"


@pytest.mark.behaviour("TT-24", "D8")
def test_a_replica_on_which_it_was_settled_reports_a_forced_rollback_and_does_not_count() -> None:
    """Nobody who voted knew. It neither voids what its machine has settled, nor goes on as if nothing had been."""
    bench = following("1-0P 1-1s", commit=1)
    assert bench.replica.commit == 1
    ordered = send(bench, at("1-1"), "2-2P3 2-3R1", commit=0, sender=N3)
    assert reports(ordered) == ["a forced rollback takes back offset 1, settled here: wipe this replica"]
    assert bench.kinds() == "1-0P 1-1s"
    assert not bench.replica.counts
    assert reports(send(bench, at("1-1"), "2-2P3 2-3R1", commit=0, sender=N3)) == [], "once"


@pytest.mark.behaviour("D8")
def test_a_rollback_of_the_past_detaches_nobody() -> None:
    """Its leader is gone, its successor has confirmed the transaction; the message was slow."""
    bench = following("1-0P2 1-1s 2-2P", commit=2, me=N3)
    ordered = bench.receive(N2, AppendEntries(1, at("1-1"), 0, (Header(1, 2, kind=1, control=Rollback(1)),)))
    assert reports(ordered) == []
    assert bench.replica.counts
