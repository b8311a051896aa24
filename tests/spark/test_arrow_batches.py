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


def counting_source() -> type[QuorateSource]:
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
            everything = QuorateSource(self.options).schema()
            assert isinstance(everything, StructType)
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
    spark.dataSource.register(counting_source())
    frame = spark.read.format("quorate-counting").options(**topic.options()).load()
    told = frame.orderBy("task", "number").collect()
    tasks = [[row["rows"] for row in rows] for _, rows in groupby(told, lambda row: row["task"])]
    assert len(tasks) == PARTITIONS
    for rows in tasks:
        check(rows)


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


def check(rows: list[int]) -> None:
    assert sum(rows) == ROWS
    assert all(FEWEST <= each <= MOST for each in rows[:-1]), rows
    assert 1 <= rows[-1] <= MOST
    assert len(rows) > 1, "one that is not the last"
