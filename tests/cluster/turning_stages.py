"""How far the first partition of a topic is on its way to another kind of replication, as nodes say themselves.

Links between nodes are slow meanwhile, so that each step is seen, and nobody is suspected.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import NamedTuple

from quorate.bench.cluster_processes import START_TIMEOUT_S
from quorate.core.entry import Partition, partition_of
from quorate.machine.metadata import METADATA, Topic
from quorate.node.client import Client
from quorate.node.requests import ReplicaStatus
from tests.cluster.growing import held_by
from tests.cluster.proxied import ProxiedCluster
from tests.cluster.test_faults import leading

ORDERED = "as it is ordered"
ENDING = "while its protocol ends"
ENDED = "as that has ended, and nobody was told"
COPIES = "while its copies turn"
LED = "as it is led anew"
STAGES = (ORDERED, ENDING, ENDED, COPIES, LED)
"""In this order: one that comes later may be seen first, one that is past is not seen any more."""
SLOW_S = 0.06
"""What one node says takes so long to another, and its answer, too; an election time-out is eight times as long."""
LOOK_EVERY_S = 0.002


class Turn(NamedTuple):
    """What is to become of a topic, and who has to do with it as it is ordered."""

    topic: Topic
    to: str
    operator: int
    """The node that leads the metadata group: it takes the order."""
    source: int
    """The node that leads the first partition in the former protocol: another one."""

    @property
    def partition(self) -> Partition:
        return partition_of(self.topic.id, 0)

    @property
    def third(self) -> int:
        return next(node for node in (1, 2, 3) if node not in (self.operator, self.source))


class Seen(NamedTuple):
    """At one moment."""

    stage: str
    leads: int
    """0: nobody says so."""
    not_turned: tuple[int, ...]
    """The nodes whose copies are of the former protocol."""


async def about_to_turn(cluster: ProxiedCluster, client: Client, name: str, to: str) -> Turn:
    """Another node leads the metadata group than the partition: each of them can be killed without the other."""
    (topic,) = (await client.image(next(iter(cluster.nodes)), (name,), current=True)).topics
    assert topic.turning is None
    assert topic.replication != to
    source = await cluster.leader(client, partition_of(topic.id, 0))
    if await leading(cluster, client) == source:
        await cluster.hand_over(client, METADATA, source % 3 + 1)
    turn = Turn(topic, to, await leading(cluster, client), source)
    assert turn.operator != source
    return turn


async def looked_at(cluster: ProxiedCluster, client: Client, turn: Turn) -> Seen | None:
    """None: it is at none of the stages; before it is ordered, say, or while nobody leads."""
    image, statuses = await asyncio.gather(
        client.image(turn.operator, (turn.topic.name,)), cluster.answers(client)
    )
    (now,) = image.topics
    held = held_by(statuses, turn.partition)
    leaders = [node for node, replica in held.items() if replica.role == "leader"]
    leads = max(leaders, key=lambda node: held[node].epoch, default=0)
    not_turned = tuple(node for node, replica in held.items() if replica.protocol != turn.to)
    if now.generation(0) > turn.topic.generation(0):
        stage = COPIES if not_turned else LED if leads else ""
    else:
        stage = _as_it_ends(held[leads]) if now.turning is not None and leads else ""
    return Seen(stage, leads, not_turned) if stage else None


def _as_it_ends(leader: ReplicaStatus) -> str:
    if leader.barrier < 0:
        return ORDERED
    return ENDED if leader.barrier <= leader.commit else ENDING


async def until_seen(cluster: ProxiedCluster, client: Client, turn: Turn, stage: str) -> Seen | None:
    """As soon as it is so far; None: it went past without having been seen."""
    deadline = monotonic() + START_TIMEOUT_S
    while True:
        seen = await looked_at(cluster, client, turn)
        if seen is not None and STAGES.index(seen.stage) >= STAGES.index(stage):
            return seen if seen.stage == stage else None
        assert monotonic() < deadline, f"{turn.topic.name} is not seen {stage}: {seen}"
        await asyncio.sleep(LOOK_EVERY_S)


async def until_called_off(cluster: ProxiedCluster, client: Client, turn: Turn) -> None:
    """As the node says that took the order: the topic is, or is to be, what it was."""

    async def so() -> bool | None:
        (now,) = (await client.image(turn.operator, (turn.topic.name,))).topics
        to = now.replication if now.turning is None else now.turning.to
        return to == turn.topic.replication or None

    await cluster.until(so, f"{turn.topic.name} to be called off")


def slowed_down(cluster: ProxiedCluster) -> None:
    for node in (1, 2, 3):
        cluster.slow_down(node, SLOW_S)
