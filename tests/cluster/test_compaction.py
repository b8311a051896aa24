"""Topics of which only the newest record of each key stays, on every copy, in all four protocols."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorate.bench.cluster_processes import START_TIMEOUT_S
from quorate.core.entry import Partition, partition_of
from quorate.core.generation import Generation
from quorate.machine.compactions import Compaction
from quorate.machine.metadata import REPLICATIONS, ChangeEnsemble
from quorate.node.client import Client
from quorate.storage.segment import directory_of, generation_named, segment_base
from tests.cluster.fault_support import expect_same_copies
from tests.cluster.growing import GrowingCluster, held_by
from tests.cluster.support import expect_no_traceback, freeze_when, run, until_caught

pytestmark = pytest.mark.cluster

OFTEN = {"compaction_every_s": 0.1}
SEGMENT_BYTES = 16 << 10
VALUE_BYTES = 500
KEYS_COUNT = 12
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.2",
    "segment.bytes": str(SEGMENT_BYTES),
    "delete.retention.ms": "0",
}

COMPACTING = ("while files are made", "while they wait for others", "as old ones go")
TRIES_MAX = 12
"""Files are made in milliseconds: whoever looks too late waits for the next generation."""

Row = tuple[bytes | None, bytes | None]


class CompactingCluster(GrowingCluster):
    """Its nodes look often at what is to be compacted."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        for node in self.nodes.values():
            hurry(node.config)

    async def create(self, client: Client, kinds: tuple[str, ...]) -> dict[str, Partition]:
        await self.until_registered(client)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        topics = [NewTopic(kind, 1, 3, config={"quorate.replication": kind, **COMPACTED}) for kind in kinds]
        for made in admin.create_topics(topics).values():
            await asyncio.wrap_future(made)
        image = await client.image(1, kinds)
        return {topic.name: partition_of(topic.id, 0) for topic in image.topics}

    async def until_compacted(self, client: Client, partition: Partition, above: int, count: int) -> int:
        """Up to where every copy is compacted, once that is above an offset and so many copies are whole."""

        async def same() -> int | None:
            copies = held_by(await self.answers(client), partition).values()
            places = {(copy.compacted, copy.head, copy.commit) for copy in copies}
            if len(copies) != count or len(places) != 1 or any(copy.faulty for copy in copies):
                return None
            ((compacted, _, _),) = places
            return compacted if compacted > above else None

        return await self.until(same, f"every copy to be compacted above {above}")


def hurry(config: Path) -> None:
    config.write_bytes(msgspec.json.encode({**msgspec.json.decode(config.read_bytes()), **OFTEN}))


class Writer:
    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.rows: dict[int, Row] = {}
        """What was acknowledged, by offset."""
        self._rng = Random(topic)
        self._count = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "compression.type": "lz4",
                "log_level": 0,
            }
        )

    async def write(self, count: int) -> None:
        rng = self._rng
        for _ in range(count):
            self._count += 1
            key = b"key %d" % rng.randrange(KEYS_COUNT)
            # What cannot be compressed, so that segments fill up.
            value = b"%d " % self._count + rng.randbytes(VALUE_BYTES)
            row = key, None if rng.random() < 0.1 else value
            self._producer.produce(
                self.topic,
                row[1],
                row[0],
                partition=0,
                on_delivery=partial(self._told, row),
            )
            self._producer.poll(0)
            if not self._count % 6:  # Some batches of several records.
                assert await asyncio.to_thread(self._producer.flush, START_TIMEOUT_S) == 0
        assert await asyncio.to_thread(self._producer.flush, START_TIMEOUT_S) == 0

    def _told(self, row: Row, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offset = message.offset()
        assert offset is not None
        self.rows[offset] = row

    def survivors(self, upto: int) -> dict[int, Row]:
        """Of what was written: what is to be left where all up to an offset is compacted, tombstones included."""
        newest = {key: offset for offset, (key, _) in sorted(self.rows.items()) if offset <= upto}
        return {offset: row for offset, row in self.rows.items() if offset > upto or newest[row[0]] == offset}


def read_from_start(bootstrap: str, topic: str) -> dict[int, Row]:
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
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: dict[int, Row] = {}
    while True:
        message = consumer.poll(START_TIMEOUT_S)
        assert message is not None, "nothing more came"
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            break
        offset = message.offset()
        assert offset is not None
        found[offset] = message.key(), message.value()
    consumer.close()
    return found


async def expect_survivors(
    cluster: CompactingCluster, client: Client, writer: Writer, partition: Partition, upto: int
) -> int:
    """What is read was left then, and has all that is left now; tombstones may be gone, and nothing else of it."""
    found = await asyncio.to_thread(read_from_start, cluster.bootstrap, writer.topic)
    after = await cluster.until_compacted(client, partition, upto - 1, 3)
    assert found.items() <= writer.survivors(upto).items(), writer.topic
    missing = {offset: row for offset, row in writer.survivors(after).items() if offset not in found}
    gone = [offset for offset, (_, value) in missing.items() if value is not None or offset > after]
    assert not gone, (
        f"{writer.topic}: read up to {max(found, default=-1)}, compacted up to {upto} and {after}"
    )
    return after


def test_only_the_newest_of_each_key_stays_on_every_copy_and_a_new_one_gets_just_that(tmp_path: Path) -> None:
    async def main() -> None:
        with CompactingCluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                partitions = await cluster.create(client, REPLICATIONS)
                writers = {kind: Writer(cluster.bootstrap, kind) for kind in REPLICATIONS}
                for kind, writer in writers.items():
                    await writer.write(150)
                    upto = await cluster.until_compacted(client, partitions[kind], 60, 3)
                    await expect_survivors(cluster, client, writer, partitions[kind], upto)
                # A fourth node, that was never there, takes the third one's place everywhere.
                fourth = cluster.join(4, client)
                fourth.kill()
                hurry(fourth.config)
                fourth.start()
                await cluster.until_registered(client)
                for partition in partitions.values():
                    await cluster.settle(client, ChangeEnsemble(partition[:16], 0, (4, 1, 2)))
                for kind, writer in writers.items():
                    upto = await cluster.until_compacted(client, partitions[kind], 60, 3)
                    upto = await expect_survivors(cluster, client, writer, partitions[kind], upto)
                    await writer.write(150)
                    upto = await cluster.until_compacted(client, partitions[kind], upto + 60, 3)
                    await expect_survivors(cluster, client, writer, partitions[kind], upto)
                await expect_same_copies(cluster, client)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


@pytest.mark.proof
@pytest.mark.parametrize("kind", REPLICATIONS)
def test_nodes_killed_at_any_step_lose_nothing_and_end_up_alike(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        rng = Random(kind)
        with CompactingCluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                partitions = await cluster.create(client, (kind,))
                writer = Writer(cluster.bootstrap, kind)
                for turn in range(8):
                    await writer.write(60)
                    await asyncio.sleep(rng.random() * 0.4)  # Wherever it is just then.
                    node = cluster.nodes[turn % 3 + 1]
                    node.kill()
                    node.start()
                    await cluster.until_registered(client)
                await writer.write(60)
                upto = await cluster.until_compacted(client, partitions[kind], 200, 3)
                await expect_survivors(cluster, client, writer, partitions[kind], upto)
                await expect_same_copies(cluster, client)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


# --- killed at each stage ---


class Struck:
    """A partition that is written to and compacted, and a node of it that is killed when it is so far with that."""

    def __init__(
        self, cluster: CompactingCluster, client: Client, writer: Writer, partition: Partition, hit: int
    ) -> None:
        self._cluster, self._client, self._writer = cluster, client, writer
        self._hit = cluster.nodes[hit]
        self._away = cluster.nodes[next(node for node in cluster.nodes if node != hit)]
        self._files = self._hit.directory / "store" / directory_of(partition)
        self._rest: tuple[Generation | None, set[str]] = None, set()
        """What was agreed, and its segments, before it was written to."""

    async def at(self, stage: str) -> None:
        strike = {COMPACTING[0]: self._making, COMPACTING[1]: self._waiting, COMPACTING[2]: self._letting_go}
        what = f"node {self._hit.node} to have let go of what it may"

        async def attempt() -> bool:
            self._rest = await self._cluster.until(self._at_rest, what)
            is_over = asyncio.Event()
            async with asyncio.TaskGroup() as writing:
                writing.create_task(self._write(stage, is_over))
                try:
                    is_struck = await strike[stage]()
                finally:
                    is_over.set()
                if is_struck:
                    self._hit.start()
                    await self._cluster.until_registered(self._client)
            return is_struck

        await until_caught(f"node {self._hit.node} was never seen {stage}", attempt, TRIES_MAX)

    async def _write(self, stage: str, is_over: asyncio.Event) -> None:
        """However much it takes until there is something to compact again. (More would be compacted meanwhile.)"""
        await self._writer.write(80)
        while stage == COMPACTING[0] and not is_over.is_set():
            await self._writer.write(20)

    async def _making(self) -> bool:
        """Some of its files are there, and it has told nobody that all are."""
        newest = max(self._generations(), default=-1)
        await self._freeze_when(lambda: max(self._generations(), default=-1) > newest)
        known = await self._known(self._away.node)
        wanted = known.wanted if known is not None else None
        is_at_it = wanted is not None and wanted.upto == max(self._generations())
        if known is None or not is_at_it or self._hit.node in ready(known):
            self._hit.send(signal.SIGCONT)
            return False
        self._hit.kill()
        return True

    async def _waiting(self) -> bool:
        """All of its files are there. Somebody else is away, so that what was before stays, too."""
        agreed, before = self._rest
        if not before:
            return False
        self._away.send(signal.SIGSTOP)
        try:

            async def is_ready() -> Compaction | None:
                known = await self._known(self._hit.node)
                if known is None:
                    return None
                nodes = ready(known)
                is_alone = self._hit.node in nodes and self._away.node not in nodes
                return known if is_alone or known.agreed != agreed else None

            known = await self._cluster.until(is_ready, f"node {self._hit.node} to have compacted files")
            if known.agreed != agreed:  # Who is away had said that it is ready.
                return False
            self._hit.kill()
            assert before <= self._names(), "nobody lets go before everybody has it"
        finally:
            self._away.send(signal.SIGCONT)
        return True

    async def _at_rest(self) -> tuple[Generation | None, set[str]] | None:
        """What is agreed, and its segments, when none is left that was compacted by that."""
        known = await self._known(self._hit.node)
        if known is None:
            return None
        names, upto = self._names(), known.agreed.upto if known.agreed is not None else -1
        bases = [base for name in names if (base := segment_base(name)) is not None]
        is_left = any(base <= upto for base in bases) or any(made < upto for made in self._generations())
        return None if is_left else (known.agreed, names)

    async def _letting_go(self) -> bool:
        """A file that there was is gone, for one of the newest generation."""
        seen: set[str] = set()

        def is_one_gone() -> bool:
            now = self._names()
            seen.update(now)
            return seen != now

        await self._freeze_when(is_one_gone)
        assert self._generations(), "what is gone was compacted"
        self._hit.kill()
        return True

    def _names(self) -> set[str]:
        """Of segments. What is new may be in the journal alone, and the directory is not there yet."""
        names = {file.name for file in self._files.iterdir()} if self._files.exists() else set()
        return {
            name for name in names if segment_base(name) is not None or generation_named(name) is not None
        }

    def _generations(self) -> list[int]:
        return [found for name in self._names() if (found := generation_named(name)) is not None]

    async def _freeze_when(self, holds: Callable[[], bool]) -> None:
        await asyncio.to_thread(freeze_when, holds, self._hit.send, f"something to happen in {self._files}")

    async def _known(self, node: int) -> Compaction | None:
        """As of now; asked of a node that runs. None if it cannot say what is so now."""
        image = await self._client.image(node, (self._writer.topic,), current=True)
        if not image.is_current:
            return None
        (topic,) = image.topics
        return topic.compactions.get(0, Compaction())


def ready(known: Compaction) -> list[int]:
    return [member.node for member, _ in known.ready]


@pytest.mark.proof
@pytest.mark.parametrize("kind", REPLICATIONS)
@pytest.mark.parametrize("stage", COMPACTING)
def test_nodes_killed_at_each_stage_lose_nothing_and_end_up_alike(
    tmp_path: Path, kind: str, stage: str
) -> None:
    """Each node in turn: one of them leads the partition, and one the metadata group, where it is agreed upon."""

    async def main() -> None:
        with CompactingCluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                (partition,) = (await cluster.create(client, (kind,))).values()
                writer = Writer(cluster.bootstrap, kind)
                await writer.write(40)
                for hit in cluster.nodes:
                    await Struck(cluster, client, writer, partition, hit).at(stage)
                upto = await cluster.until_compacted(client, partition, 100, 3)
                await expect_survivors(cluster, client, writer, partition, upto)
                await expect_same_copies(cluster, client)
            expect_no_traceback(*cluster.nodes.values())

    run(main())
