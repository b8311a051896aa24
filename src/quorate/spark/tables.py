"""`format("quorate")` with the option `table`: a table as a DataFrame, and its changes as a stream.

A batch is the table as it is at one moment. A stream has a row for every row that a transaction has changed: how
(`_change_type`), by which entry of the group's log (`_commit_offset`), and when (`_commit_timestamp`). It begins
with the table as it is, or at an offset. The log is one, so each batch is one task.

A stream's offset in its checkpoint: `next` is one behind the last entry read, `id` the group's. In the end of the
first batch, `start` says where that began: Spark does not keep it, and a batch that is repeated must be the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quorate.client.errors import ClientError
from quorate.client.table_reading import rows_of
from quorate.client.tables import TableGroup
from quorate.spark.options import EARLIEST_NAME, LATEST_NAME, SNAPSHOT_NAME, TableOptions, WrongOption
from quorate.tables import Table, Type
from quorate.wire.table_pieces import values_of, version_of
from quorate.wire.tables import Change, Consistency

if TYPE_CHECKING:
    from quorate.wire.tables import Described

CLIENT_ID = "quorate-spark"
CHANGE_TYPE, COMMIT_OFFSET, COMMIT_TIMESTAMP = "_change_type", "_commit_offset", "_commit_timestamp"
INSERT, UPDATE, DELETE = "insert", "update", "delete"
TYPES: dict[Type, DataType] = {
    Type.INT: LongType(),
    Type.FLOAT: DoubleType(),
    Type.STR: StringType(),
    Type.BYTES: BinaryType(),
    Type.BOOL: BooleanType(),
}
FEED = (
    StructField(CHANGE_TYPE, StringType(), nullable=False),
    StructField(COMMIT_OFFSET, LongType(), nullable=False),
    StructField(COMMIT_TIMESTAMP, TimestampType()),
)


class TableDropped(ClientError):
    """A table whose changes are read was dropped among them."""

    def __init__(self, name: str, offset: int) -> None:
        super().__init__(
            f"table {name} was dropped at offset {offset}, and what bears its name now is another one; begin with "
            f"a snapshot, under a new checkpoint"
        )


def open_group(options: TableOptions) -> TableGroup:
    return TableGroup(
        options.bootstrap,
        options.group,
        client_id=CLIENT_ID,
        timeout_s=options.timeout_s,
        security=options.security,
    )


def find_table(options: TableOptions, described: Described) -> Table:
    """Raises WrongOption."""
    for table in described.tables:
        if table.name == options.table:
            return table
    names = ", ".join(table.name for table in described.tables) or "none"
    raise WrongOption(
        f"option 'table': group {options.group!r} has no table {options.table!r}; it has: {names}"
    )


def describe(options: TableOptions) -> Table:
    with open_group(options) as group:
        return find_table(options, group.describe(Consistency.LINEARIZABLE))


class TableReplaced(ClientError):
    """A frame's table is another one by now, whose values are no values of its columns."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"table {name} has other columns than it had when it was loaded: it was dropped and created anew; load "
            f"it again"
        )


def schema_of(options: TableOptions) -> StructType:
    return _schema_of(describe(options), options)


def _schema_of(table: Table, options: TableOptions) -> StructType:
    own = [StructField(column.name, TYPES[column.type], column.nullable) for column in table.columns]
    return StructType([*own, *(FEED if options.changes else ())])


def _is_alike(one: StructType, other: StructType) -> bool:
    """What may be null is nobody's to say but the table's."""
    return [(each.name, each.dataType) for each in one] == [(each.name, each.dataType) for each in other]


def check_schema(options: TableOptions, schema: StructType) -> None:
    """Raises WrongOption."""
    if not _is_alike(schema, schema_of(options)):
        raise WrongOption(
            f"table {options.group}/{options.table} has a schema of its own; leave .schema() out"
        )


# ---- rows ----


Row = tuple[bytes, str, int, int | None]
"""As it is kept; how it was changed, where, and when in milliseconds."""


def as_arrow(rows: Sequence[Row], schema: StructType) -> pa.RecordBatch:
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(schema, timezone="UTC")
    kept, kinds, offsets, times = zip(*rows, strict=True)
    columns: list[Any] = list(zip(*map(values_of, kept), strict=True))
    if len(columns) < len(arrow):
        columns += [kinds, offsets, [None if time is None else 1000 * time for time in times]]
    made = [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)]
    return pa.RecordBatch.from_arrays(made, schema=arrow)


def _as_inserts(rows: Iterable[bytes]) -> list[Row]:
    return [(kept, INSERT, version_of(kept), None) for kept in rows]


def _as_changes(changes: Iterable[Change], name: str) -> list[Row]:
    """Raises TableDropped."""
    made: list[Row] = []
    for change in changes:
        time = None if change.timestamp < 0 else change.timestamp
        if change.after:
            made.append((change.after, UPDATE if change.before else INSERT, change.offset, time))
        elif change.before:
            made.append((change.before, DELETE, change.offset, time))
        elif change.before is not None:
            raise TableDropped(name, change.offset)
    return made


# ---- batches ----


class TableTask(InputPartition):
    """One task. `first`: changes from this entry on, up to `last`; None: the table as it was at `last`."""

    def __init__(self, first: int | None, last: int, group_id: str) -> None:
        super().__init__((first, last))
        self.first = first
        self.last = last
        self.group_id = group_id


def read_task(options: TableOptions, schema: StructType, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task does."""
    if not isinstance(task, TableTask):
        return  # Spark plans one task without a value when there is nothing to read.

    def check(table: Table) -> None:
        # Spark asks once for a frame's columns. Values are kept by their place among them, without names.
        if not _is_alike(schema, _schema_of(table, options)):
            raise TableReplaced(f"{options.group}/{options.table}")

    with open_group(options) as group:
        if task.group_id:
            group.expect(bytes.fromhex(task.group_id))
        if task.first is None:
            for some in rows_of(group, options.table, task.last, check):
                yield as_arrow(_as_inserts(some), schema)
            return
        for page in group.changes(options.table, first=task.first, last=task.last):
            if rows := _as_changes(page, f"{options.group}/{options.table}"):
                yield as_arrow(rows, schema)


class TableReader(DataSourceReader):
    def __init__(self, options: TableOptions, schema: StructType) -> None:
        if options.changes:
            raise WrongOption("option 'readChangeFeed' is for streams; a batch is the table as it is")
        self.options = options
        self.row_schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [TableTask(None, -1, "")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self.options, self.row_schema, partition)


# ---- streams ----

NEXT, ID, INITIAL, START = "next", "id", "initial", "start"
SNAPSHOT = -1
"""Where a stream is that has not yet read the table as it is."""


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a process of the driver, as long as its query; only `read` runs elsewhere."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        if not options.changes:
            raise WrongOption(
                "a stream of a table is of its changes; set the option 'readChangeFeed' to true"
            )
        self.options = options
        self.row_schema = schema
        self._group: TableGroup | None = None
        self._initial: dict[str, Any] | None = None
        self._target: int | None = None
        """Where a query ends that only wants what is there now."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:
            described = self.group.describe(Consistency.LINEARIZABLE)
            starting = self.options.starting
            if starting == SNAPSHOT_NAME:
                starting = SNAPSHOT
            elif starting == LATEST_NAME:
                starting = described.offset + 1
            elif starting == EARLIEST_NAME:
                starting = self.group.kept_from(self.options.table)
            elif isinstance(starting, int) and starting > described.offset + 1:
                raise WrongOption(
                    f"option 'startingOffsets': the log of {self.options.group} ends at offset {described.offset}, "
                    f"before {starting}"
                )
            self._initial = {NEXT: starting, ID: described.group_id.hex(), INITIAL: True}
        return self._initial

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self.group.expect(bytes.fromhex(start[ID]))
        begin = start[NEXT]
        end = self._settled() + 1
        if self._target is not None:
            end = min(end, self._target)
        if end <= begin:
            return start
        if isinstance(limit, ReadMaxRows) and begin != SNAPSHOT:
            end = min(end, begin + limit.max_rows)
        made = {NEXT: end, ID: start[ID]}
        return {**made, START: begin} if start.get(INITIAL) else made

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self.options.offsets_per_trigger_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._settled() + 1

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin = end.get(START, start[NEXT]) if start.get(INITIAL) else start[NEXT]
        if end[NEXT] <= begin:
            return []
        return [TableTask(None if begin == SNAPSHOT else begin, end[NEXT] - 1, end[ID])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self.options, self.row_schema, partition)

    def stop(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    @property
    def group(self) -> TableGroup:
        if self._group is None:
            self._group = open_group(self.options)
        return self._group

    def _settled(self) -> int:
        """Never less than what was seen before, whoever answers: the group waits for that."""
        return self.group.describe().offset
