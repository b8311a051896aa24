"""Operator processes: they elect over the nodes' network, forget everything when they die, and can stand still."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.core.coordinated import Status
from quorate.core.coordinated.orders import MoveLeader
from quorate.core.effects import Outcome, Reply
from quorate.core.metadata import ReadShard, WriteRefused, WriteShard
from quorate.sim.faults import ANY_OPERATOR, Fault
from quorate.sim.store import Answer
from tests.unit.sim.operator_bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_operators_elect_one_leader_and_come_to_rest(bench: Bench) -> None:
    stored = bench.elect()
    bench.run(1.0)
    assert bench.stored == stored
    assert stored.leader is not None
    assert bench.world.leaders(0) == [stored.leader.node]


def test_operator_that_comes_back_has_forgotten_everything_and_goes_on_by_the_store(bench: Bench) -> None:
    stored = bench.elect()
    for number in (101, 102):
        assert bench.operators.crash(number)
    assert bench.operators.operator(101, 0) is None
    bench.operators.start(101)
    operator = bench.operators.operator(101, 0)
    assert operator is not None
    assert operator.describe().endswith("knows nothing")
    bench.run(0.5)
    assert operator.shard == stored
    assert bench.operators.lives_count == 3


@pytest.mark.behaviour("OX-2")
@pytest.mark.parametrize("orders_count", range(12))
def test_whoever_comes_after_an_operator_that_died_between_two_orders_completes_the_election(
    bench: Bench, orders_count: int
) -> None:
    bench.operators.start(101)
    bench.operators.processes[101].fuse = orders_count
    bench.run(0.2)
    bench.operators.crash(101)
    bench.operators.start(102)
    bench.until(bench.is_steady)
    bench.run(0.5)
    assert len(bench.world.leaders(0)) == 1


def test_operator_that_stands_still_does_nothing_until_it_goes_on(bench: Bench) -> None:
    stored = bench.elect()
    assert stored.leader is not None
    bench.run(1.0)
    bench.operators.crash(102)
    bench.operators.pause(101, 1.0)
    bench.world.crash(stored.leader.node)
    bench.run(0.9)
    assert bench.stored == stored
    bench.run(1.0)
    assert bench.is_steady()
    assert bench.stored is not None
    assert bench.stored.epoch > stored.epoch


@pytest.mark.behaviour("OX-3")
def test_operator_of_the_past_writes_nothing_when_it_comes_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wants to elect, out of what it last read; another one has elected meanwhile."""
    bench.elect()
    bench.run(1.0)
    bench.operators.pause(101, 2.0)
    leader = bench.world.leaders(0)[0]
    bench.operators.suspect(101, 0, leader)
    bench.operators.suspect(102, 0, leader)
    bench.run(1.5)
    assert bench.is_steady()
    before = bench.written.copy()
    asked: list[WriteShard] = []
    heard: list[Any] = []
    ask = bench.store.ask

    def overheard(operator: int, shard: int, request: ReadShard | WriteShard, answer: Answer) -> None:
        def answered(event: Any) -> None:
            heard.append(event)
            answer(event)

        if operator == 101 and isinstance(request, WriteShard):
            asked.append(request)
            ask(operator, shard, request, answered)
        else:
            ask(operator, shard, request, answer)

    monkeypatch.setattr(bench.store, "ask", overheard)
    bench.run(2.0)
    assert asked, "it never tried"
    assert asked[0].version < len(before)
    assert heard == [WriteRefused(asked[0].token)]
    assert bench.written == before
    assert bench.is_steady()


def test_order_is_answered_when_it_is_done(bench: Bench) -> None:
    epoch = bench.elect().epoch
    bench.run(1.0)
    replies: list[Reply] = []
    assert bench.operators.command(101, 0, MoveLeader(1), replies.append)
    bench.until(lambda: bool(replies))
    assert [reply.outcome for reply in replies] == [Outcome.SETTLED]
    assert bench.stored is not None
    assert bench.stored.epoch > epoch


def test_order_is_not_taken_by_one_that_is_down_or_stands_still(bench: Bench) -> None:
    bench.elect()
    bench.operators.crash(101)
    bench.operators.pause(102, 1.0)
    for number in (101, 102):
        assert not bench.operators.command(number, 0, MoveLeader(1), lambda reply: None)


def test_crashed_operator_is_started_again_after_its_time(bench: Bench) -> None:
    bench.elect()
    bench.trouble.kinds["operator-crash"](Fault(0.0, "operator-crash", (101,), seconds=0.3))
    bench.trouble.kinds["operator-fuse"](Fault(0.0, "operator-fuse", (102,), seconds=0.3, amount=0))
    bench.run(0.25)
    assert 101 not in bench.operators.up()
    bench.run(2.0)
    assert bench.operators.up() == [101, 102]
    assert bench.chaos.toll.operators_crashed == 2


def test_rumour_costs_an_election_and_nothing_else(bench: Bench) -> None:
    epoch = bench.elect().epoch
    for chance in range(4):
        fault = Fault(0.0, "operator-rumour", (ANY_OPERATOR,), chance=chance)
        bench.trouble.kinds[fault.kind](fault)
        bench.run(0.5)
    assert bench.is_steady()
    assert bench.stored is not None
    assert bench.stored.epoch > epoch


def test_everything_healed_leaves_one_operator_at_least() -> None:
    bench = Bench(watched=False)
    bench.store.fall_silent()
    bench.chaos.heal()
    assert bench.operators.up()
    bench.until(bench.is_steady)
    assert bench.stored is not None
    assert bench.stored.status is Status.STEADY
