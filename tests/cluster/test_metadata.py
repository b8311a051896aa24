"""The metadata group in real processes: nodes make themselves known, and replicas come and go with topics."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from quorate.bench.cluster_processes import START_TIMEOUT_S, Cluster, NodeProcess, free_ports
from quorate.core.entry import Member, Partition
from quorate.machine.metadata import (
    METADATA,
    Command,
    CreateTopic,
    DeleteTopic,
    NodeInfo,
    Topic,
    command_batch,
)
from quorate.node.client import Client, NotDone, NotWritten, OutcomeUnknown
from tests.cluster.growing import GrowingCluster
from tests.cluster.support import QUICK_RAFT, batch_of, expect_no_traceback, run

pytestmark = pytest.mark.cluster

SNAPSHOT_EVERY = 5


def metadata_cluster(directory: Path, *, nodes: int = 3) -> Cluster:
    raft = {**QUICK_RAFT, "snapshot_every": SNAPSHOT_EVERY}
    return Cluster(directory, nodes=nodes, partitions=0, metadata_voters=3, raft=raft)


def topic_on(name: str, *nodes: int, partitions: int = 2) -> Topic:
    ensemble = tuple(Member(node, 1) for node in nodes)
    return Topic(name, os.urandom(16), "raft", (ensemble,) * partitions)


async def settle(client: Client, *commands: Command) -> None:
    """Every command can be repeated: what is unknown, since its leader was killed just now, is ordered again."""
    for command in commands:
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                try:
                    await client.propose(METADATA, [command_batch(command)])
                    break
                except OutcomeUnknown:
                    continue


async def until_registered(cluster: Cluster, client: Client) -> None:
    async def everybody_knows_everybody() -> bool | None:
        found = await cluster.statuses(client)
        return all(status.registered == tuple(cluster.nodes) for status in found) or None

    await cluster.until(everybody_knows_everybody, "every node to be registered")


async def until_held(cluster: Cluster, client: Client, held: dict[int, set[Partition]]) -> None:
    """Beside the metadata group's, these replicas and no others, and each group has a leader."""

    async def just_these() -> bool | None:
        found = {
            status.node: {Partition(replica.partition) for replica in status.replicas if replica.leader}
            for status in await cluster.statuses(client)
        }
        return all(found[node] - {METADATA} == held[node] for node in found) or None

    await cluster.until(just_these, f"replicas on {list(held)}")


def files_of(cluster: Cluster, node: int) -> list[str]:
    partitions = cluster.nodes[node].directory / "store" / "partitions"
    return sorted(str(path) for path in partitions.rglob("*") if path.is_file())


def test_replicas_come_with_a_topic_and_go_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        with metadata_cluster(tmp_path, nodes=4) as cluster:
            cluster.start()
            async with cluster.client() as client:
                await until_registered(cluster, client)
                topic = topic_on("t", 2, 3, 4)
                await settle(client, CreateTopic(topic))
                partitions = topic.partitions()
                everything = set(partitions)
                await until_held(cluster, client, {1: set(), 2: everything, 3: everything, 4: everything})
                assert (await client.propose(partitions[0], [batch_of(b"x")])).offset == 1
                await settle(client, DeleteTopic(topic.id))
                await until_held(cluster, client, {node: set() for node in cluster.nodes})
            for process in cluster.nodes.values():
                assert process.stop() == 0
            assert not any(
                topic.id.hex() in file for node in cluster.nodes for file in files_of(cluster, node)
            )
            expect_no_traceback(*cluster.nodes.values())

    run(main())


@pytest.mark.proof
def test_a_node_that_was_away_follows_what_it_missed(tmp_path: Path) -> None:
    """It is away for so long that the group's log has been cut: it learns of the deletion from a snapshot."""

    async def main() -> None:
        with metadata_cluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                await until_registered(cluster, client)
                gone, kept = topic_on("gone", 1, 2, 3), topic_on("kept", 1, 2, 3)
                await settle(client, CreateTopic(gone), CreateTopic(kept))
                both = {*gone.partitions(), *kept.partitions()}
                await until_held(cluster, client, dict.fromkeys(cluster.nodes, both))
                settled = await client.propose(kept.partitions()[0], [batch_of(b"kept")])
                cluster.nodes[3].kill()
                new = topic_on("new", 1, 2, 3)
                passing = [topic_on(f"passing-{number}", 1, 2, 3, partitions=1) for number in range(4)]
                await settle(client, DeleteTopic(gone.id), *map(CreateTopic, passing))
                await settle(client, *(DeleteTopic(topic.id) for topic in passing), CreateTopic(new))
                cluster.nodes[3].start()
                left = {*kept.partitions(), *new.partitions()}
                await until_held(cluster, client, dict.fromkeys(cluster.nodes, left))
                await cluster.converged(client)
                frames, _ = await client.fetch(3, kept.partitions()[0], settled.offset)
                assert frames[0].header.offset == settled.offset
            expect_no_traceback(*cluster.nodes.values())

    run(main())


def test_topics_are_still_there_after_every_node_was_killed(tmp_path: Path) -> None:
    async def main() -> None:
        with metadata_cluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                await until_registered(cluster, client)
                topic = topic_on("t", 1, 2, 3)
                await settle(client, CreateTopic(topic))
                held = {node: set(topic.partitions()) for node in cluster.nodes}
                await until_held(cluster, client, held)
                settled = [
                    await client.propose(topic.partitions()[0], [batch_of(b"%d" % n)]) for n in range(20)
                ]
                for process in cluster.nodes.values():
                    process.kill()
                for process in cluster.nodes.values():
                    process.start()
                await until_held(cluster, client, held)
                await cluster.converged(client)
                for node in cluster.nodes:
                    frames, _ = await client.fetch(node, topic.partitions()[0], 0)
                    offsets = {frame.header.offset for frame in frames}
                    assert offsets.issuperset(each.offset for each in settled)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


@pytest.mark.proof
def test_a_directory_made_anew_as_if_nothing_had_been_promised_does_not_count(tmp_path: Path) -> None:
    """Two of three hold an entry; one is away, the other's disk is lost and made anew without --replaces."""

    async def main() -> None:
        with metadata_cluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                await until_registered(cluster, client)
                topic = topic_on("t", 1, 2, 3, partitions=1)
                await settle(client, CreateTopic(topic))
                await until_held(cluster, client, {node: set(topic.partitions()) for node in cluster.nodes})
                cluster.nodes[2].stop()
                settled = await client.propose(topic.partitions()[0], [batch_of(b"promised")])
                for node in (1, 3):
                    cluster.nodes[node].kill()
                shutil.rmtree(cluster.nodes[3].directory)
                cluster.nodes[3].format()
                cluster.nodes[2].start()
                cluster.nodes[3].start()
                assert cluster.nodes[3].wait(20) == 1
                assert "make it anew with --replaces" in cluster.nodes[3].said()
                with pytest.raises((NotWritten, OutcomeUnknown)):
                    await client.propose(topic.partitions()[0], [batch_of(b"instead")], timeout_s=2)
                cluster.nodes[1].start()

                async def there() -> bool | None:
                    frames, _ = await client.fetch(1, topic.partitions()[0], settled.offset)
                    return bool(frames) or None

                await cluster.until(there, "the entry to be settled again")
            expect_no_traceback(*cluster.nodes.values())

    run(main())


def another_directory(of: NodeProcess, parent: Path, port: int) -> NodeProcess:
    """Of the same node, and told the same, but for where it listens."""
    parent.mkdir()
    config = {**msgspec.json.decode(of.config.read_bytes()), "listen": f"127.0.0.1:{port}"}
    made = NodeProcess(parent, of.node, port, config)
    made.command = of.command
    return made


def expect_replaced(process: NodeProcess) -> None:
    assert process.wait(START_TIMEOUT_S) == 1
    assert "node 4 was replaced by a directory made later with --replaces" in process.said()


async def nodes_known(cluster: Cluster, client: Client) -> list[tuple[NodeInfo, ...]]:
    """To those that run; where they know the same, it is told once."""
    running = [node.node for node in cluster.nodes.values() if node.process is not None]
    found = [(await client.image(node, ())).nodes for node in running]
    return [known for at, known in enumerate(found) if known not in found[:at]]


@pytest.mark.proof
def test_a_replaced_directory_that_comes_back_ends_and_the_newer_one_goes_on(tmp_path: Path) -> None:
    """It comes back beside the newer one, and again where that one was, while that one is away."""

    async def main() -> None:
        with metadata_cluster(tmp_path, nodes=4) as cluster:
            cluster.start()
            async with cluster.client() as client:
                await until_registered(cluster, client)
                topic = topic_on("t", 1, 2, 4, partitions=1)
                await settle(client, CreateTopic(topic))
                held = {node: set(topic.partitions()) for node in (1, 2, 4)}
                await until_held(cluster, client, held | {3: set()})
                node = cluster.nodes[4]
                node.kill()
                ports = (*free_ports(1), node.address.port)
                beside, instead = (another_directory(node, tmp_path / f"at-{port}", port) for port in ports)
                shutil.copytree(node.directory, beside.directory)
                node.directory.rename(instead.directory)
                node.format(replaces=True)
                node.start()
                await until_registered(cluster, client)
                (known,) = await nodes_known(cluster, client)
                for _ in range(2):
                    beside.start()
                    expect_replaced(beside)
                said = beside.output.read_text(encoding="utf-8")
                assert said.count(", 2 replicas,") == 2  # What it held is still there.
                assert "trying again" not in said
                assert await nodes_known(cluster, client) == [known]
                assert node.stop() == 0
                instead.start()
                expect_replaced(instead)
                node.start()
                await until_registered(cluster, client)
                assert await nodes_known(cluster, client) == [known]
            expect_no_traceback(beside, instead, *cluster.nodes.values())

    run(main())


def test_a_current_image_has_whatever_was_settled_before_it_was_asked_for(tmp_path: Path) -> None:
    """Of whichever node: followers learn what is settled a moment after the leader has answered."""

    async def main() -> None:
        with metadata_cluster(tmp_path, nodes=4) as cluster:
            cluster.start()
            async with cluster.client() as client:
                await until_registered(cluster, client)
                for number in range(25):
                    topic = topic_on(f"t{number}", 1)
                    await settle(client, CreateTopic(topic))
                    asked = (client.image(node, (topic.name,), current=True) for node in cluster.nodes)
                    for image in await asyncio.gather(*asked):
                        assert image.is_current
                        assert image.topics == (topic,)
                for node in (1, 2):
                    cluster.nodes[node].kill()
                alone = await client.image(3, (topic.name,), current=True)
                assert not alone.is_current
                assert alone.topics == (topic,)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


@pytest.mark.proof
def test_a_node_that_is_forgotten_while_it_runs_ends(tmp_path: Path) -> None:
    """And is told so when it comes back; with another directory it joins again."""

    async def main() -> None:
        with GrowingCluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                await cluster.until_registered(client)
                fourth = cluster.join(4, client)
                await cluster.until_registered(client)
                seen = (await client.image(1, ())).version
                for _ in range(2):  # An order that is given again is the same one.
                    await client.forget_node(4, seen=seen)
                expect_forgotten(fourth)
                shutil.move(cluster.nodes.pop(4).directory, tmp_path / "old")
                await cluster.until_voters(client, (1, 2, 3))
                fourth.format()  # As if it had never been there.
                fourth.start()
                expect_forgotten(fourth)
                shutil.rmtree(fourth.directory)
                fourth.format(replaces=True)
                fourth.start()
                cluster.nodes[4] = fourth
                await cluster.until_registered(client)
                await cluster.until_voters(client, (1, 2, 3))
                with pytest.raises(NotDone, match="changed by somebody else"):
                    await client.forget_node(4, seen=seen)
                # The old disk is still void.
                fourth.kill()
                shutil.rmtree(fourth.directory)
                shutil.move(tmp_path / "old", fourth.directory)
                fourth.start()
                expect_replaced(fourth)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


def expect_forgotten(process: NodeProcess) -> None:
    assert process.wait(START_TIMEOUT_S) == 1
    assert "node 4 was forgotten with `quorate cluster forget`" in process.said()


@pytest.mark.proof
def test_a_node_that_is_replaced_while_it_runs_ends(tmp_path: Path) -> None:
    async def main() -> None:
        with GrowingCluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                await cluster.until_registered(client)
                older = cluster.join(4, client)
                await cluster.until_registered(client)
                (port,) = free_ports(1)
                newer = another_directory(older, tmp_path / "newer", port)
                cluster.nodes[4] = newer
                try:
                    newer.format(replaces=True)
                    newer.start()
                    expect_replaced(older)
                finally:
                    if older.process is not None:
                        older.kill()
                client.know(4, newer.address)
                await cluster.until_registered(client)
                (known,) = await nodes_known(cluster, client)
                assert [info.port for info in known if info.node == 4] == [port]
            expect_no_traceback(older, *cluster.nodes.values())

    run(main())
