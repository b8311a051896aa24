"""Writing a stream exactly once, beside the same query into a Python sink that counts rows and drops them.

Spark makes the rows itself: a key and a value of 100 bytes each. Time is that of micro-batches, as Spark tells it:
from looking for new rows to knowing that they are in. A query's first one is not counted. With so many rows, what a
micro-batch costs without any is a small part of the time of either.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import TYPE_CHECKING

from quorate.bench.report import Say, at_least, figure, ratios
from quorate.bench.spark_stage import CORES, REPETITIONS, TOPIC, VALUE_BYTES, Found, cluster_in, session_of
from quorate.bench.turns import in_turns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WARM_UP = 1
"""Micro-batches of a query that are not counted."""
BATCHES = 3
QUERY_TIMEOUT_S = 300.0
POLL_S = 0.05
MS_PER_S = 1000


def writes(place: Path, quick: bool, say: Say) -> Found:
    from quorate.bench.spark_ready import COUNTING, Counting

    rows_count = 200_000 if quick else 1_000_000
    with cluster_in(place) as cluster, session_of(CORES) as session:
        session.dataSource.register(Counting)
        where = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": TOPIC}
        sides = {
            "counted": lambda: _streamed(session, place, rows_count, COUNTING, {}),
            "exactly once": lambda: _streamed(session, place, rows_count, "quorate", where),
        }
        taken = in_turns(sides, 1 if quick else REPETITIONS, lambda text: say(f"write: {text}"))
    rates = [rows_count / took_s for took_s in taken["exactly once"]]
    return [figure("write: records a second, exactly once", "", rates)], [
        at_least(
            0.4,
            "write, exactly once: beside a sink that counts",
            "",
            ratios(taken["counted"], taken["exactly once"]),
        )
    ]


def _streamed(
    session: SparkSession, place: Path, rows_count: int, sink: str, options: dict[str, str]
) -> float:
    """Seconds of a micro-batch with so many rows, the mean of some."""
    rows = (
        session.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows_count)
        .option("numPartitions", CORES)
        .load()
        .selectExpr(
            "cast(value as string) as key", f"lpad(cast(value as string), {VALUE_BYTES}, '0') as value"
        )
    )
    with TemporaryDirectory(dir=place) as checkpoint:
        writer = rows.writeStream.format(sink).options(**options).option("checkpointLocation", checkpoint)
        query = writer.start()
        try:
            deadline = monotonic() + QUERY_TIMEOUT_S
            while len(query.recentProgress) < WARM_UP + BATCHES:
                if (failed := query.exception()) is not None:
                    raise failed
                if monotonic() > deadline:
                    raise TimeoutError(f"{sink}: its micro-batches took more than {QUERY_TIMEOUT_S} s")
                sleep(POLL_S)
            told = query.recentProgress[WARM_UP : WARM_UP + BATCHES]
        finally:
            query.stop()
    assert all(progress.numInputRows == rows_count for progress in told)
    return sum(progress.durationMs["triggerExecution"] for progress in told) / len(told) / MS_PER_S
