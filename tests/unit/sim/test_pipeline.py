"""Clients with producer ids: the same batch with the same numbers, until somebody says that it is settled."""

from __future__ import annotations

import pytest

from quorate.batch import BatchHeader, parse_batch_header
from quorate.core.effects import Outcome, Reply
from quorate.core.invariant import Violated
from quorate.sim.oracle import Fate, Oracle
from quorate.sim.pipeline import TRIES_MAX, UNDER_WAY_MAX, Pipeline
from quorate.sim.workload import Manners, Workload
from tests.unit.sim.test_workload import Answer, Office


class Bench:
    """One producer, whose requests the test answers."""

    def __init__(self) -> None:
        self.office = Office()
        self.oracle = Oracle(1)
        manners = Manners(clients_count=1, patience_s=1.0, pause_s=0.01, producers_share=1.0)
        self.workload = Workload(7, self.office, self.oracle, manners, ((1, 2, 3),))
        self.pipeline: Pipeline = self.workload.clients[0].pipelines[0]

    def asked(self) -> list[tuple[BatchHeader, Answer]]:
        """What has arrived since the last time."""
        self.office.run(0.01)
        arrived, self.office.requests = self.office.requests, []
        return [(parse_batch_header(payloads[0]), answer) for _, payloads, answer in arrived]

    def settle(self, header: BatchHeader, answer: Answer, offset: int) -> None:
        self.oracle.settled(0, offset, header.crc)
        answer(Reply(1, Outcome.SETTLED, offset=offset))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_several_batches_are_under_way_at_once_and_no_more_than_that(bench: Bench) -> None:
    for _ in range(UNDER_WAY_MAX + 3):
        bench.pipeline.propose()
    headers = sorted((header for header, _ in bench.asked()), key=lambda header: header.base_sequence)
    assert len(headers) == UNDER_WAY_MAX
    due = 0
    for header in headers:
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (0, 0, due)
        due += header.offsets_count


@pytest.mark.parametrize(
    "outcome",
    [Outcome.UNKNOWN, Outcome.BUSY, Outcome.NOT_LEADER, Outcome.FULL, Outcome.OUT_OF_ORDER, None],
)
def test_whatever_is_answered_the_same_batch_comes_again(bench: Bench, outcome: Outcome | None) -> None:
    bench.pipeline.propose()
    ((first, answer),) = bench.asked()
    if outcome is not None:
        answer(Reply(1, outcome))
    bench.office.run(1.5)
    again = bench.asked()
    assert again
    assert all(header == first for header, _ in again)
    bench.settle(*again[0], offset=4)
    assert bench.pipeline.under_way == []
    bench.office.run(5.0)
    assert bench.asked() == []


def test_answers_to_earlier_attempts_count_too(bench: Bench) -> None:
    bench.pipeline.propose()
    ((header, late),) = bench.asked()
    proposal = bench.pipeline.under_way[0].proposal
    bench.office.run(1.5)
    bench.settle(header, late, offset=4)
    assert proposal.fate is Fate.ACKNOWLEDGED
    ((_, answer),) = bench.asked()
    with pytest.raises(Violated, match=r"^producer-answer: "):
        answer(Reply(1, Outcome.SETTLED, offset=5))


def test_a_client_at_the_end_of_its_patience_goes_on_in_the_next_epoch(bench: Bench) -> None:
    bench.pipeline.propose()
    proposal = bench.pipeline.under_way[0].proposal
    for _ in range(TRIES_MAX):
        for _, answer in bench.asked():
            answer(Reply(1, Outcome.BUSY))
        bench.office.run(1.0)
    assert proposal.fate is Fate.REFUSED
    bench.pipeline.propose()
    ((header, _),) = bench.asked()
    assert (header.producer_epoch, header.base_sequence) == (1, 0)


def test_what_is_under_way_at_the_end_is_insisted_on_in_its_order(bench: Bench) -> None:
    bench.pipeline.propose()
    bench.pipeline.propose()
    bench.workload.close()
    assert bench.asked() == []
    left = bench.workload.insist(0.5)
    assert left() == ["2 of producer 0 on p0"]
    (first,) = bench.asked()
    bench.settle(*first, offset=0)
    second = bench.asked()[-1]
    assert second[0].base_sequence == first[0].offsets_count
    bench.settle(*second, offset=first[0].offsets_count)
    assert left() == []
