"""Failure detection from outside: what operators are told, from where they stand, and for how long."""

from __future__ import annotations

import pytest

from tests.unit.sim.operator_bench import SUSPECT_S, Bench


class Told(Bench):
    def __init__(self) -> None:
        super().__init__(operators=(101,))
        self.elect()
        self.suspected: list[int] = []
        self.operators.suspect = lambda number, shard, node: self.suspected.append(node)  # type: ignore[method-assign]
        stored = self.stored
        assert stored is not None
        assert stored.leader is not None
        self.leader = stored.leader.node
        self.others = [member.node for member in stored.ensemble if member.node != self.leader]


@pytest.fixture
def bench() -> Told:
    return Told()


def test_healthy_world_makes_no_rumours(bench: Told) -> None:
    bench.run(2.0)
    assert bench.suspected == []


def test_node_that_is_down_is_told_after_a_while_and_again(bench: Told) -> None:
    bench.world.crash(bench.others[0])
    bench.run(SUSPECT_S * 0.6)
    assert bench.suspected == []
    bench.run(SUSPECT_S * 4)
    assert len(bench.suspected) > 1
    assert set(bench.suspected) == {bench.others[0]}
    bench.world.start(bench.others[0])
    bench.run(SUSPECT_S)
    bench.suspected.clear()
    bench.run(SUSPECT_S * 4)
    assert bench.suspected == []


def test_node_that_stands_still_or_is_cut_off_from_the_operator_is_told(bench: Told) -> None:
    bench.world.pause(bench.others[0], 10.0)
    bench.world.network.cut([(bench.others[1], 101)])
    bench.run(SUSPECT_S * 3)
    assert set(bench.suspected) == set(bench.others)


def test_leader_that_does_not_lead_is_told_though_it_is_up(bench: Told) -> None:
    bench.world.crash(bench.leader)
    bench.world.start(bench.leader)
    bench.run(SUSPECT_S * 3)
    assert set(bench.suspected) == {bench.leader}


def test_leader_that_reaches_too_few_is_told(bench: Told) -> None:
    bench.world.network.cut([(bench.leader, other) for other in bench.others])
    bench.run(SUSPECT_S * 3)
    assert set(bench.suspected) == {bench.leader}
