"""The thread through the whole house: a Kafka producer, replicated logs, and a Spark stream, while leaders die.

Every record that was acknowledged is in the stream's output once: none lost, none twice. Of one whose outcome the
producer does not know, at most one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep

import pytest
from confluent_kafka import KafkaError, Message, Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from quorate.cli.demo_cluster import DemoCluster
from quorate.client import Cluster
from tests.spark.conftest import TIMEOUT_S, Topic

PARTITIONS_COUNT = 3
RECORDS_PER_S = 2000
RECORDS_BETWEEN = 4000
"""Acknowledged before, between and after what is done to the cluster and to the query."""
POLL_S = 0.05


class Writer(Thread):
    """An idempotent producer that writes numbers until it is told to stop, and knows which were acknowledged."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(name="writer", daemon=True)
        self.acknowledged: set[int] = set()
        self.failed: dict[int, str] = {}
        self.sent_count = 0
        self._topic = topic
        self._over = Event()

    def run(self) -> None:
        settings = {"bootstrap.servers": self._topic.bootstrap, "enable.idempotence": True, "linger.ms": 5}
        producer = Producer({**settings, "message.timeout.ms": round(TIMEOUT_S * 1000), "log_level": 0})
        began = monotonic()
        while not self._over.is_set():
            while self.sent_count < (monotonic() - began) * RECORDS_PER_S:
                producer.produce(
                    self._topic.name,
                    b"%d" % self.sent_count,
                    partition=self.sent_count % PARTITIONS_COUNT,
                    on_delivery=self._delivered,
                )
                self.sent_count += 1
            producer.poll(0.01)
        assert producer.flush(TIMEOUT_S) == 0

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        number = int(message.value() or b"")
        if error is None:
            assert number not in self.acknowledged
            self.acknowledged.add(number)
        else:
            self.failed[number] = error.str()

    def stop(self) -> None:
        self._over.set()
        self.join(2 * TIMEOUT_S)
        assert not self.is_alive()

    def wait_for_more(self) -> None:
        """So many more, whatever was done to the cluster."""
        wanted = len(self.acknowledged) + RECORDS_BETWEEN
        until(lambda: len(self.acknowledged) >= wanted, f"{RECORDS_BETWEEN} more acknowledgements")


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = monotonic() + 2 * TIMEOUT_S
    while not holds():
        assert monotonic() < deadline, f"waited {2 * TIMEOUT_S} s for {what}"
        sleep(POLL_S)


@contextmanager
def streaming(spark: SparkSession, topic: Topic, directory: Path) -> Iterator[StreamingQuery]:
    """A query from where its checkpoint left it; it has read everything settled when it is let go."""
    stream = spark.readStream.format("quorate").options(**topic.options(startingOffsets="earliest")).load()
    query = (
        stream.selectExpr("cast(cast(value as string) as long) as number", "partition", "offset")
        .writeStream.format("parquet")
        .option("path", str(directory / "numbers"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        yield query
    finally:
        query.stop()


def leader_of(topic: Topic, partition: int) -> int:
    with Cluster(topic.bootstrap) as client:
        return client.topics([topic.name])[topic.name].partitions[partition].leader


def kill_leader(cluster: DemoCluster, topic: Topic) -> None:
    """kill -9, and `quorate up` starts it again."""
    with Cluster(topic.bootstrap) as client:
        client.offsets(topic.name, {0: -1})  # There is a leader, and it answers.
    victim = leader_of(topic, 0)
    pid = cluster.kill(victim)
    until(lambda: f"node {victim} is up, process " in cluster.said().split(str(pid))[-1], "it to be back")


def test_every_acknowledged_record_is_counted_once(
    spark: SparkSession, cluster: DemoCluster, make_topic: Callable[..., Topic], tmp_path: Path
) -> None:
    topic = make_topic(PARTITIONS_COUNT)
    writer = Writer(topic)
    writer.start()
    try:
        with streaming(spark, topic, tmp_path) as query:
            writer.wait_for_more()
            until(lambda: any(each["numInputRows"] for each in query.recentProgress), "the first rows")
            kill_leader(cluster, topic)
            writer.wait_for_more()
        with streaming(spark, topic, tmp_path) as query:
            kill_leader(cluster, topic)
            writer.wait_for_more()
            writer.stop()
            query.processAllAvailable()
    finally:
        writer.stop()
    rows = spark.read.parquet(str(tmp_path / "numbers")).collect()
    counted = [row["number"] for row in rows]
    places = {(row["partition"], row["offset"]) for row in rows}
    assert len(writer.acknowledged) >= 3 * RECORDS_BETWEEN
    assert len(counted) == len(set(counted)) == len(places), "a record was counted twice"
    assert writer.acknowledged.issubset(counted), "an acknowledged record is missing"
    assert set(counted) - writer.acknowledged <= set(writer.failed), "a record that nobody sent"
    if writer.failed:
        pytest.fail(f"with a majority up, retries must succeed: {writer.failed}")
