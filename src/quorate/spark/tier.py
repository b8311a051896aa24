"""Keeping topics in Delta tables: a Structured Streaming job whose truth is the lake, not Spark's checkpoint.

A query begins where the tables end, with a checkpoint that is thrown away. For each batch, executors write Parquet
files, and the driver commits them to their table together with where the batch ends. Whatever is killed, and when:
a commit is there or it is not, and the next run reads on from there. Files without a commit belong to nobody, and
go with `--vacuum`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from quorate.client.admin import settings_of
from quorate.client.cluster import Cluster
from quorate.spark.asking import earliest
from quorate.spark.lake import File, Lake, LakeTrouble, NotTiered, Table, taken
from quorate.spark.options import Positions
from quorate.spark.planning import read_stream_offset
from quorate.spark.session import apart, reason_of
from quorate.spark.tier_source import NAME, TASK_OFFSETS_MAX, TierSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_OFFSETS = 10_000_000
"""Nothing is held of them but what a task is writing; a batch that fails is read and written again."""

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
    begun: Positions = field(default_factory=dict)
    """Where partitions begin that no table has anything of yet."""
    ended: Positions = field(default_factory=dict)
    """Where tables ended when this job saw them last: none may end before that again."""
    trouble: LakeTrouble | None = None
    rows_count: int = 0
    bytes_count: int = 0
    commits_count: int = 0

    def begin(self, cluster: Cluster) -> Positions:
        """Where each table goes on; raises LakeTrouble if the log has forgotten what comes next."""
        start: Positions = {}
        for name, topic in cluster.topics(self.topics).items():
            if "compact" in settings_of(cluster, name).get("cleanup.policy", ""):
                raise NotTiered(
                    f"topic {name!r} is compacted, and those are not tiered: their logs forget by key"
                )
            self.ids[name] = topic.id.hex()
            table = self.lake.table(name, self.ids[name])
            numbers = [partition.number for partition in topic.partitions]
            kept = earliest(cluster, name, numbers)
            start[name] = {}
            self.begun[name] = {}
            if table is None:
                self._check_left(name, kept)
            self.ended[name] = ends_of(table, numbers)
            for number in numbers:
                after = table.next_offset(number) if table is not None else None
                if after is not None and kept[number] > after:
                    raise LakeTrouble(
                        f"{name}-{number}: its log starts at offset {kept[number]}, and the table has everything "
                        f"before {after}: what lies between is lost; tier more often, or keep logs longer"
                    )
                start[name][number] = kept[number] if after is None else after
                if after is None:
                    self.begun[name][number] = kept[number]
        return start

    def _check_left(self, topic: str, kept: dict[int, int]) -> None:
        """A table that is begun anew owns what lies there, and would remove it: only what the log has, too."""
        for number, lowest in self.lake.left(topic).items():
            if lowest < kept.get(number, 0):
                raise LakeTrouble(
                    f"{self.lake.place(topic)} has files and no table: those of {topic}-{number} begin at offset "
                    f"{lowest}, and its log at {kept[number]}; bring its _delta_log back, or move the files away"
                )

    def run(
        self,
        session: SparkSession,
        start: Positions,
        *,
        every: str | None = None,
        batch_offsets: int = BATCH_OFFSETS,
    ) -> None:
        """Until everything that is there now is in the lake; with `every`, on and on."""
        with TemporaryDirectory(prefix="quorate-tier-", ignore_cleanup_errors=True) as scratch:
            session.dataSource.register(TierSource)
            stream = (
                session.readStream.format(NAME)
                .options(**self.options)
                .options(**{f"lake.{name}": value for name, value in self.lake.options.items()})
                .option("tiered", "true")
                .option("lake", self.lake.uri)
                .option("subscribe", ",".join(self.topics))
                .option("startingOffsets", json.dumps(start))
                .option("maxOffsetsPerTrigger", str(batch_offsets))
                .option("maxRecordsPerPartition", str(TASK_OFFSETS_MAX))
                .load()
            )
            writer = (
                stream.writeStream.foreachBatch(lambda files, number: self._kept(files, scratch, number))
                # As a URI: where a name alone is, the platform's Hadoop says, and `ends_in` looks here.
                .option("checkpointLocation", Path(scratch).as_uri())
                .queryName("quorate tier")
            )
            writer = writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)
            query = writer.start()
            try:
                query.awaitTermination()
            except StreamingQueryException as error:
                # Spark says it with all of Java's and Python's stacks.
                raise self.trouble or LakeTrouble(f"the job failed: {reason_of(error)}") from error
            finally:
                apart(query.stop)

    def _kept(self, files: DataFrame, checkpoint: str, number: int) -> None:
        try:
            self.keep(files, self.ends_in(checkpoint, number))
        except LakeTrouble as trouble:
            self.trouble = trouble
            raise

    def keep(self, rows: DataFrame, ends: Positions) -> None:
        """One batch: files by executors, then a commit for each topic."""
        tables = {topic: self.lake.table(topic, self.ids[topic]) for topic in ends}
        done: Positions = {topic: ends_of(table, ends[topic]) for topic, table in tables.items()}
        lake = self.lake
        for topic, parts in done.items():
            if any(end < self.ended.get(topic, {}).get(number, 0) for number, end in parts.items()):
                # What comes next would be all that it has: a hole that nobody sees.
                raise LakeTrouble(
                    f"{lake.place(topic)} was removed, or set back, while it was tiered; the next run goes on "
                    f"where it ends now, or keeps anew what the log still has"
                )
        written: dict[str, list[File]] = {topic: [] for topic in ends}
        for row in rows.collect():
            file = File(*row[1:])
            if file.first < done[row["topic"]][file.partition]:
                raise taken(lake, row["topic"])
            written[row["topic"]].append(file)
        for topic, files in written.items():
            further = {n: end for n, end in ends[topic].items() if end > done[topic][n]}
            if not further:
                continue
            begun = {
                n: at for n, at in self.begun.get(topic, {}).items() if n in further and not done[topic][n]
            }
            table = lake.commit(topic, self.ids[topic], tables[topic], files, further, begun)
            self.ended[topic] = done[topic] | further
            self.commits_count += 1
            rows_count = sum(file.rows for file in files)
            self.rows_count += rows_count
            self.bytes_count += sum(file.size for file in files)
            # Noted none the less: a log that forgets offsets without records has not lost any.
            what = f"{rows_count:,} records" if rows_count else "no records, only where it goes on"
            self.told(f"{topic}: {what}, version {table.version}")
            table.tidy(compact=self.compact, vacuum_hours=self.vacuum_hours)

    def ends_in(self, checkpoint: str, batch: int) -> Positions:
        """Where a batch ends, behind control entries, too: Spark writes that down before it runs one."""
        lines = (Path(checkpoint) / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
        end = read_stream_offset(json.loads(lines[-1]))
        for topic, topic_id in end.ids.items():
            if topic_id != self.ids[topic]:
                raise LakeTrouble(
                    f"topic {topic!r} was created anew while it was tiered: its id was {self.ids[topic]} and is "
                    f"{topic_id}; choose another place for it, or move {self.lake.place(topic)} away"
                )
        return end.positions


def ends_of(table: Table | None, numbers: Iterable[int]) -> dict[int, int]:
    """Of each partition, everything before this is in the table."""
    return {number: (table.next_offset(number) if table else None) or 0 for number in numbers}
