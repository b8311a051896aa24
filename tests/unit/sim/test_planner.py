"""Orders to operators: fair ones, and whoever lost its disk comes back by a swap."""

from __future__ import annotations

import pytest

from quorate.core.coordinated.shard import Kind
from quorate.core.entry import Member
from quorate.sim.faults import ANY_OPERATOR, ORDERS, Fault
from quorate.sim.operator_answers import Change
from tests.unit.sim.operator_bench import Bench


def order(bench: Bench, way: str, chance: int) -> None:
    bench.planner.strike(Fault(0.0, f"order-{way}", (ANY_OPERATOR,), chance=chance))


@pytest.mark.parametrize("way", sorted({*ORDERS} - {"move", "call-off", "nonsense"}))
def test_every_ensemble_on_the_way_has_fewer_unlucky_nodes_than_others(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(unlucky=(2, 4))
    bench.elect()
    asked: list[Change] = []
    monkeypatch.setattr(bench.planner, "_reconfigure", lambda number, shard, change: asked.append(change))
    for chance in range(60):
        order(bench, way, chance)
    assert asked
    for _, old, new in asked:
        ensemble = {member.node for member in (Member(1, 1), Member(2, 1), Member(3, 1)) if member != old}
        ensemble |= {new.node} if new is not None else set()
        assert 2 * len(ensemble & {2, 4}) < len(ensemble)


def test_ensembles_change_and_come_to_rest() -> None:
    bench = Bench()
    bench.elect()
    ensembles = set()
    for chance in range(30):
        order(bench, ("swap", "expand", "contract", "move")[chance % 4], chance)
        bench.run(0.6)
        assert bench.stored is not None
        ensembles.add(tuple(member.node for member in bench.stored.ensemble))
    bench.until(bench.is_steady)
    assert len(ensembles) > 4
    assert bench.chaos.toll.changes_settled > 4
    assert bench.operators.reconfigurations_count > 4
    assert not bench.planner.unanswered()


def test_change_that_waits_for_nobody_is_called_off_when_everything_has_healed() -> None:
    bench = Bench(operators=(101,))
    before = bench.elect()
    bench.run(0.3)
    order(bench, "hang", 1)
    bench.run(1.0)
    assert bench.stored is not None
    assert bench.stored.reconfiguration is not None
    assert bench.stored.reconfiguration.kind is Kind.EXPAND
    left = bench.planner.settle_down()
    bench.until(lambda: not left())
    assert bench.stored.ensemble == before.ensemble
    bench.until(lambda: not bench.planner.unanswered())


def test_wiped_node_is_swapped_for_its_new_incarnation() -> None:
    bench = Bench(unlucky=(3,))
    bench.elect()
    bench.planner.begin()
    bench.chaos.wipe(3)
    bench.world.start(3)
    assert bench.planner.renew()()
    bench.until(lambda: not bench.planner.renew()(), 30.0)
    assert bench.stored is not None
    assert Member(3, 2) in bench.stored.ensemble
    assert Member(3, 1) not in bench.stored.ensemble


def test_nonsense_is_refused_with_a_reason() -> None:
    bench = Bench()
    before = bench.elect()
    for chance in range(10):
        order(bench, "nonsense", chance)
        bench.run(0.1)
    assert bench.stored == before
    assert bench.chaos.toll.changes == 10
    assert bench.chaos.toll.changes_settled == 0
