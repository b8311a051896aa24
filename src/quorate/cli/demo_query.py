"""The demo's pipeline: a Spark streaming query that adds up the events of each city."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.cli.demo_events import TOPIC, Sum

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TABLE = "totals"
TRIGGER = "250 milliseconds"
REASON_MAX = 500


class QueryFailed(Exception):
    """The streaming query ended; the text says why, in one line."""


class Totals:
    """A running query: how many rows it has read, and what it says about each city."""

    def __init__(self, spark: SparkSession, bootstrap: str) -> None:
        self._spark = spark
        self._rows_by_batch: dict[int, int] = {}
        self._seconds_by_batch: dict[int, float] = {}
        from pyspark.sql import functions

        events = (
            spark.readStream.format("quorate")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .load()
        )
        self._query: StreamingQuery = (
            events.selectExpr(
                "cast(key as string) as city",
                "cast(get_json_object(cast(value as string), '$.cents') as bigint) as cents",
            )
            .groupBy("city")
            .agg(functions.count("*").alias("events"), functions.sum("cents").alias("cents"))
            .writeStream.outputMode("complete")
            .format("memory")
            .queryName(TABLE)
            .trigger(processingTime=TRIGGER)
            .start()
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

    def by_city(self) -> dict[str, Sum]:
        """As the query's last finished batch has it."""
        rows = self._spark.table(TABLE).collect()
        return {row["city"]: Sum(row["events"], row["cents"]) for row in rows}

    def finish(self) -> dict[str, Sum]:
        """Everything that is in the topic now, counted; raises QueryFailed."""
        from pyspark.errors import PySparkException

        try:
            self._query.processAllAvailable()
        except PySparkException as error:
            raise QueryFailed(_in_short(str(error))) from error
        self.look()
        return self.by_city()

    def stop(self) -> None:
        self._query.stop()


def _in_short(text: str) -> str:
    return " ".join(text.split())[:REASON_MAX]
