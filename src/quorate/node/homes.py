"""Homes of groups and of transactions: topics of the cluster's own, and what is asked of whoever leads a part
of one.

A home is made at first need, by whichever node is asked first: a `raft` topic, in as many copies as any new
topic, and then a command that says that this is the home from now on. Two that do so at once find one. Whoever
leads the partition of a home in which a group or a transaction lives coordinates it: it proposes commands to
that partition, and what came of them is said when they are settled and applied there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Partition
from quorate.host.querying import Consistency
from quorate.host.replicas import MACHINES
from quorate.machine.cluster import SetHome
from quorate.machine.commanded import Commanded, commands_batch
from quorate.machine.purpose import GROUPS, HOMES, KIND, TRANSACTIONS
from quorate.node.metadata import BadTopic, NoMetadata, TopicExists

if TYPE_CHECKING:
    from quorate.node.node import Node

HOME_SETTINGS: dict[str, str] = {
    GROUPS: "offsets.topic.num.partitions",
    TRANSACTIONS: "transaction.state.log.num.partitions",
}
"""What the cluster may be set to, before a home is made: how many partitions it gets."""
HOME_PARTITIONS_COUNT = 8

Results = Sequence[Any]
"""Of commands, in their order; empty where nobody knows."""


class NoHome(Exception):
    """There is none, and it cannot be made now; the text says why."""


class Homes:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._making = {kind: asyncio.Lock() for kind in HOMES}

    def partition_of(self, kind: str, name: str) -> Partition | None:
        """Where a group or a transaction of that name lives; None: its kind has no home yet."""
        return self._node.metadata.image.home_of(kind, name)

    async def ensure(self, kind: str) -> None:
        """Let that kind have a home; raises NoHome."""
        if kind not in MACHINES:
            raise NoHome(f"{kind} are not built here")
        async with self._making[kind]:
            if kind in self._node.metadata.image.cluster.homes:
                return
            try:
                await self._make(kind)
            except (BadTopic, NoMetadata) as error:
                raise NoHome(str(error)) from error

    async def _make(self, kind: str) -> None:
        known, name = self._node.metadata, HOMES[kind]
        count = known.image.cluster.config.get(HOME_SETTINGS[kind], HOME_PARTITIONS_COUNT)
        try:
            await known.create_topic(name, partitions_count=int(count), config={KIND: kind})
        except TopicExists:
            topic = known.image.topics.get(name)
            if topic is not None and topic.purpose != kind:
                raise NoHome(
                    f"topic {name} is somebody's, from before it was the name of a home; copy what is in it "
                    "elsewhere and delete it"
                ) from None
        topic = known.image.topics.get(name)
        if topic is None:
            raise NoHome(f"topic {name} is not known here yet")
        await known.command(SetHome(kind, topic.id))

    def propose(
        self, partition: Partition, commands: Sequence[Any], answer: Callable[[Reply, Results], None]
    ) -> None:
        """In a turn, where `partition` is led: SETTLED with what came of them, or why they are not, or may not be.

        A reply without results is as good as UNKNOWN.
        """
        count = len(commands)

        def settled(reply: Reply) -> None:
            if reply.outcome is not Outcome.SETTLED:
                answer(reply, ())
                return
            first = reply.offset

            def ask(machine: Commanded, _: Any) -> list[Any]:
                return [machine.result(first + number) for number in range(count)]

            def looked(seen: Reply, found: list[Any] | None) -> None:
                answer(reply if found is not None else seen, found or ())

            # Settled is not yet applied.
            self._node.query(
                partition, ask, looked, consistency=Consistency.COMMITTED, offset=first + count - 1
            )

        self._node.propose(partition, [commands_batch(commands)], settled)
