"""What producers wrote, followed on Spark: sequences by partition, and ends of transactions through all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as f

from quorate.audit.findings import Finding
from quorate.audit.replica import LogFacts
from quorate.core.entry import NOWHERE, Partition
from quorate.machine.producers import PRODUCERS_COUNT_MAX, SEQUENCES_COUNT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AGAIN_MAX = 1 << 20
"""A sequence that is behind by less was written before; by more, it is as likely ahead, round the circle."""


def _whole_copies(
    session: SparkSession, logs: Sequence[LogFacts], found: Sequence[Finding]
) -> DataFrame | None:
    """Of each partition one that is whole and has settled most: the others are the same."""
    harmed = {(finding.replica, finding.partition) for finding in found}
    chosen: dict[Partition, LogFacts] = {}
    for facts in logs:
        if (facts.replica, facts.partition.hex()) in harmed or facts.purpose != "topic":
            continue
        best = chosen.get(facts.partition)
        if best is None or _says_more(facts, best):
            chosen[facts.partition] = facts
    if not chosen:
        return None
    return session.createDataFrame(
        [(each.replica, bytearray(each.partition), each.base == NOWHERE) for each in chosen.values()],
        "replica string, partition binary, whole boolean",
    )


def _says_more(one: LogFacts, other: LogFacts) -> bool:
    """What was compacted has lost sequences, as it should, and markers."""
    if one.is_compacted != other.is_compacted:
        return other.is_compacted
    return one.commit - one.base.offset > other.commit - other.base.offset


# ---- sequences ----


def sequences_of(
    session: SparkSession, rows: DataFrame, logs: Sequence[LogFacts], found: Sequence[Finding]
) -> list[Finding]:
    copies = _whole_copies(session, logs, found)
    if copies is None:
        return []
    runs = rows.where("what = 'run'").join(f.broadcast(copies), ["replica", "partition"])
    by_producer = Window.partitionBy("partition", "producer").orderBy("offset")
    follows = runs.select(
        *("partition", "offset", "last", "producer", "producer_epoch", "sequence", "whole"),
        f.lag("producer_epoch").over(by_producer).alias("epoch_before"),
        f.lag("sequence_end").over(by_producer).alias("end_before"),
    )
    starts = "sequence != 0 and ((epoch_before is null and whole) or producer_epoch > epoch_before)"
    goes_on = f"producer_epoch = epoch_before and sequence != (end_before + 1) % {SEQUENCES_COUNT}L"
    wrong = follows.where(f"({starts}) or ({goes_on}) or producer_epoch < epoch_before")
    again = f"producer_epoch = epoch_before and end_before - sequence between 0 and {AGAIN_MAX}"
    told = _told(
        wrong.withColumn("kind", f.expr(f"if({again}, 'duplicate', 'sequence')")),
        ("producer", "sequence", "end_before"),
    )
    return [
        Finding("", bytes(partition).hex(), kind, first, last, _in_words(count, example))
        for partition, kind, first, last, count, example in told
        if not _has_forgotten(rows, partition)
    ]


def _told(wrong: DataFrame, words: Sequence[str]) -> list[Any]:
    """By partition and kind: how many, where, and the first of them."""
    return (
        wrong.groupBy("partition", "kind")
        .agg(
            f.min("offset").alias("first"),
            f.max("last").alias("last"),
            f.count("*").alias("count"),
            f.min_by(f.struct(*words), "offset").alias("example"),
        )
        .collect()
    )


def _has_forgotten(rows: DataFrame, partition: bytes) -> bool:
    """With more producers than a partition remembers, those that were forgotten may have begun anywhere."""
    mine = rows.where(f.col("partition") == f.lit(bytearray(partition)))
    return bool(mine.select("producer").distinct().count() > PRODUCERS_COUNT_MAX)


def _in_words(count: int, example: Any) -> str:
    batches = "1 batch" if count == 1 else f"{count} batches, the first"
    behind = "as its first" if example["end_before"] is None else f"behind {example['end_before']}"
    return f"{batches}: producer {example['producer']} wrote sequence {example['sequence']} {behind}"


# ---- transactions ----


def transactions_of(
    session: SparkSession, rows: DataFrame, logs: Sequence[LogFacts], found: Sequence[Finding]
) -> list[Finding]:
    """A producer's transactions are numbered: one number ends once in a partition, and in all of them alike.

    Where its home still knows what it has decided, whatever says something else is wrong; where not, nobody can
    say who is.
    """
    copies = _whole_copies(session, logs, found)
    if copies is None:
        return []
    columns = "what", "partition", "offset", "producer", "number", "commits"
    markers = rows.where("what = 'marker'").join(f.broadcast(copies), ["replica", "partition"])
    decided = rows.where("what = 'decision'").select(*columns).distinct()
    transaction = Window.partitionBy("producer", "number")
    here = Window.partitionBy("producer", "number", "what", "partition", "commits").orderBy("offset")
    by_home = f.expr("if(what = 'decision', commits, null)")
    ends = (
        markers.select(*columns)
        .union(decided)
        .select(
            *columns,
            f.col("offset").alias("last"),
            (f.min("commits").over(transaction) != f.max("commits").over(transaction)).alias("disagree"),
            f.min(by_home).over(transaction).alias("home"),
            f.max(by_home).over(transaction).alias("home_too"),
            f.row_number().over(here).alias("place"),
        )
        .where("what = 'marker'")
    )
    # Copies of a home that do not agree are told of elsewhere, and say nothing here.
    otherwise = "disagree and if(home = home_too, commits != home, true)"
    wrong = ends.withColumn("kind", f.expr(f"if({otherwise}, 'decided', if(place > 1, 'marker', null))"))
    told = _told(wrong.where("kind is not null"), ("producer", "number", "commits", "home"))
    return [
        Finding("", bytes(partition).hex(), kind, first, last, _ended(kind, count, example))
        for partition, kind, first, last, count, example in told
        if kind == "decided" or not _has_forgotten(rows, partition)
    ]


def _ended(kind: str, count: int, example: Any) -> str:
    which = f"transaction {example['number']} of producer {example['producer']}"
    said = "committed" if example["commits"] else "aborted"
    more = "" if count == 1 else f", and {count - 1} more"
    if kind == "marker":
        return f"{which} is {said} once more{more}"
    other = "aborted" if example["commits"] else "committed"
    by = "elsewhere" if example["home"] is None else "by its coordinator"
    return f"{which} is {said} here, and {other} {by}{more}"
