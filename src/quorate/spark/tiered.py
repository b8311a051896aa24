"""Reading with `tiered`: what a Delta table has of a topic from there, and the rest from the log.

One version of each table is fixed when the query is planned. It says up to where it goes, and the log is read from
there. Should the log begin above that, something is in neither, and the query fails: it never reads around a hole,
nor from where the table begins if it is to begin below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from quorate.client.cluster import EARLIEST, Cluster
from quorate.client.errors import OffsetsMissing
from quorate.spark.asking import Found, check_order, earliest, find, resolve
from quorate.spark.options import (
    EARLIEST_NAME,
    LATEST_NAME,
    Options,
    Positions,
    Times,
    Where,
    WrongOption,
)
from quorate.spark.planning import joined

if TYPE_CHECKING:
    import pyarrow as pa

    from quorate.spark.lake import Table

ROWS = 32_768


class FilePartition(InputPartition):
    """One task: the rows of a file from an offset to the one before another."""

    def __init__(self, topic: str, number: int, path: str, first: int, end: int) -> None:
        super().__init__((topic, number, path, first, end))


class TieredReader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.row_schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        from quorate.spark.lake import Lake, LakeTrouble
        from quorate.spark.source import connected, plan

        options = self.options
        lake = Lake(options.lake, dict(options.lake_options))
        with connected(options) as cluster:
            found = find(cluster, options.selection)
            starting = EARLIEST_NAME if options.starting is None else options.starting
            begin = _offsets(cluster, found, starting, "startingOffsets", unnamed=EARLIEST_NAME)
            end = _offsets(cluster, found, options.ending, "endingOffsets", unnamed=LATEST_NAME)
            kept = {topic: earliest(cluster, topic, numbers) for topic, numbers in found.numbers.items()}
        check_order(begin, end)
        tasks: list[InputPartition] = []
        boundary: Positions = {}
        for topic, numbers in found.numbers.items():
            table = lake.table(topic, found.ids[topic])
            boundary[topic] = {n: (table.next_offset(n) if table else None) or 0 for n in numbers}
            for number, after in boundary[topic].items():
                wanted_of_log = max(after, begin[topic][number])
                if wanted_of_log < min(kept[topic][number], end[topic][number]):
                    raise LakeTrouble(
                        f"{topic}-{number}: the log starts at offset {kept[topic][number]}, and the table in "
                        f"{lake.place(topic)} ends before {after}: what lies between is in neither"
                    )
            if table is not None:
                self._check_begun(table, topic, end[topic])
                tasks += self._of_files(table, topic, begin[topic], end[topic], boundary[topic])
        rest: Positions = {}
        for topic, number, first, last in joined(begin, end):
            rest.setdefault(topic, {})[number] = min(max(first, boundary[topic][number]), last)
        return tasks + plan(rest, end, found.ids, options)

    def _check_begun(self, table: Table, topic: str, end: dict[int, int]) -> None:
        """Offsets by number, as of the log alone: what is below the first is lost."""
        from quorate.spark.source import say_lost

        if not isinstance(self.options.starting, dict):
            return
        for number, first in self.options.starting.get(topic, {}).items():
            begun = min(table.begun(number) or 0, end[number])
            if 0 <= first < begun:
                missing = OffsetsMissing(topic, number, first=first, end=begun)
                if self.options.fail_on_data_loss:
                    raise missing
                say_lost(missing)

    def _of_files(
        self, table: Table, topic: str, begin: dict[int, int], end: dict[int, int], boundary: dict[int, int]
    ) -> Iterator[FilePartition]:
        for file in table.files():
            number = file.partition
            if number not in begin:
                continue
            first, last = begin[number], min(end[number], boundary[number])
            if file.last >= first and file.first < last:
                yield FilePartition(topic, number, file.path, first, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from quorate.spark.source import read_range

        if isinstance(partition, FilePartition):
            return self._read_file(partition)
        return read_range(self.options, self.row_schema, partition)

    def _read_file(self, partition: FilePartition) -> Iterator[pa.RecordBatch]:
        """Values are opened as those of the log are: a table holds them as they came."""
        from pyspark.sql.pandas.types import to_arrow_schema

        from quorate.spark.values import RAW, raw_schema, typed

        schema = to_arrow_schema(self.row_schema, timezone="UTC")
        form = self.options.value_format
        if form == RAW:
            return self._records_in(partition, schema)
        topic, number, path, *_ = partition.value
        return typed(
            self._records_in(partition, raw_schema(schema)), schema, form, f"{topic}-{number}, {path}"
        )

    def _records_in(self, partition: FilePartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        from quorate.spark.lake import IN_FILES, Lake

        topic, number, path, first, end = partition.value
        constants = {"topic": topic, "partition": number}
        wanted = [name for name in IN_FILES.names if name in schema.names or name == "offset"]
        files = Lake(self.options.lake, dict(self.options.lake_options)).files(topic)
        with files.open_input_file(path) as opened:
            for batch in pq.ParquetFile(opened).iter_batches(ROWS, columns=wanted):
                offsets = batch.column("offset")
                inside = pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, end))
                rows = batch.filter(inside)
                if not rows.num_rows:
                    continue
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.repeat(pa.scalar(constants[each.name], each.type), rows.num_rows)
                        if each.name in constants
                        else rows.column(each.name).cast(each.type)
                        for each in schema
                    ],
                    schema=schema,
                )


def _offsets(cluster: Cluster, found: Found, where: Where, option: str, *, unnamed: str) -> Positions:
    """Real offsets, as of the log alone, but that the earliest is where the table begins."""
    if isinstance(where, int | Times):
        # The log says which offset is of a time only for what it still has; in the table may be more of that time.
        raise WrongOption(
            f"with 'tiered', {option!r} is earliest, latest or offsets; times are the log's alone"
        )
    first: Positions = {topic: dict.fromkeys(numbers, 0) for topic, numbers in found.numbers.items()}
    if where == EARLIEST_NAME:
        return first
    if isinstance(where, dict):
        named = {
            topic: {n: 0 if at == EARLIEST else at for n, at in given.items()}
            for topic, given in where.items()
        }
        usual = first if unnamed == EARLIEST_NAME else {}
        where = {topic: usual.get(topic, {}) | named.get(topic, {}) for topic in {**usual, **named}}
    return resolve(cluster, found, where, option, unnamed=unnamed)
