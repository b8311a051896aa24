"""Worlds of `isr`: controllers and their stores, whoever watches for them, and whoever orders something of them."""

from __future__ import annotations

import pytest

from quorate.core.entry import Member
from quorate.core.isr import Controller
from quorate.sim import overseen
from quorate.sim.faults import ANY_OPERATOR, ORDERS, Fault
from quorate.sim.isr_planner import Swap
from tests.unit.sim.isr_bench import TUNABLES, IsrBench

METADATA = 1
"""The partition of the metadata group, where there is one."""


def order(bench: IsrBench, way: str, chance: int) -> None:
    bench.planner.strike(Fault(0.0, f"order-{way}", (ANY_OPERATOR,), chance=chance))


@pytest.mark.parametrize(
    "whole",
    [
        pytest.param(False, id="dictionary"),
        pytest.param(True, id="metadata group", marks=pytest.mark.behaviour("LB-2")),
    ],
)
def test_group_begins_with_everybody_in_sync_and_goes_on_without_its_leader(whole: bool) -> None:
    bench = IsrBench(whole=whole)
    before = bench.begin()
    assert before.isr == before.replicas == (Member(1, 1), Member(2, 1), Member(3, 1))
    assert (before.epoch, before.leader_epoch) == (1, 1)
    bench.write()
    bench.world.crash(before.leader.node)
    bench.until(lambda: bench.stored.leader != before.leader)
    bench.write()
    bench.world.start(before.leader.node)
    bench.until(bench.is_steady)


@pytest.mark.behaviour("LB-19")
def test_failover_of_the_metadata_leader_keeps_leader_and_isr_and_changes_go_on() -> None:
    """The metadata group is on nodes of its own, so that nothing else happens to the partition."""
    bench = IsrBench(whole=True, store_on=(4, 5, 6))
    first = bench.begin()
    bench.world.crash(first.leader.node)
    bench.until(lambda: bench.stored.leader != first.leader)
    bench.write()
    bench.until(lambda: first.leader not in bench.stored.isr)
    before = bench.stored
    assert (before.leader_epoch, len(before.isr)) == (2, 2), "as at birth it would look the same made anew"
    (gone,) = bench.world.leaders(METADATA)
    bench.world.crash(gone)
    for number in bench.operators.processes:  # What they know, they have to hear from the group.
        bench.operators.crash(number)
        bench.operators.start(number)
    bench.until(lambda: all(operator(bench, number).shard is not None for number in bench.operators.up()))
    assert bench.world.leaders(METADATA) not in ([], [gone])
    assert [operator(bench, number).shard for number in bench.operators.up()] == [before, before]
    bench.write()
    bench.run(10 * TUNABLES.oversight.controller.patience_s)
    assert bench.stored == before, "and every change would have raised its epoch"
    bench.world.start(first.leader.node)
    bench.until(bench.is_steady)
    assert bench.stored == before.with_isr(before.replicas)


def operator(bench: IsrBench, number: int) -> Controller:
    found: Controller = bench.operators.operator(number, 0)
    return found


@pytest.mark.behaviour("LB-12", "LB-13")
def test_reports_are_enough_where_nobody_watches() -> None:
    bench = IsrBench(watched=False)
    before = bench.begin()
    bench.world.crash(before.leader.node)
    bench.until(lambda: bench.stored.leader != before.leader)
    assert bench.room.reports > 0


def test_one_that_is_down_leaves_those_in_sync_and_comes_back() -> None:
    bench = IsrBench()
    state = bench.begin()
    away = next(member.node for member in state.replicas if member != state.leader)
    bench.world.crash(away)
    bench.write()
    bench.until(lambda: len(bench.stored.isr) == 2)
    bench.world.start(away)
    bench.until(bench.is_steady)
    assert (bench.room.shrinks, bench.room.expands) == (1, 1)


def test_as_many_must_be_in_sync_as_may_be_lost_and_one_more() -> None:
    assert overseen.min_isr(IsrBench().world.setup, 0) == 2
    assert overseen.min_isr(IsrBench(unlucky=(1, 2)).world.setup, 0) == 3


@pytest.mark.parametrize("way", sorted({*ORDERS} - {"move", "call-off", "nonsense"}))
def test_no_order_leaves_only_unlucky_copies(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = IsrBench(unlucky=(2, 4))
    state = bench.begin()
    asked: list[Swap] = []
    monkeypatch.setattr(bench.planner, "_change", lambda number, shard, swap: asked.append(swap))
    for chance in range(60):
        order(bench, way, chance)
    assert asked
    for old, new in asked:
        copies = {member.node for member in state.replicas if member != old}
        assert copies - {2, 4}
        copies |= {new.node} if new is not None else set()
        assert len(copies & {2, 4}) < state.min_isr


def test_copies_and_leaders_change_and_come_to_rest() -> None:
    bench = IsrBench()
    bench.begin()
    groups, leaders = set(), set()
    for chance in range(40):
        order(bench, ("swap", "expand", "contract", "move", "hang", "nonsense")[chance % 6], chance)
        bench.run(0.6)
        groups.add(tuple(member.node for member in bench.stored.replicas))
        leaders.add(bench.stored.leader.node)
    bench.planner.begin()
    bench.until(lambda: not bench.planner.settle_down()() and not bench.planner.renew()())
    assert len(groups) > 3
    assert len(leaders) > 1
    assert bench.chaos.toll.changes_settled > 3
    assert bench.chaos.toll.transfers_settled > 1
    assert bench.operators.reconfigurations_count > 3
    assert not bench.planner.unanswered()


@pytest.mark.parametrize("whole", [False, True], ids=["dictionary", "metadata group"])
def test_wiped_node_counts_again_as_who_it_is_now(whole: bool) -> None:
    bench = IsrBench(unlucky=(2,), whole=whole)
    bench.begin()
    bench.write()
    bench.planner.begin()
    bench.chaos.wipe(2)
    bench.world.start(2)
    bench.until(lambda: Member(2, 2) in bench.stored.replicas and bench.is_steady())
    assert not bench.planner.renew()()


def test_leader_that_does_not_hear_what_it_was_granted_is_told_later() -> None:
    """`operator-strand`: who is in sync is agreed, and the leader hears of it only after a while."""
    bench = IsrBench()
    state = bench.begin()
    assert bench.chaos.trouble is not None
    bench.chaos.trouble.kinds["operator-strand"](Fault(0.0, "operator-strand", seconds=1.0))
    away = next(member.node for member in state.replicas if member != state.leader)
    bench.world.crash(away)
    bench.until(lambda: len(bench.stored.isr) == 2)
    assert bench.chaos.toll.partitions == 1
    bench.write()
    bench.world.start(away)
    bench.until(bench.is_steady)
