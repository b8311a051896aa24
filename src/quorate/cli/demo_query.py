"""The demo's pipeline: events added up by city and time, each city looked up in a table, the totals written back.

Totals go into topics of three kinds, by one transaction a batch: readers of what is committed find a batch in each
of them or in none. Each batch writes all totals again; the last one of a key counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.cli.demo_events import COUNTRIES, RESULTS, TABLE, TOPIC, Sum

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WINDOW = "5 seconds"
SAID = "city string, country string, start timestamp, events long, cents long"
TRIGGER = "250 milliseconds"
REASON_MAX = 500


class QueryFailed(Exception):
    """The streaming query ended; the text says why, in one line."""


class Totals:
    """A running query: how many rows it has read, and what it says about each city."""

    def __init__(self, spark: SparkSession, bootstrap: str, checkpoint: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._rows_by_batch: dict[int, int] = {}
        self._seconds_by_batch: dict[int, float] = {}
        self._query: StreamingQuery = (
            self._totals()
            .writeStream.outputMode("complete")
            .format("quorate")
            .option("bootstrap", bootstrap)
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime=TRIGGER)
            .start()
        )

    def _totals(self) -> DataFrame:
        from pyspark.sql import functions

        events = (
            self._spark.readStream.format("quorate")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .option("columns", "key,value,timestamp")
            .load()
            .selectExpr(
                "cast(key as string) as city",
                "cast(get_json_object(cast(value as string), '$.cents') as bigint) as cents",
                "timestamp",
            )
        )
        cities = self._spark.read.format("quorate").options(bootstrap=self._bootstrap, table=TABLE).load()
        return (
            events.groupBy(functions.window("timestamp", WINDOW), "city")
            .agg(functions.count("*").alias("events"), functions.sum("cents").alias("cents"))
            .join(functions.broadcast(cities), "city", "left")
            .selectExpr(
                f"explode(array({', '.join(map(repr, RESULTS.values()))})) as topic",
                "concat(city, ' ', window.start) as key",
                "to_json(struct(city, country, window.start as start, events, cents)) as value",
            )
        )

    def look(self) -> int:
        """The rows read so far; raises QueryFailed."""
        if not self._query.isActive:
            raise QueryFailed(_in_short(str(self._query.exception() or "it ended by itself")))
        for progress in self._query.recentProgress:
            self._rows_by_batch[progress["batchId"]] = progress["numInputRows"]
            self._seconds_by_batch[progress["batchId"]] = progress["batchDuration"] / 1000
        return sum(self._rows_by_batch.values())

    @property
    def batches_count(self) -> int:
        return sum(1 for rows in self._rows_by_batch.values() if rows)

    @property
    def longest_batch_s(self) -> float:
        return max(self._seconds_by_batch.values(), default=0.0)

    def finish(self) -> None:
        """Until everything that is in the topic now is counted; raises QueryFailed."""
        from pyspark.errors import PySparkException

        try:
            self._query.processAllAvailable()
        except PySparkException as error:
            raise QueryFailed(_in_short(str(error))) from error
        self.look()

    def stop(self) -> None:
        self._query.stop()


def read_totals(spark: SparkSession, bootstrap: str, topic: str, **more: str) -> dict[str, Sum]:
    """Of each city, over all windows; a city that lies in another country than its table says is none of ours."""
    from pyspark.sql import functions

    rows = (
        spark.read.format("quorate")
        .options(bootstrap=bootstrap, subscribe=topic, **more)
        .load()
        .groupBy("key")
        .agg(functions.max_by("value", "offset").alias("value"))
        .selectExpr(f"inline(array(from_json(cast(value as string), '{SAID}')))")
        .groupBy("city", "country")
        .agg(functions.sum("events").alias("events"), functions.sum("cents").alias("cents"))
        .collect()
    )
    return {
        row["city"]: Sum(row["events"], row["cents"])
        for row in rows
        if COUNTRIES.get(row["city"]) == row["country"]
    }


def _in_short(text: str) -> str:
    return " ".join(text.split())[:REASON_MAX]
