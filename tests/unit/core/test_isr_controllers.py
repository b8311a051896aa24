"""The controller: what it stores, whom it believes, and whom it lets lead."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core import events, isr, metadata
from quorate.core.effects import Outcome
from quorate.core.entry import Member
from quorate.core.isr.messages import PartitionTold
from quorate.core.isr.orders import ChangeReplicas, ElectUncleanly, MoveLeader
from quorate.core.isr.state import Unclean
from tests.unit.core.isr_kit import CONTROLLER_TUNING, Desk, at_work, state, written
from tests.unit.core.kit import FIVE, N1, N2, N3, N4, N5, THREE, Store, replies, sent

AGAIN = Member(3, 2)
"""N3 with another disk."""


def told(stored: isr.PartitionState) -> PartitionTold:
    return PartitionTold(stored.leader_epoch, stored)


# ---- birth ----


@pytest.mark.behaviour("LB-1", "LB-2")
def test_a_partition_is_born_in_the_store_with_everybody_in_sync() -> None:
    desk = Desk(birth=isr.Birth(THREE, 2))
    ordered = desk.start()
    stored = desk.stored
    assert written(ordered) == [stored]
    assert (stored.epoch, stored.leader_epoch, stored.min_isr) == (1, 1, 2)
    assert stored.replicas == stored.isr == THREE
    for member in THREE:
        assert sent(ordered, member) == [told(stored)]


@pytest.mark.behaviour("LB-1")
def test_its_leader_is_drawn_by_a_chance_that_is_given() -> None:
    leaders = []
    for seed in range(20):
        desk = Desk(birth=isr.Birth(FIVE), seed=seed)
        desk.start()
        leaders.append(desk.stored.leader)
    assert set(leaders) == set(FIVE)


@pytest.mark.behaviour("LB-2")
def test_nobody_is_told_what_is_not_stored() -> None:
    desk = Desk(birth=isr.Birth(THREE))
    desk.answers = False
    assert sent(desk.start()) == []
    (asked,) = desk.open
    desk.open.clear()
    ordered = desk.tell(metadata.ShardRead(asked.token, 0, None))
    assert sent(ordered) == []
    assert sent(desk.answer()) != []


# ---- telling ----


@pytest.mark.behaviour("LB-13")
def test_everybody_is_told_until_it_answers() -> None:
    desk = Desk(state())
    desk.start()
    desk.heard(N1)
    desk.heard(N2)
    ordered = desk.wake()
    assert sent(ordered) == sent(ordered, N3) == [told(desk.stored)]
    desk.heard(N3)
    assert sent(desk.pass_time(10.0)) == []


@pytest.mark.behaviour("LB-19")
def test_another_controller_changes_nothing() -> None:
    first = at_work(state(7, 4, N2, isr_now=(N1, N2)))
    before = first.stored
    second = Desk(first.store)
    ordered = second.start()
    assert written(ordered) == []
    assert {message.state for message in sent(ordered)} == {before}
    for member in THREE:
        ordered += second.heard(member)
    assert second.stored == before
    assert written(ordered + second.pass_time(20.0)) == []


@pytest.mark.behaviour("LB-19")
def test_two_controllers_at_once_exclude_each_other() -> None:
    first = at_work(state(isr_now=(N1, N2)))
    second = at_work(first.store)
    first.alter(N1, N2, N3)
    assert second.controller.version < first.store.version
    ordered = second.tell(events.Suspected(1))
    assert first.stored == state(2, isr_now=THREE), "its write was refused, and nothing is undone"
    assert {message.state for message in sent(ordered)} == {first.stored}


def test_a_controller_that_hears_of_a_later_state_looks_at_the_store() -> None:
    first = at_work()
    second = at_work(first.store)
    first.tell(events.Suspected(1))
    assert first.stored.leader_epoch == 2
    second.receive(N2, isr.messages.PartitionHeard(2, 2, leads=True))
    assert second.controller.shard == first.stored


def test_one_without_an_answer_of_the_store_asks_again() -> None:
    desk = at_work()
    desk.answers = False
    desk.alter(N1, N2)
    (write,) = desk.open
    desk.open.clear()
    desk.tell(metadata.StoreSilent(write.token))
    desk.answers = True
    ordered = desk.wake()
    assert metadata.ReadShard in map(type, ordered)
    assert desk.alter(N1, N2) != []
    assert desk.stored.isr == (N1, N2)


# ---- who is in sync ----


@pytest.mark.behaviour("LB-20")
def test_whoever_the_leader_asks_out_leaves_and_the_epoch_rises() -> None:
    desk = at_work()
    ordered = desk.alter(N1, N2)
    assert written(ordered) == [state(2, isr_now=(N1, N2))]
    for member in THREE:
        assert sent(ordered, member) == [told(desk.stored)]
    assert desk.controller.shrinks_count == 1


@pytest.mark.behaviour("LB-23")
def test_whoever_the_leader_asks_in_comes_in_and_the_epoch_rises() -> None:
    desk = at_work(state(5, 3, isr_now=(N1,)))
    desk.alter(N1, N3)
    assert desk.stored == state(6, 3, isr_now=(N1, N3))
    assert desk.controller.expands_count == 1


@pytest.mark.behaviour("LB-20")
@pytest.mark.parametrize("stale", ["epoch", "sender"])
def test_a_request_of_the_past_or_of_somebody_else_changes_nothing(stale: str) -> None:
    desk = at_work(state(5, 3))
    ordered = desk.alter(N1, N2, epoch=4) if stale == "epoch" else desk.alter(N2, N3, sender=N2)
    assert written(ordered) == []
    if stale == "epoch":
        assert sent(ordered) == [told(desk.stored)], "it hears what is"


@pytest.mark.behaviour("LB-20")
def test_a_request_that_comes_twice_is_done_once() -> None:
    desk = at_work()
    desk.alter(N1, N2)
    assert written(desk.alter(N1, N2, epoch=1)) == []


def test_nobody_comes_in_who_does_not_hold_the_partition() -> None:
    assert written(at_work().alter(N1, N2, N4)) == []
    assert written(at_work().alter(N1, N2, AGAIN)) == [], "nor does one with another disk"


@pytest.mark.behaviour("LB-21")
def test_who_leaves_an_isr_that_is_too_small_then_may_still_lead() -> None:
    desk = at_work(state(min_isr=2))
    desk.alter(N1, N2)
    assert desk.stored.elr == ()
    desk.alter(N1)
    assert desk.stored == state(3, isr_now=(N1,), elr=(N2,), min_isr=2)
    desk.alter(N1, N3)
    assert desk.stored == state(4, isr_now=(N1, N3), min_isr=2), "from now on it may miss something"


# ---- who leads ----


@pytest.mark.behaviour("LB-13", "LB-18", "D5")
def test_reports_of_a_majority_of_the_others_in_sync_let_another_lead() -> None:
    desk = at_work(state(4, 2, replicas=FIVE))
    assert written(desk.report(N2)) == []
    assert written(desk.report(N3)) == [], "two of the four others are no majority"
    ordered = desk.report(N4)
    (stored,) = written(ordered)
    assert (stored.epoch, stored.leader_epoch) == (5, 3)
    assert stored.leader in (N2, N3, N4, N5)
    assert stored.isr == FIVE
    for member in FIVE:
        assert sent(ordered, member) == [told(stored)]


@pytest.mark.behaviour("D5")
def test_the_leader_is_not_one_of_those_whose_majority_is_needed() -> None:
    desk = at_work(state())
    assert written(desk.report(N2)) == []
    assert written(desk.report(N3))[0].leader_epoch == 2
    two = at_work(state(isr_now=(N1, N2)))
    assert written(two.report(N2))[0].leader == N2


@pytest.mark.behaviour("LB-14")
def test_too_few_reports_in_time_change_nothing() -> None:
    desk = at_work(state(replicas=FIVE))
    for member in (N2, N3, N4, N5):
        assert written(desk.report(member)) == []
        desk.pass_time(CONTROLLER_TUNING.report_s * 0.6)
    assert desk.stored.leader == N1


@pytest.mark.behaviour("LB-14")
def test_one_that_reports_again_and_again_is_one() -> None:
    desk = at_work()
    for _ in range(5):
        assert written(desk.report(N2)) == []


@pytest.mark.behaviour("LB-15")
@pytest.mark.parametrize(("epoch", "leader_epoch"), [(4, 3), (5, 2)])
def test_a_report_with_a_stale_epoch_is_rejected(epoch: int, leader_epoch: int) -> None:
    desk = at_work(state(5, 3, isr_now=(N1, N2)))
    ordered = desk.report(N2, epoch=epoch, leader_epoch=leader_epoch)
    assert written(ordered) == []
    assert sent(ordered) == [told(desk.stored)]
    assert desk.controller.reports_count == 0


@pytest.mark.behaviour("LB-15")
def test_reports_of_the_leader_of_before_are_not_counted_with_those_of_the_next() -> None:
    desk = at_work(state(replicas=FIVE))
    desk.report(N2)
    desk.report(N3)
    desk.tell(events.Suspected(1))
    assert desk.stored.leader_epoch == 2
    (reporter, *_) = [member for member in FIVE if member != desk.stored.leader]
    assert written(desk.report(reporter)) == []


def test_a_report_of_one_that_is_not_in_sync_does_not_count() -> None:
    desk = at_work(state(isr_now=(N1, N2)))
    assert written(desk.report(N3)) == []


def test_where_the_leader_is_alone_those_who_may_lead_instead_are_believed() -> None:
    desk = at_work(state(isr_now=(N1,), elr=(N2,), min_isr=2))
    assert written(desk.report(N3)) == []
    assert written(desk.report(N2)) == [state(2, 2, N2, isr_now=(N1, N2), min_isr=2)]


@pytest.mark.behaviour("LB-16", "LB-17")
def test_the_next_leader_is_in_sync_if_anybody_is() -> None:
    for seed in range(20):
        desk = at_work(state(replicas=FIVE, isr_now=(N1, N3, N5)), seed=seed)
        desk.tell(events.Suspected(1))
        assert desk.stored.leader in (N3, N5)


@pytest.mark.behaviour("LB-16")
def test_any_of_those_in_sync_can_lead() -> None:
    leaders = set()
    for seed in range(30):
        desk = at_work(state(replicas=FIVE), seed=seed)
        desk.tell(events.Suspected(1))
        leaders.add(desk.stored.leader)
    assert leaders == {N2, N3, N4, N5}


def test_if_nobody_in_sync_is_there_one_that_is_eligible_leads_and_is_in_sync_by_that() -> None:
    desk = at_work(state(isr_now=(N1,), elr=(N2,), min_isr=2))
    desk.tell(events.Suspected(1))
    assert desk.stored == state(2, 2, N2, isr_now=(N1, N2), min_isr=2)


def test_nobody_else_ever_leads_by_itself() -> None:
    desk = at_work(state(isr_now=(N1,)))
    ordered = desk.tell(events.Suspected(1)) + desk.pass_time(30.0)
    assert written(ordered) == []


def test_a_leader_that_does_not_say_that_it_leads_is_given_up() -> None:
    desk = Desk(state())
    desk.start()
    desk.heard(N2)
    desk.heard(N3)
    desk.pass_time(CONTROLLER_TUNING.patience_s)
    assert desk.stored.leader_epoch == 2
    assert desk.stored.leader in (N2, N3)


def test_one_that_says_that_it_does_not_lead_is_replaced() -> None:
    desk = at_work()
    desk.heard(N1, leads=False)
    assert desk.stored.leader in (N2, N3)


def test_one_that_has_only_not_heard_of_its_epoch_yet_is_told_again() -> None:
    desk = Desk(state(4, 3))
    desk.start()
    assert written(desk.heard(N1, leads=False, epoch=2)) == []


def test_a_lone_leader_that_has_restarted_leads_again_in_the_next_epoch() -> None:
    desk = at_work(state(isr_now=(N1,)))
    desk.heard(N1, leads=False)
    assert desk.stored == state(2, 2, N1, isr_now=(N1,))


def test_that_it_leads_said_before_it_restarted_and_heard_later_is_not_believed() -> None:
    desk = at_work(state(isr_now=(N1,)))
    desk.answers = False
    desk.heard(N1, leads=False)
    desk.open.clear()
    desk.controller.look()
    desk.answers = True
    desk.controller._effects.clear()
    desk.wake()
    assert desk.heard(N1, leads=True) == []
    assert not desk.controller._leader_leads()


def test_a_damaged_lone_survivor_does_not_lead_until_it_is_mended() -> None:
    """It is asked again: it may be the only one who ever can."""
    desk = at_work(state(isr_now=(N1,)))
    assert written(desk.heard(N1, leads=False, can_lead=False)) == []
    assert told(desk.stored) in sent(desk.wake(), N1)
    desk.heard(N1, leads=False, can_lead=True)
    assert desk.stored == state(2, 2, N1, isr_now=(N1,))


def test_a_damaged_lone_survivor_does_not_keep_those_from_leading_who_have_everything() -> None:
    desk = at_work(state(isr_now=(N1,), elr=(N2,), min_isr=2))
    desk.heard(N1, leads=False, can_lead=False)
    assert desk.stored.leader == N2


def test_one_that_is_damaged_is_not_chosen() -> None:
    for seed in range(10):
        desk = at_work(seed=seed)
        desk.heard(N2, can_lead=False)
        desk.tell(events.Suspected(1))
        assert desk.stored.leader == N3


def test_one_that_was_the_last_to_be_found_unfit_is_asked_again_when_it_is_needed() -> None:
    desk = at_work(state(isr_now=(N1, N2)))
    desk.heard(N2, can_lead=False)
    assert written(desk.tell(events.Suspected(1))) == []
    assert told(desk.stored) in sent(desk.wake(), N2)
    desk.heard(N2, can_lead=True)
    assert desk.stored.leader == N2


def test_where_a_node_has_another_disk_whoever_led_there_is_gone() -> None:
    desk = at_work(state(leader=N3))
    desk.receive(AGAIN, isr.messages.PartitionHeard(1, 1, leads=False))
    assert desk.stored.leader in (N1, N2)


# ---- orders ----


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


# ---- the state itself ----


def test_a_state_that_cannot_be_is_our_bug() -> None:
    good = state(isr_now=(N1,), elr=(N2,), min_isr=2)
    for change in (
        {"leader": N3},
        {"isr": (N1, N4)},
        {"elr": (N1,)},
        {"min_isr": 4},
        {"min_isr": 1},
        {"replicas": (N3, N2, N1)},
        {"replicas": (N1, N2, N3, AGAIN)},
    ):
        with pytest.raises(AssertionError):
            msgspec.structs.replace(good, **change)
