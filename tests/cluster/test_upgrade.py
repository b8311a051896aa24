"""From previous releases to this one, and back, while clients write.

The nodes of before run the real code of before (tools/previous.py): of one that knew `raft` alone, and of one
that had all that a cluster is used for. A node of today that is told to know one level less (test_versions.py)
shows what waits for a level, and not whether the two understand each other.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorate.bench.cluster_processes import START_TIMEOUT_S, Cluster, NodeProcess
from quorate.client import TableGroup, create_group
from quorate.machine.cluster import KNOWN_LEVEL
from quorate.machine.metadata import REPLICATIONS
from quorate.node.client import Client
from tests.cluster.fault_support import (
    PARTITIONS_COUNT,
    Bank,
    Writer,
    expect_kept,
    expect_same_copies,
    reader_of,
    written_to,
)
from tests.cluster.following import read_along
from tests.cluster.growing import GrowingCluster
from tests.cluster.person import Operator
from tests.cluster.pipelines import AskingMember, Member, Transacting, TrustingMember
from tests.cluster.proxied import ProxiedCluster
from tests.cluster.steady import RETRY_OF_KILLED_S, written_steadily
from tests.cluster.support import QUICK_RAFT, expect_no_traceback, run
from tests.cluster.test_transactions import seen
from tools import previous

pytestmark = pytest.mark.cluster

NEWER = (sys.executable, "-m", "quorate.kafka")
MORE_COUNT = 100
SNAPSHOT_EVERY = 10


class Load(Protocol):
    async def go_on(self) -> None:
        """Until more is done that was not begun before."""


def code_of(release: previous.Release, directory: Path) -> tuple[str, ...]:
    """What runs a node of that release."""
    try:
        return previous.command(previous.source_in(directory / "previous", release))
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


@pytest.mark.parametrize("release", previous.RELEASES, ids=lambda release: f"level-{release.level}")
def test_directories_of_a_previous_release_are_read(tmp_path: Path, release: previous.Release) -> None:
    with tarfile.open(release.directories) as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads(release.expected.read_text(encoding="utf-8"))
    with Cluster(tmp_path, partitions=0, metadata_voters=3, raft=previous.RAFT) as cluster:
        cluster.name = previous.CLUSTER
        previous.rewrite(cluster.nodes.values(), cluster=previous.CLUSTER, store=previous.STORE)
        for node in cluster.nodes.values():
            node.command = NEWER
            node.start()

        async def come_together() -> None:
            async with cluster.client() as client:
                await until_together(cluster, client)
                tables = {f"{previous.TABLES}-{kind}" for kind in expected["rows"]}
                names = {topic.name for topic in (await client.image(1)).topics}
                assert {*expected["topics"], *tables} == {name for name in names if not name.startswith("__")}

        run(come_together())
        servers = bootstrap(cluster)
        for topic, partitions in expected["topics"].items():
            wanted = {
                int(number): [previous.value_of(each) for each in numbers]
                for number, numbers in partitions.items()
            }
            assert seen(servers, topic) == wanted, topic
        for partition, position in expected["positions"].items():
            assert position_of(servers, int(partition)) == position
        for kind, rows in expected["rows"].items():
            with TableGroup(servers, f"{previous.TABLES}-{kind}") as group:
                for copy in cluster.nodes:
                    found = group.scan("accounts", limit=len(rows) + 1, node=copy)
                    assert [list(row.values) for row in found] == rows, f"{kind} on {copy}"
        person = Operator(servers)
        assert person.shows("cluster status")["feature_level"] == release.level
        person.does(f"cluster alter --feature-level {KNOWN_LEVEL}")
        person.does("topic create compacted --replication coordinated --config cleanup.policy=compact")
        expect_no_traceback(*cluster.nodes.values())


def position_of(servers: str, partition: int) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": previous.GROUP, "log_level": 0})
    (found,) = consumer.committed([TopicPartition("raft", partition)], START_TIMEOUT_S)
    consumer.close()
    return found.offset


async def make_snapshots(servers: str) -> None:
    """Topics come and go, until every node has taken a snapshot of the image, as its version knows it."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    names = [f"passing-{number}" for number in range(SNAPSHOT_EVERY)]
    for made in admin.create_topics([NewTopic(name, 1, 3) for name in names]).values():
        await asyncio.wrap_future(made)
    for gone in admin.delete_topics(names).values():
        await asyncio.wrap_future(gone)


@pytest.mark.proof
def test_snapshots_of_an_older_version_leave_nobody_ignorant(tmp_path: Path) -> None:
    """An older node's image, and so its snapshot, lacks what it does not know: which version another one runs."""
    older = code_of(previous.ONLY_RAFT, tmp_path)

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


@pytest.mark.proof
def test_a_rolling_upgrade_a_downgrade_and_an_upgrade_where_only_raft_was_known(tmp_path: Path) -> None:
    """Nothing acknowledged is lost or doubled, with every mixture of both in between."""
    older = code_of(previous.ONLY_RAFT, tmp_path)

    async def roll() -> None:
        with GrowingCluster(tmp_path) as cluster:
            for node in cluster.nodes.values():
                node.command = older
            cluster.start()
            async with cluster.client() as client:
                await until_together(cluster, client)
                admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
                for made in admin.create_topics([NewTopic("events", PARTITIONS_COUNT, 3)]).values():
                    await asyncio.wrap_future(made)
                writer = Writer(cluster.bootstrap, "events", more_count=MORE_COUNT)
                with read_along(reader_of(cluster.bootstrap, [writer])) as reader:
                    async with written_steadily([writer]):
                        for command in (NEWER, older, NEWER):
                            await install_on_all(cluster, client, command)
                    await expect_kept(cluster, [writer], reader)
                await expect_same_copies(cluster, client)
            person = Operator(cluster.bootstrap)
            await asyncio.to_thread(person.does, f"cluster alter --feature-level {KNOWN_LEVEL}")
            await asyncio.to_thread(person.does, "topic create orders --replication coordinated")
            expect_no_traceback(*cluster.nodes.values())

    run(roll())


async def install_on_all(
    cluster: GrowingCluster, client: Client, command: Sequence[str], others: Sequence[Load] = ()
) -> None:
    """On one node after the other, with something done by each of the others in between."""
    for node in cluster.nodes.values():
        assert await asyncio.to_thread(node.stop) == 0, node.said()
        node.command = command
        node.start()
        await cluster.until_registered(client)
        await asyncio.gather(*(other.go_on() for other in others))


@pytest.mark.parametrize(
    "rolls", ["up", pytest.param("up, down, up, and the level is raised", marks=pytest.mark.proof)]
)
def test_a_rolling_upgrade_of_all_that_a_cluster_is_used_for(tmp_path: Path, rolls: str) -> None:
    """Topics and tables of each protocol, a group that commits how far it is, and transactions: all go on from one
    version to the other and back. Nothing is lost, doubled or out of order, and all copies are the same bytes."""
    older = code_of(previous.ALL_PROTOCOLS, tmp_path)
    there_and_back = rolls != "up"

    async def go_further(person: Operator, others: Sequence[Load]) -> None:
        for line in (
            f"cluster alter --feature-level {KNOWN_LEVEL}",
            "topic alter isr --replication confirm",
        ):
            await asyncio.to_thread(person.brings_about, line)
            await asyncio.gather(*(other.go_on() for other in others))

    commands = (older, NEWER, older, NEWER) if there_and_back else (older, NEWER)
    run(roll_over(tmp_path, commands, TrustingMember, go_further if there_and_back else None))


@pytest.mark.proof
def test_a_rolling_restart_of_all_that_a_cluster_is_used_for(tmp_path: Path) -> None:
    """New leaders do not know yet how far it is settled, and send nobody back for that: what librdkafka takes for
    cut off it reads again, and leaves out what it had in hand."""
    run(roll_over(tmp_path, (NEWER, NEWER), AskingMember))


async def roll_over(
    directory: Path,
    commands: Sequence[Sequence[str]],
    member: Callable[[str, str, str], Member],
    finally_: Callable[[Operator, Sequence[Load]], Awaitable[None]] | None = None,
) -> None:
    """Each command on one node after the other, the first on all at once, under everything that clients do."""
    first, *further = commands
    cluster = ProxiedCluster(directory)
    for node in cluster.nodes.values():
        node.command = first
    async with written_to(directory, cluster) as (_, writers), cluster.client() as client:
        person = Operator(cluster.bootstrap)
        async with pipelines_in(cluster, member) as others, written_steadily(writers) as pauses:
            await asyncio.gather(*(other.go_on() for other in others))
            for command in further:
                await install_on_all(cluster, client, command, others)
            if finally_ is not None:
                await finally_(person, others)
        pauses.expect_short("while nodes were replaced", RETRY_OF_KILLED_S)


@asynccontextmanager
async def pipelines_in(
    cluster: GrowingCluster, member_of: Callable[[str, str, str], Member]
) -> AsyncIterator[list[Load]]:
    """A group of tables of each kind, transactions, and a consumer group of each topic that is there; in the end
    each has exactly what it must have."""
    servers, kinds = cluster.bootstrap, REPLICATIONS
    banks = [Bank(servers, f"bank-{kind}") for kind in kinds]
    for kind, bank in zip(kinds, banks, strict=True):
        await asyncio.to_thread(create_group, servers, bank.group, replication=kind)
        await bank.open()
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    (made,) = admin.create_topics([NewTopic("transacted", PARTITIONS_COUNT, 3)]).values()
    await asyncio.wrap_future(made)
    with ExitStack() as running:
        pump = running.enter_context(Transacting(servers, "transacted"))
        members = [running.enter_context(member_of(servers, f"readers-of-{kind}", kind)) for kind in kinds]
        yield [*banks, pump, *members]
        for bank in banks:
            await bank.finish(list(cluster.nodes))
        await asyncio.to_thread(pump.close)
        assert await asyncio.to_thread(seen, servers, pump.topic) == pump.wanted()
        for member in members:
            await member.expect_exact()
