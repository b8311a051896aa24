"""What a task asks for while it stages rows: a producer when the first are there, kept until the last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from queue import Empty, Queue
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from quorate.client.errors import CommitFailed, Unreachable
from quorate.client.joint import Attempt
from quorate.spark import staging
from quorate.spark.options import parse_write_options
from quorate.spark.staging import Staged, Transaction, stage
from quorate.wire.joint import Part

BATCH = Transaction("spark-query-a", 3, "run")
WAIT_S = 10.0
SCHEMA = pa.schema([("value", pa.binary())])


def rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [b"x"] * count}, schema=SCHEMA)


class Cluster:
    """Of one task: what it is asked, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.renewals: Queue[None] = Queue()
        self.refusal: Exception | None = None
        self.cluster = self

    def open(self, number: int, *, task: int, attempt: int, timeout_s: float) -> Attempt:
        self.asked.append("open")
        return Attempt("spark-query-a", number, "run", task, attempt, producer_id=7, epoch=0)

    def topics(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: SimpleNamespace(partitions=(0,)) for name in names}

    def writer(self, attempt: Attempt) -> Cluster:
        return self

    def append(self, topic: str, batches: dict[int, bytes]) -> None:
        self.asked.append("append")

    def part(self) -> Part:
        return Part(7, ())

    def renew(self, attempts: Sequence[Attempt]) -> None:
        self.renewals.put(None)
        if self.refusal is not None:
            raise self.refusal

    def staged(self, coming: Iterator[pa.RecordBatch], timeout: str = "15m") -> Staged:
        given = {"bootstrap": "127.0.0.1:1", "topic": "events", "transactionTimeout": timeout}
        return stage(parse_write_options(given), BATCH, coming, task=0, attempt=0)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(staging, "joint_for", lambda options, transaction: nullcontext(cluster))
    return cluster


def test_a_producer_is_opened_when_the_first_rows_are_there_and_not_before(cluster: Cluster) -> None:
    def late() -> Iterator[pa.RecordBatch]:
        yield rows(0)
        assert cluster.asked == [], "nothing of what it works at is there yet"
        yield rows(2)
        assert cluster.asked == ["open"]
        yield rows(3)

    assert cluster.staged(late()).rows_count == 5
    assert cluster.asked == ["open", "append"]


def test_a_task_without_rows_opens_no_producer(cluster: Cluster) -> None:
    assert cluster.staged(iter([])) == Staged(BATCH, 0)
    assert cluster.staged(iter([rows(0), rows(0)])) == Staged(BATCH, 0)
    assert cluster.asked == []


@pytest.mark.parametrize("refusal", [None, Unreachable("nobody answered")], ids=["kept", "asked again"])
def test_a_producer_is_kept_however_long_the_next_rows_take(
    cluster: Cluster, refusal: Exception | None
) -> None:
    cluster.refusal = refusal

    def slow() -> Iterator[pa.RecordBatch]:
        yield rows(1)
        for _ in range(4):
            cluster.renewals.get(timeout=WAIT_S)
        assert cluster.asked == ["open"], "not one row is sent yet"
        yield rows(1)

    assert cluster.staged(slow(), timeout="60ms").part == Part(7, ())
    assert cluster.asked == ["open", "append"]


def test_a_producer_is_kept_no_longer_than_its_task_works(cluster: Cluster) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield rows(1)
        raise ValueError("of a function of somebody's")

    with pytest.raises(ValueError, match="somebody's"):
        cluster.staged(broken(), timeout="60ms")
    while not cluster.renewals.empty():
        cluster.renewals.get()
    with pytest.raises(Empty):
        cluster.renewals.get(timeout=0.2)


def test_a_producer_that_is_gone_while_rows_are_awaited_fails_the_task(cluster: Cluster) -> None:
    cluster.refusal = CommitFailed("spark-query-a: its producer is gone")

    def slow() -> Iterator[pa.RecordBatch]:
        yield rows(1)
        cluster.renewals.get(timeout=WAIT_S)
        yield rows(1)

    with pytest.raises(CommitFailed, match="is gone"):
        cluster.staged(slow(), timeout="60ms")
