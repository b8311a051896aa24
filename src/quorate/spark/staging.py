"""What a task writes: its rows, staged under a producer of its own, seen by nobody until the driver commits.

The producer is opened when the first rows are there: a task without rows opens none. Rows are gathered, turned into
record batches, and sent by a thread of their own while the next ones are gathered and turned. While a task is at
work, however long its rows take to come, its producer is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event, Thread
from time import time
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from quorate.client.encoding import Made, Rows, WrongHeader, WrongPartition, encode, partitions_for
from quorate.client.errors import Unreachable
from quorate.client.joint import Attempt, Joint, NumberIn, Writer
from quorate.spark.options import WriteOptions, WrongOption
from quorate.wire.joint import Part

CLIENT_ID = "quorate-spark"
ROWS_TARGET = 32_768
BYTES_TARGET = 8 << 20
RENEW_SHARE = 3
"""An attempt's time begins anew when a third of it has passed."""


class Transaction(NamedTuple):
    """Which joint transaction a write is."""

    app: str
    number: int
    run: str


@dataclass
class Staged(WriterCommitMessage):
    """What a task tells the driver."""

    transaction: Transaction
    rows_count: int
    part: Part | None = None
    """None: there were no rows, or they are in already."""
    already_in: bool = False


def joint_for(options: WriteOptions, transaction: Transaction) -> Joint:
    return Joint(
        options.bootstrap,
        transaction.app,
        transaction.run,
        client_id=CLIENT_ID,
        timeout_s=options.timeout_s,
        security=options.security,
    )


def stage(
    options: WriteOptions,
    transaction: Transaction,
    batches: Iterable[pa.RecordBatch],
    *,
    task: int,
    attempt: int,
) -> Staged:
    """Raises RunFenced, AttemptOver, UnknownTopic, WrongOption and Unreachable: the task has failed then."""
    rows_count = 0
    stager: _Stager | None = None
    coming = iter(batches)
    with joint_for(options, transaction) as joint, ThreadPoolExecutor(1, "sending") as sending:
        try:
            for batch in coming:
                rows_count += batch.num_rows
                if not batch.num_rows:
                    continue
                if stager is None:
                    opened = joint.open(
                        transaction.number,
                        task=task,
                        attempt=attempt,
                        timeout_s=options.transaction_timeout_s,
                    )
                    stager = _Stager(options, joint, opened, sending)
                stager.add(batch)
            part = stager.finish() if stager is not None else None
        except NumberIn:
            rows_count += sum(batch.num_rows for batch in coming)
            return Staged(transaction, rows_count, already_in=True)
        finally:
            if stager is not None:
                stager.close()
    return Staged(transaction, rows_count, part)


class _Stager:
    def __init__(
        self, options: WriteOptions, joint: Joint, attempt: Attempt, sending: ThreadPoolExecutor
    ) -> None:
        self._options = options
        self._joint = joint
        self._attempt = attempt
        self._writer: Writer = joint.writer(attempt)
        self._sending = sending
        """Alone it speaks with the cluster, which is for one thread at a time."""
        self._sent: Future[None] | None = None
        self._over = Event()
        self._lost: Exception | None = None
        self._gathered: list[pa.RecordBatch] = []
        self._rows_count = self._bytes_count = 0
        self._partitions_counts: dict[str, int] = {}
        self._spare = attempt.task
        """Where rows go that say nothing about it: the next partition with each piece."""
        self._keeping = Thread(target=self._keep, name="keeping", daemon=True)
        self._keeping.start()

    def close(self) -> None:
        self._over.set()
        self._keeping.join()

    def _keep(self) -> None:
        """By a clock of its own: Spark hands on thousands of rows at once, and the next may be long in coming."""
        while not self._over.wait(self._options.transaction_timeout_s / RENEW_SHARE):
            self._sending.submit(self._renew).result()

    def _renew(self) -> None:
        try:
            self._joint.renew([self._attempt])
        except Unreachable:
            pass  # There is time to ask again.
        except Exception as error:  # raised where the next rows are sent
            self._lost = error

    def add(self, batch: pa.RecordBatch) -> None:
        self._gathered.append(batch)
        self._rows_count += batch.num_rows
        self._bytes_count += batch.nbytes
        if self._rows_count >= ROWS_TARGET or self._bytes_count >= BYTES_TARGET:
            self._flush()

    def finish(self) -> Part:
        if self._gathered:
            self._flush()
        self._wait()
        return self._writer.part()

    def _flush(self) -> None:
        """Make batches of what there is, while those before are under way; then these are."""
        table = pa.Table.from_batches(self._gathered)
        self._gathered = []
        self._rows_count = self._bytes_count = 0
        made = [(topic, self._made(topic, rows)) for topic, rows in rows_by_topic(table, self._options.topic)]
        self._wait()
        self._sent = self._sending.submit(self._send, made)

    def _wait(self) -> None:
        if self._sent is not None:
            self._sent.result()
            self._sent = None
        if self._lost is not None:
            raise self._lost

    def _made(self, topic: str, rows: Rows) -> list[Made]:
        if topic not in self._partitions_counts:
            found = self._sending.submit(self._joint.cluster.topics, [topic]).result()[topic]
            self._partitions_counts[topic] = len(found.partitions)
        self._spare += 1
        try:
            partitions = partitions_for(rows, self._partitions_counts[topic], self._spare)
            return encode(rows, partitions, now_ms=round(time() * 1000), codec=self._options.codec)
        except (WrongPartition, WrongHeader) as error:
            raise WrongOption(f"topic {topic!r}: {error}") from None

    def _send(self, made: list[tuple[str, list[Made]]]) -> None:
        for topic, batches in made:
            for together in _rounds(batches):
                self._writer.append(topic, together)


def rows_by_topic(table: pa.Table, topic: str | None) -> Iterable[tuple[str, Rows]]:
    """The option says where everything goes; without it, the column does."""
    if topic is not None:
        yield topic, _rows(table)
        return
    names = table.column("topic")
    if names.null_count:
        raise WrongOption(
            "a row has no topic: its column 'topic' is null; fill it, or give the option 'topic'"
        )
    for name in sorted(pc.unique(names).to_pylist()):
        yield name, _rows(table.filter(pc.equal(names, name)))


def _rows(table: pa.Table) -> Rows:
    def column(name: str, kind: pa.DataType | None) -> pa.Array | None:
        if name not in table.column_names:
            return None
        whole = table.column(name).combine_chunks()
        if isinstance(whole, pa.ChunkedArray):
            whole = pa.concat_arrays(whole.chunks)
        return whole if kind is None else whole.cast(kind)

    value = column("value", pa.binary())
    assert value is not None
    return Rows(
        value,
        column("key", pa.binary()),
        column("partition", None),
        column("timestamp", pa.timestamp("us", tz="UTC")),
        column("headers", None),
    )


def _rounds(made: list[Made]) -> Iterable[dict[int, bytes]]:
    """One batch of each partition at a time, each partition's in order."""
    waiting: dict[int, list[bytes]] = {}
    for batch in made:
        waiting.setdefault(batch.partition, []).append(batch.payload)
    while waiting:
        yield {partition: payloads.pop(0) for partition, payloads in waiting.items()}
        waiting = {partition: payloads for partition, payloads in waiting.items() if payloads}
