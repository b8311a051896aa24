"""What reading and writing on Spark is compared with: a Python source and a Python sink that do next to nothing.

Spark moves the same columns to and from the same kind of process; there is no cluster behind it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from quorate.client.records import COLUMN_NAMES, ROWS_TARGET
from quorate.spark.options import HEADERS
from quorate.spark.source import TYPES

READY, COUNTING = "quorate_bench_ready", "quorate_bench_counting"


class Ready(DataSource):
    """Yields one Arrow batch, made beforehand, again and again: `rows` in all, by `tasks`, with our columns."""

    @classmethod
    def name(cls) -> str:
        return READY

    def schema(self) -> StructType:
        return StructType([StructField(name, TYPES[name]) for name in COLUMN_NAMES if name != HEADERS])

    def reader(self, schema: StructType) -> DataSourceReader:
        counts = (int(self.options[name]) for name in ("rows", "tasks", "bytes"))
        return _ReadyReader(schema, *counts)


class _ReadyReader(DataSourceReader):
    def __init__(self, schema: StructType, rows_count: int, tasks_count: int, value_bytes: int) -> None:
        self.row_schema = schema
        self.rows_count, self.tasks_count, self.value_bytes = rows_count, tasks_count, value_bytes

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self.tasks_count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        made = ready_batch(to_arrow_schema(self.row_schema, timezone="UTC"), self.value_bytes)
        left = self.rows_count // self.tasks_count
        while left:
            yield made.slice(0, left)
            left -= min(left, made.num_rows)


def ready_batch(schema: pa.Schema, value_bytes: int) -> pa.RecordBatch:
    count = ROWS_TARGET
    columns = {
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array([os.urandom(value_bytes) for _ in range(count)], pa.binary()),
        "topic": pa.repeat("events", count),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array(range(count), pa.int64()),
        "timestampType": pa.repeat(pa.scalar(0, pa.int32()), count),
    }
    return pa.RecordBatch.from_arrays(
        [columns[field.name].cast(field.type) for field in schema], schema=schema
    )


class Counting(DataSource):
    """A sink: rows are counted and dropped."""

    @classmethod
    def name(cls) -> str:
        return COUNTING

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return _CountingWriter()


@dataclass
class _Counted(WriterCommitMessage):
    rows_count: int


class _CountingWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        assert all(isinstance(message, _Counted) for message in messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing was kept."""
