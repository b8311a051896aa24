"""All four protocols as real processes, under faults: whatever was acknowledged is there once, and nothing else."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorate.bench.cluster_processes import START_TIMEOUT_S
from quorate.machine.metadata import REPLICATIONS
from tests.cluster.proxied import ProxiedCluster
from tests.cluster.support import expect_no_traceback, run

pytestmark = pytest.mark.cluster

PARTITIONS_COUNT = 2
UNDER_WAY_MAX = 100
MORE_COUNT = 300
"""Acknowledged between two faults, and after the last."""
DELIVERY_MS = 60_000
REQUEST_MS = 3_000
"""A client waits so long for a node that says nothing: by default ten times as long, here not to wait in vain."""


class Writer:
    """An idempotent producer that always has something to send, and knows what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.sent_count = 0
        self.acknowledged: set[int] = set()
        self.failed: Counter[str] = Counter()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": DELIVERY_MS,
                "request.timeout.ms": REQUEST_MS,
                "socket.timeout.ms": REQUEST_MS + 1_000,
                "topic.metadata.refresh.interval.ms": 1_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    async def write(self, count: int) -> None:
        """Until so many are acknowledged that were not even sent before this call."""
        first, deadline = self.sent_count, asyncio.get_running_loop().time() + START_TIMEOUT_S
        while sum(number >= first for number in self.acknowledged) < count:
            assert asyncio.get_running_loop().time() < deadline, (
                f"{self.topic}: {count} more are not acknowledged"
            )
            while self.sent_count - len(self.acknowledged) - self.failed.total() < UNDER_WAY_MAX:
                number = self.sent_count
                self._producer.produce(
                    self.topic, b"%d" % number, partition=number % PARTITIONS_COUNT, on_delivery=self._told
                )
                self.sent_count += 1
            self._producer.poll(0)
            await asyncio.sleep(0.002)

    async def finish(self) -> None:
        assert await asyncio.to_thread(self._producer.flush, DELIVERY_MS / 1000) == 0

    def _told(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert value is not None
        if error is None:
            self.acknowledged.add(int(value))
        else:
            self.failed[error.str()] += 1


def read_everything(bootstrap: str, topic: str) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS_COUNT)])
    found: list[int] = []
    ended: set[int] = set()
    while len(ended) < PARTITIONS_COUNT:
        message = consumer.poll(START_TIMEOUT_S)
        assert message is not None, "nothing more came"
        if message.error() is not None:
            ended.add(message.partition() or 0)
        else:
            value = message.value()
            assert value is not None
            found.append(int(value))
    consumer.close()
    return found


@asynccontextmanager
async def written_to(directory: Path) -> AsyncIterator[tuple[ProxiedCluster, list[Writer]]]:
    """A cluster with a topic of each kind, every one written to; in the end everything is read, and compared."""
    async with ProxiedCluster(directory) as cluster:
        cluster.start()
        async with cluster.client() as client:
            await cluster.until_registered(client)
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
            topics = [
                NewTopic(kind, PARTITIONS_COUNT, 3, config={"quorate.replication": kind})
                for kind in REPLICATIONS
            ]
            for made in admin.create_topics(topics).values():
                await asyncio.wrap_future(made)
            writers = [Writer(cluster.bootstrap, kind) for kind in REPLICATIONS]
            await go_on(writers)
            yield cluster, writers
            cluster.heal()
            await go_on(writers)
            for writer in writers:
                await writer.finish()
                assert not writer.failed, f"{writer.topic}: {writer.failed}"
                found = await asyncio.to_thread(read_everything, cluster.bootstrap, writer.topic)
                assert sorted(found) == sorted(writer.acknowledged), writer.topic
        expect_no_traceback(*cluster.nodes.values())


async def go_on(writers: list[Writer]) -> None:
    """Every topic takes writes."""
    for writer in writers:
        await writer.write(MORE_COUNT)


Fault = Callable[[ProxiedCluster, list[Writer], int], Awaitable[None]]


async def killed(cluster: ProxiedCluster, writers: list[Writer], node: int) -> None:
    cluster.nodes[node].kill()
    await go_on(writers)
    cluster.nodes[node].start()


async def stands_still(cluster: ProxiedCluster, writers: list[Writer], node: int) -> None:
    process = cluster.nodes[node].process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    try:
        await go_on(writers)
    finally:
        os.kill(process.pid, signal.SIGCONT)


async def cut_off(cluster: ProxiedCluster, writers: list[Writer], node: int) -> None:
    cluster.cut_off(node)
    await go_on(writers)
    cluster.heal()


async def not_heard(cluster: ProxiedCluster, writers: list[Writer], node: int) -> None:
    cluster.cut_off(node, to=False)
    await go_on(writers)
    cluster.heal()


async def hears_nobody(cluster: ProxiedCluster, writers: list[Writer], node: int) -> None:
    cluster.cut_off(node, of=False)
    await go_on(writers)
    cluster.heal()


async def slow(cluster: ProxiedCluster, writers: list[Writer], node: int) -> None:
    cluster.slow_down(node, 0.1)
    await go_on(writers)
    cluster.heal()


async def wiped(cluster: ProxiedCluster, writers: list[Writer], node: int) -> None:
    cluster.nodes[node].kill()
    shutil.rmtree(cluster.nodes[node].directory)
    cluster.nodes[node].format(replaces=True)
    await go_on(writers)
    cluster.nodes[node].start()


@pytest.mark.parametrize(
    "fault", [killed, stands_still, cut_off, not_heard, hears_nobody, slow], ids=lambda fault: fault.__name__
)
def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, fault: Fault) -> None:
    """Each node in turn: whoever leads what, it is hit."""

    async def main() -> None:
        async with written_to(tmp_path) as (cluster, writers):
            for node in cluster.nodes:
                await fault(cluster, writers, node)
                await go_on(writers)

    run(main())


def test_rolling_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with written_to(tmp_path) as (cluster, writers):
            for node in cluster.nodes.values():
                await asyncio.to_thread(node.stop)
                await go_on(writers)
                node.start()
                await go_on(writers)

    run(main())
