"""Copies against each other, on Spark: entries are grouped by where they stand, states by how far they got."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as f

from quorate.audit.findings import Finding
from quorate.audit.places import Place
from quorate.audit.rebuild import PURPOSES, rebuild
from quorate.audit.replica import LogFacts, Looked
from quorate.core.entry import Partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STATES = "replica string, partition binary, offset long, built_from string, digest long"
BY_SHUFFLE = "merge"
"""What grows with logs is not broadcast, which goes by the driver: Spark would, up to some megabytes."""
_VALUE = "xxhash64(epoch, checksum) as value"


# ---- entries ----


def doubtful(rows: DataFrame) -> set[str]:
    """Partitions of which copies have different entries at the same offset."""
    points = rows.where("what = 'point'").select("partition", "offset", f.expr(_VALUE))
    found = (
        points.groupBy("partition", "offset")
        .agg(f.min("value").alias("lowest"), f.max("value").alias("highest"))
        .where("lowest != highest")
        .select("partition")
        .distinct()
        .collect()
    )
    return {bytes(partition).hex() for (partition,) in found}


def differences(rows: DataFrame) -> list[Finding]:
    """Every entry is compared; only where copies do not agree it matters who has what."""
    columns = "replica", "partition", "offset", "last", "epoch", "settled"
    rows = rows.where("what = 'entry'").select(*columns, f.expr(_VALUE)).persist()
    # By their ends: what compaction made one of several entries ends as the last of them did, in other copies, too.
    parted = (
        rows.groupBy("partition", "last")
        .agg(f.min("value").alias("lowest"), f.max("value").alias("highest"))
        .where("lowest != highest")
        .select("partition", "last")
        .persist()
    )
    try:
        if parted.isEmpty():
            return []
        both = rows.join(parted.hint(BY_SHUFFLE), ["partition", "last"])
        twice = _two_values(both)
        told = {finding.partition for finding in twice}
        # Two values of one epoch are two settled values as well, where both are settled: said once.
        return twice + [each for each in _settled_otherwise(both) if each.partition not in told]
    finally:
        parted.unpersist()
        rows.unpersist()


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
        settled.join(
            ranked.select("partition", "last", "value").hint(BY_SHUFFLE), ["partition", "last", "value"]
        )
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


# ---- states ----


def states_of(directories: DataFrame, logs: Sequence[LogFacts]) -> tuple[int, list[Finding]]:
    """Each copy builds its states up to some offsets of all copies; what it has there is compared.

    How many copies did, and what was found. Each is asked for what others have settled as well: one that is behind,
    or whose disk does not say yet that anything is settled, keeps nobody from being compared with the rest.
    """
    wanted: dict[str, set[int]] = {}
    for facts in logs:
        if facts.purpose in PURPOSES:
            offsets = wanted.setdefault(facts.partition.hex(), set())
            offsets.update(offset for offset in (facts.commit, facts.snapshot) if offset >= 0)
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
        .agg(f.collect_set("replica").alias("copies"), f.collect_list(held).alias("held"))
        .select("partition", "offset", "copies", _otherwise("held").alias("held"))
        .collect()
    )
    findings = [each for group in groups if group["held"] for each in _odd_ones(group)]
    return len({(bytes(group["partition"]), copy) for group in groups for copy in group["copies"]}), findings


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
