"""From the previous release to this one, and back, while clients write.

The nodes of before run the real code of before (tools/previous.py). A node of today that is told to know one level
less (test_versions.py) shows what waits for a level, and not whether the two understand each other.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorate.bench.cluster_processes import START_TIMEOUT_S, Cluster, NodeProcess
from quorate.machine.cluster import KNOWN_LEVEL
from quorate.node.client import Client
from tests.cluster.fault_support import PARTITIONS_COUNT, Writer, differences, read_everything
from tests.cluster.person import Operator
from tests.cluster.support import QUICK_RAFT, expect_no_traceback, run
from tools import previous

pytestmark = pytest.mark.cluster

NEWER = (sys.executable, "-m", "quorate.kafka")
MORE_COUNT = 100
SNAPSHOT_EVERY = 10


@pytest.fixture
def older(tmp_path: Path) -> tuple[str, ...]:
    """What runs a node of the previous release."""
    try:
        return previous.command(previous.source_in(tmp_path / "previous"))
    except previous.NotThere as why:
        pytest.skip(f"nodes of the previous release cannot be run: {why}")


def bootstrap(cluster: Cluster) -> str:
    return ",".join(str(node.address) for node in cluster.nodes.values())


async def until_together(cluster: Cluster, client: Client) -> None:
    """Everybody is registered everywhere, every partition is led, and all copies have settled the same."""

    async def together() -> bool | None:
        found = await cluster.statuses(client)
        known = all(set(status.registered) == set(cluster.nodes) for status in found)
        led = all(replica.leader for status in found for replica in status.replicas)
        return (known and led) or None

    await cluster.until(together, "every node to know every other, and a leader of everything")
    await cluster.converged(client)


async def install(cluster: Cluster, client: Client, node: NodeProcess, command: Sequence[str]) -> None:
    assert node.stop() == 0, node.said()
    node.command = command
    node.start()
    await until_together(cluster, client)


def test_directories_of_the_previous_release_are_read(tmp_path: Path) -> None:
    with tarfile.open(previous.DIRECTORIES) as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads(previous.EXPECTED.read_text(encoding="utf-8"))
    with Cluster(tmp_path, partitions=0, metadata_voters=3, raft=previous.RAFT) as cluster:
        cluster.name = previous.CLUSTER
        previous.rewrite(cluster.nodes.values(), cluster=previous.CLUSTER, store=previous.STORE)
        for node in cluster.nodes.values():
            node.command = NEWER
            node.start()

        async def come_together() -> None:
            async with cluster.client() as client:
                await until_together(cluster, client)
                assert [topic.name for topic in (await client.image(1)).topics] == [previous.TOPIC]

        run(come_together())
        for number, wanted in expected["partitions"].items():
            found = values_of(bootstrap(cluster), int(number), len(wanted))
            assert found == [previous.value_of(each) for each in wanted]
        person = Operator(bootstrap(cluster))
        assert person.shows("cluster status")["feature_level"] == 1
        person.does(f"cluster alter --feature-level {KNOWN_LEVEL}")
        person.does("topic create orders --replication coordinated")
        expect_no_traceback(*cluster.nodes.values())


def values_of(servers: str, partition: int, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition(previous.TOPIC, partition, 0)])
    found: list[bytes | None] = []
    while len(found) < count:
        message = consumer.poll(START_TIMEOUT_S)
        assert message is not None, f"{len(found)} of {count} came"
        assert message.error() is None, message.error()
        found.append(message.value())
    consumer.close()
    return found


async def make_snapshots(servers: str) -> None:
    """Topics come and go, until every node has taken a snapshot of the image, as its version knows it."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    names = [f"passing-{number}" for number in range(SNAPSHOT_EVERY)]
    for made in admin.create_topics([NewTopic(name, 1, 3) for name in names]).values():
        await asyncio.wrap_future(made)
    for gone in admin.delete_topics(names).values():
        await asyncio.wrap_future(gone)


@pytest.mark.proof
def test_snapshots_of_an_older_version_leave_nobody_ignorant(tmp_path: Path, older: tuple[str, ...]) -> None:
    """An older node's image, and so its snapshot, lacks what it does not know: which version another one runs."""

    async def roll() -> None:
        raft = {**QUICK_RAFT, "snapshot_every": SNAPSHOT_EVERY}
        with Cluster(tmp_path, partitions=0, metadata_voters=3, raft=raft) as cluster:
            for node in cluster.nodes.values():
                node.command = older
            cluster.start()
            async with cluster.client() as client:
                await until_together(cluster, client)
                for node in cluster.nodes.values():
                    await install(cluster, client, node, NEWER)
                    await make_snapshots(bootstrap(cluster))
                    await until_together(cluster, client)

                async def known() -> bool | None:
                    images = [await client.image(node) for node in cluster.nodes]
                    levels = {info.knows for image in images for info in image.nodes}
                    return levels == {KNOWN_LEVEL} or None

                await cluster.until(known, "every node to know what every other one knows")
                person = Operator(bootstrap(cluster))
                await asyncio.to_thread(person.does, f"cluster alter --feature-level {KNOWN_LEVEL}")
                await cluster.converged(client)
                levels = [(await client.image(node)).cluster.level for node in cluster.nodes]
                assert levels == [KNOWN_LEVEL] * len(cluster.nodes)
            expect_no_traceback(*cluster.nodes.values())

    run(roll())


def test_a_rolling_upgrade_a_downgrade_and_an_upgrade_for_good(
    tmp_path: Path, older: tuple[str, ...]
) -> None:
    """Nothing acknowledged is lost or doubled, with every mixture of both in between."""

    async def roll() -> None:
        with Cluster(tmp_path, partitions=0, metadata_voters=3, raft=QUICK_RAFT) as cluster:
            for node in cluster.nodes.values():
                node.command = older
            cluster.start()
            async with cluster.client() as client:
                await until_together(cluster, client)
                admin = AdminClient({"bootstrap.servers": bootstrap(cluster), "log_level": 0})
                for made in admin.create_topics([NewTopic("events", PARTITIONS_COUNT, 3)]).values():
                    await asyncio.wrap_future(made)
                writer = Writer(bootstrap(cluster), "events", more_count=MORE_COUNT)
                await writer.go_on()
                for command in (NEWER, older, NEWER):
                    for node in cluster.nodes.values():
                        await asyncio.gather(install(cluster, client, node, command), writer.go_on())
                await writer.finish()
                found = await asyncio.to_thread(read_everything, bootstrap(cluster), "events")
                assert not differences(found, writer.acknowledged)
            person = Operator(bootstrap(cluster))
            await asyncio.to_thread(person.does, f"cluster alter --feature-level {KNOWN_LEVEL}")
            await asyncio.to_thread(person.does, "topic create orders --replication coordinated")
            expect_no_traceback(*cluster.nodes.values())

    run(roll())
