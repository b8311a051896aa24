"""A topic as it is now: its partitions and every copy, from what the nodes and the metadata group say.

What is not known, because a node does not answer or nobody leads, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from quorate.cli.copies_there import counting, missing_copy
from quorate.cli.how_far import is_unheard
from quorate.core.entry import Partition, partition_of
from quorate.machine.metadata import Topic
from quorate.node.requests import Image, ReplicaStatus, Status

UP = "up"


class CopyView(msgspec.Struct):
    node: int
    state: str
    """`up`, or why nothing is known of it."""
    role: str | None = None
    epoch: int | None = None
    first: int | None = None
    """The first offset kept."""
    head: int | None = None
    commit: int | None = None
    lag: int | None = None
    """Offsets that it has not confirmed to its leader."""
    in_sync: bool | None = None
    faulty: list[tuple[int, int]] = []
    """(first, last) offset of what cannot be read there."""


class PartitionView(msgspec.Struct, omit_defaults=True):
    partition: int
    nodes: list[int]
    """Those that count."""
    copies: list[CopyView]
    leader: int | None = None
    epoch: int | None = None
    commit: int | None = None
    learners: list[int] = []
    to_be: list[int] = []
    """Where a change is open."""
    preferred: list[int] = []
    """The same nodes in the order of its list: the first is its preferred leader."""
    stored: Any = None
    """What whoever oversees it keeps of it."""
    replication: str = ""
    """How its copies agree, where that is not as the topic's."""


class TopicView(msgspec.Struct):
    topic: str
    id: str
    replication: str
    config: dict[str, str]
    is_current: bool
    """Whether a majority of the metadata group answers: else what is said may be old."""
    partitions: list[PartitionView]
    turning: str | msgspec.UnsetType = msgspec.UNSET
    """How its copies shall agree, while not all of them do."""


class Found:
    """What all nodes say, by partition."""

    def __init__(self, image: Image, statuses: dict[int, Status]) -> None:
        self.image = image
        self.statuses = statuses
        self._held: dict[bytes, dict[int, ReplicaStatus]] = {}
        for node, status in statuses.items():
            for replica in status.replicas:
                self._held.setdefault(replica.partition, {})[node] = replica

    def held(self, partition: Partition) -> dict[int, ReplicaStatus]:
        """Its copies, by node."""
        return self._held.get(partition, {})

    def leader(self, partition: Partition) -> ReplicaStatus | None:
        """The leader's own view, of the newest epoch."""
        leaders = [replica for replica in self.held(partition).values() if replica.role == "leader"]
        return max(leaders, key=lambda replica: replica.epoch, default=None)

    def topic(self, topic: Topic, numbers: list[int]) -> TopicView:
        views = [self.partition(topic, number) for number in numbers]
        known = topic.name, topic.id.hex(), topic.replication, topic.config
        turning = topic.turning.to if topic.turning is not None else msgspec.UNSET
        return TopicView(*known, self.image.is_current, views, turning)

    def partition(self, topic: Topic, number: int) -> PartitionView:
        partition = partition_of(topic.id, number)
        leader, stored = self.leader(partition), self.image.stored.get(partition)
        view = PartitionView(number, [member.node for member in counting(topic, number, leader, stored)], [])
        view.preferred = preferred_first(topic, number, view.nodes)
        if stored is not None:
            view.stored = msgspec.to_builtins(stored)
        if leader is not None:
            view.leader, view.epoch, view.commit = leader.me.node, leader.epoch, leader.commit
            view.learners = [member.node for member in leader.membership.learners]
        if topic.protocol(number) != topic.replication:
            view.replication = topic.protocol(number)
        if number in topic.changes:
            view.to_be = [member.node for member in topic.wanted(number)]
        holders = [member.node for member in topic.holders(number)]
        for node in sorted({*view.nodes, *view.learners, *holders}):
            view.copies.append(self.copy(topic, number, node))
        return view

    def copy(self, topic: Topic, number: int, node: int) -> CopyView:
        partition = partition_of(topic.id, number)
        leader, held = self.leader(partition), self.held(partition).get(node)
        view = CopyView(node, missing_copy(self.image, self.statuses, topic, number, node) or UP)
        if leader is not None:
            view.in_sync = node in leader.in_sync
            if node == leader.me.node:
                view.lag = 0
            elif node in leader.lags and not is_unheard(leader, node):
                view.lag = max(0, leader.lags[node])
        if held is None:
            view.state = "not made yet" if view.state == UP else view.state
            return view
        view.role, view.epoch, view.commit = held.role, held.epoch, held.commit
        view.first, view.head, view.faulty = held.base + 1, held.head.offset, list(held.faulty)
        return view


def preferred_first(topic: Topic, number: int, nodes: Iterable[int]) -> list[int]:
    """In the order of the partition's list; who counts and is not in there, or not yet, comes last."""
    order = [member.node for member in topic.ensembles[number]]
    return sorted(nodes, key=lambda node: (order.index(node) if node in order else len(order), node))
