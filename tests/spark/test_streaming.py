"""format("quorate") as a stream: every offset once, over limits, restarts, replays and killed leaders."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from quorate.cli.demo_cluster import DemoCluster
from quorate.client import Cluster
from quorate.client.groups import positions_of
from tests.spark.conftest import TIMEOUT_S, Topic
from tests.spark.test_batch import numbered

pytestmark = pytest.mark.cluster

MakeTopic = Callable[..., Topic]
POLL_S = 0.05
WAITS_S = 1.0
"""Of twenty looks at the log, one would have found it."""


class Sink:
    """What batches held, by batch; one that is written again replaces the former."""

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {}
        self.failing = False

    def write(self, frame: DataFrame, batch: int) -> None:
        rows = [bytes(row.value) for row in frame.select("value").collect()]
        self.batches[batch] = rows
        if self.failing and rows:
            raise RuntimeError("the sink was told to fail")

    @property
    def values(self) -> list[bytes]:
        return sorted(value for rows in self.batches.values() for value in rows)


def start(
    spark: SparkSession,
    topic: Topic,
    sink: Sink,
    checkpoint: Path,
    *,
    now: bool = True,
    source: str = "quorate",
    **more: str,
) -> StreamingQuery:
    frame = spark.readStream.format(source).options(**topic.options(**more)).load()
    trigger: dict[str, Any] = {"availableNow": True} if now else {"processingTime": "50 milliseconds"}
    writer = frame.writeStream.foreachBatch(sink.write).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger).start()


def finish(query: StreamingQuery) -> None:
    assert query.awaitTermination(int(TIMEOUT_S))
    assert query.exception() is None


def wait_until(holds: Callable[[], bool], what: str, *, within_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"waited {within_s} s for {what}"
        time.sleep(POLL_S)


def test_available_now_reads_everything_once_in_limited_batches(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic, sink = make_topic(3), Sink()
    topic.produce(numbered(1_000))
    limits = {"maxOffsetsPerTrigger": "300", "groupId": topic.name}
    finish(start(spark, topic, sink, tmp_path, now=True, startingOffsets="earliest", **limits))
    assert sink.values == numbered(1_000)
    with Cluster(topic.bootstrap) as cluster:
        ends = cluster.offsets(topic.name, dict.fromkeys(range(3), -1))
        positions = positions_of(cluster, topic.name)
        assert {number: positions[topic.name, number] for number in range(3)} == ends, "no lag"
    assert len(sink.batches) == 4
    assert max(len(rows) for rows in sink.batches.values()) <= 300


class Writer:
    """Of transactions that nobody aborts but the test, however long it reads meanwhile."""

    def __init__(self, topic: Topic, who: str) -> None:
        self._topic = topic
        self.producer = Producer(
            {
                "bootstrap.servers": topic.bootstrap,
                "transactional.id": f"{who}-of-{topic.name}",
                "transaction.timeout.ms": round(10 * TIMEOUT_S * 1000),
            }
        )
        self.producer.init_transactions(TIMEOUT_S)
        self.producer.begin_transaction()

    def flush(self, values: list[bytes]) -> None:
        """To partition 0, where they are settled now, and not committed."""
        for value in values:
            self.producer.produce(self._topic.name, value, partition=0)
        assert self.producer.flush(TIMEOUT_S) == 0


def no_transaction_is_open(topic: Topic) -> bool:
    """What ends a transaction is written a moment after its coordinator has said that it is over."""
    ends = dict.fromkeys(range(2), -1)
    with Cluster(topic.bootstrap) as cluster:
        return cluster.offsets(topic.name, ends, committed=True) == cluster.offsets(topic.name, ends)


def test_reading_ends_before_an_open_transaction_without_waiting_and_has_all_of_it_when_it_is_committed(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic, sink = make_topic(2), Sink()

    def send(partition: int, values: list[bytes]) -> None:
        topic.send([{"value": value, "partition": partition} for value in values])

    def expect_read(values: list[bytes]) -> None:
        finish(start(spark, topic, sink, tmp_path, startingOffsets="earliest"))
        assert sink.values == values
        assert topic.values(spark) == values

    send(0, numbered(10))
    writer = Writer(topic, "writer")
    writer.flush(numbered(10, 10))
    send(0, numbered(10, 20))
    send(1, numbered(10, 30))
    expect_read(numbered(10) + numbered(10, 30))
    writer.flush(numbered(10, 40))
    expect_read(numbered(10) + numbered(10, 30))
    writer.producer.commit_transaction(TIMEOUT_S)
    wait_until(lambda: no_transaction_is_open(topic), "the transaction's end")
    expect_read(numbered(50))


def test_what_was_aborted_is_never_read_wherever_ranges_are_cut(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Two transactions lie in one another, one of them aborted; tasks and batches begin in the middle of both."""
    topic, sink = make_topic(2), Sink()

    def expect_read(values: list[bytes]) -> None:
        finish(start(spark, topic, sink, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="7"))
        assert sink.values == values
        assert topic.values(spark, maxRecordsPerPartition="3") == values

    gone, stays = Writer(topic, "gone"), Writer(topic, "stays")
    for first in range(0, 40, 10):
        stays.flush(numbered(5, first))
        gone.flush(numbered(5, first + 5))
    stays.producer.commit_transaction(TIMEOUT_S)
    # Behind what the other has begun with, nothing is read while that is open.
    wait_until(lambda: topic.values(spark) == numbered(5), "what is before the other")
    expect_read(numbered(5))
    gone.producer.abort_transaction(TIMEOUT_S)
    topic.send([{"value": value, "partition": 0} for value in numbered(5, 40)])
    wait_until(lambda: no_transaction_is_open(topic), "the transaction's end")
    kept = [value for first in range(0, 50, 10) for value in numbered(5, first)]
    expect_read(kept)


def test_a_batch_waits_until_there_is_enough_or_it_has_waited_for_long_enough(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic, sink = make_topic(), Sink()

    def run(delay: str) -> StreamingQuery:
        limits = {"minOffsetsPerTrigger": "100", "maxTriggerDelay": delay, "startingOffsets": "earliest"}
        return start(spark, topic, sink, tmp_path, now=False, **limits)

    def read(count: int, first: int) -> None:
        topic.produce(numbered(count, first))
        wait_until(lambda: len(sink.values) == first + count or not query.isActive, f"{count} more")

    topic.produce(
        numbered(10, 0)
    )  # All at once: of what comes while it looks, a part would be the first batch.
    query = run("1h")
    try:
        wait_until(lambda: len(sink.values) == 10 or not query.isActive, "what waits for nothing")
        topic.produce(numbered(30, 10))
        time.sleep(WAITS_S)
        assert len(sink.values) == 10
        topic.produce(numbered(70, 40))
        wait_until(lambda: len(sink.values) == 110 or not query.isActive, "enough")
        assert [len(rows) for _, rows in sorted(sink.batches.items())] == [10, 100]
    finally:
        query.stop()
    query = run("1s")
    try:
        read(5, 110)
        read(5, 115)
    finally:
        query.stop()
    assert query.exception() is None
    assert sink.values == numbered(120)


def test_a_restarted_query_goes_on_where_it_ended(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic, sink = make_topic(2), Sink()
    topic.produce(numbered(100))
    finish(start(spark, topic, sink, tmp_path, startingOffsets="earliest"))
    finish(start(spark, topic, sink, tmp_path, startingOffsets="earliest"))
    topic.produce(numbered(50, 100))
    finish(start(spark, topic, sink, tmp_path, startingOffsets="earliest"))
    assert sink.values == numbered(150)
    assert [len(rows) for _, rows in sorted(sink.batches.items()) if rows] == [100, 50]


def test_a_failed_first_batch_is_replayed_as_it_was(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Where it began is asked for anew after the restart, and the log has moved on since."""
    topic, sink = make_topic(), Sink()
    topic.produce(numbered(10, 900))
    sink.failing = True
    query = start(spark, topic, sink, tmp_path, now=False)
    wait_until(lambda: "Waiting" in query.status["message"], "the query to have found its beginning")
    topic.produce(numbered(20))
    wait_until(lambda: not query.isActive, "the query to fail")
    assert "told to fail" in str(query.exception())
    topic.produce(numbered(30, 20))
    sink.failing = False
    first = list(sink.batches[0])
    finish(start(spark, topic, sink, tmp_path))
    assert sink.batches[0] == first
    assert sink.values == numbered(50), "from the end of the log as the query began, each once"


def test_a_query_survives_its_leaders(
    spark: SparkSession, cluster: DemoCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Leaders are killed while the producer and the query work; both go on, and nothing is lost or doubled."""
    topic, sink = make_topic(2), Sink()
    topic.produce(numbered(100))
    query = start(spark, topic, sink, tmp_path, now=False, startingOffsets="earliest")
    try:
        wait_until(lambda: len(sink.values) == 100, "the first rows")
        leader = leader_of(topic)
        producing = Thread(target=topic.produce, args=(numbered(2_000, 100),))
        producing.start()
        cluster.kill(leader)
        producing.join(TIMEOUT_S)
        assert not producing.is_alive()
        wait_until(lambda: len(sink.values) >= 2_100 or not query.isActive, "all rows")
    finally:
        query.stop()
    assert query.exception() is None
    doubled = [value for value, times in Counter(sink.values).items() if times > 1]
    assert not doubled
    assert sink.values == numbered(2_100)
    assert topic.values(spark) == numbered(2_100), "a batch read afterwards finds the same"


def leader_of(topic: Topic) -> int:
    with Cluster(topic.bootstrap) as cluster:
        return cluster.topics([topic.name])[topic.name].partitions[0].leader


@pytest.mark.parametrize("trigger", ["availableNow", "processingTime"])
def test_a_wrong_option_is_said_before_the_query_runs(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path, trigger: str
) -> None:
    from pyspark.errors import PySparkException

    topic = make_topic()
    with pytest.raises(PySparkException, match="not a whole number from 1"):
        start(spark, topic, Sink(), tmp_path, now=trigger == "availableNow", maxOffsetsPerTrigger="many")
