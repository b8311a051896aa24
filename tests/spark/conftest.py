"""One Spark and one cluster for all tests of this directory; tests/conftest.py keeps them in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession

from quorate.cli.demo_cluster import DemoCluster
from quorate.spark.session import local_session

TIMEOUT_S = 60.0


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with local_session("tests", master="local[2]") as session:
        yield session


@pytest.fixture(scope="session")
def cluster() -> Iterator[DemoCluster]:
    """Three nodes, as `quorate up` runs them; one that is killed is started again."""
    with DemoCluster(keep=False) as running:
        running.start()
        yield running


class Topic:
    """A topic of a test's own, and how to fill and read it."""

    def __init__(self, bootstrap: str, name: str, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.name = name
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(name, partitions, 3)])[name].result(TIMEOUT_S)

    def produce(self, values: list[bytes], *, compression: str = "none", **settings: Any) -> None:
        """Each acknowledged; spread over the partitions by their numbers."""
        self.send([{"value": value} for value in values], compression=compression, **settings)

    def send(self, messages: list[dict[str, Any]], *, compression: str = "none") -> None:
        failed: list[object] = []
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "compression.type": compression,
                "enable.idempotence": True,
                "linger.ms": 5,
            }
        )
        for message in messages:
            producer.produce(
                self.name, **message, on_delivery=lambda error, _: failed.append(error) if error else None
            )
            producer.poll(0)
        assert producer.flush(TIMEOUT_S) == 0
        assert not failed

    def options(self, **more: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.name, **more}

    def read(self, spark: SparkSession, **more: str) -> DataFrame:
        return spark.read.format("quorate").options(**self.options(**more)).load()

    def values(self, spark: SparkSession, **more: str) -> list[bytes]:
        """Sorted, as partitions come in any order."""
        return sorted(bytes(row[0]) for row in self.read(spark, columns="value", **more).collect())


_numbers = count()


@pytest.fixture
def make_topic(cluster: DemoCluster) -> Callable[..., Topic]:
    def make(partitions: int = 1) -> Topic:
        return Topic(cluster.bootstrap, f"topic-{next(_numbers)}", partitions)

    return make
