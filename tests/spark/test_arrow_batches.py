"""How many rows go to Spark at a time: each Arrow batch costs as much as some thousand rows do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from quorate.spark.options import parse_options
from quorate.spark.source import BatchReader, QuorateSource, RangePartition
from tests.spark.conftest import TIMEOUT_S, Topic

pytestmark = pytest.mark.cluster

MakeTopic = Callable[..., Topic]
FEWEST, MOST = 8_000, 64 << 10
"""Rows of an Arrow batch; the last one of a task has what is left."""
PARTITIONS, ROWS = 2, 100_000
"""… in each of these."""
PRODUCED_TOGETHER = 500
"""Records that a producer sends as one batch: far too few for one of Arrow."""


STREAM_ROWS, STREAMS = 20_000, 12
"""Of a value that is an Arrow stream; and values in a partition."""


def counting_source(everything: StructType) -> type[QuorateSource]:
    """`format("quorate")` as executors run it, and of each Arrow batch only how many rows it has.

    Made in a function, as Spark's workers cannot import tests: what is made here is carried to them.
    """

    class CountingReader(BatchReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            assert isinstance(partition, RangePartition)
            for number, batch in enumerate(super().read(partition)):
                told = {"task": [partition.wanted.partition], "number": [number], "rows": [batch.num_rows]}
                yield pa.RecordBatch.from_pydict(told)

    class CountingSource(QuorateSource):
        @classmethod
        def name(cls) -> str:
            return "quorate-counting"

        def schema(self) -> str:
            return "task long, number long, rows long"

        def reader(self, schema: StructType) -> DataSourceReader:
            return CountingReader(self.parsed, everything)

    return CountingSource


@pytest.fixture
def topic(make_topic: MakeTopic) -> Topic:
    made = make_topic(PARTITIONS)
    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": made.bootstrap,
            "enable.idempotence": True,
            "batch.num.messages": PRODUCED_TOGETHER,
            "queue.buffering.max.messages": PARTITIONS * ROWS,
        }
    )
    for number in range(ROWS):
        for partition in range(PARTITIONS):
            producer.produce(
                made.name,
                b"%d" % number,
                partition=partition,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
    assert producer.flush(TIMEOUT_S) == 0
    assert not failed
    return made


@pytest.mark.proof
def test_arrow_batches_of_executors_have_some_ten_thousand_rows_each(
    spark: SparkSession, topic: Topic
) -> None:
    tasks = sizes(spark, topic.options())
    assert len(tasks) == PARTITIONS
    for rows in tasks:
        check(rows)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({}, id="error", marks=pytest.mark.proof),
        pytest.param({"badRecords": "column"}, id="column"),
    ],
)
def test_a_value_of_many_rows_does_not_become_a_batch_of_all_of_them(
    spark: SparkSession, make_topic: MakeTopic, bad: dict[str, str]
) -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"number": range(STREAM_ROWS)})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    topic = make_topic(PARTITIONS)
    for partition in range(PARTITIONS):
        value = sink.getvalue().to_pybytes()
        topic.send([{"value": value, "partition": partition}] * STREAMS)
    tasks = sizes(spark, topic.options(valueFormat="arrow", valueSchema="number long", **bad))
    assert len(tasks) == PARTITIONS
    for rows in tasks:
        check(rows, STREAMS * STREAM_ROWS)


def sizes(spark: SparkSession, options: dict[str, str]) -> list[list[int]]:
    """Of each task's Arrow batches, in their order."""
    schema = spark.read.format("quorate").options(**options).load().schema
    spark.dataSource.register(counting_source(schema))
    told = spark.read.format("quorate-counting").options(**options).load().orderBy("task", "number").collect()
    return [[row["rows"] for row in rows] for _, rows in groupby(told, lambda row: row["task"])]


def test_arrow_batches_of_a_planned_task_are_the_log_in_its_order(topic: Topic) -> None:
    options = topic.options()
    schema = QuorateSource(options).schema()
    assert isinstance(schema, StructType)
    reader = BatchReader(parse_options(options), schema)
    tasks = reader.partitions()
    assert len(tasks) == PARTITIONS
    for task in tasks:
        batches = list(reader.read(task))
        check([batch.num_rows for batch in batches])
        values = [int(value) for batch in batches for value in batch["value"].to_pylist()]
        assert values == list(range(ROWS))


def check(rows: list[int], count: int = ROWS) -> None:
    assert sum(rows) == count
    assert all(FEWEST <= each <= MOST for each in rows[:-1]), rows
    assert 1 <= rows[-1] <= MOST
    assert len(rows) > 1, "one that is not the last"
