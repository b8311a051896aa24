"""Copies against each other, on Spark: entries are grouped by where they stand, states by how far they got."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as f

from quorate.audit.findings import Finding
from quorate.audit.rebuild import PURPOSES, rebuild
from quorate.audit.replica import LogFacts, Looked, Place
from quorate.core.entry import NOWHERE, Partition
from quorate.machine.producers import PRODUCERS_COUNT_MAX, SEQUENCES_COUNT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATES = "replica string, partition binary, offset long, built_from string, digest long"
AGAIN_MAX = 1 << 20
"""A sequence that is behind by less was written before; by more, it is as likely ahead, round the circle."""


# ---- entries ----


def differences(entries: DataFrame) -> list[Finding]:
    """Every offset is compared; only where copies do not agree it matters who has what."""
    rows = entries.where("finding is null").select(
        "replica",
        "partition",
        "offset",
        "last",
        "epoch",
        "settled",
        f.xxhash64("epoch", "checksum").alias("value"),
    )
    # By their ends: what compaction made one of several entries ends as the last of them did, in other copies, too.
    doubtful = (
        rows.groupBy("partition", "last")
        .agg(f.min("value").alias("lowest"), f.max("value").alias("highest"))
        .where("lowest != highest")
        .select("partition", "last")
        .persist()
    )
    try:
        if doubtful.isEmpty():
            return []
        rows = rows.join(doubtful, ["partition", "last"])
        twice = _two_values(rows)
        told = {finding.partition for finding in twice}
        # Two values of one epoch are two settled values as well, where both are settled: said once.
        return twice + [each for each in _settled_otherwise(rows) if each.partition not in told]
    finally:
        doubtful.unpersist()


def _two_values(rows: DataFrame) -> list[Finding]:
    """One epoch, one offset, two entries."""
    twice = (
        rows.groupBy("partition", "last", "epoch")
        .agg(f.count_distinct("value").alias("values"), f.min("offset").alias("offset"))
        .where("values > 1")
        .groupBy("partition")
        .agg(f.min("offset").alias("first"), f.max("last").alias("last"), f.count("*").alias("count"))
    )
    return [
        Finding("", bytes(partition).hex(), "value", first, last, f"{count} entries")
        for partition, first, last, count in twice.collect()
    ]


def _settled_otherwise(rows: DataFrame) -> list[Finding]:
    """Who has settled something else than most have; where there are as many of the one as of the other, all."""
    settled = rows.where("settled")
    held = settled.groupBy("partition", "last", "value").agg(f.count("*").alias("copies"))
    place = Window.partitionBy("partition", "last")
    ranked = (
        held.withColumn("most", f.max("copies").over(place))
        .withColumn("values", f.count("*").over(place))
        .withColumn("winners", f.sum(f.expr("if(copies = most, 1, 0)")).over(place))
        .where("values > 1 and (copies < most or winners > 1)")
    )
    alone = (
        settled.join(ranked.select("partition", "last", "value"), ["partition", "last", "value"])
        .groupBy("replica", "partition")
        .agg(
            f.min("offset").alias("first"),
            f.max("last").alias("last"),
            f.min("epoch").alias("epoch"),
            f.count("*").alias("count"),
        )
    )
    return [
        Finding(
            replica, bytes(partition).hex(), "differs", first, last, f"{count} entries, from epoch {epoch} on"
        )
        for replica, partition, first, last, epoch, count in alone.collect()
    ]


# ---- producers ----


def sequences_of(
    session: SparkSession, entries: DataFrame, logs: Sequence[LogFacts], found: Sequence[Finding]
) -> list[Finding]:
    """In one copy of each partition that is whole and has settled most: the others are the same."""
    chosen = _whole_copies(logs, found)
    if not chosen:
        return []
    copies = session.createDataFrame(
        [(each.replica, bytearray(each.partition), each.base == NOWHERE) for each in chosen],
        "replica string, partition binary, whole boolean",
    )
    rows = entries.where("finding is null and settled and counts and producer >= 0 and sequence >= 0").join(
        f.broadcast(copies), ["replica", "partition"]
    )
    by_producer = Window.partitionBy("partition", "producer").orderBy("offset")
    end = f.expr(f"(sequence + last - offset) % {SEQUENCES_COUNT}L").alias("end")
    follows = rows.select(
        "partition", "offset", "last", "producer", "producer_epoch", "sequence", "whole", end
    ).select(
        "*",
        f.lag("producer_epoch").over(by_producer).alias("epoch_before"),
        f.lag("end").over(by_producer).alias("end_before"),
    )
    starts = "sequence != 0 and ((epoch_before is null and whole) or producer_epoch > epoch_before)"
    goes_on = f"producer_epoch = epoch_before and sequence != (end_before + 1) % {SEQUENCES_COUNT}L"
    wrong = follows.where(f"({starts}) or ({goes_on}) or producer_epoch < epoch_before")
    again = f"producer_epoch = epoch_before and end_before - sequence between 0 and {AGAIN_MAX}"
    told = (
        wrong.withColumn("kind", f.expr(f"if({again}, 'duplicate', 'sequence')"))
        .groupBy("partition", "kind")
        .agg(
            f.min("offset").alias("first"),
            f.max("last").alias("last"),
            f.count("*").alias("count"),
            f.min_by(f.struct("producer", "sequence", "end_before"), "offset").alias("example"),
        )
        .collect()
    )
    return [
        Finding("", bytes(partition).hex(), kind, first, last, _in_words(count, example))
        for partition, kind, first, last, count, example in told
        if not _has_forgotten(rows, partition)
    ]


def _whole_copies(logs: Sequence[LogFacts], found: Sequence[Finding]) -> list[LogFacts]:
    harmed = {(finding.replica, finding.partition) for finding in found}
    chosen: dict[Partition, LogFacts] = {}
    for facts in logs:
        # Of what was compacted, sequences are missing as they should.
        if (facts.replica, facts.partition.hex()) in harmed or facts.purpose != "topic" or facts.is_compacted:
            continue
        best = chosen.get(facts.partition)
        if best is None or facts.commit - facts.base.offset > best.commit - best.base.offset:
            chosen[facts.partition] = facts
    return list(chosen.values())


def _has_forgotten(rows: DataFrame, partition: bytes) -> bool:
    """With more producers than a partition remembers, those that were forgotten may have begun anywhere."""
    mine = rows.where(f.col("partition") == f.lit(bytearray(partition)))
    return bool(mine.select("producer").distinct().count() > PRODUCERS_COUNT_MAX)


def _in_words(count: int, example: Any) -> str:
    batches = "1 batch" if count == 1 else f"{count} batches, the first"
    behind = "as its first" if example["end_before"] is None else f"behind {example['end_before']}"
    return f"{batches}: producer {example['producer']} wrote sequence {example['sequence']} {behind}"


# ---- states ----


def states_of(directories: DataFrame, logs: Sequence[LogFacts]) -> tuple[int, list[Finding]]:
    """Each copy builds its states up to some offsets of all copies; what it has there is compared."""
    wanted: dict[str, set[int]] = {}
    for facts in logs:
        if facts.purpose in PURPOSES:
            commit = min(other.commit for other in logs if other.partition == facts.partition)
            offsets = wanted.setdefault(facts.partition.hex(), set())
            offsets.update(offset for offset in (commit, facts.snapshot) if offset >= 0)
    if not wanted:
        return 0, []
    said = {partition: sorted(offsets) for partition, offsets in wanted.items()}

    def build(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield _states_in(Place(row["replica"], row["store"]), said)

    held = f.struct("replica", "built_from", "digest")
    groups = (
        directories.mapInArrow(build, STATES)
        .groupBy("partition", "offset")
        .agg(f.collect_list(held).alias("held"))
        .select("partition", "offset", f.size("held").alias("count"), _otherwise("held").alias("held"))
        .collect()
    )
    findings = [each for group in groups if group["held"] for each in _odd_ones(group)]
    return sum(group["count"] for group in groups), findings


def _otherwise(column: str) -> Any:
    """Who holds what, where it is not all the same; null where it is."""
    digests = f.size(f.array_distinct(f.transform(column, lambda each: each["digest"])))
    return f.when(digests > 1, f.col(column))


def _odd_ones(group: Any) -> Iterator[Finding]:
    digests = [row["digest"] for row in group["held"]]
    most = max(digests.count(digest) for digest in digests)
    usual = {digest for digest in digests if digests.count(digest) == most}
    for row in sorted(group["held"]):
        if len(usual) > 1 or row["digest"] not in usual:
            where = bytes(group["partition"]).hex(), "table", group["offset"], group["offset"]
            yield Finding(row["replica"], *where, f"built from {row['built_from']}: {row['digest']:08x}")


def _states_in(place: Place, wanted: dict[str, list[int]]) -> pa.RecordBatch:
    looked = Looked(place)
    rows = []
    for name, offsets in wanted.items():
        partition = Partition(bytes.fromhex(name))
        facts = looked.facts.get(partition)
        if facts is not None and facts.purpose in PURPOSES:
            rows += [(place.replica, bytes(partition), *said) for said in rebuild(looked, partition, offsets)]
    types = pa.string(), pa.binary(), pa.int64(), pa.string(), pa.int64()
    columns = zip(*rows, strict=True) if rows else ([] for _ in types)
    names = ["replica", "partition", "offset", "built_from", "digest"]
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), kind) for column, kind in zip(columns, types, strict=True)], names=names
    )
