"""Ensembles that change while clients write, in real processes: grown, shrunk, replaced, handed over, given up."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from quorate.batch import decode_records
from quorate.bench.cluster_load import Ledger
from quorate.core.effects import Outcome
from quorate.core.entry import Kind, Member, Partition
from quorate.core.events import ReadLevel
from quorate.machine.metadata import METADATA
from quorate.node.client import Client, NotDone
from quorate.node.requests import Answered, Change, Read
from tests.cluster.growing import GrowingCluster, expect_all_on, held_by
from tests.cluster.support import batch_of, expect_no_traceback, run, until_acknowledged

pytestmark = pytest.mark.cluster

TIMEOUT_S = 30.0
EVERY_LEADERS_LEVEL = (ReadLevel.LINEARIZABLE, ReadLevel.LEASE)


@asynccontextmanager
async def three_nodes(directory: Path) -> AsyncIterator[tuple[GrowingCluster, Client]]:
    """The first three know each other. Whoever has joined them, too, must not have failed in the end."""
    with GrowingCluster(directory) as cluster:
        cluster.start()
        async with cluster.client() as client:
            await cluster.until_registered(client)
            yield cluster, client
        expect_no_traceback(*cluster.nodes.values())


async def partition_on(cluster: GrowingCluster, client: Client, nodes: Sequence[int]) -> Partition:
    (partition,) = (await cluster.topic(client, "t", nodes)).partitions()
    return partition


async def change_to(
    cluster: GrowingCluster, client: Client, partition: Partition, nodes: Sequence[int]
) -> None:
    await client.change(partition, nodes)
    await cluster.until_on(client, partition, nodes)


def load_on(client: Client, partitions: Sequence[Partition]) -> Ledger:
    return Ledger(client, partitions, seed=1, value_bytes=256)


@pytest.mark.behaviour("YB-12", "YB-13")
def test_an_ensemble_grows_by_two_and_shrinks_without_its_leader_while_it_is_written_to(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with three_nodes(tmp_path) as (cluster, client):
            partition = await partition_on(cluster, client, (1, 2, 3))
            async with load_on(client, [partition]) as ledger:
                await until_acknowledged(ledger, 100)
                for node in (4, 5):
                    cluster.join(node, client)
                await cluster.until_registered(client)
                await change_to(cluster, client, partition, (1, 2, 3, 4, 5))
                await until_acknowledged(ledger, 100)
                leader = await cluster.leader(client, partition)
                left = [node for node in (1, 2, 3, 4, 5) if node != leader][:3]
                await change_to(cluster, client, partition, left)
                await until_acknowledged(ledger, 100)
                await cluster.leader(client, partition, among=left)
            await cluster.converged(client)
            await expect_all_on(ledger, left)

    run(main())


@pytest.mark.behaviour("YB-12")
def test_a_node_whose_disk_was_lost_counts_again_when_it_is_replaced(tmp_path: Path) -> None:
    """Before that two nodes do not suffice with it; afterwards they do, and everything is on both."""

    async def main() -> None:
        async with three_nodes(tmp_path) as (cluster, client):
            partition = await partition_on(cluster, client, (1, 2, 3))
            async with load_on(client, [partition]) as ledger:
                await until_acknowledged(ledger, 100)
                lost = cluster.nodes[3]
                lost.kill()
                shutil.rmtree(lost.directory)
                lost.format(replaces=True)
                lost.start()
                await cluster.until_registered(client)
                await client.change(METADATA, (1, 2, 3), timeout_s=30)
                await change_to(cluster, client, partition, (1, 2, 3))
                cluster.nodes[1].kill()
                await until_acknowledged(ledger, 100)
            await cluster.converged(client)
            await expect_all_on(ledger, (2, 3))
            # The metadata group, too, goes on with nodes 2 and 3 alone.
            await cluster.topic(client, "another", (2, 3))

    run(main())


@pytest.mark.behaviour("YB-15")
def test_leadership_moves_round_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with three_nodes(tmp_path) as (cluster, client):
            topic = await cluster.topic(client, "t", (1, 2, 3), partitions=3)
            async with load_on(client, topic.partitions()) as ledger:
                await until_acknowledged(ledger, 100)
                for to in (1, 2, 3, 1):
                    for partition in topic.partitions():
                        await until_led(cluster, client, partition, to)
                    await until_acknowledged(ledger, 50)
                with pytest.raises(NotDone, match="9"):
                    await client.transfer(topic.partitions()[0], 9)
            await cluster.converged(client)
            await expect_all_on(ledger, cluster.nodes)

    run(main())


async def until_led(cluster: GrowingCluster, client: Client, partition: Partition, to: int) -> None:
    async def led() -> bool | None:
        await cluster.hand_over(client, partition, to)
        return await cluster.leader(client, partition) == to or None  # Or it led, and was missed at once.

    await cluster.until(led, f"node {to} to lead, as all agree")


@pytest.mark.behaviour("YB-12")
def test_other_nodes_vote_in_the_metadata_group_and_the_first_ones_stop(tmp_path: Path) -> None:
    async def main() -> None:
        async with three_nodes(tmp_path) as (cluster, client):
            for node in (4, 5, 6):
                cluster.join(node, client)
            await cluster.until_registered(client)
            await cluster.until_voters(client, (1, 2, 3))
            await client.change(METADATA, (4, 5, 6), timeout_s=30)
            await cluster.until_voters(client, (4, 5, 6))
            for node in (1, 2):
                assert cluster.nodes[node].stop() == 0
            partition = await partition_on(cluster, client, (4, 5, 6))
            settled = await client.propose(partition, [batch_of(b"x")])
            assert await client.read(partition) >= settled.offset
            # A node that was told of the first voters alone finds its way in.
            cluster.join(7, client)
            await cluster.until_voters(client, (4, 5, 6))
            await change_to(cluster, client, partition, (5, 6, 7))

    run(main())


@pytest.mark.proof
@pytest.mark.behaviour("YB-13")
def test_a_newcomer_that_hangs_holds_nobody_up_and_can_be_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with three_nodes(tmp_path) as (cluster, client):
            partition = await partition_on(cluster, client, (1, 2, 3))
            async with load_on(client, [partition]) as ledger:
                hung = cluster.join(4, client)
                await cluster.until_registered(client)
                hung.send(signal.SIGSTOP)
                await client.change(partition, (1, 2, 3, 4))

                async def learning() -> bool | None:
                    held = held_by(await cluster.answers(client), partition).values()
                    return any(replica.membership.wanted is not None for replica in held) or None

                await cluster.until(learning, "the change to be under way")
                await until_acknowledged(ledger, 100)
                await change_to(cluster, client, partition, (1, 2, 3))
                await until_acknowledged(ledger, 100)
                hung.send(signal.SIGCONT)
                await cluster.until_on(client, partition, (1, 2, 3))
            await cluster.converged(client)
            await expect_all_on(ledger, (1, 2, 3))

    run(main())


@pytest.mark.proof
def test_a_node_that_left_an_ensemble_comes_back_as_somebody_else(tmp_path: Path) -> None:
    """It has forgotten what it promised there, so that none of it may count (rule 4)."""

    async def main() -> None:
        async with three_nodes(tmp_path) as (cluster, client):
            topic = await cluster.topic(client, "t", (1, 2, 3))
            (partition,) = topic.partitions()

            async def who_is_three() -> Member:
                async def found() -> Member | None:
                    three = held_by(await cluster.answers(client), partition).get(3)
                    return three.me if three is not None else None

                return await cluster.until(found, "node 3 to say who it is")

            lives = {await who_is_three()}
            for nodes in ((1, 2), (1, 2, 3), (1, 2), (3, 1, 2)):
                await change_to(cluster, client, partition, nodes)
                if 3 in nodes:
                    lives.add(await who_is_three())
            # It learns that it left, and that it is back, at once.
            cluster.nodes[3].kill()
            await change_to(cluster, client, partition, (1, 2))
            await cluster.until_noted(client, topic)
            await client.change(partition, (1, 2, 3))
            cluster.nodes[3].start()
            await cluster.until_on(client, partition, (1, 2, 3))
            lives.add(await who_is_three())
            assert len(lives) == 4
            # What it holds after a restart is what it held before.
            before = await who_is_three()
            cluster.nodes[3].kill()
            cluster.nodes[3].start()
            await cluster.until_registered(client)
            await cluster.converged(client)
            assert await who_is_three() == before

    run(main())


def test_an_order_that_was_held_up_does_not_undo_a_newer_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with three_nodes(tmp_path) as (cluster, client):
            partition = await partition_on(cluster, client, (1, 2, 3))
            await cluster.hand_over(client, METADATA, 1)
            seen = (await client.image(1, ())).version
            paused = await client.connect(3)
            cluster.nodes[3].send(signal.SIGSTOP)
            late = paused.request(Change(partition, (3,), seen))
            client.expect_leader(partition, 1)
            await client.change(partition, (1, 2), seen=seen)
            cluster.nodes[3].send(signal.SIGCONT)
            answer, _ = await late
            assert isinstance(answer, Answered)
            assert answer.outcome is Outcome.REFUSED
            assert "by somebody else" in answer.why
            await cluster.until_on(client, partition, (1, 2))

    run(main())


@pytest.mark.proof
def test_of_two_people_who_change_voters_at_once_the_second_is_refused(tmp_path: Path) -> None:
    """Neither undoes what the other did without having seen it."""

    async def main() -> None:
        async with three_nodes(tmp_path) as (cluster, client):
            for node in (4, 5):
                cluster.join(node, client)
            await cluster.until_registered(client)
            await cluster.until_voters(client, (1, 2, 3))
            seen = (await client.image(2, (), current=True)).metadata.version
            await client.change(METADATA, (1, 2, 3, 4), seen=seen, timeout_s=30)
            with pytest.raises(NotDone, match="who votes was changed by somebody else"):
                await client.change(METADATA, (1, 2, 3, 5), seen=seen, timeout_s=30)
            # Whoever did not hear that it is so orders the same again.
            await client.change(METADATA, (1, 2, 3, 4), seen=seen, timeout_s=30)
            # That somebody joins, and follows, changes nobody's vote.
            seen = (await client.image(2, (), current=True)).metadata.version
            cluster.join(6, client)
            await cluster.until_voters(client, (1, 2, 3, 4))
            await client.change(METADATA, (1, 2, 3, 5), seen=seen, timeout_s=30)
            await cluster.until_voters(client, (1, 2, 3, 5))

    run(main())


@pytest.mark.proof
def test_a_first_voter_that_hangs_is_forgotten_and_nobody_tries_to_reach_it(tmp_path: Path) -> None:
    """Not even a node whose configuration names it; and it ends when it is back."""

    async def main() -> None:
        async with three_nodes(tmp_path) as (cluster, client):
            cluster.join(4, client)
            await cluster.until_registered(client)
            await cluster.hand_over(client, METADATA, 1)
            third = cluster.nodes[3]
            third.send(signal.SIGSTOP)
            try:
                with pytest.raises(NotDone, match="votes in the metadata group"):
                    await client.forget_node(3)
                await client.change(METADATA, (1, 2, 4), timeout_s=30)
                await client.forget_node(3)
                del cluster.nodes[3]
                await cluster.until_voters(client, (1, 2, 4))
                cluster.nodes[2].kill()
                cluster.nodes[2].start()
                await until_connected(cluster, client, {1: (2, 4), 2: (1, 4), 4: (1, 2)})
                third.send(signal.SIGCONT)
                assert third.wait(TIMEOUT_S) == 1
            finally:
                if third.process is not None:
                    third.kill()
            assert "node 3 was forgotten" in third.last_words()
            said_count = len(cluster.nodes[2].output.read_text(encoding="utf-8"))
            await cluster.topic(client, "t", (1, 2, 4))
            assert "peer 3" not in cluster.nodes[2].output.read_text(encoding="utf-8")[said_count:]

    run(main())


async def until_connected(
    cluster: GrowingCluster, client: Client, wanted: dict[int, tuple[int, ...]]
) -> None:
    async def so() -> bool | None:
        found = await cluster.answers(client)
        return {node: status.connected for node, status in found.items()} == wanted or None

    await cluster.until(so, f"these links: {wanted}")


def test_reads_by_every_level(tmp_path: Path) -> None:
    async def main() -> None:
        async with three_nodes(tmp_path) as (cluster, client):
            partition = await partition_on(cluster, client, (1, 2, 3))
            for number in range(5):
                settled = await client.propose(partition, [batch_of(b"%d" % number)])
                # Above it is what a new leader begins with, if the machine is so busy that there is one.
                for level in EVERY_LEADERS_LEVEL:
                    assert await client.read(partition, level) >= settled.offset
                at = await client.read(partition, ReadLevel.AT_OFFSET, settled.offset)
                assert at >= settled.offset

    run(main())


@pytest.mark.proof
def test_a_node_that_is_stopped_hands_over_first(tmp_path: Path) -> None:
    """Which may take no more than a second, and so does not always succeed where the machine is busy; nor does a
    node then lead for long."""

    async def main() -> None:
        async with three_nodes(tmp_path) as (cluster, client):
            topic = await cluster.topic(client, "t", (1, 2, 3), partitions=3)
            async with load_on(client, topic.partitions()) as ledger:
                handed_over, led = [0], [0]
                for node in (1, 2, 3):
                    for partition in topic.partitions():
                        await cluster.hand_over(client, partition, node)
                    await until_acknowledged(ledger, 50)
                    assert cluster.nodes[node].stop() == 0
                    said = cluster.nodes[node].last_words()
                    for done, of in re.findall(r"handed over (\d+) of (\d) partitions", said):
                        handed_over.append(int(done))
                        led.append(int(of))
                    await until_acknowledged(ledger, 50)
                    cluster.nodes[node].start()
                    await cluster.until_registered(client)
                assert max(led) >= 3
                assert max(handed_over) > 0
            await cluster.converged(client)
            await expect_all_on(ledger, cluster.nodes)

    run(main())


@pytest.mark.proof
def test_a_leader_that_was_paused_answers_no_read_that_misses_what_others_settled(tmp_path: Path) -> None:
    async def main() -> None:
        async with three_nodes(tmp_path) as (cluster, client):
            partition = await partition_on(cluster, client, (1, 2, 3))
            for _ in range(3):
                old = await cluster.leader(client, partition)
                paused = await client.connect(old)
                cluster.nodes[old].send(signal.SIGSTOP)
                others = [node for node in (1, 2, 3) if node != old]
                await cluster.leader(client, partition, among=others)
                client.expect_leader(partition, others[0])
                settled = await client.propose(partition, [batch_of(b"unseen")])
                reads = [paused.request(Read(partition, level)) for level in EVERY_LEADERS_LEVEL]
                cluster.nodes[old].send(signal.SIGCONT)
                for read in reads:
                    answer, _ = await read
                    assert isinstance(answer, Answered)
                    assert answer.outcome is not Outcome.SETTLED or answer.offset >= settled.offset

    run(main())


@pytest.mark.behaviour("YB-15")
def test_a_kafka_producer_notices_nothing_when_leadership_moves(tmp_path: Path) -> None:
    """Every record is delivered, once and in order, without an error that the producer would have to handle."""

    async def main() -> None:
        async with three_nodes(tmp_path) as (cluster, client):
            partition = await partition_on(cluster, client, (1, 2, 3))
            producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
            failed: list[str] = []
            delivered: list[int] = []

            def report(error: KafkaError | None, message: Message) -> None:
                if error is not None:
                    failed.append(str(error))
                else:
                    delivered.append(message.offset() or 0)

            sent = 0
            for to in (1, 2, 3, 1, 2, 3):
                transfer = asyncio.create_task(cluster.hand_over(client, partition, to))
                wanted = len(delivered) + 100
                async with asyncio.timeout(TIMEOUT_S):
                    while not transfer.done() or len(delivered) < wanted:
                        if sent - len(delivered) < 1000:
                            producer.produce("t", b"%d" % sent, on_delivery=report)
                            sent += 1
                        producer.poll(0)
                        await asyncio.sleep(0)
                await transfer
            assert await asyncio.to_thread(producer.flush, TIMEOUT_S) == 0
            assert failed == []
            assert len(delivered) == sent
            await cluster.converged(client)
            frames, _ = await client.fetch(3, partition, 0, 1 << 26)
            values = [
                record.value
                for frame in frames
                if frame.header.kind == Kind.RECORDS
                for record in decode_records(frame.payload)
            ]
            assert values == [b"%d" % number for number in range(sent)]

    run(main())
