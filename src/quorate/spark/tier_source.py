"""What tasks of `quorate tier` do: read a range of a topic and write it to Parquet, in one process.

To Spark it is a source whose rows are the files that were written. So records go from the log to the lake without a
trip through Java, and only what the driver commits by comes back. A task that is run again, or twice, writes files
of its own: those that nobody tells the driver of belong to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from quorate.spark.options import EARLIEST_NAME
from quorate.spark.source import QuorateSource, RangePartition, StreamReader, read_records

NAME = "quorate_tier"
SCHEMA = "topic string, path string, size long, partition int, rows long, first long, last long"
TASK_OFFSETS_MAX = 1_000_000
"""A longer range is written by several tasks, each to files of its own."""


class TierSource(QuorateSource):
    """With the options of `format("quorate")`, and `lake` for where files go."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return TierReader(self.parsed, schema)


class TierReader(StreamReader):
    unnamed = EARLIEST_NAME
    """A partition that came when the job had looked where tables end: nothing of it is there."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):
            return  # Spark plans one task without a value when there is nothing to read.
        # Not above: the process that is asked for offsets has no use for a lake, and a query waits for its start.
        from quorate.spark.lake import IN_FILES, File, Lake
        from quorate.spark.tier_files import write_files

        lake = Lake(self.options.lake, dict(self.options.lake_options))
        topic, number = partition.wanted.topic, partition.wanted.partition
        written = write_files(read_records(self.options, IN_FILES, partition), lake, topic, number)
        types = pa.string(), pa.string(), pa.int64(), pa.int32(), pa.int64(), pa.int64(), pa.int64()
        columns = zip(*((topic, *file) for file in written), strict=True)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=False)]
        if arrays:
            yield pa.RecordBatch.from_arrays(arrays, names=["topic", *File._fields])
