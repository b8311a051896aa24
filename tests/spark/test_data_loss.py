"""Streams whose topics change: partitions come, topics go, records are deleted; nothing is lost unsaid."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import FileHandler, getLogger
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyarrow import RecordBatch
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from quorate.batch import encode_records
from quorate.client import Cluster
from quorate.spark.source import QuorateSource, StreamReader
from tests.cluster.proxied import ProxiedCluster
from tests.cluster.support import run
from tests.cluster.test_faults import leading
from tests.spark.conftest import TIMEOUT_S, Topic
from tests.spark.test_batch import numbered
from tests.spark.test_streaming import Sink, finish, start, wait_until

pytestmark = pytest.mark.cluster

MakeTopic = Callable[..., Topic]
HEARD = "quorate-heard"


class Operator:
    """Who changes a topic while it is read."""

    def __init__(self, topic: Topic) -> None:
        self._name = topic.name
        self._admin = AdminClient({"bootstrap.servers": topic.bootstrap})

    def add_partitions(self, count: int) -> None:
        self._admin.create_partitions([NewPartitions(self._name, count)])[self._name].result(TIMEOUT_S)

    def delete(self) -> None:
        self._admin.delete_topics([self._name])[self._name].result(TIMEOUT_S)

    def delete_before(self, partition: int, offset: int) -> None:
        where = TopicPartition(self._name, partition, offset)
        self._admin.delete_records([where])[where].result(TIMEOUT_S)


def send(topic: Topic, values: list[bytes], partition: int) -> None:
    topic.send([{"value": value, "partition": partition} for value in values])


def failure(query: StreamingQuery) -> str:
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(int(TIMEOUT_S))
    return str(raised.value)


def heard_source(heard: Path) -> type[QuorateSource]:
    """`format("quorate")`, and what it says in Spark's processes, which is for their logs, is in a file as well.

    Made in a function, as Spark's workers cannot import tests: what is made here is carried to them.
    """

    @contextmanager
    def listening() -> Iterator[None]:
        handler = FileHandler(heard)
        getLogger("quorate.spark").addHandler(handler)
        try:
            yield
        finally:
            getLogger("quorate.spark").removeHandler(handler)
            handler.close()

    class HeardReader(StreamReader):
        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
            with listening():
                return super().latestOffset(start, limit)

        def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
            with listening():
                yield from super().read(partition)

    class HeardSource(QuorateSource):
        @classmethod
        def name(cls) -> str:
            return HEARD

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
            return HeardReader(self.parsed, schema)

    return HeardSource


@pytest.fixture
def heard(spark: SparkSession, tmp_path: Path) -> Path:
    said = tmp_path / "heard"
    spark.dataSource.register(heard_source(said))
    return said


# ---- partitions come ----


@pytest.mark.proof
def test_partitions_added_between_two_runs_are_read_from_their_beginning(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Also where a query begins at the end: whatever is in them came after it had begun."""
    topic, sink = make_topic(), Sink()
    topic.produce(numbered(10, 900))
    finish(start(spark, topic, sink, tmp_path, startingOffsets="latest"))
    send(topic, numbered(10), 0)
    finish(start(spark, topic, sink, tmp_path, startingOffsets="latest"))
    Operator(topic).add_partitions(3)
    for partition in range(3):
        send(topic, numbered(10, 10 + 10 * partition), partition)
    finish(start(spark, topic, sink, tmp_path, startingOffsets="latest"))
    assert sink.values == numbered(40)


def test_partitions_added_under_a_running_query_are_read_from_their_beginning(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic, sink = make_topic(), Sink()
    topic.produce(numbered(10))
    query = start(spark, topic, sink, tmp_path, now=False, startingOffsets="earliest")
    try:
        wait_until(lambda: len(sink.values) == 10, "the first partition")
        Operator(topic).add_partitions(2)
        send(topic, numbered(10, 10), 1)
        wait_until(lambda: len(sink.values) >= 20 or not query.isActive, "the second partition")
    finally:
        query.stop()
    assert query.exception() is None
    assert sink.values == numbered(20)


# ---- a node is behind ----


@pytest.mark.proof
@pytest.mark.parametrize("loss", ["true", "false"])
def test_what_the_first_node_does_not_know_yet_keeps_its_place(
    spark: SparkSession, tmp_path: Path, heard: Path, loss: str
) -> None:
    """It is cut off from the others while a partition is added and a topic made, and is asked first, then."""

    async def main() -> None:
        async with ProxiedCluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                await cluster.until_registered(client)
                # Whoever leads the metadata group is not cut off: nobody would add partitions for a while.
                operator = await leading(cluster, client)
            await asyncio.to_thread(story, cluster, 2 if operator == 3 else 3)

    def story(cluster: ProxiedCluster, behind: int) -> None:
        numbers = sorted(cluster.nodes, key=lambda number: number == behind)
        nodes = [str(cluster.nodes[number].address) for number in numbers]
        topic, sink = Topic(nodes[0], "events-1", 1), Sink()

        def expect(count: int, *bootstrap: str) -> None:
            options = {"subscribePattern": "events-.*", "startingOffsets": "earliest", "failOnDataLoss": loss}
            frame = spark.readStream.format(HEARD).options(bootstrap=",".join(bootstrap), **options).load()
            writer = frame.writeStream.foreachBatch(sink.write).trigger(processingTime="50 milliseconds")
            query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            try:
                wait_until(lambda: len(sink.values) >= count or not query.isActive, f"{count} records")
            finally:
                query.stop()
            assert query.exception() is None
            assert sink.values == numbered(count), "each of them once"

        def append(name: str, partition: int, values: list[bytes]) -> None:
            with Cluster(nodes[0]) as cluster:
                cluster.produce(name, {partition: encode_records([(None, value) for value in values])})

        append("events-1", 0, numbered(10))
        expect(10, *nodes)
        cluster.cut_off(behind)
        Operator(topic).add_partitions(2)
        append("events-1", 1, numbered(10, 10))
        Topic(nodes[0], "events-2", 1)
        append("events-2", 0, numbered(10, 20))
        expect(30, *nodes[:2])
        append("events-1", 0, numbered(10, 30))
        with Cluster(nodes[2]) as lagging:
            assert [(name, len(each.partitions)) for name, each in lagging.every_topic().items()] == [
                ("events-1", 1)
            ]
        expect(40, nodes[2])
        cluster.heal()
        append("events-1", 1, numbered(10, 40))
        expect(50, *nodes)

    run(main())
    assert not heard.exists() or not heard.read_text(encoding="utf-8"), "nothing is lost, and nobody says so"


# ---- topics go ----


@pytest.mark.proof
def test_a_topic_created_anew_is_an_error_and_is_read_from_its_beginning_where_loss_is_accepted(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path, heard: Path
) -> None:
    topic, sink, checkpoint = make_topic(), Sink(), tmp_path / "checkpoint"
    topic.produce(numbered(20, 900))
    finish(start(spark, topic, sink, checkpoint, startingOffsets="earliest"))
    assert sink.values == numbered(20, 900)
    topic.produce(numbered(10, 950))
    Operator(topic).delete()
    said = failure(start(spark, topic, sink, checkpoint))
    assert f"there is no topic '{topic.name}' in the cluster" in said
    # As long as the former: its offsets would do, if nobody looked whose they are.
    Topic(topic.bootstrap, topic.name, 1).produce(numbered(40))
    said = failure(start(spark, topic, sink, checkpoint))
    assert f"topic '{topic.name}' was deleted and created anew" in said
    assert "with a new checkpoint" in said
    assert sink.values == numbered(20, 900), "nothing of the new one was taken for the old one's"
    finish(start(spark, topic, sink, checkpoint, source=HEARD, failOnDataLoss="false"))
    assert sink.values == numbered(40) + numbered(20, 900)
    said = heard.read_text(encoding="utf-8")
    assert f"data loss, as failOnDataLoss is false: topic '{topic.name}' was deleted and created anew" in said


# ---- records go ----


def test_records_deleted_out_of_a_planned_batch_are_an_error_or_said_and_the_rest_is_read(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path, heard: Path
) -> None:
    topic, sink, checkpoint = make_topic(2), Sink(), tmp_path / "checkpoint"
    for partition, first, count in ((0, 0, 100), (1, 100, 60), (1, 160, 40)):
        send(topic, numbered(count, first), partition)
    sink.failing = True
    assert "told to fail" in failure(start(spark, topic, sink, checkpoint, startingOffsets="earliest"))
    sink.failing = False
    sink.batches.clear()
    rows = topic.read(spark, columns="partition,offset").where("partition = 1").orderBy("offset").collect()
    middle = rows[75].offset  # Inside a batch: its records before this one are not handed on, either.
    Operator(topic).delete_before(1, middle)
    lost = f"offsets 0 to {middle - 1} of {topic.name}-1 are not in the log any more"
    said = failure(start(spark, topic, sink, checkpoint, startingOffsets="earliest"))
    assert lost in said
    assert "set failOnDataLoss to false to go on without them" in said
    assert sink.values == []
    send(topic, numbered(10, 200), 1)
    finish(start(spark, topic, sink, checkpoint, source=HEARD, failOnDataLoss="false"))
    assert sink.values == numbered(100) + numbered(25, 175) + numbered(10, 200)
    (said,) = heard.read_text(encoding="utf-8").splitlines()
    assert said.startswith(f"data loss, as failOnDataLoss is false: {lost}")
