"""Leaders in real processes: their timestamps, who is to lead, and a producer that goes on meanwhile."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, Message, Producer

from quorate.batch import decode_records, parse_batch_header
from quorate.bench.cluster_processes import START_TIMEOUT_S, Cluster
from quorate.core.entry import Kind
from quorate.node.client import OutcomeUnknown
from tests.cluster.growing import FIRST, GrowingCluster
from tests.cluster.support import QUICK_RAFT, batch_of, expect_no_traceback, run

pytestmark = pytest.mark.cluster

TRANSFERS_COUNT = 10


def cluster_with(directory: Path, **raft: Any) -> Cluster:
    return Cluster(directory, partitions=1, raft=QUICK_RAFT | raft)


@pytest.mark.behaviour("YB-14")
def test_timestamps_rise_over_the_end_of_a_leader(tmp_path: Path) -> None:
    async def main() -> None:
        with cluster_with(tmp_path, ceiling_s=0.3) as cluster:
            cluster.start()
            async with cluster.client() as client:
                (partition,) = cluster.partitions
                leader = (await cluster.leaders(client))[partition]
                before = [await client.propose(partition, [batch_of(b"%d" % n)]) for n in range(20)]
                cluster.nodes[leader].kill()
                with suppress(
                    OutcomeUnknown
                ):  # The connection to the old leader may be noticed to end only now.
                    await client.propose(partition, [batch_of(b"lost")])
                after = [await client.propose(partition, [batch_of(b"%d" % n)]) for n in range(20)]
                assert {settled.node for settled in before}.isdisjoint(settled.node for settled in after)
                stamps = [settled.timestamp for settled in before + after]
                assert stamps[0] > 0
                assert stamps == sorted(set(stamps)), "each is above all before it, whoever gave it out"

    run(main())


def test_a_node_of_higher_priority_comes_to_lead(tmp_path: Path) -> None:
    async def main() -> None:
        with cluster_with(tmp_path) as cluster:
            wanted = cluster.nodes[3]
            config = msgspec.json.decode(wanted.config.read_bytes())
            config["raft"]["priority"] = 2
            wanted.config.write_bytes(msgspec.json.encode(config))
            cluster.start()
            async with cluster.client() as client:
                (partition,) = cluster.partitions

                async def leads() -> bool | None:
                    return (await cluster.leaders(client))[partition] == 3 or None

                await cluster.until(leads, "node 3 to lead")
                assert (await client.propose(partition, [batch_of(b"x")])).node == 3

    run(main())


class Writer:
    """librdkafka with an id, five batches under way, and always more to send."""

    TOPIC = "t"
    UNDER_WAY_MAX = 50
    PAUSE_S = 0.002

    def __init__(self, bootstrap: str) -> None:
        self.sent_count = 0
        self.delivered_count = 0
        self.failed: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": 5,
                "batch.num.messages": 1,  # With larger batches it is seen to have only one under way.
                "linger.ms": 0,
            }
        )

    async def write_until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not holds():
                while self.sent_count - self.delivered_count < self.UNDER_WAY_MAX:
                    self._producer.produce(self.TOPIC, b"%d" % self.sent_count, on_delivery=self._told)
                    self.sent_count += 1
                self._producer.poll(0)
                assert self.failed == []
                await asyncio.sleep(self.PAUSE_S)

    async def write(self, count: int) -> None:
        """Until so many are delivered that were not even sent before this call."""
        wanted = self.sent_count + count
        await self.write_until(lambda: self.delivered_count >= wanted)

    async def flush(self) -> None:
        assert await asyncio.to_thread(self._producer.flush, START_TIMEOUT_S) == 0

    def _told(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.delivered_count += 1
        else:
            self.failed.append(str(error))


@pytest.mark.proof
def test_a_producer_keeps_its_numbers_while_leaders_change_and_followers_pause(tmp_path: Path) -> None:
    """Called out of order, it would take a new producer epoch, under which nobody knows what is there."""

    async def main() -> None:
        with GrowingCluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                await cluster.until_registered(client)
                (partition,) = (await cluster.topic(client, Writer.TOPIC, FIRST)).partitions()
                leader = await cluster.leader(client, partition)
                client.expect_leader(partition, leader)
                writer = Writer(cluster.bootstrap)
                for number in range(TRANSFERS_COUNT):
                    await writer.write(100)
                    heir, bystander = (node for node in FIRST if node != leader)
                    if number % 2:
                        heir, bystander = bystander, heir
                    cluster.nodes[bystander].send(signal.SIGSTOP)
                    await writer.write(100)
                    transfer = asyncio.create_task(cluster.hand_over(client, partition, heir))
                    await writer.write_until(transfer.done)
                    cluster.nodes[bystander].send(signal.SIGCONT)
                    await transfer
                    leader = heir
                await writer.write(100)
                await writer.flush()
                assert writer.failed == []
                assert writer.delivered_count == writer.sent_count
                await cluster.converged(client)
                frames, _ = await client.fetch(leader, partition, 0, 1 << 26)
                batches = [frame.payload for frame in frames if frame.header.kind == Kind.RECORDS]
                values = [record.value for batch in batches for record in decode_records(batch)]
                assert values == [b"%d" % number for number in range(writer.sent_count)]
                headers = [parse_batch_header(batch) for batch in batches]
                assert len({header.producer_id for header in headers}) == 1
                assert {header.producer_epoch for header in headers} == {0}
            expect_no_traceback(*cluster.nodes.values())

    run(main())
