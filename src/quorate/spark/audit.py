"""The audit on Spark: directories are looked at and segments read in parallel, and copies compared by shuffles.

1. One task a directory replays its journal, without writing, and says which logs and which stretches of segments
   there are (quorate/audit/replica.py).
2. One task for some stretches reads them and makes one row an entry: where it stands, its epoch, its checksum. The
   checksum covers the payload's and that of the entry before, so equal checksums are equal logs.
3. Rows are grouped by partition and offset. Where copies do not agree, and only there, they are looked at closely.
   Producers' sequences are followed in one whole copy of each partition (audit_compare.py).
4. Tables and the cluster's image are built again from logs, and compared by offset.

Nothing that grows with a log comes to the driver: it sees one line for each copy of a partition, and findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as f

from quorate.audit.disk import ReadingDisk
from quorate.audit.findings import Finding
from quorate.audit.rebuild import image_of
from quorate.audit.replica import LogFacts, Looked, Place
from quorate.audit.segment import ROWS_MAX, Row, Scan
from quorate.batch import parse_batch_header
from quorate.core.entry import Kind, number_of
from quorate.spark.audit_compare import differences, sequences_of, states_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOKS_MAX = 3
"""What is found in the directory of a node at work is looked for again so often, before it is told."""
TASK_BYTES = 64 << 20
TASKS_MAX = 10_000
STRETCH_FINDINGS_MAX = 100
LOOKED = "what string, content binary"
ENTRIES = (
    "replica string, partition binary, settled boolean, counts boolean, offset long, last long, epoch long, "
    "checksum long, producer long, producer_epoch int, sequence int, finding binary"
)

Progress = Callable[[str], None]
Batches = Iterator[pa.RecordBatch]


class Log(msgspec.Struct, frozen=True):
    """What the driver knows of one replica's log."""

    facts: LogFacts
    """Without its stretches."""
    stretches_count: int
    bytes_count: int


class Work(msgspec.Struct, frozen=True):
    """For one task: a stretch of a log, or entries that a journal holds."""

    store: str
    facts: LogFacts
    """With the one stretch that is meant, or none."""
    rows: list[Row] = []


class Summary(msgspec.Struct, frozen=True):
    """What one directory said."""

    replica: str
    sequence: int
    findings: list[Finding]
    names: dict[str, str]


class Report(msgspec.Struct):
    """What an audit found, and in how much."""

    replicas: list[str]
    partitions_count: int = 0
    copies_count: int = 0
    entries_count: int = 0
    bytes_count: int = 0
    states_count: int = 0
    """Tables and images that were built again."""
    looks: int = 1
    findings: list[Finding] = []
    names: dict[str, str] = {}
    """What partitions are called."""
    protocols: dict[str, int] = {}
    """Partitions of each."""

    def name(self, partition: str) -> str:
        return self.names.get(partition, partition)


def audit(session: SparkSession, places: Sequence[Place], progress: Progress) -> Report:
    """Look at all of them; and again at what seems wrong, where a node has been writing meanwhile."""
    report, sequences = _look(session, places, progress, only=None)
    while report.findings and report.looks < LOOKS_MAX:
        if _sequences(session, places) == sequences:
            break
        progress("nodes are at work: what seems wrong is looked at again")
        only = {finding.partition for finding in report.findings}
        again, sequences = _look(session, places, lambda _: None, only=only)
        seen = {(finding.replica, finding.partition, finding.kind) for finding in again.findings}
        report.findings = [
            each for each in report.findings if (each.replica, each.partition, each.kind) in seen
        ]
        report.looks += 1
    return report


def _look(
    session: SparkSession, places: Sequence[Place], progress: Progress, *, only: set[str] | None
) -> tuple[Report, dict[str, int]]:
    said = "1 directory" if len(places) == 1 else f"{len(places)} directories"
    progress(f"looking at {said}: journals, snapshots, names of segments")
    looked = directories(session, places).mapInArrow(_look_at, LOOKED).persist(StorageLevel.MEMORY_AND_DISK)
    entries: DataFrame | None = None
    try:
        report, logs, sequences = _summed(looked, places, only)
        progress(f"reading {report.bytes_count / 1e6:,.0f} MB: {report.copies_count} copies of partitions")
        entries = _entries(session, looked, logs, only).persist(StorageLevel.MEMORY_AND_DISK)
        total = entries.agg(f.count("offset").alias("entries"), f.collect_list("finding").alias("found"))
        ((report.entries_count, found),) = total.collect()
        report.findings += [msgspec.msgpack.decode(each, type=Finding) for each in found]
        progress(f"comparing {report.entries_count:,} entries")
        facts = [log.facts for log in logs]
        report.findings += differences(entries)
        report.findings += sequences_of(session, entries, facts, report.findings)
        report.states_count, different = states_of(directories(session, places), facts)
        report.findings = sorted({*report.findings, *different})
        return report, sequences
    finally:
        looked.unpersist()
        if entries is not None:
            entries.unpersist()


# ---- step 1: directories ----


def directories(session: SparkSession, places: Sequence[Place]) -> DataFrame:
    """One row and one task each."""
    rows = [(place.replica, place.store) for place in places]
    return session.createDataFrame(rows, "replica string, store string").repartition(len(rows), "store")


def _look_at(batches: Batches) -> Batches:
    for batch in batches:
        for row in batch.to_pylist():
            said = _said_of(Place(row["replica"], row["store"]))
            while some := list(islice(said, 64)):
                what, contents = zip(*some, strict=True)
                columns = [pa.array(what, pa.string()), pa.array(contents, pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, names=["what", "content"])


def _said_of(place: Place) -> Iterator[tuple[str, bytes]]:
    encode = msgspec.msgpack.encode
    looked = Looked(place)
    for partition, facts in looked.facts.items():
        bare = msgspec.structs.replace(facts, stretches=())
        bytes_count = sum(stretch.end - stretch.position for stretch in facts.stretches)
        for stretch in facts.stretches:
            yield "work", encode(Work(place.store, msgspec.structs.replace(facts, stretches=(stretch,))))
        carried = looked.carried(partition)
        while frames := list(islice(carried, ROWS_MAX)):
            rows: list[Row] = []
            for frame in frames:
                header, batch = frame.header, parse_batch_header(frame.payload)
                producer = batch.producer_id, batch.producer_epoch, batch.base_sequence
                rows.append(
                    (header.offset, header.last, header.epoch, frame.checksum, header.kind, *producer)
                )
            bytes_count += sum(frame.size for frame in frames)
            yield "work", encode(Work(place.store, bare, rows))
        yield "log", encode(Log(bare, len(facts.stretches), bytes_count))
    yield "summary", encode(Summary(place.replica, looked.sequence, looked.findings, _names(looked)))


def _names(looked: Looked) -> dict[str, str]:
    image = image_of(looked)
    if image is None:
        return {}
    topics = {topic.id: topic.name for topic in image.topics.values()}
    return {
        partition.hex(): f"{topics[partition[:16]]}-{number_of(partition)}"
        for partition in looked.facts
        if partition[:16] in topics
    }


def _summed(
    looked: DataFrame, places: Sequence[Place], only: set[str] | None
) -> tuple[Report, list[Log], dict[str, int]]:
    report = Report([place.replica for place in places])
    logs: list[Log] = []
    sequences: dict[str, int] = {}
    for what, content in looked.where("what != 'work'").collect():
        if what == "log":
            logs.append(msgspec.msgpack.decode(content, type=Log))
            continue
        summary = msgspec.msgpack.decode(content, type=Summary)
        sequences[summary.replica] = summary.sequence
        report.names |= summary.names
        report.findings += summary.findings
    if only is not None:
        report.findings = [each for each in report.findings if each.partition in only]
        logs = [log for log in logs if log.facts.partition.hex() in only]
    report.bytes_count, report.copies_count = sum(log.bytes_count for log in logs), len(logs)
    protocols = {log.facts.partition: log.facts.protocol for log in logs if log.facts.protocol}
    report.partitions_count = len({log.facts.partition for log in logs})
    for protocol in sorted(set(protocols.values())):
        report.protocols[protocol] = list(protocols.values()).count(protocol)
    return report, logs, sequences


def _sequences(session: SparkSession, places: Sequence[Place]) -> dict[str, int]:
    looked = directories(session, places).mapInArrow(_sequence_of, "replica string, sequence long")
    return {row["replica"]: row["sequence"] for row in looked.collect()}


def _sequence_of(batches: Batches) -> Batches:
    for batch in batches:
        rows = [
            {"replica": row["replica"], "sequence": Looked(Place(row["replica"], row["store"])).sequence}
            for row in batch.to_pylist()
        ]
        yield pa.RecordBatch.from_pylist(
            rows, schema=pa.schema([("replica", pa.string()), ("sequence", pa.int64())])
        )


# ---- step 2: entries ----


def _entries(session: SparkSession, looked: DataFrame, logs: list[Log], only: set[str] | None) -> DataFrame:
    bytes_count = sum(log.bytes_count for log in logs)
    stretches_count = sum(log.stretches_count for log in logs)
    tasks = min(-(-bytes_count // TASK_BYTES), stretches_count, TASKS_MAX)
    work = looked.where("what = 'work'").select("content")
    work = work.repartition(max(tasks, session.sparkContext.defaultParallelism))

    def read(batches: Batches) -> Batches:
        for batch in batches:
            for content in batch.column("content").to_pylist():
                todo = msgspec.msgpack.decode(content, type=Work)
                if only is None or todo.facts.partition.hex() in only:
                    yield from _rows_of(todo)

    return work.mapInArrow(read, ENTRIES)


def _rows_of(work: Work) -> Batches:
    facts = work.facts
    if work.rows:
        yield _entry_batch(facts, work.rows)
    for stretch in facts.stretches:
        scan = Scan(ReadingDisk(Path(work.store)), facts.partition, stretch)
        for rows in scan.rows():
            yield _entry_batch(facts, rows)
        found = [
            Finding(facts.replica, facts.partition.hex(), each.kind, each.first, each.last, each.detail)
            for each in scan.damage[:STRETCH_FINDINGS_MAX]
        ]
        if found:
            columns = [pa.nulls(len(found), field.type) for field in _ENTRY_SCHEMA]
            columns[-1] = pa.array([msgspec.msgpack.encode(each) for each in found], pa.binary())
            yield pa.RecordBatch.from_arrays(columns, schema=_ENTRY_SCHEMA)


_ENTRY_SCHEMA = pa.schema(
    [
        ("replica", pa.string()),
        ("partition", pa.binary()),
        ("settled", pa.bool_()),
        ("counts", pa.bool_()),
        ("offset", pa.int64()),
        ("last", pa.int64()),
        ("epoch", pa.int64()),
        ("checksum", pa.int64()),
        ("producer", pa.int64()),
        ("producer_epoch", pa.int32()),
        ("sequence", pa.int32()),
        ("finding", pa.binary()),
    ]
)


def _entry_batch(facts: LogFacts, rows: Sequence[Row]) -> pa.RecordBatch:
    offsets, lasts, epochs, checksums, kinds, producers, producer_epochs, sequences = zip(*rows, strict=True)
    count, commit, records = len(rows), facts.commit, int(Kind.RECORDS)
    counts = [kind == records for kind in kinds]
    if facts.voids:
        counts = [each and not facts.is_void(offset) for each, offset in zip(counts, offsets, strict=True)]
    columns = [
        pa.array([facts.replica] * count, pa.string()),
        pa.array([bytes(facts.partition)] * count, pa.binary()),
        pa.array([last <= commit for last in lasts], pa.bool_()),
        pa.array(counts, pa.bool_()),
        *(pa.array(column, pa.int64()) for column in (offsets, lasts, epochs, checksums, producers)),
        pa.array(producer_epochs, pa.int32()),
        pa.array(sequences, pa.int32()),
        pa.nulls(count, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ENTRY_SCHEMA)
