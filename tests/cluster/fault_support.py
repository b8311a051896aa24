"""Who writes while faults are made, and knows exactly what must be there in the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorate.bench.cluster_processes import START_TIMEOUT_S
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
from tests.cluster.growing import held_by
from tests.cluster.proxied import ProxiedCluster
from tests.cluster.support import expect_no_traceback, until

PARTITIONS_COUNT = 2
UNDER_WAY_MAX = 100
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
ACCOUNTS_COUNT = 6
BALANCE = 1_000
TRANSFERRING_COUNT = 3
MORE_TRANSFERS_COUNT = 20
TABLE_TIMEOUT_S = 20.0


class Load(Protocol):
    """Something that is written to the cluster."""

    async def go_on(self) -> None:
        """Until more is acknowledged that was not even sent before this call."""


async def go_on(loads: Sequence[Load]) -> None:
    await asyncio.gather(*(load.go_on() for load in loads))


class Writer:
    """An idempotent producer that always has something to send, and knows what was acknowledged."""

    def __init__(
        self, bootstrap: str, topic: str, *, value_bytes: int = 0, more_count: int = MORE_COUNT
    ) -> None:
        self.topic = topic
        self.sent_count = 0
        self.acknowledged: set[int] = set()
        self.failed: Counter[str] = Counter()
        self._filling = bytes(value_bytes)
        self._more_count = more_count
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

    async def go_on(self) -> None:
        loop = asyncio.get_running_loop()
        first, deadline = self.sent_count, loop.time() + START_TIMEOUT_S
        wanted = first + self._more_count
        while (
            len([number for number in range(first, wanted) if number in self.acknowledged]) < self._more_count
        ):
            lacks = f"{self.topic}: {self._more_count} more are not acknowledged; failed: {dict(self.failed)}"
            assert loop.time() < deadline, lacks
            while (
                self.sent_count < wanted
                and self.sent_count - len(self.acknowledged) - self.failed.total() < UNDER_WAY_MAX
            ):
                number = self.sent_count
                value = b"%d " % number + self._filling
                self._producer.produce(
                    self.topic, value, partition=number % PARTITIONS_COUNT, on_delivery=self._told
                )
                self.sent_count += 1
            self._producer.poll(0)
            await asyncio.sleep(0.002)

    async def finish(self) -> None:
        assert await asyncio.to_thread(self._producer.flush, DELIVERY_MS / 1000) == 0
        assert not self.failed, f"{self.topic}: {self.failed}"

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.add(number_of(message))
        else:
            self.failed[error.str()] += 1


def number_of(message: Message) -> int:
    value = message.value()
    assert value is not None
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
            found.append(number_of(message))
    consumer.close()
    return found


@asynccontextmanager
async def written_to(
    directory: Path,
    cluster: ProxiedCluster | None = None,
    *,
    value_bytes: int = 0,
    more_count: int = MORE_COUNT,
) -> AsyncIterator[tuple[ProxiedCluster, list[Writer]]]:
    """A cluster with a topic of each kind, every one written to; in the end everything is read, and compared."""
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
            await go_on(writers)
            yield cluster, writers
            cluster.heal()
            for node, process in cluster.nodes.items():  # Some may have joined.
                client.know(node, process.address)
            await go_on(writers)
            for writer in writers:
                await writer.finish()
                found = await asyncio.to_thread(read_everything, cluster.bootstrap, writer.topic)
                wrong = differences(found, writer.acknowledged)
                assert not wrong, f"{writer.topic}: {wrong}"
            await cluster.until_registered(client)
            await expect_same_copies(cluster, client)
        expect_no_traceback(*cluster.nodes.values())


async def expect_same_copies(cluster: ProxiedCluster, client: Client) -> None:
    """Byte for byte, on every node that is to have one, and nowhere else: also what nobody has read."""
    (asked, *_) = cluster.nodes
    image = await client.image(asked)
    ensembles = {
        partition: [member.node for member in ensemble]
        for topic in image.topics
        for partition, ensemble in zip(topic.partitions(), topic.ensembles, strict=True)
    }
    for partition, nodes in ensembles.items():

        async def same(partition: Partition = partition, nodes: list[int] = nodes) -> bool | None:
            held = held_by(await cluster.answers(client), partition)
            ends = {(replica.head, replica.commit, replica.faulty) for replica in held.values()}
            return (set(held) == set(nodes) and len(ends) == 1 and not next(iter(ends))[2]) or None

        await cluster.until(same, f"the copies of {partition.hex()} to end alike")
        copies = [await fetched(client, node, partition) for node in nodes]
        assert copies[0], "something was written"
        assert copies[1:] == copies[:1] * (len(copies) - 1), partition.hex()


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

    async def open(self) -> None:
        await self._tables.execute(CreateTable(ACCOUNTS), CreateTable(TRANSFERS))
        await self._tables.execute(
            *(Insert("accounts", (number, BALANCE)) for number in range(ACCOUNTS_COUNT))
        )
        for number in range(TRANSFERRING_COUNT):
            self._tasks.append(asyncio.create_task(self._transfer(Random(number))))

    async def go_on(self) -> None:
        first = self._begun_count

        def holds() -> bool:
            assert not any(task.done() for task in self._tasks), self._tasks
            return sum(number >= first for number in self._done) >= MORE_TRANSFERS_COUNT

        await until(holds, f"{MORE_TRANSFERS_COUNT} more transfers in {self.group}")

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
async def transferred_in(directory: Path) -> AsyncIterator[tuple[ProxiedCluster, list[Bank]]]:
    """A cluster with a group of tables of each kind, each with transfers between its accounts."""
    async with ProxiedCluster(directory) as cluster:
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
            await go_on(banks)
            for node, process in cluster.nodes.items():  # Some may have joined.
                client.know(node, process.address)
            await cluster.until_registered(client)
            image = await client.image(next(iter(cluster.nodes)), current=True)
            copies = {topic.name: [member.node for member in topic.ensembles[0]] for topic in image.topics}
            for bank in banks:
                await bank.finish(copies[bank.group])
        expect_no_traceback(*cluster.nodes.values())
