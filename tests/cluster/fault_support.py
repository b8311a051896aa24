"""Who writes while faults are made, and knows exactly what must be there in the end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorate.bench.cluster_processes import START_TIMEOUT_S, NodeProcess
from quorate.client import (
    AsyncTableGroup,
    Consistency,
    OutcomeUnknown,
    RolledBack,
    TransactionRefused,
    Unreachable,
    create_group,
)
from quorate.client.table_calls import new_id
from quorate.core.entry import Partition
from quorate.machine.metadata import REPLICATIONS
from quorate.node.client import Client
from quorate.storage.frame import Frame
from quorate.tables import Add, Column, CreateTable, Insert, Operation, Table, Type, Update
from tests.cluster.following import Reader, Record, read_along
from tests.cluster.growing import GrowingCluster, held_by
from tests.cluster.proxied import ProxiedCluster
from tests.cluster.support import expect_no_traceback, until

PARTITIONS_COUNT = 2
UNDER_WAY_MAX = 100
LINGER_MS = 2
MIDST_S = 5 * LINGER_MS / 1000
"""After so much writing there are requests on the wire, and some that are answered only in part."""
MORE_COUNT = 200
"""Acknowledged between two faults, and after the last."""
DELIVERY_MS = 60_000
REQUEST_MS = 3_000
"""A client waits so long for a node that says nothing: by default ten times as long, here not to wait in vain."""

ACCOUNTS = Table("accounts", (Column("id", Type.INT), Column("balance", Type.INT)), ("id",))
TRANSFERS = Table(
    "transfers",
    (Column("id", Type.INT), Column("from", Type.INT), Column("to", Type.INT), Column("sum", Type.INT)),
    ("id",),
)
FILLING = Table("filling", (Column("id", Type.INT), Column("value", Type.BYTES)), ("id",))
ACCOUNTS_COUNT = 6
BALANCE = 1_000
TRANSFERRING_COUNT = 3
MORE_TRANSFERS_COUNT = 20
TABLE_TIMEOUT_S = 20.0
READ_EVERY_S = 0.2
END_ASKED_S = 5.0


class Load(Protocol):
    """Something that is written to the cluster."""

    async def go_on(self) -> None:
        """Until more is acknowledged that was not even sent before this call."""

    async def until_read(self) -> None:
        """By whoever reads along: all that is acknowledged by now."""

    def keep_busy(self) -> bool:
        """Have something under way, if there is nothing; whether there is, and nobody has acknowledged it."""


async def go_on(loads: Sequence[Load]) -> None:
    await asyncio.gather(*(load.go_on() for load in loads))
    await asyncio.gather(*(load.until_read() for load in loads))


async def kill_amid_writes(process: NodeProcess, loads: Sequence[Load]) -> None:
    """kill -9 while all of them write: of each something is under way that nobody has acknowledged."""
    midst = time.monotonic() + MIDST_S
    while True:
        are_busy = [load.keep_busy() for load in loads]
        assert all(are_busy)
        if time.monotonic() >= midst:
            break
        await asyncio.sleep(LINGER_MS / 1000)
    process.kill()


class Writer:
    """An idempotent producer that always has something to send, and knows what was acknowledged."""

    def __init__(
        self, bootstrap: str, topic: str, *, value_bytes: int = 0, more_count: int = MORE_COUNT
    ) -> None:
        self.topic = topic
        self.sent_count = 0
        self.acknowledged: set[int] = set()
        self.offsets: dict[int, int] = {}
        """Where it was said to be; of what was sent again because nobody answered, nothing may have been said."""
        self.reader: Reader | None = None
        self.failed: Counter[str] = Counter()
        self._filling = bytes(value_bytes)
        self._more_count = more_count
        self._under_way_max = min(UNDER_WAY_MAX, more_count)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": LINGER_MS,
                "message.timeout.ms": DELIVERY_MS,
                "request.timeout.ms": REQUEST_MS,
                "socket.timeout.ms": REQUEST_MS + 1_000,
                "topic.metadata.refresh.interval.ms": 1_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    async def go_on(self) -> None:
        loop = asyncio.get_running_loop()
        first, deadline = self.sent_count, loop.time() + START_TIMEOUT_S
        wanted = first + self._more_count
        while (
            len([number for number in range(first, wanted) if number in self.acknowledged]) < self._more_count
        ):
            lacks = f"{self.topic}: {self._more_count} more are not acknowledged; failed: {dict(self.failed)}"
            assert loop.time() < deadline, lacks
            while self.sent_count < wanted and self._under_way_count() < self._under_way_max:
                self._send()
            self._producer.poll(0)
            await asyncio.sleep(0.002)

    def keep_busy(self) -> bool:
        self._producer.poll(0)
        while self._under_way_count() < self._under_way_max:
            self._send()
        return self._under_way_count() > 0

    def _under_way_count(self) -> int:
        return self.sent_count - len(self.acknowledged) - self.failed.total()

    def _send(self) -> None:
        number = self.sent_count
        value = b"%d " % number + self._filling
        self._producer.produce(self.topic, value, partition=number % PARTITIONS_COUNT, on_delivery=self._told)
        self.sent_count += 1

    async def until_read(self) -> None:
        """Numbers are acknowledged in their order, and read in it: as many as are acknowledged without a gap."""
        if self.reader is not None:
            assert not self.failed, f"{self.topic}: {self.failed}"
            await self.reader.until_read(self.topic, len(self.acknowledged))

    async def finish(self) -> None:
        assert await asyncio.to_thread(self._producer.flush, DELIVERY_MS / 1000) == 0
        assert not self.failed, f"{self.topic}: {self.failed}"

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            number = number_of(message)
            self.acknowledged.add(number)
            offset = message.offset()
            if offset is not None and offset >= 0:
                self.offsets[number] = offset
        else:
            self.failed[error.str()] += 1


def number_of(message: Message) -> int:
    value = message.value()
    assert value is not None
    return _number_in(value)


def number_read(record: Record) -> int:
    assert record.value is not None
    return _number_in(record.value)


def _number_in(value: bytes) -> int:
    return int(value.split(b" ", 1)[0])


def differences(found: Iterable[object], acknowledged: set[int]) -> dict[str, list[object]]:
    """What is wrong: nothing, if what was found is what was acknowledged, each once."""
    times = Counter(found)
    wrong: dict[str, list[object]] = {
        "lost": [number for number in sorted(acknowledged) if number not in times],
        "doubled": [number for number, count in times.items() if count > 1],
        "foreign": [number for number in times if number not in acknowledged],
    }
    return {what: numbers for what, numbers in wrong.items() if numbers}


def read_everything(bootstrap: str, topic: str) -> list[int]:
    return [number for _, number, _ in everything(bootstrap, topic)]


def everything(
    bootstrap: str, topic: str, numbered: Callable[[Message], int] = number_of
) -> list[tuple[int, int, int]]:
    """Of each record its partition, its number and its offset."""
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
    found: list[tuple[int, int, int]] = []
    ends: dict[int, int] = {}
    ended: set[int] = set()
    while len(ended) < PARTITIONS_COUNT:
        message = consumer.poll(START_TIMEOUT_S)
        assert message is not None, "nothing more came"
        partition, error = message.partition() or 0, message.error()
        if error is None:
            found.append((partition, numbered(message), message.offset() or 0))
        elif error.code() != KafkaError._PARTITION_EOF:
            continue  # Of a connection: the client goes on by itself.
        else:
            if partition not in ends:  # It grows while it is read.
                ends[partition] = _end_of(consumer, topic, partition)
            if (message.offset() or 0) >= ends[partition]:
                ended.add(partition)
    consumer.close()
    return found


def _end_of(consumer: Consumer, topic: str, partition: int) -> int:
    """Behind all that was acknowledged by now. What a fetch takes for the end may be less: a leader that has just
    been elected does not know yet how far it is settled."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), END_ASKED_S)[1])
        except KafkaException:
            assert time.monotonic() < deadline, f"nobody says where {topic}/{partition} ends"


def reader_of(bootstrap: str, writers: Sequence[Writer]) -> Reader:
    sent_count = {writer.topic: partial(_sent_by, writer) for writer in writers}
    return Reader(bootstrap, sent_count, partitions_count=PARTITIONS_COUNT, number_of=number_read)


def _sent_by(writer: Writer) -> int:
    return writer.sent_count


async def expect_kept(cluster: GrowingCluster, writers: Sequence[Writer], reader: Reader) -> None:
    """What is there is what was acknowledged, where that was said to be, and what was read along, where it was."""
    for writer in writers:
        await writer.finish()
        found = await asyncio.to_thread(everything, cluster.bootstrap, writer.topic)
        wrong = differences([number for _, number, _ in found], writer.acknowledged)
        assert not wrong, f"{writer.topic}: {wrong}"
        for _, number, offset in found:
            said = writer.offsets.get(number, offset)
            assert said == offset, f"{writer.topic}: {number} was acknowledged at {said}, and is at {offset}"
        await reader.expect_all(writer.topic, found)


@asynccontextmanager
async def written_to(
    directory: Path,
    cluster: ProxiedCluster | None = None,
    *,
    value_bytes: int = 0,
    more_count: int = MORE_COUNT,
) -> AsyncIterator[tuple[ProxiedCluster, list[Writer]]]:
    """A cluster with a topic of each kind, every one written to and read along; in the end everything is read anew,
    and compared."""
    async with cluster or ProxiedCluster(directory) as cluster:
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
            writers = [
                Writer(cluster.bootstrap, kind, value_bytes=value_bytes, more_count=more_count)
                for kind in REPLICATIONS
            ]
            with read_along(reader_of(cluster.bootstrap, writers)) as reader:
                for writer in writers:
                    writer.reader = reader
                await go_on(writers)
                yield cluster, writers
                cluster.heal()
                for node, process in cluster.nodes.items():  # Some may have joined.
                    client.know(node, process.address)
                await go_on(writers)
                await expect_kept(cluster, writers, reader)
            await cluster.until_registered(client)
            await expect_same_copies(cluster, client)
        expect_no_traceback(*cluster.nodes.values())


async def expect_same_copies(cluster: GrowingCluster, client: Client) -> None:
    """Byte for byte, on every node that is to have one, and nowhere else: also what nobody has read."""
    (asked, *_) = cluster.nodes
    image = await client.image(asked)
    ensembles = {
        partition: [member.node for member in ensemble]
        for topic in image.topics
        for partition, ensemble in zip(topic.partitions(), topic.ensembles, strict=True)
    }
    for partition, nodes in ensembles.items():
        what = f"the copies of {partition.hex()} to end alike"
        copies = await cluster.until(partial(copies_of, cluster, client, partition, nodes), what)
        assert copies[0], "something was written"
        assert copies[1:] == copies[:1] * (len(copies) - 1), partition.hex()


async def copies_of(
    cluster: GrowingCluster, client: Client, partition: Partition, nodes: Sequence[int]
) -> list[list[tuple[object, bytes]]] | None:
    """None: they do not end alike yet, or were compacted while they were read."""

    async def ends() -> set[tuple[object, ...]]:
        held = held_by(await cluster.answers(client), partition)
        if set(held) != set(nodes):
            return set()
        return {(each.head, each.commit, each.compacted, each.faulty) for each in held.values()}

    before = await ends()
    if len(before) != 1 or next(iter(before))[-1]:
        return None
    copies = [await fetched(client, node, partition) for node in nodes]
    return copies if await ends() == before else None


async def fetched(client: Client, node: int, partition: Partition) -> list[tuple[object, bytes]]:
    """Everything that is settled, as that node has it."""
    found: list[Frame] = []
    offset = 0
    while True:
        frames, commit = await client.fetch(node, partition, offset)
        found += frames
        if not frames or frames[-1].header.last >= commit:
            return [(frame.header, bytes(frame.payload)) for frame in found]
        offset = frames[-1].header.last + 1


class Bank:
    """Tasks that transfer between accounts, each transfer in one transaction, through whatever happens."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.group = group
        self._tables = AsyncTableGroup(bootstrap, group, timeout_s=TABLE_TIMEOUT_S)
        self._done: set[int] = set()
        self._unknown: dict[int, tuple[tuple[Operation, ...], bytes]] = {}
        self._begun_count = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._reads_begun_count = self._read_upto = 0

    async def open(self) -> None:
        await self._tables.execute(CreateTable(ACCOUNTS), CreateTable(TRANSFERS))
        await self._tables.execute(
            *(Insert("accounts", (number, BALANCE)) for number in range(ACCOUNTS_COUNT))
        )
        for number in range(TRANSFERRING_COUNT):
            self._tasks.append(asyncio.create_task(self._transfer(Random(number))))
        self._tasks.append(asyncio.create_task(self._read_along()))

    async def fill(self, rows_count: int, row_bytes: int) -> None:
        """So that there is more to copy; nobody reads it."""
        await self._tables.execute(CreateTable(FILLING))
        for number in range(rows_count):
            await self._tables.execute(Insert("filling", (number, bytes(row_bytes))))

    async def go_on(self) -> None:
        first = self._begun_count

        def holds() -> bool:
            assert not any(task.done() for task in self._tasks), self._tasks
            return sum(number >= first for number in self._done) >= MORE_TRANSFERS_COUNT

        await until(holds, f"{MORE_TRANSFERS_COUNT} more transfers in {self.group}")

    def keep_busy(self) -> bool:
        """Its tasks never rest."""
        return bool(self._unknown)

    async def until_read(self) -> None:
        first = self._reads_begun_count

        def read() -> bool:
            assert not any(task.done() for task in self._tasks), self._tasks
            return self._read_upto > first

        await until(read, f"accounts of {self.group} to be read")

    async def _read_along(self) -> None:
        """No transfer is seen by half, and none that was said to be done is not seen."""
        while True:
            self._reads_begun_count = number = self._reads_begun_count + 1
            done = max(self._done, default=-1)
            try:
                rows = await self._tables.scan("accounts", consistency=Consistency.LINEARIZABLE)
                told = await self._tables.get("transfers", (done,), Consistency.LINEARIZABLE)
            except (Unreachable, OutcomeUnknown):
                continue
            balances = [row.values[1] for row in rows]
            total = sum(balance for balance in balances if isinstance(balance, int))
            assert len(balances) == ACCOUNTS_COUNT, f"{self.group}: {balances}"
            assert total == ACCOUNTS_COUNT * BALANCE, f"{self.group}: {balances}"
            assert told is not None or done < 0, f"{self.group}: transfer {done} is done, and not to be seen"
            self._read_upto = number
            await asyncio.sleep(READ_EVERY_S)

    async def _transfer(self, rng: Random) -> None:
        while True:
            number, self._begun_count = self._begun_count, self._begun_count + 1
            giver, taker = rng.sample(range(ACCOUNTS_COUNT), 2)
            amount = rng.randint(1, 5)
            operations = (
                Update("accounts", (giver,), (Add("balance", -amount),)),
                Update("accounts", (taker,), (Add("balance", amount),)),
                Insert("transfers", (number, giver, taker, amount)),
            )
            id_ = new_id()
            self._unknown[number] = operations, id_
            try:
                await self._tables.execute(*operations, id_=id_)
            except (RolledBack, Unreachable):
                del self._unknown[number]
            except OutcomeUnknown:
                continue
            else:
                self._done.add(number)
                del self._unknown[number]

    async def finish(self, nodes: Sequence[int]) -> None:
        """Nothing is made of nothing, nothing gets lost, and every copy says so."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for number, (operations, id_) in self._unknown.items():  # Under its id it is done once at most.
            with suppress(TransactionRefused):
                await self._tables.execute(*operations, id_=id_)
                self._done.add(number)
        rows = [row async for row in self._tables.iterate("transfers", consistency=Consistency.LINEARIZABLE)]
        wrong = differences([row.values[0] for row in rows], self._done)
        assert not wrong, f"{self.group}: {wrong}"
        balances = dict.fromkeys(range(ACCOUNTS_COUNT), BALANCE)
        for _, giver, taker, amount in (row.values for row in rows):
            assert isinstance(giver, int)
            assert isinstance(taker, int)
            assert isinstance(amount, int)
            balances[giver] -= amount
            balances[taker] += amount
        for node in nodes:
            accounts = await self._tables.scan("accounts", node=node)
            assert {row.values[0]: row.values[1] for row in accounts} == balances, f"{self.group} on {node}"
        assert sum(balances.values()) == ACCOUNTS_COUNT * BALANCE
        await self._tables.close()


@asynccontextmanager
async def transferred_in(
    directory: Path, cluster: ProxiedCluster | None = None
) -> AsyncIterator[tuple[ProxiedCluster, list[Bank]]]:
    """A cluster with a group of tables of each kind, each with transfers between its accounts."""
    async with cluster or ProxiedCluster(directory) as cluster:
        cluster.start()
        async with cluster.client() as client:
            await cluster.until_registered(client)
            banks = []
            for kind in REPLICATIONS:
                await asyncio.to_thread(create_group, cluster.bootstrap, kind, replication=kind)
                banks.append(Bank(cluster.bootstrap, kind))
            await asyncio.gather(*(bank.open() for bank in banks))
            await go_on(banks)
            yield cluster, banks
            cluster.heal()
            await go_on(banks)
            for node, process in cluster.nodes.items():  # Some may have joined.
                client.know(node, process.address)
            await cluster.until_registered(client)
            image = await client.image(next(iter(cluster.nodes)), current=True)
            copies = {topic.name: [member.node for member in topic.ensembles[0]] for topic in image.topics}
            for bank in banks:
                await bank.finish(copies[bank.group])
        expect_no_traceback(*cluster.nodes.values())
