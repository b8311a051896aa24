"""The limbo: who waits for a quorum, in which order they are answered, and what a CONFIRM is written for."""

from __future__ import annotations

import pytest

from quorate.core import commands, effects, events
from quorate.core.confirm.messages import AppendEntries, AppendResponse
from quorate.core.effects import Outcome
from quorate.core.entry import Confirm, Header, Kind, Rollback
from tests.unit.core.confirm_kit import (
    SYNC,
    TUNING,
    Bench,
    appended,
    committed,
    flushed,
    following,
    leader,
    log_of,
    new_leader,
    outcomes,
    propose,
    reasons,
    send,
)
from tests.unit.core.kit import FIVE, N1, N2, N3, N4, at, orders, sent

ASYNC = 0


def test_a_log_is_written_as_it_is_read() -> None:
    text = "1-0P 1-1s 1-2a 1-3C1 1-4R2 2-5P2"
    assert Bench(N1, text).kinds() == text
    assert log_of(text)[3].control == Confirm(at("1-1"))
    assert log_of(text)[4].control == Rollback(2)


@pytest.mark.behaviour("TT-4")
def test_a_transaction_goes_to_replicas_while_it_is_flushed_here() -> None:
    bench = leader()
    ordered = propose(bench)
    header = Header(1, 1, size=10, flags=SYNC)
    assert orders(ordered) == [effects.Append(5, (header,))]
    assert sent(ordered, N2) == sent(ordered, N3) == [AppendEntries(1, at("1-0"), 0, (header,))]


@pytest.mark.behaviour("TT-1", "TT-2")
def test_neither_the_own_flush_nor_a_replica_alone_is_a_quorum() -> None:
    bench = leader(voters=FIVE)
    propose(bench)
    assert outcomes(flushed(bench, N2, 1)) == []
    assert outcomes(flushed(bench, N3, 1)) == [], "two replicas, and not the leader's own log"
    assert outcomes(bench.persist()) == [(1, Outcome.SETTLED)]


@pytest.mark.behaviour("TT-1", "TT-2")
def test_quorum_settles_and_answers_in_one_step_and_waits_for_no_confirm() -> None:
    bench = leader()
    propose(bench)
    bench.persist()
    assert orders(flushed(bench, N2, 1)) == [
        effects.Commit(1),
        effects.Reply(1, Outcome.SETTLED, 1, 1, leader=1),
    ]


@pytest.mark.behaviour("TT-6")
def test_a_confirm_goes_with_the_next_transaction() -> None:
    bench = leader()
    propose(bench)
    bench.persist()
    flushed(bench, N2, 1)
    ordered = propose(bench, 2)
    confirm = Header(1, 2, kind=Kind.CONTROL, control=Confirm(at("1-1")))
    header = Header(1, 3, size=10, flags=SYNC)
    assert orders(ordered) == [effects.Append(6, (confirm,)), effects.Append(7, (header,))]
    assert sent(ordered, N2) == [AppendEntries(1, at("1-1"), 1, (confirm, header))], "in one message"


@pytest.mark.behaviour("TT-6")
def test_without_a_next_transaction_a_confirm_goes_with_the_heartbeat() -> None:
    bench = leader()
    propose(bench)
    bench.persist()
    flushed(bench, N2, 1)
    confirm = Header(1, 2, kind=Kind.CONTROL, control=Confirm(at("1-1")))
    before = bench.now
    ordered = bench.wake()
    assert bench.now <= before + TUNING.heartbeat_s
    assert orders(ordered) == [effects.Append(6, (confirm,))]
    assert sent(ordered, N2)[0] == AppendEntries(1, at("1-1"), 1, (confirm,)), "replicated like any other"


@pytest.mark.behaviour("TT-5", "TT-6")
def test_quorum_on_the_last_completes_all_before_it_in_order_with_one_confirm() -> None:
    bench = leader()
    for request in (1, 2, 3):
        propose(bench, request)
    bench.persist()
    ordered = flushed(bench, N3, 3)
    assert outcomes(ordered) == [(1, Outcome.SETTLED), (2, Outcome.SETTLED), (3, Outcome.SETTLED)]
    assert appended(bench.wake()) == "1-4C3"
    bench.persist()
    flushed(bench, N3, 4)
    assert bench.replica.commit == 4
    assert appended(bench.wake()) == "", "a CONFIRM needs none"


@pytest.mark.behaviour("TT-5")
def test_what_is_behind_the_quorum_still_waits() -> None:
    bench = leader()
    for request in (1, 2):
        propose(bench, request)
    bench.persist()
    assert outcomes(flushed(bench, N2, 1)) == [(1, Outcome.SETTLED)]
    assert len(bench.leading.limbo) == 1
    bench.wake()
    assert bench.kinds() == "1-0P 1-1s 1-2s 1-3C1"


@pytest.mark.behaviour("TT-36", "TT-39")
def test_without_synchronous_ones_nothing_is_confirmed() -> None:
    bench = leader()
    propose(bench, 1, ASYNC)
    assert outcomes(bench.persist()) == [(1, Outcome.FLUSHED)], (
        "on the leader's disk, and nothing more is said"
    )
    ordered = flushed(bench, N2, 1)
    assert orders(ordered) == [effects.Commit(1)]
    assert bench.kinds() == "1-0P 1-1a"
    assert bench.replica.commit == 1


@pytest.mark.behaviour("TT-36")
def test_one_synchronous_entry_makes_the_transaction_synchronous() -> None:
    bench = leader()
    headers = (Header(0, 0, size=10), Header(0, 0, size=10, flags=SYNC), Header(0, 0, size=10))
    bench.tell(events.Proposed(1, headers))
    assert outcomes(bench.persist()) == []
    assert outcomes(flushed(bench, N2, 2)) == [], "it is not there as a whole"
    ordered = flushed(bench, N2, 3)
    assert outcomes(ordered) == [(1, Outcome.SETTLED)]


@pytest.mark.behaviour("TT-37")
def test_asynchronous_ones_queue_behind_synchronous_ones() -> None:
    bench = leader()
    propose(bench, 1, ASYNC)
    propose(bench, 2, SYNC)
    propose(bench, 3, ASYNC)
    assert outcomes(bench.persist()) == [(1, Outcome.FLUSHED)], "ahead of it nobody waits"
    ordered = flushed(bench, N2, 2)
    assert outcomes(ordered) == [(2, Outcome.SETTLED), (3, Outcome.FLUSHED)], "it was flushed long since"
    assert appended(bench.wake()) == "1-4C2"


@pytest.mark.behaviour("TT-37")
def test_an_asynchronous_one_that_gets_its_quorum_with_the_synchronous_one_is_settled() -> None:
    bench = leader()
    propose(bench, 1, SYNC)
    propose(bench, 2, ASYNC)
    bench.persist()
    ordered = flushed(bench, N2, 2)
    assert outcomes(ordered) == [(1, Outcome.SETTLED), (2, Outcome.SETTLED)]
    assert appended(bench.wake()) == "1-3C1", "CONFIRM names the last synchronous one"


@pytest.mark.behaviour("TT-2", "TT-34")
def test_what_was_answered_on_flush_is_not_readable_before_its_quorum() -> None:
    bench = leader()
    propose(bench, 1, ASYNC)
    ordered = bench.persist()
    assert outcomes(ordered) == [(1, Outcome.FLUSHED)]
    assert committed(ordered) == []
    assert committed(flushed(bench, N2, 1)) == [1]


@pytest.mark.behaviour("TT-10", "TT-37")
def test_what_is_being_rolled_back_is_not_acknowledged_when_it_is_flushed() -> None:
    bench = leader()
    propose(bench, 1, ASYNC)
    assert appended(bench.command(commands.RollBack(9))) == "1-2R1"
    assert outcomes(bench.persist()) == [], "it is taken back here already"
    assert outcomes(flushed(bench, N2, 2)) == [(1, Outcome.ROLLED_BACK), (9, Outcome.SETTLED)]


@pytest.mark.behaviour("TT-5")
@pytest.mark.parametrize("flags", [SYNC, ASYNC])
def test_the_limbo_is_bounded_whoever_was_answered(flags: int) -> None:
    bench = leader(tuning=TUNING.__class__(heartbeat_s=0.1, uncommitted_entries_max=2))
    propose(bench, 1, flags)
    propose(bench, 2, flags)
    bench.persist()
    ordered = propose(bench, 3, flags)
    assert outcomes(ordered) == [(3, Outcome.BUSY)]
    assert reasons(ordered) == ["too many transactions wait for their quorum"]
    flushed(bench, N2, 1)
    assert outcomes(propose(bench, 4, flags)) == [], "one place is free"


@pytest.mark.behaviour("TT-2")
def test_whoever_waits_when_leadership_ends_hears_unknown() -> None:
    bench = leader()
    propose(bench, 1)
    propose(bench, 2, ASYNC)
    bench.persist()
    ordered = bench.receive(N2, AppendResponse(5, False, -1, -1, -1, theirs=at("1-0")))
    assert outcomes(ordered) == [(1, Outcome.UNKNOWN), (2, Outcome.UNKNOWN)]
    assert bench.replica.role.name == "follower"


@pytest.mark.behaviour("TT-7")
def test_a_replica_acknowledges_when_it_has_flushed() -> None:
    bench = following("1-0P")
    assert sent(send(bench, at("1-0"), "1-1s")) == []
    assert sent(bench.persist()) == [AppendResponse(1, True, 1, 1, 0)]


@pytest.mark.behaviour("TT-34", "TT-35")
def test_an_asynchronous_replica_is_sent_everything_and_never_counts() -> None:
    bench = leader(learners=(N4,))
    assert str(bench.replica.membership) == "{n1,n2,n3} learners {n4}"
    ordered = propose(bench)
    assert len(sent(ordered, N4)) == 1
    bench.persist()
    assert orders(flushed(bench, N4, 1)) == []
    assert outcomes(flushed(bench, N3, 1)) == [(1, Outcome.SETTLED)]


@pytest.mark.behaviour("TT-34")
def test_an_asynchronous_replica_follows_confirms_and_rollbacks_like_any_other() -> None:
    bench = following("1-0P", me=N4, learners=(N4,))
    send(bench, at("1-0"), "1-1s 1-2s", commit=1)
    assert committed(bench.persist()) == [1], "the second is applied, and can be taken back yet"
    ordered = send(bench, at("1-2"), "1-3R2", commit=3) + bench.persist()
    assert committed(ordered) == [3]
    assert bench.replica.log.is_void(2)


@pytest.mark.behaviour("TT-20", "TT-23")
def test_a_new_leader_confirms_all_that_was_left_and_no_more_than_that() -> None:
    bench = new_leader("1-0P 1-1s 1-2C1 1-3s 1-4a", epoch=1)
    assert bench.replica.commit == 1
    flushed(bench, N2, 4)
    ordered = flushed(bench, N2, 5)
    assert appended(ordered) == "2-6C3"
    assert committed(ordered) == [5]


@pytest.mark.behaviour("TT-23", "TT-39")
def test_a_new_leader_without_anything_synchronous_to_settle_writes_no_confirm() -> None:
    bench = new_leader("1-0P 1-1a", epoch=1)
    flushed(bench, N2, 1)
    assert appended(flushed(bench, N2, 2)) == ""
    assert bench.kinds() == "1-0P 1-1a 2-2P"
