"""What is too old or too much goes, in all four protocols, on every copy; and nothing else does."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorate.bench.cluster_processes import START_TIMEOUT_S
from quorate.core.entry import Partition, partition_of
from quorate.machine.metadata import REPLICATIONS
from quorate.node.client import Client
from quorate.node.requests import ReplicaStatus
from tests.cluster.growing import GrowingCluster, held_by
from tests.cluster.support import expect_no_traceback, run

pytestmark = pytest.mark.cluster

SEGMENT_BYTES = 16 << 10
KEPT_BYTES = 64 << 10
VALUE_BYTES = 1000
LONG_AGO_MS = 3_600_000


class KeepingCluster(GrowingCluster):
    """Its nodes look often at what may go."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        for node in self.nodes.values():
            config = msgspec.json.decode(node.config.read_bytes())
            node.config.write_bytes(msgspec.json.encode({**config, "retention_every_s": 0.1}))

    async def create(self, client: Client, **config: str) -> dict[str, Partition]:
        """One topic of each kind, of one partition."""
        await self.until_registered(client)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        named = {name.replace("_", "."): value for name, value in config.items()}
        topics = [
            NewTopic(kind, 1, 3, config={"quorate.replication": kind, **named}) for kind in REPLICATIONS
        ]
        for made in admin.create_topics(topics).values():
            await asyncio.wrap_future(made)
        image = await client.image(1, REPLICATIONS)
        return {topic.name: partition_of(topic.id, 0) for topic in image.topics}

    async def copies(self, client: Client, partition: Partition) -> dict[int, ReplicaStatus]:
        return held_by(await self.answers(client), partition)

    async def until_start(self, client: Client, partition: Partition, above: int) -> int:
        """Where the log starts, once that is above an offset, and every copy is whole from there on."""

        async def same() -> int | None:
            copies = (await self.copies(client, partition)).values()
            running = sum(node.process is not None for node in self.nodes.values())
            places = {(copy.base, copy.head) for copy in copies}
            if len(copies) < running or len(places) != 1 or any(copy.faulty for copy in copies):
                return None
            ((base, _),) = places
            return base + 1 if base >= above else None

        return await self.until(same, f"every copy to start above {above}")


class Writer:
    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.values: dict[int, bytes] = {}
        """What was acknowledged, by offset."""
        self._count = 0
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
        )

    async def write(self, count: int, *, age_ms: int = 0) -> None:
        stamp = time.time_ns() // 1_000_000 - age_ms
        for _ in range(count):
            value = b"%d " % self._count + bytes(VALUE_BYTES)
            self._producer.produce(self.topic, value, partition=0, timestamp=stamp, on_delivery=self._told)
            self._count += 1
            self._producer.poll(0)
            if not self._count % 8:  # Many small batches.
                assert await asyncio.to_thread(self._producer.flush, START_TIMEOUT_S) == 0
        assert await asyncio.to_thread(self._producer.flush, START_TIMEOUT_S) == 0

    def _told(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert value is not None
        self.values[offset] = value


def read_from_start(bootstrap: str, topic: str) -> dict[int, bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])  # Long gone: it is sent to what is the earliest.
    found = {}
    while True:
        message = consumer.poll(START_TIMEOUT_S)
        assert message is not None, "nothing more came"
        if message.error() is not None:
            break
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert value is not None
        found[offset] = value
    consumer.close()
    return found


async def expect_all_above(
    cluster: KeepingCluster, client: Client, writer: Writer, partition: Partition, start: int
) -> None:
    """Everything from there on is read, and nothing else; unless a leader lets more go meanwhile."""
    found = await asyncio.to_thread(read_from_start, cluster.bootstrap, writer.topic)
    after = max(start, await cluster.until_start(client, partition, -1))
    least, most = (min(offset for offset in writer.values if offset >= place) for place in (start, after))
    assert least <= min(found) <= most, writer.topic
    assert found == {offset: value for offset, value in writer.values.items() if offset >= min(found)}, (
        writer.topic
    )


def test_what_is_too_much_goes_on_every_copy_and_a_copy_that_was_away_gets_the_rest(tmp_path: Path) -> None:
    async def main() -> None:
        with KeepingCluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                partitions = await cluster.create(
                    client, retention_bytes=str(KEPT_BYTES), segment_bytes=str(SEGMENT_BYTES)
                )
                writers = [Writer(cluster.bootstrap, kind) for kind in REPLICATIONS]
                starts = {}
                for writer in writers:
                    await writer.write(150)
                    starts[writer.topic] = await cluster.until_start(client, partitions[writer.topic], 50)
                cluster.nodes[1].kill()
                for writer in writers:
                    await writer.write(200)
                    start = await cluster.until_start(client, partitions[writer.topic], 200)
                    assert start > starts[writer.topic]
                cluster.nodes[1].start()
                for writer in writers:
                    # What the others hold is above everything that the first one has.
                    start = await cluster.until_start(client, partitions[writer.topic], 200)
                    kept = sum(offset >= start for offset in writer.values) * VALUE_BYTES
                    assert KEPT_BYTES - SEGMENT_BYTES < kept < KEPT_BYTES + 2 * SEGMENT_BYTES
                    await expect_all_above(cluster, client, writer, partitions[writer.topic], start)
                for node in (2, 3):  # So that the one that was away leads, and says the same.
                    cluster.nodes[node].kill()
                    cluster.nodes[node].start()
                    await cluster.until_registered(client)
                for writer in writers:
                    await writer.write(1)
                    start = await cluster.until_start(client, partitions[writer.topic], 200)
                    await expect_all_above(cluster, client, writer, partitions[writer.topic], start)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


def test_what_a_person_deletes_is_gone_for_readers_up_to_that_very_offset(tmp_path: Path) -> None:
    async def main() -> None:
        with KeepingCluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                partitions = await cluster.create(client)
                admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
                for kind, partition in partitions.items():
                    writer = Writer(cluster.bootstrap, kind)
                    await writer.write(40)
                    middle = sorted(writer.values)[21]
                    assert await low_watermark(admin, kind, middle) == middle
                    await cluster.until_start(client, partition, 0)
                    await expect_all_above(cluster, client, writer, partition, middle)
                    assert await low_watermark(admin, kind, 1) == middle, "a start never falls"
                    end = max(writer.values) + 1
                    assert await low_watermark(admin, kind, -1) >= end
                    await cluster.until_start(client, partition, end - 1)
                    await writer.write(8)
                    await expect_all_above(cluster, client, writer, partition, end)
                    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
                        await low_watermark(admin, kind, 1_000_000)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


async def low_watermark(admin: AdminClient, topic: str, offset: int) -> int:
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    return int((await asyncio.wrap_future(deleted)).low_watermark)


@pytest.mark.proof
def test_what_is_too_old_goes_and_what_is_young_stays(tmp_path: Path) -> None:
    async def main() -> None:
        with KeepingCluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                partitions = await cluster.create(
                    client, retention_ms=str(LONG_AGO_MS // 2), segment_ms=str(LONG_AGO_MS // 4)
                )
                for kind, partition in partitions.items():
                    writer = Writer(cluster.bootstrap, kind)
                    await writer.write(60, age_ms=LONG_AGO_MS)
                    # Nothing comes any more: the segment that is still written to goes all the same.
                    await cluster.until_start(client, partition, max(writer.values))
                    await writer.write(20, age_ms=LONG_AGO_MS)
                    last = max(writer.values)
                    await writer.write(20)  # In a segment of their own.
                    await cluster.until_start(client, partition, last)
                    young = min(offset for offset in writer.values if offset > last)
                    await expect_all_above(cluster, client, writer, partition, young)
            expect_no_traceback(*cluster.nodes.values())

    run(main())
