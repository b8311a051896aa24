"""Keeping a topic in a Delta table, beside Spark writing the same rows to Parquet from its memory.

Both begin with a session that has done it before; nothing else is left out but
the removal of what the round before wrote. Ours is a whole run: it looks where the
table ends, starts a streaming query, reads from three nodes on the same cores, writes, commits, and ends. What
passes before its first micro-batch is counted, and told apart: most of it is the start of a Python process, which
Spark begins anew for each streaming query and asks for offsets.
"""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree
from time import perf_counter
from typing import TYPE_CHECKING

from quorate.bench.report import Say, at_least, figure, ratios
from quorate.bench.spark_stage import REPETITIONS, TOPIC, Found, records_on_spark
from quorate.bench.turns import in_turns, seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM_UP = 2
"""Rounds that are not counted: the first of a session takes four times as long, the second a little longer."""


def tiers(place: Path, quick: bool, say: Say) -> Found:
    rows_count = 1_000_000 if quick else 4_000_000
    out = str(place / "rows.parquet")
    with records_on_spark(place, rows_count, say) as (session, where):
        rows = session.read.format("quorate").options(**where).load().cache()
        assert rows.count() == rows_count
        _expect_in_memory(rows)
        before: list[float] = []
        sides = {
            "tier": lambda: _tiered(session, where, place, rows_count, before),
            "Parquet": lambda: _written(rows, out),
        }
        in_turns(sides, WARM_UP)
        before.clear()
        taken = in_turns(sides, 1 if quick else REPETITIONS, lambda text: say(f"tier: {text}"))
    rates = [rows_count / took_s for took_s in taken["tier"]]
    beside = ratios(taken["Parquet"], taken["tier"])
    return [
        figure("tier: records a second", "", rates),
        figure("tier: of its time, before the first micro-batch", "s", before),
    ], [at_least(0.5, "tier: beside Spark writing Parquet from memory", "", beside)]


def _written(rows: DataFrame, out: str) -> float:
    """To a place where nothing is yet, as for ours."""
    rmtree(out, ignore_errors=True)
    return seconds(lambda: rows.write.parquet(out))


def _tiered(
    session: SparkSession, where: dict[str, str], place: Path, rows_count: int, before: list[float]
) -> float:
    """Into a table that is not there yet. To `before` is added how long it took until a micro-batch began."""
    from quorate.client.cluster import Cluster
    from quorate.spark.lake import Lake
    from quorate.spark.options import Positions
    from quorate.spark.tier import Tiering

    bootstrap = where["kafka.bootstrap.servers"]
    lake = Lake(str(place / "lake"))
    rmtree(lake.uri, ignore_errors=True)
    batches_at: list[float] = []

    class Timed(Tiering):
        def keep(self, rows: DataFrame, ends: Positions) -> None:
            batches_at.append(perf_counter())
            super().keep(rows, ends)

    tiering = Timed(lake, {"kafka.bootstrap.servers": bootstrap}, (TOPIC,))
    began = perf_counter()
    with Cluster(bootstrap) as client:
        start = tiering.begin(client)
    tiering.run(session, start)
    took_s = perf_counter() - began
    assert tiering.rows_count == rows_count
    before.append(batches_at[0] - began)
    return took_s


def _expect_in_memory(rows: DataFrame) -> None:
    """What does not fit is put on disk by Spark, and would be slower to write."""
    cached = rows.sparkSession.sparkContext._jsc.sc().getRDDStorageInfo()
    assert [each.diskSize() for each in cached] == [0], "rows are not all in Spark's memory"
