"""How far a partition is on its way to another leader, by whatever its protocol is told to: seen, not guessed.

Three nodes have to do with it, each of them another one: that which leads the metadata group, where operators and
controllers are, the one that leads the partition, and its heir. Links between nodes are slow meanwhile: each step
takes longer than to look at it, and nobody is suspected.

| ordered | what shows that it is under way |
| --- | --- |
| raft, and confirm: hand over | the same, ordered once more, is refused: leadership is being handed over |
| coordinated: whoever the operator chooses | the operator has stored that an election goes on |
| isr: hand over | the controller has stored who leads, and that one does not do so yet |
| confirm: promote | that node is a candidate |
| confirm: demote | the leader closes its door to transactions: it is being demoted |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from quorate.client import AsyncTableGroup, ClientError
from quorate.core.coordinated.shard import Shard
from quorate.core.entry import Partition, partition_of
from quorate.core.isr.state import PartitionState
from quorate.machine.metadata import METADATA, OPERATED
from quorate.node.client import BadRequest, Client, NotDone, OutcomeUnknown
from quorate.node.requests import ReplicaStatus
from quorate.tables import Add, Update
from tests.cluster.growing import held_by
from tests.cluster.proxied import ProxiedCluster
from tests.cluster.support import LOOK_EVERY_S
from tests.cluster.test_faults import leading

HANDING_OVER = ("as it is ordered", "while its heir is cut off", "as its heir leads")
SLOW_S = 0.06
"""What one node says takes so long to another, and its answer, too; an election time-out is eight times as long."""
ORDER_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 0.2
UNDER_WAY = "leadership is being handed over to node"
DEMOTED = "the leader is being demoted"


class Handing(NamedTuple):
    """What is to be done, and who has to do with it."""

    verb: str
    """transfer, promote or demote"""
    topic: str
    partition: Partition
    operator: int
    source: int
    target: int
    """Whom the partition prefers of those that could be chosen: of equal logs an operator chooses that one, too."""

    def hit(self, victim: str) -> int:
        return {"operator": self.operator, "source": self.source, "target": self.target}[victim]


async def about_to_hand_over(
    cluster: ProxiedCluster, client: Client, topic: str, verb: str = "transfer"
) -> Handing:
    (found,) = (await client.image(next(iter(cluster.nodes)), (topic,), current=True)).topics
    partition = partition_of(found.id, 0)
    source = await cluster.leader(client, partition)
    target, other = (member.node for member in found.ensembles[0] if member.node != source)
    if await leading(cluster, client) != other:
        await cluster.hand_over(client, METADATA, other)
    return Handing(verb, topic, partition, await leading(cluster, client), source, target)


class Ordered:
    """It is ordered once, whatever comes of it; `is_seen` says when it is so far."""

    def __init__(self, cluster: ProxiedCluster, client: Client, handing: Handing) -> None:
        self._cluster, self._client, self._handing = cluster, client, handing
        self._orders: list[asyncio.Task[None]] = []
        self._refused = ""

    async def is_seen(self, stage: str) -> bool:
        """False: it was over before anybody looked."""
        handing, is_last = self._handing, stage == HANDING_OVER[2]
        for node in (1, 2, 3):
            self._cluster.slow_down(node, SLOW_S)
        if stage == HANDING_OVER[1]:
            self._cluster.cut_off(handing.target)
        self._begin()
        if is_last:  # A controller is done when all is stored: its heir hears of that later.
            return await self._until(self._is_over, after_s=ORDER_TIMEOUT_S)
        return await self._until(self._is_under_way()) and await self._leads() != handing.target

    async def ends(self) -> None:
        await asyncio.gather(*self._orders)

    def _begin(self) -> None:
        handing = self._handing
        if handing.verb == "transfer":
            to = 0 if handing.topic == OPERATED else handing.target
            self._orders = [asyncio.create_task(self._transfer(to))]
        else:
            self._orders = [asyncio.create_task(self._given())]

    async def _transfer(self, to: int) -> None:
        try:
            await self._client.transfer(self._handing.partition, to)
        except (NotDone, OutcomeUnknown, BadRequest) as error:
            self._refused = self._refused or str(error)

    async def _given(self) -> None:
        with suppress(ClientError):
            async with self._tables(ORDER_TIMEOUT_S) as group:
                await (
                    group.demote() if self._handing.verb == "demote" else group.promote(self._handing.target)
                )

    def _tables(self, timeout_s: float) -> AsyncTableGroup:
        return AsyncTableGroup(self._cluster.bootstrap, self._handing.topic, timeout_s=timeout_s)

    async def _until(self, so: Callable[[], Awaitable[bool]], *, after_s: float = 0.0) -> bool:
        """False: it was not so when all orders were done, nor so long after that."""
        deadline = 0.0
        while not await so():
            if not deadline and all(order.done() for order in self._orders):
                deadline = monotonic() + after_s
            if deadline and monotonic() >= deadline:
                return await so()
            await asyncio.sleep(LOOK_EVERY_S)
        return True

    # --- what is seen ---

    def _is_under_way(self) -> Callable[[], Awaitable[bool]]:
        if self._handing.verb == "promote":
            return self._is_candidate
        if self._handing.verb == "demote":
            return self._is_demoted
        if self._handing.topic in (OPERATED, "isr"):
            return self._is_stored
        self._orders.append(asyncio.create_task(self._transfer(self._handing.target)))
        return self._is_refused

    async def _is_refused(self) -> bool:
        return UNDER_WAY in self._refused

    async def _is_stored(self) -> bool:
        stored = (await self._client.image(self._handing.operator)).stored.get(self._handing.partition)
        state = stored.shard if stored is not None else None
        if isinstance(state, Shard):
            return state.leader is None
        assert isinstance(state, PartitionState)
        return state.leader.node == self._handing.target

    async def _is_candidate(self) -> bool:
        held = await self._held()
        replica = held.get(self._handing.target)
        return replica is not None and replica.role == "candidate"

    async def _is_demoted(self) -> bool:
        """What is asked of it besides changes nothing."""
        try:
            async with self._tables(PROBE_TIMEOUT_S) as group:
                await group.execute(Update("accounts", (0,), (Add("balance", 0),)))
        except ClientError as error:
            return DEMOTED in str(error)
        return False

    async def _is_over(self) -> bool:
        """Another node leads; or nobody does, who was demoted."""
        leads = await self._leads()
        return leads != self._handing.source and (leads != 0 or self._handing.verb == "demote")

    async def _leads(self) -> int:
        held = await self._held()
        leaders = [node for node, replica in held.items() if replica.role == "leader"]
        return max(leaders, key=lambda node: held[node].epoch, default=0)

    async def _held(self) -> dict[int, ReplicaStatus]:
        return held_by(await self._cluster.answers(self._client), self._handing.partition)


async def heir(cluster: ProxiedCluster, client: Client, handing: Handing) -> int:
    """Who leads by now, if anybody does; where an operator chooses it may be another than was thought."""
    held = held_by(await cluster.answers(client), handing.partition)
    leaders = [node for node, replica in held.items() if replica.role == "leader" and node != handing.source]
    return max(leaders, key=lambda node: held[node].epoch, default=handing.target)
