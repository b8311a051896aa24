"""What parts of `quorate bench spark` stand on: a session, and three nodes with a topic that has records."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.batch import encode_records
from quorate.bench.cluster_kafka import KafkaCluster
from quorate.bench.report import Claim, Figure, Say

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2
REPETITIONS = 3
PARTITIONS = 4
ROWS_A_BATCH = 1000
VALUE_BYTES = 100
DIFFERENT_BATCHES = 64
TOPIC = "events"
HEAP = "2g"
"""Rows that are to come from Spark's memory must fit into it; of the usual gigabyte, less than half is for them."""

Found = tuple[list[Figure], list[Claim]]


@contextmanager
def session_of(cores: int) -> Iterator[SparkSession]:
    from quorate.spark.session import local_session

    with local_session(
        "quorate bench", master=f"local[{cores}]", log_level="off", settings={"spark.driver.memory": HEAP}
    ) as session:
        yield session


@contextmanager
def cluster_in(place: Path) -> Iterator[KafkaCluster]:
    """Three nodes, and a topic of several partitions, each with a copy on every node."""
    below = place / "cluster"
    below.mkdir()
    with KafkaCluster(below) as cluster:
        cluster.start()
        asyncio.run(cluster.until_registered())
        cluster.create(TOPIC, "raft", partitions=PARTITIONS)
        yield cluster


@contextmanager
def records_on_spark(place: Path, rows_count: int, say: Say) -> Iterator[tuple[SparkSession, dict[str, str]]]:
    """A session, and what `format("quorate")` needs to know of a topic with so many records, on the same cores."""
    with cluster_in(place) as cluster, session_of(CORES) as session:
        say(f"producing {rows_count:,} records of {VALUE_BYTES} bytes")
        fill(cluster, rows_count)
        yield session, {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": TOPIC}


def fill(cluster: KafkaCluster, rows_count: int) -> None:
    """Values as no codec and no dictionary likes them: they differ, and are of chance."""
    batches = [
        encode_records([(None, os.urandom(VALUE_BYTES)) for _ in range(ROWS_A_BATCH)])
        for _ in range(DIFFERENT_BATCHES)
    ]
    rounds_count, left = divmod(rows_count, ROWS_A_BATCH * PARTITIONS)
    assert not left
    with cluster.asked() as client:
        for number in range(rounds_count):
            at = number * PARTITIONS
            client.produce(
                TOPIC, {each: batches[(at + each) % DIFFERENT_BATCHES] for each in range(PARTITIONS)}
            )
