"""Keeping a topic in a Delta table, beside Spark writing the same rows to Parquet from its memory.

Both begin with a session that has done it before. Ours is a whole run: it looks where the table ends, starts a
streaming query, reads from three nodes on the same cores, writes, commits, and ends.
"""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

from quorate.bench.report import Say, at_least, figure, ratios
from quorate.bench.spark_stage import (
    CORES,
    REPETITIONS,
    TOPIC,
    VALUE_BYTES,
    Found,
    cluster_in,
    fill,
    session_of,
)
from quorate.bench.turns import in_turns, seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tiers(place: Path, quick: bool, say: Say) -> Found:
    rows_count = 400_000 if quick else 2_000_000
    out = str(place / "rows.parquet")
    with cluster_in(place) as cluster, session_of(CORES) as session:
        say(f"producing {rows_count:,} records of {VALUE_BYTES} bytes")
        fill(cluster, rows_count)
        where = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": TOPIC}
        rows = session.read.format("quorate").options(**where).load().cache()
        assert rows.count() == rows_count
        sides = {
            "tier": lambda: _tiered(session, cluster.bootstrap, place, rows_count),
            "Parquet": lambda: seconds(lambda: rows.write.mode("overwrite").parquet(out)),
        }
        in_turns(sides, 1)
        taken = in_turns(sides, 1 if quick else REPETITIONS, lambda text: say(f"tier: {text}"))
    rates = [rows_count / took_s for took_s in taken["tier"]]
    beside = ratios(taken["Parquet"], taken["tier"])
    return [figure("tier: records a second", "", rates)], [
        at_least(0.5, "tier: beside Spark writing Parquet from memory", "", beside)
    ]


def _tiered(session: SparkSession, bootstrap: str, place: Path, rows_count: int) -> float:
    """Into a table that is not there yet."""
    from quorate.client.cluster import Cluster
    from quorate.spark.lake import Lake
    from quorate.spark.tier import Tiering

    lake = Lake(str(place / "lake"))
    rmtree(lake.uri, ignore_errors=True)
    tiering = Tiering(lake, {"kafka.bootstrap.servers": bootstrap}, (TOPIC,))

    def once() -> None:
        with Cluster(bootstrap) as client:
            start = tiering.begin(client)
        tiering.run(session, start)

    took_s = seconds(once)
    assert tiering.rows_count == rows_count
    return took_s
