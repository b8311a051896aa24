"""Clusters with tables, and clients that count up by compare-and-set and know exactly what must be there."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

from quorate.client import (
    AsyncTableGroup,
    Consistency,
    OutcomeUnknown,
    Refused,
    RolledBack,
    TransactionRefused,
    Unreachable,
    create_group,
)
from quorate.client.table_calls import new_id
from quorate.tables import At, Column, CreateTable, Insert, Outcome, Set, Table, Type, Update
from tests.cluster.growing import GrowingCluster
from tests.cluster.support import until

PROTOCOLS = ("raft", "coordinated", "isr", "confirm")
GROUP = "bank"
COUNTERS = Table("counters", (Column("id", Type.INT), Column("value", Type.INT)), ("id",))
COUNTERS_COUNT = 4
TIMEOUT_S = 20.0


@asynccontextmanager
async def tables_in(
    directory: Path, replication: str, *, replicas: int = -1
) -> AsyncIterator[tuple[GrowingCluster, AsyncTableGroup]]:
    """Three nodes, a group of tables with counters at 0, and a client of it."""
    with GrowingCluster(directory) as cluster:
        cluster.start()
        async with cluster.client() as client:
            await cluster.until_registered(client)
        bootstrap = cluster.bootstrap
        await asyncio.to_thread(
            create_group, bootstrap, GROUP, replication=replication, replicas_count=replicas
        )
        async with AsyncTableGroup(bootstrap, GROUP, timeout_s=TIMEOUT_S) as bank:
            await bank.execute(CreateTable(COUNTERS))
            await bank.execute(*(Insert("counters", (number, 0)) for number in range(COUNTERS_COUNT)))
            yield cluster, bank


async def led(bank: AsyncTableGroup) -> int:
    """The node that leads, as soon as one does."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            with suppress(Unreachable):
                leader = (await bank.describe()).leader
                if leader:
                    return leader
            await asyncio.sleep(0.05)


async def value_of(
    bank: AsyncTableGroup, consistency: Consistency = Consistency.COMMITTED, *, node: int = 0
) -> object:
    row = await bank.get("counters", (0,), consistency, node=node)
    assert row is not None
    return row.values[1]


async def until_value(bank: AsyncTableGroup, wanted: int, consistency: Consistency, *, node: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if await value_of(bank, consistency, node=node) == wanted:
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def paused(cluster: GrowingCluster, *nodes: int) -> AsyncIterator[None]:
    """They hang, and then go on as if nothing had been."""
    for node in nodes:
        cluster.nodes[node].send(signal.SIGSTOP)
    try:
        yield
    finally:
        for node in nodes:
            cluster.nodes[node].send(signal.SIGCONT)


class Counting:
    """Tasks that count up, each by compare-and-set, through whatever happens to the cluster."""

    def __init__(self, *groups: AsyncTableGroup, tasks_count: int = 8) -> None:
        self.done: Counter[int] = Counter()
        """How far each counter must have got."""
        self.unknown: list[tuple[int, Update, At, bytes]] = []
        self._groups = groups
        self._tasks_count = tasks_count
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Counting:
        for number in range(self._tasks_count):
            group = self._groups[number % len(self._groups)]
            self._tasks.append(asyncio.create_task(self._count(group, Random(number))))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        if kind is None:
            assert [each for each in ended if not isinstance(each, asyncio.CancelledError)] == []

    async def until_more(self, count: int) -> None:
        wanted = self.done.total() + count

        def holds() -> bool:
            assert not any(task.done() for task in self._tasks), self._tasks
            return self.done.total() >= wanted

        await until(holds, f"{count} more increments")

    async def _count(self, bank: AsyncTableGroup, rng: Random) -> None:
        while True:
            number = rng.randrange(COUNTERS_COUNT)
            try:
                row = await bank.get("counters", (number,))
            except Unreachable:
                continue
            assert row is not None
            value = row.values[1]
            assert isinstance(value, int)
            change = Update("counters", (number,), (Set("value", value + 1),))
            seen, id_ = At("counters", (number,), row.version), new_id()
            try:
                await bank.execute(change, conditions=[seen], id_=id_)
            except (TransactionRefused, RolledBack, Unreachable):
                continue
            except (OutcomeUnknown, asyncio.CancelledError) as unknown:
                self.unknown.append((number, change, seen, id_))
                if isinstance(unknown, asyncio.CancelledError):
                    raise
            else:
                self.done[number] += 1

    async def settle(self, bank: AsyncTableGroup) -> None:
        """What is unknown is sent again under its id: then it is known, and done once at most."""
        for number, change, seen, id_ in self.unknown:
            try:
                await bank.execute(change, conditions=[seen], id_=id_)
            except TransactionRefused:
                is_done = False
            else:
                is_done = True
            self.done[number] += is_done
            result = await bank.result(id_)
            assert result is not None
            assert result.outcome is (Outcome.DONE if is_done else Outcome.REFUSED)
        self.unknown.clear()

    async def expect_exact(self, bank: AsyncTableGroup, nodes: tuple[int, ...] = (1, 2, 3)) -> None:
        """Every increment is there once, on every copy."""
        assert not self.unknown
        rows = await bank.scan("counters", consistency=Consistency.LINEARIZABLE)
        found = {row.values[0]: row.values[1] for row in rows}
        assert found == {number: self.done[number] for number in range(COUNTERS_COUNT)}
        for node in nodes:
            assert await bank.scan("counters", node=node) == rows


async def until_refused_no_more(order: Callable[[], object]) -> None:
    """An order that others may say NAY to is given again."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await order()  # type: ignore[misc]
            except Refused:
                await asyncio.sleep(0.05)
            else:
                return
