"""The operator's part of an election: fence, choose, confirm, add whoever came late."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from quorate.core import events, metadata
from quorate.core.coordinated.messages import (
    AddFollowerRequest,
    AddFollowerResponse,
    BecomeLeaderRequest,
    BecomeLeaderResponse,
    FenceRequest,
)
from quorate.core.coordinated.shard import Phase, Shard, Status
from quorate.core.effects import Outcome, Reply, Send
from quorate.core.entry import EntryId, Member
from tests.unit.core.coordinated_kit import (
    N1,
    N2,
    N3,
    N4,
    N5,
    THREE,
    Desk,
    MoveLeader,
    Reconfiguration,
    Town,
    at,
    contract,
    electing,
    expand,
    in_election,
    propose,
    sent,
    steady,
    swap,
    written,
)

FOUR = (N1, N2, N3, N4)


@pytest.mark.behaviour("OX-4")
def test_entry_ids_compare_by_epoch_then_offset() -> None:
    assert EntryId(1, 2) < EntryId(2, 1) < EntryId(2, 2)


@pytest.mark.behaviour("OX-5")
def test_the_next_epoch_and_the_election_are_stored_before_anybody_is_fenced() -> None:
    desk = Desk(steady(3))
    desk.start()
    desk.answers = False
    ordered = desk.tell(events.Suspected(1))
    assert written(ordered) == [electing(4)]
    assert sent(ordered) == [], "the store has not answered yet"
    assert sent(desk.answer(), N2) == [FenceRequest(4, THREE)]


@pytest.mark.behaviour("OX-6")
def test_everybody_of_the_fencing_ensemble_is_fenced() -> None:
    desk = Desk(steady())
    desk.start()
    ordered = desk.tell(events.Suspected(1))
    fenced = [effect for effect in ordered if isinstance(effect, Send)]
    assert fenced == [Send(node, FenceRequest(2, THREE)) for node in (1, 2, 3)]


def test_the_first_leader_is_the_one_that_is_wanted_most() -> None:
    desk = Desk(birth=Shard(0, Status.ELECTION, THREE), prefers=(3, 1, 2))
    desk.start()
    desk.fenced(N1, None)
    assert sent(desk.fenced(N2, None), N1) == [], "n3 is waited for"
    assert [type(each) for each in sent(desk.fenced(N3, None), N3)] == [BecomeLeaderRequest]


def test_who_is_wanted_most_is_not_waited_for_for_ever() -> None:
    desk = Desk(birth=Shard(0, Status.ELECTION, THREE), prefers=(3, 1, 2))
    desk.start()
    desk.fenced(N1, None)
    desk.fenced(N2, None)
    desk.wake_until_sent(N1, BecomeLeaderRequest)


def test_where_something_is_written_nobody_is_waited_for_and_the_highest_head_leads() -> None:
    desk = Desk(steady(3, (N1, N2, N3, N4, N5), N5), prefers=(1, 2, 3, 4, 5))
    desk.start()
    desk.tell(events.Suspected(5))
    desk.fenced(N2, "3-6")
    desk.fenced(N3, "3-7")
    assert [type(each) for each in sent(desk.fenced(N4, "3-6"), N3)] == [BecomeLeaderRequest]


def test_of_equal_logs_the_one_that_is_wanted_more_leads() -> None:
    desk = Desk(steady(3, leader=N2), prefers=(2, 3, 1))
    desk.start()
    desk.tell(events.Suspected(2))
    desk.fenced(N1, "3-7")
    assert [type(each) for each in sent(desk.fenced(N3, "3-7"), N3)] == [BecomeLeaderRequest]


def test_whoever_did_not_answer_is_fenced_again() -> None:
    desk = in_election()
    desk.fenced(N2, "1-3")
    ordered = desk.wake()
    assert [effect.to for effect in ordered if isinstance(effect, Send)] == [1, 3]


@pytest.mark.behaviour("OX-8")
def test_nobody_is_chosen_before_a_majority_is_fenced() -> None:
    desk = in_election()
    assert desk.fenced(N2, "1-3") == []
    assert desk.fenced(N2, "1-3") == [], "twice the same is no majority"
    assert len(sent(desk.fenced(N3, "1-2"), N2)) == 1


@pytest.mark.behaviour("OX-8", "OX-4")
def test_the_highest_head_is_chosen_by_epoch_first() -> None:
    desk = in_election(steady(4))
    desk.fenced(N2, "3-9")
    ordered = desk.fenced(N3, "4-2")
    assert sent(ordered) == [BecomeLeaderRequest(5, 3, THREE, ((N2, at("3-9")),))]
    assert [effect.to for effect in ordered if isinstance(effect, Send)] == [3]


def test_an_answer_of_another_epoch_counts_for_nothing() -> None:
    desk = in_election(steady(4))
    desk.fenced(N2, "4-2", epoch=4)
    assert desk.fenced(N3, "4-2") == []


def test_an_outsiders_answer_counts_for_nothing() -> None:
    desk = in_election()
    desk.fenced(N4, "1-9")
    assert desk.fenced(N3, "1-2") == []


def test_another_incarnation_of_a_member_counts_for_nothing() -> None:
    desk = in_election()
    desk.fenced(Member(2, 9), "1-9")
    assert desk.fenced(N3, "1-2") == []


@pytest.mark.behaviour("OX-10")
def test_the_follower_map_holds_the_heads_that_were_there_when_the_leader_was_chosen() -> None:
    desk = in_election(steady(1, (N1, N2, N3, N4, N5)))
    desk.fenced(N3, "1-4")
    desk.fenced(N4, None)
    ordered = desk.fenced(N5, "1-7")
    (request,) = sent(ordered, N5)
    assert request.followers == ((N3, at("1-4")), (N4, EntryId(0, -1)))


@pytest.mark.behaviour("OX-17")
def test_nobody_in_the_follower_map_is_above_the_leader() -> None:
    for seed in range(200):
        rng = Random(seed)
        desk = in_election(steady(9, (N1, N2, N3, N4, N5)))
        requests: list[tuple[Member, BecomeLeaderRequest]] = []
        heads = {}
        for member in rng.sample((N1, N2, N3, N4, N5), 5):
            head = f"{rng.randint(1, 3)}-{rng.randint(0, 3)}"
            heads[member] = at(head)
            ordered = desk.fenced(member, head)
            requests += [(Member(e.to, 1), e.message) for e in ordered if isinstance(e, Send)]
        ((leader, request),) = requests
        assert all(head <= heads[leader] for _, head in request.followers)


@pytest.mark.behaviour("OX-9", "OX-13")
def test_a_late_answer_is_kept_until_the_leader_confirms_and_then_added() -> None:
    desk = in_election()
    desk.fenced(N2, "1-3")
    desk.fenced(N3, "1-2")
    assert desk.fenced(N1, "1-5") == [], "kept; the leader has not said anything"
    desk.receive(N2, BecomeLeaderResponse(2, leads=True))
    assert sent(desk.wake(), N2) == [AddFollowerRequest(2, N1, at("1-5"))]


@pytest.mark.behaviour("OX-13")
def test_who_answers_after_the_election_is_added_at_once_and_until_the_leader_says_so() -> None:
    desk = in_election()
    desk.fenced(N2, "1-3")
    desk.fenced(N3, "1-2")
    desk.receive(N2, BecomeLeaderResponse(2, leads=True))
    assert sent(desk.wake(), N1) == [FenceRequest(2, THREE)], "and asked for until it comes"
    added = AddFollowerRequest(2, N1, at("1-5"))
    assert sent(desk.fenced(N1, "1-5"), N2) == [added]
    assert sent(desk.wake(), N2) == [added]
    desk.receive(N2, AddFollowerResponse(2, N1))
    assert sent(desk.wake()) == []


@pytest.mark.behaviour("OX-12")
def test_the_leaders_answer_makes_the_shard_steady() -> None:
    desk = in_election()
    desk.fenced(N2, "1-3")
    desk.fenced(N3, "1-2")
    ordered = desk.receive(N2, BecomeLeaderResponse(2, leads=True))
    assert written(ordered) == [steady(2, leader=N2)]


def test_a_chosen_leader_that_was_fenced_anew_is_not_chosen_again_in_that_epoch() -> None:
    desk = in_election()
    desk.fenced(N2, "1-3")
    desk.fenced(N3, "1-2")
    ordered = desk.receive(N2, BecomeLeaderResponse(2, leads=False))
    assert written(ordered) == [electing(3)]


def test_a_chosen_leader_that_does_not_answer_is_given_up_with_its_epoch() -> None:
    desk = in_election()
    desk.fenced(N2, "1-3")
    desk.fenced(N3, "1-2")
    assert desk.wake_until_written() == electing(3)
    assert desk.now >= 1.5


def test_one_with_damage_is_never_chosen_and_nobody_is_while_what_it_lost_may_be_settled() -> None:
    desk = in_election()
    desk.fenced(N2, "1-9", faulty=True)
    assert sent(desk.fenced(N3, "1-2")) == [], "1-9 may be settled, on N1 and N2"
    (request,) = sent(desk.fenced(N1, "1-2"), N3)
    assert request.followers == ((N2, at("1-9")),), "two of three never had it; N1 was said to be gone"


# ---- fencing and final ensemble ----


@pytest.mark.behaviour("OX-19", "OX-21")
@pytest.mark.parametrize("change", [swap(N3, N4, Phase.COMMIT), expand(N4, Phase.COMMIT)])
def test_the_new_node_of_a_change_in_its_commit_phase_is_fenced_too(change: Reconfiguration) -> None:
    desk = in_election(steady(change=change))
    assert desk.shard == electing(change=change)
    desk.fenced(N2, "1-3")
    assert desk.fenced(N3, "1-3") == [], "two of four: N1 and N4 may be replicating to each other"
    assert len(sent(desk.fenced(N4, "1-4"), N4)) == 1


@pytest.mark.behaviour("OX-19")
def test_before_its_commit_phase_the_new_node_is_nobody() -> None:
    assert steady(change=swap(N3, N4)).fencing_ensemble == THREE
    assert steady(change=contract(N3, Phase.COMMIT)).fencing_ensemble == THREE


@pytest.mark.behaviour("OX-20")
def test_leader_and_followers_come_from_the_final_ensemble_only() -> None:
    desk = in_election(steady(change=swap(N3, N4, Phase.COMMIT)))
    desk.fenced(N3, "1-9")
    desk.fenced(N2, "1-3")
    ordered = desk.fenced(N4, "1-2")
    assert sent(ordered, N2) == [BecomeLeaderRequest(2, 2, (N1, N2, N4), ((N4, at("1-2")),))]
    ordered = desk.receive(N2, BecomeLeaderResponse(2, leads=True))
    assert written(ordered) == [steady(2, (N1, N2, N4), leader=N2)], "completed, and cleared (OX-28)"


# ---- operators come and go ----


@pytest.mark.behaviour("OX-2")
def test_a_new_operator_takes_up_a_half_done_election_in_another_epoch() -> None:
    desk = Desk(electing(5))
    assert written(desk.start()) == [electing(6)]


@pytest.mark.behaviour("OX-2")
def test_a_shard_that_nobody_has_heard_of_is_born_and_elected() -> None:
    desk = Desk(birth=Shard(0, Status.ELECTION, THREE))
    assert written(desk.start()) == [Shard(0, Status.ELECTION, THREE), electing(1)]


@pytest.mark.behaviour("OX-3")
def test_a_deposed_operator_does_nothing_more_of_what_it_began() -> None:
    desk = in_election()
    desk.fenced(N2, "1-3")
    desk.fenced(N3, "1-2")
    desk.store.version, desk.store.shard = 9, steady(7, leader=N3)
    ordered = desk.receive(N2, BecomeLeaderResponse(2, leads=True))
    assert sent(ordered) == []
    assert desk.store.shard == steady(7, leader=N3)
    assert desk.operator.shard == steady(7, leader=N3)


@pytest.mark.behaviour("OX-3")
def test_an_operator_that_hears_of_a_later_epoch_reads_before_it_goes_on() -> None:
    desk = in_election()
    ordered = desk.fenced(N2, "1-3", epoch=8)
    asked: Any = ordered[0]
    assert type(asked) is metadata.ReadShard


@pytest.mark.behaviour("OX-3")
def test_two_operators_that_take_turns_lose_nothing_that_was_acknowledged() -> None:
    town = Town("", "", "")
    town.start()
    town.wake()
    propose(town.leader(), 1)
    town.settle()
    zombie = town.desk
    rival = town.new_operator(102)
    rival.start()
    town.settle()
    for turn in range(6):
        town.desk = (rival, zombie)[turn % 2]
        assert town.desk.shard is not None
        if town.desk.shard.leader is not None:
            town.desk.tell(events.Suspected(town.desk.shard.leader.node))
        town.settle()
        town.wake(10)
    assert Reply(1, Outcome.SETTLED, 1, 1) in town.replies
    assert all(log.startswith("1-0 1-1") for log in town.logs())
    assert len(set(town.logs())) == 1


def test_a_leader_is_moved_to_somebody_else_where_that_can_be() -> None:
    desk = Desk(steady())
    desk.start()
    desk.tell(events.Commanded(MoveLeader(7)))
    desk.fenced(N1, "1-9")
    desk.fenced(N2, "1-9")
    ordered = desk.fenced(N3, "1-8")
    assert len(sent(ordered, N2)) == 1
    ordered = desk.receive(N2, BecomeLeaderResponse(2, leads=True))
    assert Reply(7, Outcome.SETTLED, leader=2) in ordered


# ---- rounds ----


@pytest.mark.behaviour("OX-6", "OX-8", "OX-11", "OX-12", "OX-14", "OX-36")
def test_an_election_in_a_quiet_world_takes_exactly_the_rounds_of_the_document() -> None:
    """N2 has the highest head; N1 must truncate; N3, whose answer is last, is added late."""
    town = Town("1-0 1-1", "1-0 2-1", "1-0 2-1", epoch=2)
    town.start()
    assert town.rounds == [
        ["operator 1 -> n1 FenceRequest", "operator 1 -> n2 FenceRequest", "operator 1 -> n3 FenceRequest"],
        [
            "n1 -> operator 1 FenceResponse",
            "n2 -> operator 1 FenceResponse",
            "n3 -> operator 1 FenceResponse",
        ],
        ["operator 1 -> n2 BecomeLeaderRequest"],
        ["n2 -> n1 TruncateRequest", "n2 -> operator 1 BecomeLeaderResponse"],
        ["n1 -> n2 TruncateResponse"],
        ["n2 -> n1 AddEntryRequest"],
        ["n1 -> n2 AddEntryResponse"],
    ]
    assert town.desk.shard == steady(3, leader=N2)
    assert town.leader().replica.commit == 2
    town.rounds.clear()
    town.desk.wake()
    town.settle()
    assert town.rounds == [
        ["operator 1 -> n2 AddFollowerRequest"],
        ["n2 -> n3 AddEntryRequest", "n2 -> operator 1 AddFollowerResponse"],
        ["n3 -> n2 AddEntryResponse"],
    ]
    assert town.logs() == ["1-0 2-1 3-2"] * 3


@pytest.mark.behaviour("OX-13", "OX-16")
def test_a_late_responder_above_the_leader_is_cut_to_the_leaders_head() -> None:
    town = Town("1-0 1-1 1-2", "1-0", "1-0", epoch=1)
    town.down = {1}
    town.start()
    assert town.desk.shard == steady(2, leader=N2)
    town.down = set()
    town.wake()
    assert town.logs() == ["1-0 2-1"] * 3
