"""The audit on Spark: directories are looked at and segments read in parallel, and copies compared by shuffles.

1. One task a directory replays its journal, without writing, and says which logs and which stretches of segments
   there are (quorate/audit/replica.py).
2. One task for some stretches reads them, verifies every entry, and tells in few rows what is to be compared
   (audit_rows.py).
3. Rows of copies are grouped by partition and offset. Where copies do not agree, or one is damaged, and only there,
   they are read once more and compared entry by entry. Producers' sequences and the ends of transactions are
   followed in one whole copy of each partition (audit_compare.py, audit_producers.py).
4. Tables, homes and the cluster's image are built again from logs, and compared by offset.

Nothing that grows with a log comes to the driver: it sees one line for each copy of a partition, and findings, up
to a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as f

from quorate.audit.findings import Finding
from quorate.audit.places import Place
from quorate.audit.rebuild import decisions, image_of
from quorate.audit.replica import LogFacts, Looked
from quorate.core.entry import number_of
from quorate.spark.audit_compare import differences, doubtful, states_of
from quorate.spark.audit_producers import sequences_of, transactions_of
from quorate.spark.audit_rows import ROWS, How, Work, carried_of, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOKS_MAX = 3
"""What is found in the directory of a node at work is looked for again so often, before it is told."""
TASK_BYTES = 64 << 20
TASKS_MAX = 10_000
CARRIED_MAX = 32_768
"""Entries of a journal, or decisions of a home, that are handed on together."""
FINDINGS_MAX = 10_000
"""Of damage to segments: so much comes to the driver."""
LOOKED = "what string, content binary"

Progress = Callable[[str], None]
Batches = Iterator[pa.RecordBatch]


class Log(msgspec.Struct, frozen=True):
    """What the driver knows of one replica's log."""

    facts: LogFacts
    """Without its stretches."""
    stretches_count: int
    bytes_count: int


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
    """Copies of tables, homes and the image that were built again."""
    looks: int = 1
    findings: list[Finding] = []
    untold_count: int = 0
    """Findings beyond those."""
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
        # Of a transaction, other partitions must be seen as well.
        is_joint = any(finding.kind == "decided" for finding in report.findings)
        only = None if is_joint else {finding.partition for finding in report.findings}
        again, sequences = _look(session, places, lambda _: None, only=only)
        seen = {(finding.replica, finding.partition, finding.kind) for finding in again.findings}
        report.findings = [
            each for each in report.findings if (each.replica, each.partition, each.kind) in seen
        ]
        report.untold_count = again.untold_count
        report.looks += 1
    return report


def _look(
    session: SparkSession, places: Sequence[Place], progress: Progress, *, only: set[str] | None
) -> tuple[Report, dict[str, int]]:
    said = "1 directory" if len(places) == 1 else f"{len(places)} directories"
    progress(f"looking at {said}: journals, snapshots, names of segments")
    looked = directories(session, places).mapInArrow(_look_at, LOOKED).persist(StorageLevel.MEMORY_AND_DISK)
    rows: DataFrame | None = None
    try:
        report, logs, sequences = _summed(looked, places, only)
        facts = [log.facts for log in logs]
        progress(f"reading {report.bytes_count / 1e6:,.0f} MB: {report.copies_count} copies of partitions")
        ways = _ways(facts)
        rows = _rows(session, looked, logs, ways).persist(StorageLevel.MEMORY_AND_DISK)
        markers_count = _take_stock(report, rows)
        progress(f"comparing {report.entries_count:,} entries")
        closely = {name for name, how in ways.items() if how.closely}
        again = {finding.partition for finding in report.findings} | doubtful(rows)
        again = again & set(ways) - closely
        if closely:
            report.findings += differences(rows)
        if again:
            ways = {name: How(ways[name].points, closely=True) for name in again}
            some = [log for log in logs if log.facts.partition.hex() in again]
            report.findings += differences(_rows(session, looked, some, ways))
        report.findings += sequences_of(session, rows, facts, report.findings)
        if markers_count:
            report.findings += transactions_of(session, rows, facts, report.findings)
        report.states_count, different = states_of(directories(session, places), facts)
        report.findings = sorted({*report.findings, *different})
        return report, sequences
    finally:
        looked.unpersist()
        if rows is not None:
            rows.unpersist()


def _take_stock(report: Report, rows: DataFrame) -> int:
    """Read everything; how many transactions end there."""
    (stock,) = rows.agg(
        f.sum("count").alias("entries"),
        f.count("finding").alias("findings"),
        f.count_if(f.col("what") == "marker").alias("markers"),
    ).collect()
    report.entries_count = stock["entries"] or 0
    if stock["findings"]:
        found = rows.where("what = 'finding'").select("finding").limit(FINDINGS_MAX).collect()
        report.findings += [msgspec.msgpack.decode(bytes(each), type=Finding) for (each,) in found]
        report.untold_count = stock["findings"] - len(found)
    return int(stock["markers"])


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
        while frames := list(islice(carried, CARRIED_MAX)):
            rows, markers = carried_of(frames)
            bytes_count += sum(frame.size for frame in frames)
            yield "work", encode(Work(place.store, bare, rows, markers))
        decided = decisions(looked, partition) if facts.purpose == "transactions" else iter(())
        while some := list(islice(decided, CARRIED_MAX)):
            yield "work", encode(Work(place.store, bare, decisions=some))
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


# ---- step 2: segments ----


def _ways(logs: Sequence[LogFacts]) -> dict[str, How]:
    """Copies are compared where each of them ends, and where each has settled."""
    copies: dict[str, list[LogFacts]] = {}
    for facts in logs:
        copies.setdefault(facts.partition.hex(), []).append(facts)
    return {
        name: How(
            tuple(sorted({at for each in mine for at in (each.commit, each.head.offset) if at >= 0})),
            closely=any(each.is_compacted for each in mine),
        )
        for name, mine in copies.items()
    }


def _rows(
    session: SparkSession, looked: DataFrame, logs: Sequence[Log], ways: Mapping[str, How]
) -> DataFrame:
    """Of the partitions that something is asked of."""
    bytes_count = sum(log.bytes_count for log in logs)
    stretches_count = sum(log.stretches_count for log in logs)
    tasks = min(-(-bytes_count // TASK_BYTES), stretches_count, TASKS_MAX)
    work = looked.where("what = 'work'").select("content")
    work = work.repartition(max(tasks, session.sparkContext.defaultParallelism))

    def todo(batches: Batches) -> Iterator[tuple[Work, How]]:
        for batch in batches:
            for content in batch.column("content").to_pylist():
                each = msgspec.msgpack.decode(content, type=Work)
                how = ways.get(each.facts.partition.hex())
                if how is not None:
                    yield each, how

    return work.mapInArrow(lambda batches: rows_of(todo(batches)), ROWS)
