"""Keeping topics in Delta tables: a Structured Streaming job whose truth is the lake, not Spark's checkpoint.

A query begins where the tables end, with a checkpoint that is thrown away. For each batch, executors write Parquet
files, and the driver commits them to their table together with where the batch ends. Whatever is killed, and when:
a commit is there or it is not, and the next run reads on from there. Files without a commit belong to nobody, and
go with `--vacuum`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException

from quorate.client.admin import settings_of
from quorate.client.cluster import Cluster
from quorate.spark.asking import earliest
from quorate.spark.lake import IN_FILES, PARTITION, File, Lake, LakeTrouble

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITTEN = "topic string, path string, size long, partition int, rows long, first long, last long"
COMPRESSION = "zstd"
COMPRESSION_LEVEL = 1
FILE_ROWS_MAX = 4_000_000
BATCH_OFFSETS = 2_000_000

Positions = dict[str, dict[int, int]]
Told = Callable[[str], None]


@dataclass
class Tiering:
    """What is kept where, and what has become of it."""

    lake: Lake
    options: dict[str, str]
    """Of `format("quorate")`: bootstrap servers, security."""
    topics: tuple[str, ...]
    compact: bool = False
    vacuum_hours: int | None = None
    told: Told = lambda text: None
    ids: dict[str, str] = field(default_factory=dict)
    trouble: LakeTrouble | None = None
    rows_count: int = 0
    bytes_count: int = 0
    commits_count: int = 0

    def begin(self, cluster: Cluster) -> Positions:
        """Where each table goes on; raises LakeTrouble if the log has forgotten what comes next."""
        start: Positions = {}
        for name, topic in cluster.topics(self.topics).items():
            if "compact" in settings_of(cluster, name).get("cleanup.policy", ""):
                raise LakeTrouble(
                    f"topic {name!r} is compacted, and those are not tiered: their logs forget by key"
                )
            self.ids[name] = topic.id.hex()
            table = self.lake.table(name, self.ids[name])
            numbers = [partition.number for partition in topic.partitions]
            kept = earliest(cluster, name, numbers)
            start[name] = {}
            for number in numbers:
                after = table.next_offset(number) if table is not None else None
                if after is not None and kept[number] > after:
                    raise LakeTrouble(
                        f"{name}-{number}: its log starts at offset {kept[number]}, and the table has everything "
                        f"before {after}: what lies between is lost; tier more often, or keep logs longer"
                    )
                start[name][number] = kept[number] if after is None else after
        return start

    def run(
        self,
        session: SparkSession,
        start: Positions,
        *,
        every: str | None = None,
        batch_offsets: int = BATCH_OFFSETS,
    ) -> None:
        """Until everything that is there now is in the lake; with `every`, on and on."""
        with TemporaryDirectory(prefix="quorate-tier-") as scratch:
            stream = (
                session.readStream.format("quorate")
                .options(**self.options)
                .option("subscribe", ",".join(self.topics))
                .option("startingOffsets", json.dumps(start))
                .option("maxOffsetsPerTrigger", str(batch_offsets))
                .option("includeHeaders", "true")
                .load()
            )
            writer = (
                stream.writeStream.foreachBatch(
                    lambda rows, number: self._kept(rows, ends_in(scratch, number))
                )
                .option("checkpointLocation", scratch)
                .queryName("quorate tier")
            )
            writer = writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)
            query = writer.start()
            try:
                query.awaitTermination()
            except StreamingQueryException as error:
                # Spark says it with all of Java's and Python's stacks.
                raise self.trouble or error from error
            finally:
                query.stop()

    def _kept(self, rows: DataFrame, ends: Positions) -> None:
        try:
            self.keep(rows, ends)
        except LakeTrouble as trouble:
            self.trouble = trouble
            raise

    def keep(self, rows: DataFrame, ends: Positions) -> None:
        """One batch: files by executors, then a commit for each topic. A batch that comes again adds nothing."""
        tables = {topic: self.lake.table(topic, self.ids[topic]) for topic in ends}
        done: Positions = {
            topic: {number: (table.next_offset(number) if table else None) or 0 for number in ends[topic]}
            for topic, table in tables.items()
        }
        lake = self.lake
        written: dict[str, list[File]] = {topic: [] for topic in ends}
        for row in rows.mapInArrow(lambda batches: write_files(batches, lake, done), WRITTEN).collect():
            written[row["topic"]].append(File(*row[1:]))
        for topic, files in written.items():
            further = {n: end for n, end in ends[topic].items() if end > done[topic][n]}
            if not further:
                continue
            table = lake.commit(topic, self.ids[topic], tables[topic], files, further)
            self.commits_count += 1
            self.rows_count += sum(file.rows for file in files)
            self.bytes_count += sum(file.size for file in files)
            self.told(f"{topic}: {sum(file.rows for file in files):,} records, version {table.version}")
            table.tidy(compact=self.compact, vacuum_hours=self.vacuum_hours)


def ends_in(checkpoint: str, batch: int) -> Positions:
    """Where a batch ends, behind control entries, too: Spark writes that down before it runs one."""
    lines = (Path(checkpoint) / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
    said = json.loads(lines[-1])
    return {
        topic: {int(number): offset for number, offset in partitions.items()}
        for topic, partitions in said.items()
        if not topic.startswith("#")
    }


# ---- what tasks do ----


def write_files(
    batches: Iterator[pa.RecordBatch], lake: Lake, done: Mapping[str, Mapping[int, int]]
) -> Iterator[Any]:
    """A file for each partition in a task (which has one, as a rule), without what the table has already."""
    writers: dict[tuple[str, int], _Writing] = {}
    finished: list[tuple[str, File]] = []
    for batch in batches:
        for topic, number, rows in _by_partition(batch):
            rows = rows.filter(pc.greater_equal(rows.column("offset"), done[topic].get(number, 0)))
            if not rows.num_rows:
                continue
            writing = writers.get((topic, number))
            if writing is None:
                writing = writers[topic, number] = _Writing(lake, topic, number)
            writing.add(rows)
            if writing.count >= FILE_ROWS_MAX:
                finished.append((topic, writers.pop((topic, number)).close()))
    finished += [(topic, writing.close()) for (topic, _), writing in writers.items()]
    if finished:
        columns = zip(*((topic, *file) for topic, file in finished), strict=True)
        types = pa.string(), pa.string(), pa.int64(), pa.int32(), pa.int64(), pa.int64(), pa.int64()
        names = ["topic", *File._fields]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=names)


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    topics, numbers = batch.column("topic").unique().to_pylist(), batch.column(PARTITION).unique().to_pylist()
    if len(topics) <= 1 and len(numbers) <= 1:
        if topics:
            yield topics[0], numbers[0], batch
        return
    for topic in topics:
        for number in numbers:
            chosen = pc.and_(
                pc.equal(batch.column("topic"), topic), pc.equal(batch.column(PARTITION), number)
            )
            yield topic, number, batch.filter(chosen)


class _Writing:
    """One file on its way; its name is nobody else's."""

    def __init__(self, lake: Lake, topic: str, partition: int) -> None:
        self._files = lake.files(topic)
        self._partition = partition
        self._path = f"{PARTITION}={partition}/{uuid4().hex}.parquet"
        self._stream = self._files.open_output_stream(self._path)
        self._writer = pq.ParquetWriter(
            self._stream, IN_FILES, compression=COMPRESSION, compression_level=COMPRESSION_LEVEL
        )
        self.count = 0
        self._first, self._last = 1 << 62, -1

    def add(self, rows: pa.RecordBatch) -> None:
        bounds = pc.min_max(rows.column("offset")).as_py()
        self._first, self._last = min(self._first, bounds["min"]), max(self._last, bounds["max"])
        self.count += rows.num_rows
        self._writer.write_batch(rows.select(IN_FILES.names).cast(IN_FILES))

    def close(self) -> File:
        self._writer.close()
        self._stream.close()
        size = self._files.get_file_info(self._path).size
        return File(self._path, size, self._partition, self.count, self._first, self._last)
