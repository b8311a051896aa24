"""Protocols beside each other, from the rows of a sweep: summed up on Spark, a few numbers each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as f

from quorate.sim.measures import BUCKETS_COUNT, upper_s
from quorate.spark.sweep import MEASURED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARES = (0.5, 0.9, 0.99)
ACCURACY = 10_000


class Compared(msgspec.Struct, frozen=True):
    """One protocol, over all worlds that it was run in. Times are simulated seconds."""

    protocol: str
    worlds: int
    violations: int
    virtual_seconds: float
    asked: int
    served: int
    committed: int
    """Proposals that were acknowledged while things went wrong."""
    latencies: tuple[int, ...]
    messages: int
    sent_bytes: int
    elections: int
    rolled_back: int
    """Times that some copy took a transaction back."""
    truncated: int
    recovery_s: tuple[float, ...]
    """At `SHARES` of all worlds."""

    @property
    def availability(self) -> float:
        return self.served / self.asked if self.asked else 0.0

    @property
    def messages_per_commit(self) -> float:
        return self.messages / self.committed if self.committed else 0.0

    @property
    def bytes_per_commit(self) -> float:
        return self.sent_bytes / self.committed if self.committed else 0.0

    def latency_s(self, share: float) -> float:
        """Within which so many of all commits were acknowledged; right to a fifth."""
        wanted, seen = share * self.committed, 0
        for bucket, count in enumerate(self.latencies):
            seen += count
            if count and seen >= wanted:
                return upper_s(bucket)
        return 0.0


def compare(session: SparkSession, place: str, protocols: tuple[str, ...]) -> list[Compared]:
    """In the order of these; those without rows are left out."""
    rows = session.read.parquet(place)
    buckets = [f.sum(f.col("latencies")[number]).alias(f"bucket{number}") for number in range(BUCKETS_COUNT)]
    sums = [f.sum(name).alias(name) for name in (*MEASURED, "elections", "undone", "virtual_seconds")]
    recovered = f.percentile_approx(f.expr("if(recovery_s > 0, recovery_s, null)"), list(SHARES), ACCURACY)
    grouped = rows.groupBy("protocol").agg(
        f.count("seed").alias("worlds"),
        f.count("invariant").alias("violations"),
        recovered.alias("recovery"),
        *sums,
        *buckets,
    )
    found = {row["protocol"]: row.asDict() for row in grouped.collect()}
    compared = []
    for protocol in protocols:
        row = found.get(protocol)
        if row is None:
            continue
        latencies = tuple(row[f"bucket{number}"] or 0 for number in range(BUCKETS_COUNT))
        compared.append(
            Compared(
                protocol,
                row["worlds"],
                row["violations"],
                row["virtual_seconds"],
                row["asked"],
                row["served"],
                sum(latencies),
                latencies,
                row["messages"],
                row["sent_bytes"],
                row["elections"],
                row["undone"],
                row["truncated"],
                tuple(row["recovery"] or (0.0,) * len(SHARES)),
            )
        )
    return compared
