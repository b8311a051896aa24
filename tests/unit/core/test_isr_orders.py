"""What a person can order of a controller of `isr`, and what is refused."""

from __future__ import annotations

import pytest

from quorate.core import events, isr, metadata
from quorate.core.effects import Outcome
from quorate.core.entry import Member
from quorate.core.isr.invariants import IsrInvariants
from quorate.core.isr.orders import ChangeReplicas, ElectUncleanly, MoveLeader, Order
from quorate.core.isr.state import Unclean
from tests.unit.core.isr_kit import AGAIN, CONTROLLER_TUNING, Desk, at_work, state, told
from tests.unit.core.kit import N1, N2, N3, N4, THREE, Store, replies, sent


def outcome(desk: Desk, order: object) -> Outcome:
    (reply,) = replies(desk.order(order))
    return reply.outcome


@pytest.mark.behaviour("LB-16")
def test_a_wiped_replica_is_swapped_for_what_it_is_now_and_is_not_in_sync() -> None:
    desk = at_work(state(isr_now=(N1, N2)))
    assert outcome(desk, ChangeReplicas(7, old=N3, new=AGAIN)) is Outcome.SETTLED
    assert desk.stored == state(2, replicas=(N1, N2, AGAIN), isr_now=(N1, N2))


def test_a_wiped_leader_is_swapped_and_another_leads_in_one_step() -> None:
    desk = at_work(state(leader=N3, min_isr=2))
    assert outcome(desk, ChangeReplicas(7, old=N3, new=AGAIN)) is Outcome.SETTLED
    stored = desk.stored
    assert (stored.epoch, stored.leader_epoch, stored.isr) == (2, 2, (N1, N2))
    assert stored.leader in (N1, N2)


def test_a_wiped_replica_goes_even_if_too_few_stay_in_sync_and_cannot_lead_any_more() -> None:
    desk = at_work(state(leader=N3, isr_now=(N1, N3), min_isr=2))
    assert outcome(desk, ChangeReplicas(7, old=N3, new=AGAIN)) is Outcome.SETTLED
    assert desk.stored == state(2, 2, N1, replicas=(N1, N2, AGAIN), isr_now=(N1,), min_isr=2)


def test_whoever_is_eligible_is_not_forgotten_when_a_wiped_leader_is_swapped() -> None:
    before = state(leader=N3, isr_now=(N3,), elr=(N1, N2), min_isr=2)
    desk = at_work(before)
    assert outcome(desk, ChangeReplicas(7, old=N3, new=AGAIN)) is Outcome.SETTLED
    leader, other = desk.stored.leader, N1 if desk.stored.leader == N2 else N2
    assert desk.stored == state(
        2, 2, leader, replicas=(N1, N2, AGAIN), isr_now=(leader,), elr=(other,), min_isr=2
    )
    IsrInvariants()._follows(0, before, desk.stored, "swapped")


@pytest.mark.parametrize(
    ("stored", "gone", "old"),
    [
        (state(isr_now=(N1,), elr=(N2,), min_isr=2), (), N2),
        (state(), (2, 3), N1),
    ],
)
def test_the_last_one_that_has_everything_and_is_there_is_not_removed(
    stored: isr.PartitionState, gone: tuple[int, ...], old: Member
) -> None:
    desk = at_work(stored)
    for node in gone:
        desk.tell(events.Suspected(node))
    desk.heard(N1, can_lead=old == N1)
    (reply,) = replies(desk.order(ChangeReplicas(7, old=old, new=N4)))
    why = f"node {old.node} may be the only one left that has everything that is settled"
    assert (reply.outcome, reply.why) == (Outcome.REFUSED, why)


def test_replicas_are_added_and_removed() -> None:
    desk = at_work()
    assert outcome(desk, ChangeReplicas(7, new=N4)) is Outcome.SETTLED
    assert desk.stored == state(2, replicas=(N1, N2, N3, N4), isr_now=THREE)
    assert outcome(desk, ChangeReplicas(8, old=N2)) is Outcome.SETTLED
    assert desk.stored == state(3, replicas=(N1, N3, N4), isr_now=(N1, N3))


def test_whoever_is_removed_is_told() -> None:
    desk = at_work()
    assert sent(desk.order(ChangeReplicas(7, old=N3)), N3) == [told(desk.stored)]


def test_one_that_was_removed_and_does_not_know_it_is_told_when_it_speaks() -> None:
    desk = at_work(state(2, 1, replicas=(N1, N2)))
    ordered = desk.receive(N3, isr.messages.AlterIsr(1, 1, (N3,)))
    assert sent(ordered) == sent(ordered, N3) == [told(desk.stored)]
    assert desk.receive(N3, isr.messages.PartitionHeard(1, 2, leads=False)) == []


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (ChangeReplicas(7), "nobody is named"),
        (ChangeReplicas(7, old=N4), "node 4 does not hold this partition"),
        (ChangeReplicas(7, new=N2), "node 2 holds this partition already"),
        (
            ChangeReplicas(7, new=AGAIN),
            "node 3 holds this partition with another disk; swap that for this one",
        ),
        (ChangeReplicas(7, old=N2), "node 2 is in sync, and without it fewer than 2 are"),
        (ChangeReplicas(7, old=N2, new=N4), "node 2 is in sync, and without it fewer than 2 are"),
        (MoveLeader(7, N1), "node 1 leads already"),
        (MoveLeader(7, N3), "node 3 is not in sync"),
        (ElectUncleanly(7, N2), "node 2 has everything that is settled"),
        (ElectUncleanly(7, N4), "node 4 does not hold this partition"),
    ],
)
def test_what_must_not_be_is_refused_with_a_reason(order: object, why: str) -> None:
    desk = at_work(state(isr_now=(N1, N2), min_isr=2))
    (reply,) = replies(desk.order(order))
    assert (reply.outcome, reply.why) == (Outcome.REFUSED, why)
    assert desk.stored.epoch == 1


def test_so_many_hold_a_partition_as_are_needed_in_sync() -> None:
    desk = at_work(state(replicas=(N1, N2), isr_now=(N1,), min_isr=2))
    (reply,) = replies(desk.order(ChangeReplicas(7, old=N2)))
    assert reply.why == "2 are needed in sync, and fewer would hold this partition"


def test_the_only_one_who_has_everything_is_not_swapped_even_if_it_is_lost() -> None:
    desk = at_work(state(leader=N3, isr_now=(N3,)))
    (reply,) = replies(desk.order(ChangeReplicas(7, old=N3, new=AGAIN)))
    assert reply.why == "nobody else could lead who has everything that is settled"


@pytest.mark.behaviour("LB-18")
def test_the_leader_is_moved_to_whoever_is_named() -> None:
    desk = at_work()
    assert outcome(desk, MoveLeader(7, N3)) is Outcome.SETTLED
    assert desk.stored == state(2, 2, N3)
    assert outcome(desk, MoveLeader(8)) is Outcome.SETTLED
    assert desk.stored.leader != N3


def test_the_leader_is_not_moved_to_one_that_is_damaged_until_that_is_mended() -> None:
    """It could not lead, and the one that could would not any more."""
    desk = at_work()
    desk.heard(N3, can_lead=False)
    (reply,) = replies(desk.order(MoveLeader(7, N3)))
    why = "node 3 is damaged, and cannot lead before that is mended"
    assert (reply.outcome, reply.why) == (Outcome.REFUSED, why)
    assert desk.stored == state()
    desk.heard(N3)
    assert outcome(desk, MoveLeader(8, N3)) is Outcome.SETTLED
    assert desk.stored == state(2, 2, N3)


def test_an_unclean_election_is_a_persons_act_and_is_remembered() -> None:
    desk = at_work(state(4, 2, isr_now=(N1, N2), min_isr=2))
    desk.tell(events.Suspected(1))
    desk.tell(events.Suspected(2))
    assert outcome(desk, ElectUncleanly(7, N3)) is Outcome.SETTLED
    stored = desk.stored
    assert (stored.leader, stored.isr, stored.elr) == (N3, (N3,), ())
    assert stored.unclean == Unclean(stored.leader_epoch, N3, (N1, N2))
    desk.alter(N2, N3)
    assert desk.stored.unclean == stored.unclean


def test_an_order_that_another_controller_has_overtaken_did_nothing() -> None:
    store = Store(state())
    first, second = at_work(store), at_work(store)
    first.alter(N1, N2)
    assert outcome(second, MoveLeader(7, N3)) is Outcome.TIMED_OUT
    assert second.stored == state(2, isr_now=(N1, N2))


@pytest.mark.parametrize(
    ("order", "others"),
    [
        (MoveLeader(7, N3), (MoveLeader(8, N3), MoveLeader(9, N1))),
        (ChangeReplicas(7, N3, N4), (ChangeReplicas(8, N3, N4), ChangeReplicas(9, N4, N3))),
    ],
)
def test_an_order_that_others_may_have_done_and_undone_unseen_is_not_denied(
    order: Order, others: tuple[Order, ...]
) -> None:
    store = Store(state())
    first, second = at_work(store), at_work(store)
    for other in others:
        assert outcome(first, other) is Outcome.SETTLED
    assert outcome(second, order) is Outcome.UNKNOWN


def test_an_order_that_others_have_carried_out_is_done() -> None:
    store = Store(state())
    first, second = at_work(store), at_work(store)
    assert outcome(first, ChangeReplicas(7, N3, N4)) is Outcome.SETTLED
    assert outcome(second, ChangeReplicas(8, N3, N4)) is Outcome.SETTLED
    assert store.version == 2


def test_an_unclean_election_is_refused_while_somebody_is_there_who_has_everything() -> None:
    desk = at_work(state(isr_now=(N1, N2), min_isr=2))
    (reply,) = replies(desk.order(ElectUncleanly(7, N3)))
    assert reply.why == "node 1 has everything that is settled, and does not seem to be gone"
    desk.tell(events.Suspected(1))
    (reply,) = replies(desk.order(ElectUncleanly(8, N3)))
    assert reply.why == "node 2 has everything that is settled, and does not seem to be gone"


def test_a_controller_that_has_just_begun_does_not_know_yet_whether_an_unclean_election_is_needed() -> None:
    desk = Desk(state(isr_now=(N1,)))
    desk.start()
    (reply,) = replies(desk.order(ElectUncleanly(7, N3)))
    assert "try again" in reply.why
    desk.pass_time(CONTROLLER_TUNING.patience_s)
    assert outcome(desk, ElectUncleanly(8, N3)) is Outcome.SETTLED


def test_a_damaged_lone_copy_is_not_said_to_have_everything() -> None:
    desk = at_work(state(replicas=(N1,)))
    desk.heard(N1, leads=False, can_lead=False)
    (reply,) = replies(desk.order(ElectUncleanly(7, N1)))
    assert reply.why == "node 1 is damaged: it can lead once that is mended, and in no other way"


def test_an_unclean_election_of_somebody_else_is_not_what_was_ordered() -> None:
    store = Store(state(isr_now=(N1,)))
    first, second = at_work(store), at_work(store)
    first.tell(events.Suspected(1))
    second.tell(events.Suspected(1))
    for desk in (first, second):
        desk.tell(events.Suspected(1))
    assert outcome(first, ElectUncleanly(7, N2)) is Outcome.SETTLED
    assert outcome(second, ElectUncleanly(8, N3)) is Outcome.TIMED_OUT


def test_an_order_to_a_store_that_did_not_answer_may_yet_be_done() -> None:
    desk = at_work()
    desk.answers = False
    assert replies(desk.order(MoveLeader(7, N3))) == []
    (write,) = desk.open
    desk.open.clear()
    desk.tell(metadata.StoreSilent(write.token))
    desk.answers = True
    (reply,) = replies(desk.wake())
    assert reply.outcome is Outcome.UNKNOWN


def test_before_the_store_has_answered_nothing_can_be_ordered() -> None:
    desk = Desk(state())
    desk.answers = False
    desk.start()
    assert outcome(desk, MoveLeader(7)) is Outcome.REFUSED
