"""Who leads which partition, for clients that ask any node.

A node knows the leaders of the partitions that it holds itself. Where a partition is not copied to every node,
its leader says so to the others, now and then and when it changes; nobody relies on it but clients, who ask
again when they were sent to the wrong node. Of partitions that are overseen every leader says so, as long as what
is written to it gets settled: whoever oversees them hears that nobody leads, though somebody should.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from quorate.core.entry import TOPIC_ID_BYTES, Member, Partition, partition_of
from quorate.host import Hosted, Parcel
from quorate.host.parcel import Leads
from quorate.machine.metadata import OVERSEEN

if TYPE_CHECKING:
    from quorate.node.node import Node

TELL_EVERY_S = 0.25
STUCK_S = 1.0
"""A leader that has settled nothing for this long, though something waits, does not reach enough others."""
REPEAT_COUNT = 8
"""Every so many times it is said although nothing changed: a node may have been away."""


class Leaders:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._heard: dict[bytes, tuple[int, int]] = {}
        """As other nodes say: (epoch, node)."""
        self._said: dict[int, frozenset[bytes]] = {}
        """By node: all of these partitions that it leads, as it said last."""
        self._waiting: dict[Partition, tuple[int, float]] = {}
        """Overseen partitions led here in which something waits: how far they were settled, and since when."""
        self._looked_at = -1
        self._to_be_told: list[Partition] = []
        """Partitions that not everybody holds, or that somebody oversees, by the image of that version."""
        self._led: list[Hosted] = []
        """Those of them that are led here: idle ones are many, and not looked at again and again."""
        self._is_stale = True

    def of(self, partition: Partition) -> tuple[int, int]:
        """(node or 0, epoch)"""
        hosted = self._node.host.hosted.get(partition)
        epoch, node = self._heard.get(partition, (0, 0))
        if hosted is None:
            return node, epoch
        own = hosted.replica.epoch, hosted.replica.leader
        # A replica that is no voter, or is overseen, may be one that no leader speaks to yet, or no more.
        epoch, node = own if _knows_best(hosted) else max(own, (epoch, node))
        return node, epoch

    def heard(self, sender: int, message: Leads) -> None:
        if not self._node.config.voters:
            return
        self._said[sender] = frozenset(partition for partition, _ in message.partitions)
        known = self._node.metadata.image.by_id
        for partition, epoch in message.partitions:
            if partition[:TOPIC_ID_BYTES] in known and (epoch, sender) > self._heard.get(partition, (0, 0)):
                self._heard[partition] = (epoch, sender)
                self._node.metadata.leaders_version += 1

    def says_so(self, node: int, partition: Partition) -> bool:
        """Whether that node says that it leads a partition which others look after (`is_told`)."""
        if node == self._node.id:
            return self._node.is_leader(partition)
        return partition in self._said.get(node, ())

    def look(self) -> None:
        """Somebody else leads some partition."""
        self._is_stale = True

    async def run(self) -> None:
        """Until cancelled."""
        said: tuple[tuple[bytes, int], ...] = ()
        silent_count = REPEAT_COUNT
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            led = self._to_tell()
            silent_count += 1
            self._is_stale = repeat = silent_count >= REPEAT_COUNT
            if led != said or repeat:
                if led != said or self._to_be_told:
                    # Also that it is nothing: others may know what was led here before this node was restarted.
                    parcel = Parcel(None, Member(self._node.id, self._node.incarnation), Leads(led))
                    for peer in self._node.peers:
                        self._node.send(peer, parcel)
                said, silent_count = led, 0

    def _to_tell(self) -> tuple[tuple[bytes, int], ...]:
        """What is led here of partitions that not everybody holds, or that somebody oversees."""
        image = self._node.metadata.image
        if image.version != self._looked_at:
            self._looked_at = image.version
            self._is_stale = True
            self._forget_deleted()
            self._to_be_told = [
                partition_of(topic.id, number)
                for topic in image.topics.values()
                for number, ensemble in enumerate(topic.ensembles)
                if topic.is_overseen(number) or sum(map(image.is_of_this_life, ensemble)) < len(image.nodes)
            ]
        if self._is_stale:
            hosted = self._node.host.hosted
            self._led = [hosted[each] for each in self._to_be_told if self._node.is_leader(each)]
        return tuple(
            [
                (bytes(each.partition), each.replica.epoch)
                for each in self._led
                if each.replica.role.name == "leader" and not each.gone and self._gets_on(each)
            ]
        )

    def _gets_on(self, hosted: Hosted) -> bool:
        """Whether what is written to an overseen partition is settled; others see to it by themselves."""
        partition = hosted.partition
        if hosted.replica.log.head.offset <= hosted.commit or hosted.record.protocol not in OVERSEEN:
            self._waiting.pop(partition, None)
            return True
        now = time.monotonic()
        commit, since = self._waiting.setdefault(partition, (hosted.commit, now))
        if commit != hosted.commit:
            self._waiting[partition] = hosted.commit, now
            return True
        return now - since < STUCK_S

    def _forget_deleted(self) -> None:
        image = self._node.metadata.image
        gone = [partition for partition in self._heard if image.is_deleted(partition[:TOPIC_ID_BYTES])]
        for partition in gone:
            del self._heard[partition]


def _knows_best(hosted: Hosted) -> bool:
    """Whoever votes does."""
    return hosted.replica.is_voter and hosted.record.protocol not in OVERSEEN
