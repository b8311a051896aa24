"""What a task of an audit tells of entries: few rows, from which nothing is missing."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from quorate.audit.replica import LogFacts
from quorate.core.entry import NOWHERE, EntryId, Kind, partition_of
from quorate.machine.markers import Marker
from quorate.machine.producers import SEQUENCES_COUNT
from quorate.spark.audit_rows import Carried, How, Work, rows_of

PARTITION = partition_of(bytes(16), 0)


def facts(commit: int, voids: tuple[tuple[int, int], ...] = ()) -> LogFacts:
    head = EntryId(1, 1_000_000)
    return LogFacts("n1", PARTITION, "raft", "topic", NOWHERE, head, commit, -1, (), voids)


def told(work: Work, *, points: tuple[int, ...] = (), closely: bool = False) -> Iterator[dict[str, Any]]:
    for batch in rows_of(iter([(work, How(points, closely))])):
        yield from batch.to_pylist()


def entry(offset: int, last: int, producer: int, sequence: int, *, epoch: int = 0) -> Carried:
    return offset, last, 1, offset * 7, int(Kind.RECORDS), producer, epoch, sequence


def written(rng: Random) -> list[Carried]:
    """Batches of three producers, here and there one that does not follow, or begins another epoch."""
    sequences, epochs = [SEQUENCES_COUNT - 5, 0, 100], [0, 0, 0]
    rows, offset = [], 0
    for _ in range(60):
        producer, count = rng.randrange(3), rng.randrange(1, 4)
        if rng.random() < 0.1:
            sequences[producer] += 2
        if rng.random() < 0.1:
            epochs[producer] += 1
            sequences[producer] = 0
        sequence = sequences[producer] % SEQUENCES_COUNT
        rows.append(entry(offset, offset + count - 1, producer, sequence, epoch=epochs[producer]))
        sequences[producer] = sequence + count
        offset += count
    return rows


def plainly(rows: list[Carried]) -> list[list[int]]:
    """Runs, found by looking at one batch after the other."""
    runs: list[list[int]] = []
    newest: dict[int, list[int]] = {}
    for offset, last, _, _, _, producer, epoch, sequence in rows:
        end = (sequence + last - offset) % SEQUENCES_COUNT
        run = newest.get(producer)
        if run is not None and run[3] == epoch and sequence == (run[5] + 1) % SEQUENCES_COUNT:
            run[5] = end
            continue
        newest[producer] = [offset, last, producer, epoch, sequence, end]
        runs.append(newest[producer])
    return sorted(runs)


@pytest.mark.parametrize("seed", range(20))
def test_batches_that_follow_each_other_are_one_run(seed: int) -> None:
    rows = written(Random(seed))
    work = Work("", facts(commit=1_000_000), rows)
    columns = "offset", "last", "producer", "producer_epoch", "sequence", "sequence_end"
    runs = [[row[name] for name in columns] for row in told(work) if row["what"] == "run"]
    assert sorted(runs) == plainly(rows)
    assert len(runs) < len(rows)


def test_a_point_is_told_by_the_entry_that_it_lies_in() -> None:
    rows = [entry(0, 4, -1, -1), entry(5, 5, -1, -1), entry(6, 9, -1, -1)]
    work = Work("", facts(commit=5), rows)
    points = [row for row in told(work, points=(0, 4, 5, 7, 10)) if row["what"] == "point"]
    found = [(row["offset"], row["last"], row["checksum"], row["settled"]) for row in points]
    assert found == [(0, 4, 0, True), (4, 4, 0, True), (5, 5, 35, True), (7, 9, 42, False)]
    closely = [row for row in told(work, points=(4,), closely=True) if row["what"] in ("point", "entry")]
    assert [(row["what"], row["offset"], row["last"]) for row in closely] == [
        ("entry", 0, 4),
        ("entry", 5, 5),
        ("entry", 6, 9),
    ]


def test_what_is_void_or_not_settled_says_nothing_of_producers() -> None:
    rows = [entry(n, n, 3, n) for n in range(10)]
    markers = [(n, Marker(3, 0, n, commit=True)) for n in (1, 3, 9)]
    work = Work("", facts(commit=6, voids=((2, 5),)), rows, markers)
    said = list(told(work))
    assert [row["offset"] for row in said if row["what"] == "marker"] == [1]
    runs = [(row["sequence"], row["sequence_end"]) for row in said if row["what"] == "run"]
    assert runs == [(0, 1), (5, 6)]
    assert [row["count"] for row in said if row["what"] == "count"] == [10]
