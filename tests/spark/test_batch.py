"""format("quorate") in batches: real Spark, a real cluster, a real Kafka producer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.conftest import Topic

pytestmark = pytest.mark.cluster

MakeTopic = Callable[..., Topic]


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%08d" % number for number in range(first, first + count)]


def test_spark_finds_the_source_by_itself_and_reads_every_column(
    spark: SparkSession, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    time_ms = 1_700_000_000_123
    topic.send(
        [
            {"key": b"k", "value": b"v", "timestamp": time_ms, "headers": [("a", b"1"), ("b", None)]},
            {"key": None, "value": None, "timestamp": time_ms + 1},
            {"key": b"", "value": b"\xff\x00", "timestamp": time_ms + 2},
        ]
    )
    frame = topic.read(spark, includeHeaders="true")
    assert frame.columns == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ]
    rows = frame.orderBy("offset").collect()
    assert [row.key for row in rows] == [b"k", None, b""]
    assert [row.value for row in rows] == [b"v", None, b"\xff\x00"]
    assert {(row.topic, row.partition, row.timestampType) for row in rows} == {(topic.name, 0, 0)}
    assert [row.offset - rows[0].offset for row in rows] == [0, 1, 2]
    assert [row.timestamp.astimezone(UTC) for row in rows] == [
        datetime.fromtimestamp(time_ms // 1000, UTC).replace(microsecond=123_000 + 1000 * number)
        for number in range(3)
    ]
    assert [(header.key, header.value) for header in rows[0].headers] == [("a", b"1"), ("b", None)]
    assert rows[1].headers is None


def test_compressed_records_are_read_like_others(spark: SparkSession, make_topic: MakeTopic) -> None:
    topic = make_topic()
    for number, compression in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        topic.produce(numbered(100, 100 * number), compression=compression)
    assert topic.values(spark) == numbered(500)


def test_several_topics_and_partitions_in_one_frame(spark: SparkSession, make_topic: MakeTopic) -> None:
    one, other = make_topic(3), make_topic(2)
    one.produce(numbered(300))
    other.produce(numbered(200, 300))
    both = one.values(spark, subscribe=f"{one.name},{other.name}")
    assert both == numbered(500)


def test_offsets_choose_what_is_read(spark: SparkSession, make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.produce(numbered(50))
    offsets = [row.offset for row in topic.read(spark, columns="offset").orderBy("offset").collect()]
    first, last = offsets[10], offsets[20]

    def at(offset: int) -> str:
        return f'{{"{topic.name}": {{"0": {offset}}}}}'

    assert topic.values(spark, startingOffsets=at(first)) == numbered(40, 10)
    assert topic.values(spark, endingOffsets=at(first)) == numbered(10)
    assert topic.values(spark, startingOffsets=at(first), endingOffsets=at(last)) == numbered(10, 10)
    assert topic.values(spark, startingOffsets=at(-2), endingOffsets=at(-1)) == numbered(50)
    assert topic.values(spark, startingOffsets="latest") == []


def test_times_choose_what_is_read(spark: SparkSession, make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.send(
        [{"value": value, "timestamp": 1_000_000 + number} for number, value in enumerate(numbered(20))]
    )
    assert topic.values(spark, startingTimestamp="1000005", endingTimestamp="1000009") == numbered(4, 5)
    assert topic.values(spark, startingTimestamp="2000000") == []


def test_partitions_are_chosen_by_pattern_and_by_number(spark: SparkSession, make_topic: MakeTopic) -> None:
    one, other = make_topic(2), make_topic()
    for number in range(2):
        one.send([{"value": b"%d" % number, "partition": number, "timestamp": 1_000 + number}])
    other.produce(numbered(5))
    unnamed = {"subscribe": ""}
    assert one.values(spark, subscribePattern=f"{one.name}|{other.name}", **unnamed) == [
        b"0",
        *numbered(5),
        b"1",
    ]
    assert one.values(spark, assign=f'{{"{one.name}": [1]}}', **unnamed) == [b"1"]
    times = f'{{"{one.name}": {{"0": 1001}}}}'
    assert one.values(spark, startingOffsetsByTimestamp=times) == [b"1"], "the other from its beginning"
    assert one.values(spark, endingOffsetsByTimestamp=times) == [b"0", b"1"]
    assert one.values(spark, startingOffsets=f'{{"{one.name}": {{"1": -1}}}}') == [b"0"]


def test_values_with_a_schema_are_columns(spark: SparkSession, make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.produce(
        [b'{"user": "ann", "amount": 1.5, "at": "2024-05-06T07:08:09Z"}', b"nonsense", b'{"user": "bob"}']
    )
    options = {"valueFormat": "json", "valueSchema": "user string, amount double, at timestamp"}
    frame = topic.read(spark, **options, badRecords="column").orderBy("offset")
    assert [(row.user, row.amount) for row in frame.select("value.*").collect()] == [
        ("ann", 1.5),
        (None, None),
        ("bob", None),
    ]
    assert [row.badValue for row in frame.collect()] == [None, b"nonsense", None]
    assert frame.selectExpr("year(value.at)").collect()[0][0] == 2024
    with pytest.raises(PySparkException, match="a value is not json of the schema: 'nonsense'"):
        topic.read(spark, **options).collect()


def test_an_empty_topic_is_an_empty_frame(spark: SparkSession, make_topic: MakeTopic) -> None:
    assert topic_count(spark, make_topic(2)) == 0


def topic_count(spark: SparkSession, topic: Topic) -> int:
    return topic.read(spark).count()


def test_more_tasks_read_the_same(spark: SparkSession, make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.produce(numbered(1_000))
    frame = topic.read(spark, minPartitions="7", columns="value")
    assert frame.rdd.getNumPartitions() == 7
    assert topic.read(spark, maxRecordsPerPartition="300").rdd.getNumPartitions() == 4
    assert sorted(bytes(row.value) for row in frame.collect()) == numbered(1_000)


def test_sql_reads_it_as_a_view(spark: SparkSession, make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.produce(numbered(10))
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW events USING quorate OPTIONS "
        f"(`kafka.bootstrap.servers` '{topic.bootstrap}', subscribe '{topic.name}')"
    )
    (row,) = spark.sql("SELECT count(*) AS n, max(cast(value AS string)) AS greatest FROM events").collect()
    assert (row.n, row.greatest) == (10, "00000009")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'?"),
        ({"columns": "kye"}, "there is no column 'kye'"),
        ({"subscribe": "nowhere"}, "there is no topic 'nowhere' in the cluster"),
        ({"startingOffsets": '{"elsewhere": {"0": 1}}'}, "names topic 'elsewhere', which is not subscribed"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1", "timeoutSeconds": "0.3"}, "no answer from 127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_said(
    spark: SparkSession, make_topic: MakeTopic, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        make_topic().read(spark, **options).count()
    assert said in str(raised.value)


def test_offsets_beyond_the_log_are_refused_before_anything_is_read(
    spark: SparkSession, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    with pytest.raises(PySparkException, match="ends at offset"):
        topic.read(spark, startingOffsets=f'{{"{topic.name}": {{"0": 999}}}}').count()


def test_a_schema_of_ones_own_is_refused(spark: SparkSession, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with pytest.raises(PySparkException, match="has a schema of its own"):
        spark.read.format("quorate").schema("value string").options(**topic.options()).load().count()


def test_a_frame_ends_where_its_first_action_found_the_end_and_one_loaded_anew_sees_more(
    spark: SparkSession, make_topic: MakeTopic
) -> None:
    """Spark keeps what a Python source has planned; the document says so, and what to do."""
    topic = make_topic()
    frame = topic.read(spark)
    topic.produce(numbered(10))
    assert frame.count() == 10, "nothing is planned before the first action"
    topic.produce(numbered(10))
    assert frame.count() == 10
    assert topic_count(spark, topic) == 20
