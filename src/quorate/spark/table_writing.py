"""`format("quorate")` with the option `table`, as a sink: rows are put in by key, or deleted, each batch once.

A batch is one transaction. What a task has is sent to the driver where it is little; where it is much, it is staged
in parts that nobody sees, and the driver's transaction commits them, all at once.

That same transaction writes down, in a table of the group (`_writers`), who has written which number, if that is
as it was read before: compare-and-set. So a batch that Spark repeats is found to be in, however long ago that was.

A run of a query begins there, too, before the first of its rows is written: whatever run was there before is over,
so that of two drivers of one query the older one is fenced, as with topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from logging import getLogger
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from quorate.client.errors import (
    ClientError,
    CommitFailed,
    Refused,
    RolledBack,
    RunFenced,
    TransactionRefused,
)
from quorate.client.tables import TableGroup
from quorate.spark.options import TableOptions, WrongOption
from quorate.spark.staging import Transaction
from quorate.spark.tables import CHANGE_TYPE, COMMIT_OFFSET, COMMIT_TIMESTAMP, DELETE, describe, open_group
from quorate.spark.writing import NUMBERLESS, batch_of, check_stream, is_run, task_context, transaction_of
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
NUMBER_BYTES = 6
"""Of a stage's name: its app and its number."""
RUN_BYTES = 4
LATE_NUMBERS_COUNT = 8
"""A commit also forgets what has been staged under the numbers before its own, by attempts that were late."""
TRIES = 5
FENCED_RUNS_MAX = 16
NOTHING_IN = -1
"""The number of an app that has begun, and written nothing."""
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
    context = task_context()
    task = f"{context.partitionId()} {context.taskAttemptId()}"
    parts: list[bytes] = []
    rows_count = staged_count = 0
    stage = stage_of(transaction, task)
    with open_group(options) as group:
        for part, count in _parts(table, batches):
            if not rows_count:
                begin(group, transaction)
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
    rows = chain.from_iterable(_operations(table, batch) for batch in batches)
    return _together(encode(operation) for operation in rows)


def _together(encoded: Iterable[bytes | msgspec.Raw]) -> Iterator[tuple[bytes, int]]:
    """Parts of so many operations as a part takes, and how many they are."""
    encode = msgspec.msgpack.Encoder().encode
    gathered: list[msgspec.Raw] = []
    size = 0
    for operation in map(msgspec.Raw, encoded):
        length = len(memoryview(operation))
        if gathered and (size + length > PART_BYTES or len(gathered) >= PART_OPERATIONS):
            yield encode(gathered), len(gathered)
            gathered, size = [], 0
        gathered.append(operation)
        size += length
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
    """All stages of one number of an app begin alike, and then those of one run."""
    prefix = _run_prefix(transaction)
    return prefix + _digest(task, ID_BYTES - len(prefix))


def _run_prefix(transaction: Transaction) -> bytes:
    return _number_prefix(transaction.app, transaction.number) + _digest(transaction.run, RUN_BYTES)


def _number_prefix(app: str, number: int) -> bytes:
    return _digest(f"{number} {app}", NUMBER_BYTES)


def _digest(name: str, size: int) -> bytes:
    return blake2b(name.encode(), digest_size=size).digest()


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
                discard(self.options, message.transaction)
                return


class TableBatchWriter(DataSourceArrowWriter):
    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self.options = options
        self.table = describe(options)
        check_columns(self.table, schema)
        self.transaction = batch_of(options.app, options.version, options.table)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(self.options, self.table, self.transaction, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit(self.options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        discard(self.options, self.transaction)


def discard(options: TableOptions, transaction: Transaction) -> None:
    """What this run has staged; what is in already stays in. Another may be alive and well."""
    with open_group(options) as group:
        forget(group, transaction, (DiscardStaged(_run_prefix(transaction)),))


def forget(group: TableGroup, transaction: Transaction, operations: Sequence[DiscardStaged]) -> None:
    """What stays has a bound, and fails nothing: a cluster may be at a level that knows no staging."""
    try:
        insist(group, operations)
    except ClientError as error:
        LOG.info("%s: what may be staged of number %d stays for now: %s", *transaction[:2], error)


def _forgetting(transaction: Transaction) -> list[DiscardStaged]:
    """What anybody has staged under a number that is in: drivers, too, that died before they were ever heard of."""
    numbers = range(max(0, transaction.number - LATE_NUMBERS_COUNT), transaction.number + 1)
    return [DiscardStaged(_number_prefix(transaction.app, number)) for number in numbers]


def commit(options: TableOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Put in what the tasks have, all of it or nothing; raises CommitFailed and RunFenced."""
    written = [message for message in messages if isinstance(message, Written)]
    if not written:
        return
    transaction = written[0].transaction
    rows_count = sum(message.rows_count for message in written)
    if not rows_count:  # No number is taken: what a copy of the query has under this one is written.
        if is_run(transaction):
            with open_group(options) as group:
                begin(group, transaction)
        return
    with open_group(options) as group:
        if transaction.app.startswith(NUMBERLESS):  # Nobody repeats it.
            operations = _gathered(group, written)
            _execute(group, operations, (), _forgetting(transaction) if _is_staged(operations) else ())
            return
        operations = []
        for _ in range(TRIES):
            noted = note(transaction, _writer(group, transaction.app))
            if noted is None:
                LOG.warning(
                    "%s: number %d is already in, and its %d rows are not written again",
                    *transaction[:2],
                    rows_count,
                )
                forget(group, transaction, _forgetting(transaction))
                return
            operations = operations or _gathered(group, written)
            done = [*operations, noted.operation]
            if _execute(group, done, (noted.condition,), _forgetting(transaction)):
                return
    raise CommitFailed(f"{transaction.app}: others have written number {transaction.number} meanwhile")


class Noted(NamedTuple):
    operation: Operation
    condition: Condition


def begin(group: TableGroup, transaction: Transaction) -> None:
    """Before a run writes anything: what ran before is over. Every task asks, and the first one writes it down.

    Raises RunFenced: a task of an older run may be late, and begins nothing.
    """
    if not is_run(transaction):
        return
    for _ in range(TRIES):
        begun = note_run(transaction, _writer(group, transaction.app))
        if begun is None or _execute(group, [begun.operation], (begun.condition,)):
            return
    raise CommitFailed(f"{transaction.app}: others have begun meanwhile, again and again; nothing is written")


def note_run(transaction: Transaction, before: Row | None) -> Noted | None:
    """That this run has begun, if it has not; raises RunFenced."""
    app, _, run = transaction
    last, last_run, runs = _known(app, run, before)
    return None if run == last_run else _noted((app, last, run, runs), before)


def note(transaction: Transaction, before: Row | None) -> Noted | None:
    """That this number is in, if it is not; raises RunFenced."""
    app, number, run = transaction
    last, _, runs = _known(app, run, before)
    return None if number <= last else _noted((app, number, run, runs), before)


def _known(app: str, run: str, before: Row | None) -> tuple[int, str, str]:
    """Which number is in, whose run was last, and which ones are over if this one goes on; raises RunFenced."""
    if before is None:
        return NOTHING_IN, "", ""
    _, last, last_run, fenced = before.values
    assert isinstance(last, int)
    assert isinstance(last_run, str)
    assert isinstance(fenced, str)
    runs = fenced.split()
    if run in runs:
        raise RunFenced(app, run)
    if run != last_run:
        runs = [*runs, last_run][-FENCED_RUNS_MAX:]
    return last, last_run, " ".join(runs)


def _noted(row: tuple[str, int, str, str], before: Row | None) -> Noted:
    key = row[:1]
    as_read = Absent(WRITERS.name, key) if before is None else At(WRITERS.name, key, before.version)
    return Noted(Replace(WRITERS.name, row), as_read)


def _writer(group: TableGroup, app: str) -> Row | None:
    try:
        return group.get(WRITERS.name, (app,), Consistency.LINEARIZABLE)
    except Refused:  # The table is not there, unless it is something else, and that is said again.
        _make_writers(group)
        return group.get(WRITERS.name, (app,), Consistency.LINEARIZABLE)


def _gathered(group: TableGroup, written: Sequence[Written]) -> list[Operation]:
    """The rows themselves, where they fit into an entry; else all of them are staged, and this is their commit."""
    parts = [part for message in written for part in message.parts]
    if not any(message.stage for message in written) and sum(map(len, parts)) <= ONE_ENTRY_BYTES:
        decode: Any = msgspec.msgpack.Decoder(tuple[RowOperation, ...]).decode
        operations = list(chain.from_iterable(map(decode, parts)))
        if len(operations) < OPERATIONS_COUNT_MAX:  # One more says that they are in.
            return operations
    transaction = written[0].transaction
    stages = [message.stage for message in written if message.stage is not None]
    if parts:  # Of all tasks together: a commit lists so many stages and no more.
        stage = stage_of(transaction, "driver")
        insist(group, (DiscardStaged(stage),))
        split: Any = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
        joined = [part for part, _ in _together(chain.from_iterable(map(split, parts)))]
        stages.append((stage, stage_parts(group, stage, joined, 0)))
    return [CommitStaged(tuple(stages))]


def _is_staged(operations: Sequence[Operation]) -> bool:
    return any(isinstance(operation, CommitStaged) for operation in operations)


def _execute(
    group: TableGroup,
    operations: Sequence[Operation],
    conditions: Sequence[Condition],
    forgetting: Sequence[DiscardStaged] = (),
) -> bool:
    """False: the condition did not hold, and everything is to be looked at again."""
    try:
        try:
            # What one entry does not take is forgotten with the next ones.
            insist(group, [*operations, *forgetting][:OPERATIONS_COUNT_MAX], conditions)
        except Refused:
            if not forgetting or _is_staged(operations):
                raise
            # By a node, before anything is done: the cluster may be at a level that knows no staging.
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
