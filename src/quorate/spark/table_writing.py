"""`format("quorate")` with the option `table`, as a sink: rows are put in by key, or deleted, each batch once.

A batch is one transaction. What a task has is sent to the driver where it is little; where it is much, it is staged
in parts that nobody sees, and the driver's transaction commits them, all at once.

That same transaction writes down, in a table of the group (`_writers`), who has written which number, if that is
as it was read before: compare-and-set. So a batch that Spark repeats is found to be in, however long ago that was,
and of two drivers of one query the older one is fenced, as with topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from logging import getLogger
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from quorate.client.errors import CommitFailed, RolledBack, RunFenced, TransactionRefused
from quorate.client.tables import TableGroup
from quorate.spark.options import TableOptions, WrongOption
from quorate.spark.staging import Transaction
from quorate.spark.tables import CHANGE_TYPE, COMMIT_OFFSET, COMMIT_TIMESTAMP, DELETE, describe, open_group
from quorate.spark.writing import batch_app, check_stream, task_context, transaction_of
from quorate.tables import (
    ID_BYTES,
    OPERATIONS_COUNT_MAX,
    Absent,
    At,
    Column,
    CommitStaged,
    Condition,
    CreateTable,
    Delete,
    DiscardStaged,
    Operation,
    Replace,
    Row,
    RowOperation,
    Stage,
    Table,
    Type,
)
from quorate.wire.tables import Consistency

LOG = getLogger("quorate.spark")
PUT = ("insert", "update", "upsert")
PART_BYTES = 1 << 20
PART_OPERATIONS = 5000
INLINE_BYTES = 128 << 10
"""A task that has no more sends it to the driver."""
ONE_ENTRY_BYTES = 4 << 20
TRIES = 5
FENCED_RUNS_MAX = 16
WRITERS = Table(
    "_writers",
    (
        Column("app", Type.STR),
        Column("number", Type.INT),
        Column("run", Type.STR),
        Column("fenced", Type.STR),
    ),
    ("app",),
)
"""Who has written what, and which runs of it are over."""
FITS: dict[Type, tuple[str, ...]] = {
    Type.INT: ("bigint", "int", "smallint", "tinyint"),
    Type.FLOAT: ("double", "float", "bigint", "int", "smallint", "tinyint"),
    Type.STR: ("string",),
    Type.BYTES: ("binary",),
    Type.BOOL: ("boolean",),
}


def check_columns(table: Table, schema: StructType) -> None:
    """Raises WrongOption."""
    kinds = {field.name: field.dataType.simpleString() for field in schema}
    for column in table.columns:
        kind = kinds.pop(column.name, None)
        if kind is None and not column.nullable:
            raise WrongOption(f"column {column.name!r} of table {table.name} is missing, and may not be null")
        if kind is not None and kind not in FITS[column.type]:
            fits = " or ".join(FITS[column.type])
            raise WrongOption(f"column {column.name!r} is {kind}, and must be {fits}")
    if kinds.pop(CHANGE_TYPE, "string") != "string":
        raise WrongOption(f"column {CHANGE_TYPE!r} must be string")
    strange = kinds.keys() - {COMMIT_OFFSET, COMMIT_TIMESTAMP}
    if strange:
        raise WrongOption(f"table {table.name} has no column {min(strange)!r}; leave it out")


# ---- what a task does ----


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    transaction: Transaction
    rows_count: int
    parts: list[bytes]
    """What it has, where that is little."""
    stage: tuple[bytes, int] | None = None
    """Where it is much: under which name it is staged, in how many parts."""


def write_rows(
    options: TableOptions, table: Table, transaction: Transaction, batches: Iterator[pa.RecordBatch]
) -> Written:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    task = f"{context.partitionId()} {context.taskAttemptId()}"
    parts: list[bytes] = []
    rows_count = staged_count = 0
    stage = stage_of(transaction, task)
    with open_group(options) as group:
        for part, count in _parts(table, batches):
            rows_count += count
            parts.append(part)
            if sum(map(len, parts)) > INLINE_BYTES:
                staged_count = stage_parts(group, stage, parts, staged_count)
                parts = []
        if staged_count and parts:
            staged_count = stage_parts(group, stage, parts, staged_count)
            parts = []
    return Written(transaction, rows_count, parts, (stage, staged_count) if staged_count else None)


def _parts(table: Table, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[bytes, int]]:
    """Operations, some together, in the order of the rows; and how many they are."""
    encode = msgspec.msgpack.Encoder().encode
    gathered: list[msgspec.Raw] = []
    size = 0
    for operation in chain.from_iterable(_operations(table, batch) for batch in batches):
        encoded = encode(operation)
        if gathered and (size + len(encoded) > PART_BYTES or len(gathered) >= PART_OPERATIONS):
            yield encode(gathered), len(gathered)
            gathered, size = [], 0
        gathered.append(msgspec.Raw(encoded))
        size += len(encoded)
    if gathered:
        yield encode(gathered), len(gathered)


def _operations(table: Table, batch: pa.RecordBatch) -> Iterator[RowOperation]:
    """Raises WrongOption."""
    names = batch.schema.names
    nothing = [None] * batch.num_rows
    columns = [
        batch.column(column.name).to_pylist() if column.name in names else nothing for column in table.columns
    ]
    kinds = batch.column(CHANGE_TYPE).to_pylist() if CHANGE_TYPE in names else nothing
    key = [[column.name for column in table.columns].index(name) for name in table.key]
    for kind, *values in zip(kinds, *columns, strict=True):
        if kind is None or kind in PUT:
            yield Replace(table.name, tuple(values))
        elif kind == DELETE:
            yield Delete(table.name, tuple(values[at] for at in key))
        else:
            known = ", ".join((*PUT, DELETE))
            raise WrongOption(f"column {CHANGE_TYPE!r}: {kind!r} is unknown; there is: {known}")


def stage_parts(group: TableGroup, stage: bytes, parts: Sequence[bytes], number: int) -> int:
    """How many there are now. Raises TransactionRefused where it is too much."""
    for number, part in enumerate(parts, number):  # noqa: B020
        insist(group, (Stage(stage, number, part),))
    return number + 1


def stage_of(transaction: Transaction, task: str) -> bytes:
    """All stages of an app begin alike."""
    own = blake2b(f"{transaction.number} {transaction.run} {task}".encode(), digest_size=ID_BYTES // 2)
    return prefix_of(transaction.app) + own.digest()


def prefix_of(app: str) -> bytes:
    return blake2b(app.encode(), digest_size=ID_BYTES // 2).digest()


def insist(group: TableGroup, operations: Sequence[Operation], conditions: Sequence[Condition] = ()) -> None:
    """What was rolled back, because a leader has gone, is begun anew."""
    for left in reversed(range(TRIES)):
        try:
            group.execute(*operations, conditions=conditions)
        except RolledBack:
            if not left:
                raise
        else:
            return


# ---- what the driver does ----


class TableStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: TableOptions, schema: StructType) -> None:
        check_stream(options.app)
        self.options = options
        self.table = describe(options)
        check_columns(self.table, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(self.options, self.table, transaction_of(task_context()), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit(self.options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Where no task has said anything, the query's next commit clears up."""
        for message in messages:
            if isinstance(message, Written):
                discard(self.options, message.transaction.app)
                return


class TableBatchWriter(DataSourceArrowWriter):
    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self.options = options
        self.table = describe(options)
        check_columns(self.table, schema)
        run = uuid4().hex
        if options.app is None:
            self.transaction = Transaction(f"spark-write-{run}", -1, run)
        else:
            assert options.version is not None
            self.transaction = Transaction(batch_app(options.app, options.table), options.version, run)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(self.options, self.table, self.transaction, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit(self.options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        discard(self.options, self.transaction.app)


def discard(options: TableOptions, app: str) -> None:
    with open_group(options) as group:
        insist(group, (DiscardStaged(prefix_of(app)),))


def commit(options: TableOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Put in what the tasks have, all of it or nothing; raises CommitFailed and RunFenced."""
    written = [message for message in messages if isinstance(message, Written)]
    rows_count = sum(message.rows_count for message in written)
    if not rows_count:
        return
    transaction = written[0].transaction
    with open_group(options) as group:
        if transaction.number < 0:  # Nobody repeats it.
            _execute(group, _gathered(group, written), ())
            return
        _make_writers(group)
        operations: list[Operation] | None = None
        for _ in range(TRIES):
            before = group.get(WRITERS.name, (transaction.app,), Consistency.LINEARIZABLE)
            noted = note(transaction, before)
            if noted is None:
                LOG.warning(
                    "%s: number %d is already in, and its %d rows are not written again",
                    *transaction[:2],
                    rows_count,
                )
                insist(group, (DiscardStaged(prefix_of(transaction.app)),))
                return
            operation, condition = noted
            operations = operations or _gathered(group, written)
            if _execute(group, [*operations, operation], (condition,)):
                return
    raise CommitFailed(f"{transaction.app}: others have written number {transaction.number} meanwhile")


def note(transaction: Transaction, before: Row | None) -> tuple[Operation, Condition] | None:
    """That this number is in, if it is not; raises RunFenced."""
    app, number, run = transaction
    if before is None:
        return Replace(WRITERS.name, (app, number, run, "")), Absent(WRITERS.name, (app,))
    _, last, last_run, fenced = before.values
    assert isinstance(last, int)
    assert isinstance(fenced, str)
    runs = fenced.split()
    if run in runs:
        raise RunFenced(app, run)
    if number <= last:
        return None
    if run != last_run:
        runs = [*runs, str(last_run)][-FENCED_RUNS_MAX:]
    row = (app, number, run, " ".join(runs))
    return Replace(WRITERS.name, row), At(WRITERS.name, (app,), before.version)


def _gathered(group: TableGroup, written: Sequence[Written]) -> list[Operation]:
    """The rows themselves, where they fit into an entry; else all of them are staged, and this is their commit."""
    parts = [part for message in written for part in message.parts]
    if not any(message.stage for message in written) and sum(map(len, parts)) <= ONE_ENTRY_BYTES:
        decode: Any = msgspec.msgpack.Decoder(tuple[RowOperation, ...]).decode
        operations = list(chain.from_iterable(map(decode, parts)))
        if len(operations) < OPERATIONS_COUNT_MAX:
            return operations
    stages: list[tuple[bytes, int]] = []
    for number, message in enumerate(written):
        if message.parts:
            stage = stage_of(message.transaction, f"driver {number}")
            insist(group, (DiscardStaged(stage),))
            stages.append((stage, stage_parts(group, stage, message.parts, 0)))
        elif message.stage is not None:
            stages.append(message.stage)
    return [CommitStaged(tuple(stages)), DiscardStaged(prefix_of(written[0].transaction.app))]


def _execute(group: TableGroup, operations: Sequence[Operation], conditions: Sequence[Condition]) -> bool:
    """False: the condition did not hold, and everything is to be looked at again."""
    try:
        insist(group, operations, conditions)
    except TransactionRefused as error:
        if str(error).startswith(f"{WRITERS.name} "):
            return False
        raise CommitFailed(f"nothing is written: {error}") from error
    return True


def _make_writers(group: TableGroup) -> None:
    if any(table.name == WRITERS.name for table in group.tables(Consistency.LINEARIZABLE)):
        return
    try:
        insist(group, (CreateTable(WRITERS),))
    except TransactionRefused as error:
        if "already" not in str(error):
            raise
