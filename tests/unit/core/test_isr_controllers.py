"""The controller: what it stores, whom it believes, and whom it lets lead."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core import events, isr, metadata
from quorate.core.entry import Member
from quorate.core.invariant import ImpossibleState
from quorate.core.isr.messages import PartitionHeard
from tests.unit.core.isr_kit import AGAIN, CONTROLLER_TUNING, Desk, at_work, state, told, written
from tests.unit.core.kit import FIVE, N1, N2, N3, N4, N5, THREE, Store, sent

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
        desk = Desk(birth=isr.Birth(FIVE, 3), seed=seed)
        desk.start()
        leaders.append(desk.stored.leader)
    assert set(leaders) == set(FIVE)


def test_its_leader_is_the_one_that_is_named() -> None:
    for seed in range(5):
        desk = Desk(birth=isr.Birth(THREE, 2, leader=N2), seed=seed)
        desk.start()
        assert desk.stored.leader == N2


@pytest.mark.behaviour("LB-2")
def test_nobody_is_told_what_is_not_stored() -> None:
    desk = Desk(birth=isr.Birth(THREE, 2))
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


@pytest.mark.behaviour("LB-13")
def test_whoever_does_not_answer_is_told_eight_times_and_then_every_eighth_time() -> None:
    desk = Desk(state())
    assert sent(desk.start(), N3) == [told(desk.stored)]
    desk.heard(N1)
    desk.heard(N2)

    def told_at(end_s: float) -> list[float]:
        began, times = desk.now, []
        while desk.now < began + end_s:
            ordered = desk.wake()
            assert sent(ordered) == sent(ordered, N3)
            times += [round(desk.now - began, 6) for _ in sent(ordered)]
        return times

    eagerly = [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4]
    assert told_at(6.3) == [*eagerly, 3.0, 4.6, 6.2]
    assert sent(desk.alter(N1, N2), N3) == [told(desk.stored)]
    desk.heard(N1)
    desk.heard(N2)
    assert told_at(3.1) == [*eagerly, 3.0], "what is new is told eagerly again"


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


def test_what_is_based_on_an_older_state_is_refused_by_the_store() -> None:
    store = Store(state())
    first, second = at_work(store), at_work(store)
    first.alter(N1, N2)
    second.alter(N1, N3, epoch=1)
    assert store.shard == state(2, isr_now=(N1, N2))


@pytest.mark.behaviour("LB-23")
def test_whoever_the_leader_asks_in_comes_in_and_the_epoch_rises() -> None:
    desk = at_work(state(5, 3, isr_now=(N1,)))
    desk.alter(N1, N3)
    assert desk.stored == state(6, 3, isr_now=(N1, N3))


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
    assert written(desk.report(N2)) == [state(2, 2, N2, isr_now=(N2,), elr=(N1,), min_isr=2)]


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


def test_if_nobody_in_sync_is_there_one_that_is_eligible_leads_and_nobody_is_forgotten() -> None:
    desk = at_work(state(isr_now=(N1,), elr=(N2, N3), min_isr=2))
    desk.tell(events.Suspected(1))
    leader, other = desk.stored.leader, N3 if desk.stored.leader == N2 else N2
    assert desk.stored == state(2, 2, leader, isr_now=(leader,), elr=(N1, other), min_isr=2)
    desk.tell(events.Suspected(leader.node))
    assert desk.stored.leader == other


def test_who_comes_back_to_a_partition_whose_leader_is_gone_leads() -> None:
    """Everybody seemed to be gone; one that reports its leader is not."""
    desk = at_work()
    for node in (2, 3, 1):
        assert written(desk.tell(events.Suspected(node))) == []
    assert written(desk.report(N3)) == [state(2, 2, N3)]


def test_who_seems_to_be_gone_is_told_again_and_its_answer_shows_that_it_is_not() -> None:
    desk = at_work()
    desk.tell(events.Suspected(2))
    ordered = desk.wake()
    assert sent(ordered) == sent(ordered, N2) == [told(desk.stored)]
    desk.heard(N2)
    desk.tell(events.Suspected(3))
    desk.tell(events.Suspected(1))
    assert desk.stored.leader == N2


def test_nobody_else_ever_leads_by_itself() -> None:
    desk = at_work(state(isr_now=(N1,)))
    ordered = desk.tell(events.Suspected(1)) + desk.pass_time(30.0)
    assert written(ordered) == []


def test_a_leader_that_this_controller_has_chosen_and_that_does_not_say_that_it_leads_is_given_up() -> None:
    desk = at_work()
    desk.tell(events.Suspected(1))
    chosen = desk.stored.leader
    other = N3 if chosen == N2 else N2
    desk.heard(other)
    desk.pass_time(CONTROLLER_TUNING.patience_s)
    assert (desk.stored.leader_epoch, desk.stored.leader) == (3, other)


@pytest.mark.behaviour("LB-14", "LB-19")
def test_a_controller_that_takes_over_and_does_not_hear_the_leader_deposes_nobody() -> None:
    """Its followers may hear it well: they say so by not reporting it."""
    desk = Desk(state())
    desk.start()
    desk.heard(N2)
    desk.heard(N3)
    assert written(desk.pass_time(10 * CONTROLLER_TUNING.patience_s)) == []
    assert written(desk.report(N2)) == []
    assert written(desk.report(N3)) != []


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


def test_older_news_of_a_replica_do_not_replace_newer_ones() -> None:
    """It was damaged in an earlier epoch, and is mended since: it said so before this came."""
    desk = at_work(state(4, 3, isr_now=(N1, N2)))
    assert desk.receive(N2, PartitionHeard(2, 3, leads=False, can_lead=False)) == []
    desk.tell(events.Suspected(1))
    assert desk.stored == state(5, 4, N2, isr_now=(N1, N2))


def test_one_that_was_the_last_to_be_found_unfit_is_asked_again_when_it_is_needed() -> None:
    desk = at_work(state(isr_now=(N1, N2)))
    desk.heard(N2, can_lead=False)
    assert written(desk.tell(events.Suspected(1))) == []
    assert told(desk.stored) in sent(desk.wake(), N2)
    desk.heard(N2, can_lead=True)
    assert desk.stored.leader == N2


@pytest.mark.parametrize("incarnation", [0, 2])
def test_where_a_node_has_another_disk_whoever_led_there_is_gone(incarnation: int) -> None:
    """Incarnations are drawn by chance where a disk's record is damaged: later ones may be smaller."""
    desk = at_work(state(leader=N3))
    again = Member(3, incarnation)
    ordered = desk.receive(again, isr.messages.PartitionHeard(0, 0, leads=False))
    assert (sent(ordered, again), written(ordered)) == ([told(desk.stored)], []), "it may be of the past"
    desk.receive(again, isr.messages.PartitionHeard(1, 1, leads=False))
    assert desk.stored.leader in (N1, N2)


# ---- the state itself ----


def test_a_state_that_cannot_be_is_refused_wherever_it_comes_from() -> None:
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
        with pytest.raises(ImpossibleState):
            msgspec.structs.replace(good, **change)
        said = msgspec.to_builtins(good) | msgspec.to_builtins(change)
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(msgspec.json.encode(said), type=isr.PartitionState)
