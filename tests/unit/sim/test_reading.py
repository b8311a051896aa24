"""Readers: they ask up to where they may read, follow hints, and hold every node to its word."""

from __future__ import annotations

import pytest

from quorate.core.effects import Outcome, Reply
from quorate.core.events import ReadLevel
from quorate.sim.oracle import Oracle
from quorate.sim.reading import Reader
from quorate.sim.workload import Manners, Workload
from tests.unit.sim.test_invariants import expect
from tests.unit.sim.test_workload import Answer, Office


class Bench:
    """One reader, whose questions the test answers."""

    def __init__(self) -> None:
        self.office = Office()
        self.oracle = Oracle(1)
        manners = Manners(clients_count=0, readers_count=1, patience_s=1.0, pause_s=0.01)
        self.workload = Workload(7, self.office, self.oracle, manners, ((1, 2, 3),))
        self.reader: Reader = self.workload.readers[0]

    def asked(self) -> tuple[int, ReadLevel, int, Answer]:
        self.office.run(0.05)
        return self.office.reads.pop(0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_reader_that_is_told_who_leads_asks_there(bench: Bench) -> None:
    bench.reader.leaders[0] = 1
    bench.reader.ask(0, ReadLevel.LINEARIZABLE, 1)
    _, _, _, answer = bench.asked()
    answer(Reply(1, Outcome.NOT_LEADER, leader=3))
    bench.reader.rng.seed(1)
    assert [bench.asked()[0]] == [3]


def test_end_that_was_told_is_held_against_what_is_known(bench: Bench) -> None:
    bench.oracle.seen[0] = 8
    bench.reader.ask(0, ReadLevel.LEASE, 1)
    with expect("read-stale"):
        bench.asked()[3](Reply(1, Outcome.SETTLED, offset=7))


def test_end_that_was_told_must_be_there_on_that_node(bench: Bench) -> None:
    bench.office.shown = 6
    bench.reader.ask(0, ReadLevel.LINEARIZABLE, 1)
    with expect("read-not-applied"):
        bench.asked()[3](Reply(1, Outcome.SETTLED, offset=7))


def test_promise_counts_though_the_reader_has_stopped_waiting(bench: Bench) -> None:
    bench.reader.ask(0, ReadLevel.LINEARIZABLE, 1)
    answer = bench.asked()[3]
    bench.workload.close()
    bench.office.run(5.0)
    answer(Reply(1, Outcome.SETTLED, offset=7))
    assert bench.oracle.seen == [7]
    assert bench.oracle.ends_count == 1


def test_read_at_an_offset_asks_for_one_and_goes_to_any_node(bench: Bench) -> None:
    bench.reader.leaders[0] = 1
    nodes = set()
    for _ in range(20):
        bench.reader.ask(0, ReadLevel.AT_OFFSET, 9)
        node, level, offset, _ = bench.asked()
        assert level is ReadLevel.AT_OFFSET
        assert offset >= 0
        nodes.add(node)
    assert nodes == {1, 2, 3}


def test_question_that_a_living_node_never_answers_is_missed(bench: Bench) -> None:
    bench.reader.ask(0, ReadLevel.LINEARIZABLE, 1)
    bench.asked()
    assert len(bench.workload.unanswered()) == 1
    bench.office.down = {1, 2, 3}
    assert bench.workload.unanswered() == []
