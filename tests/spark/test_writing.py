"""format("quorate") as a sink: each batch is in once for whoever reads what is committed, whatever is repeated."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from quorate.batch import parse_batch_header
from quorate.cli.demo_cluster import DemoCluster
from quorate.client import Cluster, Joint
from quorate.client.partitioning import murmur2
from tests.spark.conftest import TIMEOUT_S, Topic
from tests.spark.test_batch import numbered
from tests.spark.test_streaming import finish, leader_of, wait_until

pytestmark = pytest.mark.cluster

MakeTopic = Callable[..., Topic]


def write(frame: DataFrame, target: Topic, **options: str) -> None:
    given = {"bootstrap": target.bootstrap, "topic": target.name, **options}
    frame.write.format("quorate").options(**given).mode("append").save()


def copying(
    spark: SparkSession, source: Topic, target: Topic, checkpoint: Path, *, now: bool = True, **options: str
) -> StreamingQuery:
    read = source.options(startingOffsets="earliest", columns="key,value", **options)
    frame = spark.readStream.format("quorate").options(**read).load()
    writer = frame.writeStream.format("quorate").option("bootstrap", target.bootstrap)
    writer = writer.option("topic", target.name).option("checkpointLocation", str(checkpoint))
    return writer.trigger(
        **({"availableNow": True} if now else {"processingTime": "20 milliseconds"})
    ).start()


def consumed(topic: Topic, partitions: int) -> list[bytes]:
    """What librdkafka reads of what is committed, up to the end."""
    consumer = Consumer(
        {"bootstrap.servers": topic.bootstrap, "group.id": "nobody", "enable.partition.eof": True}
    )
    try:
        consumer.assign([TopicPartition(topic.name, number, 0) for number in range(partitions)])
        found: list[bytes] = []
        ended = 0
        while ended < partitions:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, "the end of a partition is not reached"
            if message.error():
                ended += 1
            else:
                found.append(message.value() or b"")
    finally:
        consumer.close()
    return sorted(found)


def in_the_log(topic: Topic) -> str:
    """For whoever asks why something is seen."""
    with Cluster(topic.bootstrap) as cluster:
        fetched = cluster.fetch(topic.name, 0, 0, committed=True)
        headers = "\n".join(str(parse_batch_header(batch)) for batch in fetched.batches)
        return f"aborted {fetched.aborted}, settled {fetched.high_watermark}\n{headers}"


def test_every_column_arrives_where_it_belongs(spark: SparkSession, make_topic: MakeTopic) -> None:
    topic, other = make_topic(4), make_topic(2)
    time = datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
    rows = [
        (
            f"k{number}",
            bytes([number]),
            topic.name,
            None,
            time,
            [("a", b"1"), ("b", None)] if number else None,
        )
        for number in range(20)
    ]
    schema = (
        "key string, value binary, topic string, partition int, timestamp timestamp, "
        "headers array<struct<key string, value binary>>"
    )
    write(spark.createDataFrame([*rows, (None, None, other.name, 1, time, None)], schema), topic, topic="")
    found = topic.read(spark, includeHeaders="true").orderBy("value").collect()
    assert [row.key for row in found] == [f"k{number}".encode() for number in range(20)]
    assert [row.partition for row in found] == [(murmur2(row.key) & 0x7FFF_FFFF) % 4 for row in found]
    assert {row.timestamp.astimezone(UTC) for row in found} == {time}
    assert found[0].headers is None
    assert [tuple(header) for header in found[1].headers] == [("a", b"1"), ("b", None)]
    (row,) = other.read(spark).collect()
    assert (row.key, row.value, row.partition) == (None, None, 1)


def test_a_version_that_is_in_is_not_written_again(spark: SparkSession, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    frame = spark.range(100).selectExpr("cast(id as string) as value")
    for version in ("1", "1", "0", "2"):
        write(frame, topic, txnAppId=topic.name, txnVersion=version)
    assert topic.read(spark).count() == 200
    write(frame, topic)
    write(frame, topic, **{"kafka.compression.type": "zstd"})
    assert topic.read(spark).count() == 400, "without a version, each time anew"


def test_one_version_is_in_wherever_it_is_written_to(spark: SparkSession, make_topic: MakeTopic) -> None:
    one, other = make_topic(), make_topic()
    frame = spark.range(10).selectExpr("cast(id as string) as value")
    for topic in (one, other, one, other):
        write(frame, topic, txnAppId=one.name, txnVersion="1")
    assert (one.read(spark).count(), other.read(spark).count()) == (10, 10)


def test_what_a_failed_write_staged_is_not_seen(spark: SparkSession, make_topic: MakeTopic) -> None:
    topic = make_topic()
    frame = spark.range(0, 1000, 1, 2).selectExpr(
        "cast(if(id = 999, raise_error('told to fail'), id) as string) as value"
    )
    with pytest.raises(PySparkException, match="told to fail"):
        write(frame, topic)
    assert topic.read(spark).count() == 0, in_the_log(topic)
    write(spark.createDataFrame([(b"after",)], "value binary"), topic)
    wait_until(lambda: topic.values(spark) == [b"after"], "what is behind it to be seen")


@pytest.mark.parametrize(
    ("select", "options", "said"),
    [
        ("id", {}, "needs a column 'value'"),
        ("id as value", {}, "column 'value' is bigint, and must be binary or string"),
        ("cast(id as string) as value, id", {}, "column 'id' has no place in a topic"),
        ("'x' as value", {"topic": ""}, "not said which topic"),
        ("'x' as value, 9 as partition", {}, "a row is for partition 9; there are 1"),
        ("'x' as value", {"topic": "nowhere"}, "there is no topic 'nowhere'"),
        ("'x' as value", {"txnAppId": "a"}, "belong together"),
        ("'x' as value", {"txnVersion": "x", "txnAppId": "a"}, "not a whole number"),
        ("'x' as value", {"kafka.compression.type": "rar"}, "'rar' is unknown"),
        ("'x' as value", {"startingOffsets": "latest"}, "has no option"),
    ],
)
def test_what_is_wrong_is_said(
    spark: SparkSession, make_topic: MakeTopic, select: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        write(spark.range(1).selectExpr(*select.split(", ")), make_topic(), **options)
    assert said in str(raised.value)


def test_a_topic_that_is_not_there_is_told_before_any_task(
    spark: SparkSession, make_topic: MakeTopic
) -> None:
    target = make_topic()
    spark.sparkContext.setJobGroup("to nowhere", "")
    try:
        with pytest.raises(PySparkException, match="there is no topic 'nowhere'"):
            write(spark.range(1).selectExpr("'x' as value"), target, topic="nowhere")
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert not spark.sparkContext.statusTracker().getJobIdsForGroup("to nowhere")


def test_a_stream_is_copied_once_over_restarts_and_killed_leaders(
    spark: SparkSession, cluster: DemoCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, target = make_topic(2), make_topic(3)
    source.produce(numbered(500))
    finish(copying(spark, source, target, tmp_path, maxOffsetsPerTrigger="200"))
    assert target.values(spark) == numbered(500)
    query = copying(spark, source, target, tmp_path, now=False, maxOffsetsPerTrigger="300")
    try:
        source.produce(numbered(500, 500))
        cluster.kill(leader_of(target))
        source.produce(numbered(500, 1000))
        wait_until(lambda: target.read(spark).count() >= 1500 or not query.isActive, "all rows")
    finally:
        query.stop()
    assert query.exception() is None
    found = consumed(target, 3)
    assert [value for value, times in Counter(found).items() if times > 1] == []
    assert found == numbered(1500)


def test_a_rewound_checkpoint_is_skipped_and_a_deleted_one_written_again(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source, target = make_topic(), make_topic()
    source.produce(numbered(10))
    checkpoint = tmp_path / "checkpoint"
    finish(copying(spark, source, target, checkpoint))
    for kind in ("commits", "offsets"):
        shutil.copytree(checkpoint / kind, tmp_path / "before" / kind)
    source.produce(numbered(10, 10))
    finish(copying(spark, source, target, checkpoint))
    assert target.values(spark) == numbered(20)
    for kind in ("commits", "offsets"):  # as if restored from a copy of it
        shutil.rmtree(checkpoint / kind)
        shutil.copytree(tmp_path / "before" / kind, checkpoint / kind)
    finish(copying(spark, source, target, checkpoint))
    assert target.values(spark) == numbered(20), "that batch is in already"
    shutil.rmtree(checkpoint)
    finish(copying(spark, source, target, checkpoint))
    assert sorted(target.values(spark)) == sorted(2 * numbered(20)), "another query, and nobody knows better"


def test_what_foreach_batch_writes_with_its_number_is_in_once(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """The function fails behind its first write, and Spark runs it again for the same batch."""
    source, target = make_topic(), make_topic()
    source.produce(numbered(10))
    calls: list[int] = []

    def put(frame: DataFrame, number: int) -> None:
        calls.append(number)
        write(frame.select("value"), target, txnAppId=target.name, txnVersion=str(number))
        if len(calls) == 1:
            raise RuntimeError("told to fail")

    frame = spark.readStream.format("quorate").options(**source.options(startingOffsets="earliest")).load()
    writer = frame.writeStream.foreachBatch(put).option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException, match="told to fail"):
        writer.trigger(availableNow=True).start().awaitTermination()
    source.produce(numbered(5, 10))
    finish(writer.trigger(availableNow=True).start())
    assert calls == [0, 0, 1]
    assert target.values(spark) == numbered(15)


@pytest.mark.parametrize("has_rows", [True, False], ids=["rows", "nothing"])
def test_a_driver_is_fenced_by_a_newer_run_of_its_query(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path, has_rows: bool
) -> None:
    """Spark lets no second run of a query begin in one session; so the newer one is played by a client."""
    source, target = make_topic(), make_topic()
    source.produce(numbered(5))
    old = copying(spark, source, target, tmp_path, now=False)
    try:
        wait_until(lambda: target.read(spark).count() == 5, "the first driver to write")
        with Joint(target.bootstrap, f"spark-query-{old.id}", "another run") as newer:
            if has_rows:
                assert newer.open(1_000, task=0, attempt=0).number == 1_000
            else:
                newer.begin(1_000)
            source.produce(numbered(5, 5))
            wait_until(lambda: not old.isActive, "the first driver to be fenced")
            assert "newer run" in str(old.exception())
            assert newer.abort(1_000)
    finally:
        old.stop()
    finish(copying(spark, source, target, tmp_path))
    assert target.values(spark) == numbered(10)


def test_nobody_waits_for_what_is_over(make_topic: MakeTopic, spark: SparkSession) -> None:
    """The end of what is committed is the end of the log once a write is done."""
    topic = make_topic()
    write(spark.range(10).selectExpr("cast(id as string) as value"), topic)
    with Cluster(topic.bootstrap) as cluster:

        def is_stable() -> bool:
            settled = cluster.offsets(topic.name, {0: -1})
            return cluster.offsets(topic.name, {0: -1}, committed=True) == settled

        wait_until(is_stable, "the markers to be written")
