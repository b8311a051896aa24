"""Swap, expand, contract: the operator's part and the leader's."""

from __future__ import annotations

from typing import get_args

import pytest

from quorate.core import effects, events
from quorate.core.coordinated import messages
from quorate.core.coordinated.messages import (
    AbortReconfigurationRequest,
    AbortReconfigurationResponse,
    AddEntryRequest,
    AddFollowerRequest,
    BecomeLeaderResponse,
    CommitReconfigurationRequest,
    CommitReconfigurationResponse,
    PrepareReconfigurationRequest,
    PrepareReconfigurationResponse,
    SnapshotRequest,
    SnapshotResponse,
)
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import EntryId, Member, Snapshot
from tests.unit.core.coordinated_kit import (
    N1,
    N2,
    N3,
    N4,
    OPERATOR,
    THREE,
    Bench,
    CallOff,
    Desk,
    Kind,
    Phase,
    Reconfiguration,
    Status,
    Town,
    at,
    contract,
    electing,
    expand,
    flushed,
    in_election,
    lead,
    leader,
    of_kind,
    orders,
    propose,
    replies,
    sent,
    steady,
    swap,
    written,
)

SNAPSHOT = Snapshot(EntryId(2, 1), 1, 10)


def at_rest(ensemble: tuple[Member, ...] = THREE) -> Desk:
    desk = Desk(steady(1, ensemble))
    desk.start()
    return desk


def prepare(bench: Bench, change: Reconfiguration, epoch: int = 3) -> list[effects.Effect]:
    return bench.receive(OPERATOR, PrepareReconfigurationRequest(epoch, change))


def commit(bench: Bench, change: Reconfiguration, epoch: int = 3) -> list[effects.Effect]:
    done = Reconfiguration(change.kind, Phase.COMMIT, change.old, change.new)
    return bench.receive(OPERATOR, CommitReconfigurationRequest(epoch, done))


def abort(bench: Bench, change: Reconfiguration, epoch: int = 3) -> list[effects.Effect]:
    off = Reconfiguration(change.kind, Phase.ABORT, change.old, change.new)
    return bench.receive(OPERATOR, AbortReconfigurationRequest(epoch, off))


# ---- the operator ----


@pytest.mark.behaviour("OX-26", "OX-27", "OX-29", "D4")
@pytest.mark.parametrize("change", [swap(N3, N4), expand(N4), contract(N3)])
def test_a_change_is_stored_with_the_next_epoch_before_the_leader_hears_of_it(
    change: Reconfiguration,
) -> None:
    desk = at_rest()
    desk.answers = False
    ordered = desk.order(change.kind, old=change.old, new=change.new)
    assert written(ordered) == [steady(2, change=change)]
    assert sent(ordered) == []
    assert sent(desk.answer(), N1) == [PrepareReconfigurationRequest(2, change)]


@pytest.mark.behaviour("OX-29", "OX-30")
def test_a_swap_goes_through_both_phases_each_stored_first() -> None:
    desk = at_rest()
    desk.order(Kind.SWAP, old=N3, new=N4)
    ordered = desk.receive(N1, PrepareReconfigurationResponse(2, prepared=True, snapshot=SNAPSHOT))
    assert sent(ordered, N4) == [SnapshotRequest(2, SNAPSHOT, N1)]
    desk.answers = False
    ordered = desk.receive(N4, SnapshotResponse(2, SNAPSHOT.last, installed=True))
    committing = swap(N3, N4, Phase.COMMIT)
    assert written(ordered) == [steady(2, change=committing)]
    assert sent(ordered) == []
    desk.answers = True
    assert sent(desk.answer(), N1) == [CommitReconfigurationRequest(2, committing)]
    ordered = desk.receive(N1, CommitReconfigurationResponse(2, leads=True, done=True))
    assert written(ordered) == [steady(2, (N1, N2, N4))]
    assert Reply(7, Outcome.SETTLED, leader=1) in ordered


@pytest.mark.behaviour("OX-32")
def test_an_expansion_is_a_swap_with_no_old_node() -> None:
    desk = at_rest()
    desk.order(Kind.EXPAND, new=N4)
    desk.receive(N1, PrepareReconfigurationResponse(2, prepared=True, snapshot=SNAPSHOT))
    desk.receive(N4, SnapshotResponse(2, SNAPSHOT.last, installed=True))
    desk.receive(N1, CommitReconfigurationResponse(2, leads=True, done=True))
    assert desk.shard == steady(2, (N1, N2, N3, N4))


@pytest.mark.behaviour("OX-35")
def test_a_contraction_that_must_wait_is_asked_for_again_until_it_is_done() -> None:
    desk = at_rest()
    desk.order(Kind.CONTRACT, old=N3)
    desk.receive(N1, PrepareReconfigurationResponse(2, prepared=True))
    request = CommitReconfigurationRequest(2, contract(N3, Phase.COMMIT))
    for _ in range(3):
        assert desk.receive(N1, CommitReconfigurationResponse(2, leads=True, done=False)) == []
        assert sent(desk.wake(), N1) == [request]
    desk.receive(N1, CommitReconfigurationResponse(2, leads=True, done=True))
    assert desk.shard == steady(2, (N1, N2))


@pytest.mark.behaviour("OX-26")
def test_one_change_at_a_time_and_none_during_an_election() -> None:
    desk = at_rest()
    desk.order(Kind.EXPAND, new=N4)
    (reply,) = replies(desk.order(Kind.CONTRACT, old=N3))
    assert (reply.outcome, reply.why) == (
        Outcome.REFUSED,
        "another reconfiguration is under way: add n4 (prepare)",
    )
    (reply,) = replies(in_election().order(Kind.CONTRACT, old=N3))
    assert (reply.outcome, reply.why) == (Outcome.REFUSED, "an election is under way")


@pytest.mark.behaviour("OX-31")
def test_a_leader_that_is_to_go_is_moved_first_and_then_swapped() -> None:
    desk = at_rest()
    ordered = desk.order(Kind.SWAP, old=N1, new=N4)
    wanted = swap(N1, N4, Phase.WANTED)
    assert written(ordered) == [steady(1, change=wanted), electing(2, change=wanted)]
    desk.fenced(N1, "1-9")
    desk.fenced(N2, "1-9")
    assert len(sent(desk.fenced(N3, "1-9"), N2)) == 1
    ordered = desk.receive(N2, BecomeLeaderResponse(2, leads=True))
    assert written(ordered)[-1] == steady(3, leader=N2, change=swap(N1, N4))
    assert sent(ordered, N2)[-1] == PrepareReconfigurationRequest(3, swap(N1, N4))


@pytest.mark.behaviour("OX-28")
@pytest.mark.parametrize("change", [swap(N3, N4), expand(N4), contract(N3), swap(N3, N4, Phase.ABORT)])
def test_an_election_drops_what_is_only_prepared(change: Reconfiguration) -> None:
    desk = in_election(steady(change=change))
    assert desk.shard == electing(2)


@pytest.mark.behaviour("OX-28")
@pytest.mark.parametrize("change", [swap(N3, N4, Phase.COMMIT), expand(N4, Phase.COMMIT)])
def test_an_election_completes_what_may_have_grown(change: Reconfiguration) -> None:
    desk = in_election(steady(change=change))
    for member in (N2, N3, N4):
        desk.fenced(member, "1-3")
    desk.receive(N2, BecomeLeaderResponse(2, leads=True))
    if change.kind is Kind.EXPAND:
        kept = steady(2, change.applied_to(THREE), leader=N2, change=change)
        assert desk.shard == kept, "not forgotten before something is settled by all four"
        desk.receive(N2, CommitReconfigurationResponse(2, leads=True, done=False))
        assert desk.shard == kept
        desk.receive(N2, CommitReconfigurationResponse(2, leads=True, done=True))
    assert desk.shard == steady(2, change.applied_to(THREE), leader=N2)


@pytest.mark.behaviour("D11", "OX-28")
def test_an_election_never_completes_a_contraction_and_it_is_tried_again() -> None:
    """An entry is on N1 and N3; the contraction of N3 stands in COMMIT; N1 refuses it, and dies."""
    change = contract(N3, Phase.COMMIT)
    again = Reconfiguration(Kind.CONTRACT, Phase.WANTED, N3, again=True)
    desk = in_election(steady(change=change))
    assert desk.shard == electing(2, change=again)
    desk.fenced(N2, "1-2")
    assert desk.fenced(N3, "1-3") == [], "whoever is to go is not chosen while somebody else may come"
    chosen = desk.wake_until_sent(N3, messages.BecomeLeaderRequest)
    assert chosen.ensemble == THREE
    ordered = desk.receive(N3, BecomeLeaderResponse(2, leads=True))
    assert written(ordered) == [steady(2, leader=N3, change=again)]
    desk.wake_until_written()
    assert desk.shard == electing(3, change=again), "N3 is moved before it goes"


@pytest.mark.behaviour("OX-2", "OX-28")
@pytest.mark.parametrize(
    ("change", "request_kind"),
    [
        (swap(N3, N4), PrepareReconfigurationRequest),
        (expand(N4, Phase.COMMIT), CommitReconfigurationRequest),
        (contract(N3, Phase.COMMIT), CommitReconfigurationRequest),
        (swap(N3, N4, Phase.ABORT), AbortReconfigurationRequest),
    ],
)
def test_a_new_operator_goes_on_with_the_phase_that_is_stored(
    change: Reconfiguration, request_kind: type
) -> None:
    desk = Desk(steady(4, change=change))
    ordered = desk.start()
    assert sent(ordered, N1) == [request_kind(4, change)]
    assert written(ordered) == [], "the same epoch"


@pytest.mark.behaviour("OX-2")
def test_a_new_operator_begins_what_was_only_wanted() -> None:
    desk = Desk(steady(4, change=contract(N3, Phase.WANTED)))
    assert written(desk.start()) == [steady(5, change=contract(N3))]


def test_a_leader_that_lost_its_place_makes_an_election() -> None:
    desk = at_rest()
    desk.order(Kind.EXPAND, new=N4)
    ordered = desk.receive(N1, PrepareReconfigurationResponse(2, prepared=False))
    assert written(ordered) == [electing(3)]


@pytest.mark.behaviour("OX-36")
def test_a_prepared_change_can_be_called_off() -> None:
    desk = at_rest()
    desk.order(Kind.SWAP, old=N3, new=N4)
    ordered = desk.tell(events.Commanded(CallOff(8)))
    aborted = swap(N3, N4, Phase.ABORT)
    assert written(ordered) == [steady(2, change=aborted)]
    assert sent(ordered, N1) == [AbortReconfigurationRequest(2, aborted)]
    ordered = desk.receive(N1, AbortReconfigurationResponse(2, leads=True))
    assert desk.shard == steady(2)
    assert Reply(8, Outcome.SETTLED, leader=1) in ordered


@pytest.mark.behaviour("OX-36")
def test_what_is_being_committed_cannot_be_called_off() -> None:
    desk = Desk(steady(2, change=swap(N3, N4, Phase.COMMIT)))
    desk.start()
    (reply,) = replies(desk.tell(events.Commanded(CallOff(8))))
    assert reply.outcome is Outcome.REFUSED


@pytest.mark.behaviour("OX-36")
def test_the_documents_sixteen_messages_are_there_each_its_own_type() -> None:
    pairs = (
        "Fence BecomeLeader AddFollower Truncate Snapshot AddEntry PrepareReconfiguration CommitReconfiguration"
    ).split()
    names = {message.__name__ for message in get_args(messages.Message)}
    assert {pair + end for pair in pairs for end in ("Request", "Response")} <= names
    assert {"AbortReconfigurationRequest", "AbortReconfigurationResponse"} <= names


# ---- the leader ----


@pytest.mark.behaviour("OX-29", "OX-27", "D12")
def test_preparing_a_swap_the_leader_adopts_the_epoch_opens_it_and_answers_with_a_snapshot() -> None:
    bench = leader()
    ordered = prepare(bench, swap(N3, N4))
    assert bench.replica.epoch == 3
    assert bench.log() == "1-0 2-1 3-2"
    assert sent(ordered, N3) == [], "its cursor is gone"
    assert of_kind(ordered, effects.TakeSnapshot) == [effects.TakeSnapshot()]
    ordered = bench.tell(events.SnapshotTaken(SNAPSHOT)) + bench.persist()
    assert sent(ordered, OPERATOR) == [PrepareReconfigurationResponse(3, prepared=True, snapshot=SNAPSHOT)]


@pytest.mark.behaviour("OX-29")
def test_an_older_snapshot_does_not_do_for_the_new_node() -> None:
    """What was settled with the old node is on too few without it: the new one must have all of that."""
    bench = leader()
    bench.tell(events.SnapshotTaken(Snapshot(at("1-0"), 1, 10)))
    ordered = prepare(bench, swap(N3, N4))
    assert of_kind(ordered, effects.TakeSnapshot) == [effects.TakeSnapshot()]
    assert sent(ordered + bench.persist(), OPERATOR) == []


@pytest.mark.behaviour("D12", "OX-29", "OX-33")
@pytest.mark.parametrize("change", [swap(N3, N4), contract(N3)])
def test_from_prepare_on_the_old_nodes_acknowledgements_do_not_count(change: Reconfiguration) -> None:
    bench = leader()
    propose(bench)
    prepare(bench, change)
    bench.persist()
    flushed(bench, N3, 2, epoch=2)
    flushed(bench, N3, 3, epoch=3)
    assert bench.replica.commit == 1
    flushed(bench, N2, 3)
    assert bench.replica.commit == 3


@pytest.mark.behaviour("D12")
def test_what_is_in_flight_at_prepare_is_settled_with_the_no_op() -> None:
    bench = leader()
    propose(bench)
    prepare(bench, expand(N4))
    bench.persist()
    ordered = flushed(bench, N2, 3)
    assert Reply(1, Outcome.SETTLED, 2, 3) in ordered


@pytest.mark.behaviour("OX-30")
def test_committing_a_swap_the_new_node_is_attached_and_counts_and_the_old_one_never_again() -> None:
    bench = leader()
    prepare(bench, swap(N3, N4))
    bench.tell(events.SnapshotTaken(SNAPSHOT))
    bench.persist()
    ordered = commit(bench, swap(N3, N4))
    assert sent(ordered, OPERATOR) == [CommitReconfigurationResponse(3, leads=True, done=True)]
    assert sent(ordered, N4) == [AddEntryRequest(3, at("3-2"), -1)]
    assert lead(bench).ensemble == (N1, N2, N4)
    flushed(bench, N3, 2)
    assert bench.replica.commit == 1
    flushed(bench, N4, 2)
    assert bench.replica.commit == 2


@pytest.mark.behaviour("OX-30")
def test_a_commit_that_comes_again_is_answered_again() -> None:
    bench = leader()
    prepare(bench, expand(N4))
    bench.persist()
    commit(bench, expand(N4))
    ordered = commit(bench, expand(N4))
    assert ordered == [effects.Send(OPERATOR.node, CommitReconfigurationResponse(3, leads=True, done=True))]


@pytest.mark.behaviour("OX-32")
def test_after_an_expansion_more_are_needed() -> None:
    bench = leader()
    prepare(bench, expand(N4))
    bench.persist()
    commit(bench, expand(N4))
    propose(bench)
    bench.persist()
    flushed(bench, N2, 3)
    assert bench.replica.commit == 1, "two of four"
    flushed(bench, N3, 3)
    assert bench.replica.commit == 3


@pytest.mark.behaviour("OX-34", "OX-35")
def test_a_contraction_waits_until_all_that_is_settled_is_on_a_majority_of_those_that_stay() -> None:
    """1 to 2 are on N1 and N3; N3 is to go."""
    bench = leader()
    propose(bench)
    bench.persist()
    flushed(bench, N3, 2)
    assert bench.replica.commit == 2
    prepare(bench, contract(N3))
    bench.persist()
    ordered = commit(bench, contract(N3))
    assert sent(ordered, OPERATOR) == [CommitReconfigurationResponse(3, leads=True, done=False)]
    assert lead(bench).ensemble == THREE
    flushed(bench, N2, 3)
    ordered = commit(bench, contract(N3))
    assert sent(ordered, OPERATOR) == [CommitReconfigurationResponse(3, leads=True, done=True)]
    assert lead(bench).ensemble == (N1, N2)


@pytest.mark.behaviour("OX-33")
def test_preparing_a_contraction_the_old_cursor_goes_and_no_snapshot_is_needed() -> None:
    bench = leader()
    ordered = prepare(bench, contract(N3)) + bench.persist()
    assert sent(ordered, OPERATOR) == [PrepareReconfigurationResponse(3, prepared=True)]
    assert sorted(lead(bench).cursors) == [2]


@pytest.mark.behaviour("OX-33")
def test_who_is_to_go_is_not_added_again() -> None:
    bench = leader()
    prepare(bench, contract(N3))
    bench.persist()
    assert bench.receive(OPERATOR, AddFollowerRequest(3, N3, at("1-0"))) == []


@pytest.mark.behaviour("D2")
@pytest.mark.parametrize("change", [swap(N3, N4), expand(N4), contract(N3)])
def test_commit_never_falls_through_a_reconfiguration(change: Reconfiguration) -> None:
    bench = leader()
    propose(bench)
    bench.persist()
    flushed(bench, N3, 2)
    prepare(bench, change)
    bench.tell(events.SnapshotTaken(Snapshot(EntryId(2, 2), 1, 10)))
    bench.persist()
    assert bench.replica.commit == 2
    commit(bench, change)
    assert bench.replica.commit == 2


@pytest.mark.behaviour("OX-36")
def test_what_is_called_off_lets_the_old_node_follow_again() -> None:
    bench = leader()
    prepare(bench, contract(N3))
    bench.persist()
    ordered = abort(bench, contract(N3))
    assert sent(ordered, OPERATOR) == [AbortReconfigurationResponse(3, leads=True)]
    assert sent(ordered, N3) == [AddEntryRequest(3, at("3-2"), -1)]
    ordered = commit(bench, contract(N3))
    assert sent(ordered, OPERATOR) == [CommitReconfigurationResponse(3, leads=False, done=False)]


@pytest.mark.behaviour("OX-26")
def test_who_does_not_lead_prepares_nothing() -> None:
    bench = Bench(N1, "1-0", epoch=2)
    assert orders(prepare(bench, swap(N3, N4))) == []
    bench = leader()
    ordered = prepare(bench, swap(N3, N4), epoch=7)
    assert sent(ordered, OPERATOR) == [PrepareReconfigurationResponse(7, prepared=False)], "it missed epochs"
    assert bench.replica.epoch == 2


# ---- a whole town ----


@pytest.mark.behaviour("OX-29", "OX-30", "OX-36")
def test_a_swap_in_a_quiet_world_takes_the_messages_of_the_document_in_their_order() -> None:
    """Beside them the operator asks who follows: those that do not would be added."""
    town = Town("", "", "", "", ensemble=3)
    town.start()
    town.wake()
    propose(town.leader())
    town.settle()
    town.wake()
    town.rounds.clear()
    town.desk.order(Kind.SWAP, old=N3, new=N4)
    town.settle()
    said = [way for delivered in town.rounds for way in delivered if "operator" in way]
    assert [way for way in said if "Fence" not in way and "AddFollower" not in way] == [
        "operator 1 -> n1 PrepareReconfigurationRequest",
        "n1 -> operator 1 PrepareReconfigurationResponse",
        "operator 1 -> n4 SnapshotRequest",
        "n4 -> operator 1 SnapshotResponse",
        "operator 1 -> n1 CommitReconfigurationRequest",
        "n1 -> operator 1 CommitReconfigurationResponse",
    ]
    assert town.desk.shard == steady(2, (N1, N2, N4))
    town.wake()
    assert town.nodes[4].replica.commit == town.leader().replica.commit == 2


@pytest.mark.parametrize("kind", [Kind.SWAP, Kind.EXPAND, Kind.CONTRACT])
@pytest.mark.parametrize("after", range(12))
@pytest.mark.behaviour("OX-2", "OX-28")
def test_whenever_the_operator_dies_the_next_one_ends_what_it_began(kind: Kind, after: int) -> None:
    """After so many rounds of messages the operator is gone, and with it what was on its way to it."""
    town = Town("", "", "", "", ensemble=3)
    town.start()
    town.wake()
    propose(town.leader())
    town.settle()
    town.wake()
    town.desk.order(
        kind, old=N3 if kind is not Kind.EXPAND else None, new=N4 if kind is not Kind.CONTRACT else None
    )
    for _ in range(after):
        town.deliver()
    town.new_operator(102).start()
    town.settle()
    town.wake(20)
    shard = town.desk.shard
    assert shard is not None
    assert shard.status is Status.STEADY
    assert shard.reconfiguration is None
    holders = [town.nodes[member.node] for member in shard.ensemble]
    assert all(bench.replica.commit == town.leader().replica.log.head.offset for bench in holders)
