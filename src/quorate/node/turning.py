"""Sees to it that the copies of a topic come to agree in the way that the image wants for it (decision 017).

What is wanted stands in the image, and what has ended in a partition's own log, so nothing is remembered
here. Whoever leads a partition is told to end its protocol, again after every failure and by every new
leader, and says to the metadata group when that is done and a majority has everything. And every node turns
its own copies, as soon as its image says that their partition is of another generation: then they hear nobody
any more but those who have, too.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from quorate.core.commands import Turn
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import TOPIC_ID_BYTES, Partition, number_of
from quorate.host import Hosted
from quorate.host.turning import reached
from quorate.machine.metadata import Topic
from quorate.machine.turning import NoteBarrier, is_whole
from quorate.node.logs import WARNING
from quorate.node.metadata import NoMetadata, TooNew
from quorate.node.reports import called

if TYPE_CHECKING:
    from quorate.node.node import Node

LOOK_EVERY_S = 0.05
LOOK_AT_ALL_S = 2.0
"""Also at logs of topics of which nothing is wanted: one may have ended for a turn that was called off."""
ORDER_AGAIN_S = 1.0
NOTE_AGAIN_S = 0.5


class _Order(msgspec.Struct):
    """What the leader of a partition was told last, in which epoch."""

    at: int
    epoch: int
    again: float = float("inf")


class Turning:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._orders: dict[Partition, _Order] = {}
        self._noted: dict[Partition, float] = {}
        """When a barrier was last said to be there."""
        self._looked_at = -1
        self._all_at = 0.0
        self._turning: tuple[Partition, ...] = ()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            notes = self._look()
            if notes:
                try:
                    await self._node.metadata.command(*notes)
                except (NoMetadata, TooNew) as error:
                    what = f"the metadata group does not hear that protocols have ended: {error}"
                    self._node.log(what, level=WARNING)

    def _look(self) -> list[NoteBarrier]:
        """Turn what has turned, order what is to be ordered; what is to be said."""
        node, now = self._node, time.monotonic()
        image = node.metadata.image
        if image.version != self._looked_at or now >= self._all_at:
            self._looked_at, self._all_at = image.version, now + LOOK_AT_ALL_S
            self._turning = tuple(
                partition for partition, hosted in node.host.hosted.items() if self._is_about(hosted)
            )
            for known in (
                self._orders,
                self._noted,
            ):  # Of topics that are deleted, or turned, nothing is kept.
                for partition in [each for each in known if each not in self._turning]:
                    del known[partition]
        notes = []
        for partition in self._turning:
            hosted = node.host.hosted.get(partition)
            topic = image.by_id.get(partition[:TOPIC_ID_BYTES])
            if hosted is None or topic is None or not node.metadata.is_current:
                continue
            note = self._go_on(hosted, topic, now)
            if note is not None and now >= self._noted.get(partition, 0.0):
                self._noted[partition] = now + NOTE_AGAIN_S
                notes.append(note)
        return notes

    def _is_about(self, hosted: Hosted) -> bool:
        topic = self._node.metadata.image.by_id.get(hosted.partition[:TOPIC_ID_BYTES])
        if topic is None:
            return False
        is_behind = topic.generation(number_of(hosted.partition)) != hosted.record.turn
        return is_behind or topic.turning is not None or hosted.replica.barrier is not None

    def _go_on(self, hosted: Hosted, topic: Topic, now: float) -> NoteBarrier | None:
        node, partition = self._node, hosted.partition
        number = number_of(partition)
        turned = topic.turned.get(number)
        if turned is not None and turned.generation > hosted.record.turn:
            if self._turn(hosted, topic, number):
                name = called(node, partition)
                node.log(
                    f"partition {name}: its copy here is replicated by {turned.protocol} now", partition=name
                )
            return None
        note = reached(hosted)
        if note is not None:
            return note if is_whole(note, topic.ensembles[number]) else None
        wanted = topic.turning
        if wanted is not None and topic.protocol(number) != wanted.to and wanted.at > hosted.record.turn:
            self._order(hosted, wanted.at, now)
        return None

    def _turn(self, hosted: Hosted, topic: Topic, number: int) -> bool:
        node = self._node
        voters = tuple(sorted(topic.ensembles[number]))
        node.begin_turn()
        try:
            now, turned = time.monotonic(), topic.turned[number]
            has_turned = node.host.turn(now, hosted.partition, turned, voters=voters)
            if has_turned:  # It is another replica, which was told nothing yet.
                node.host.count(now, hosted.partition, topic.ensembles[number])
            return has_turned
        finally:
            node.end_turn()

    def _order(self, hosted: Hosted, at: int, now: float) -> None:
        node, partition = self._node, hosted.partition
        if not node.is_leader(partition):
            self._orders.pop(partition, None)
            return
        order, epoch = self._orders.get(partition), hosted.replica.epoch
        if order is not None and (order.at, order.epoch) == (at, epoch) and now < order.again:
            return
        order = self._orders[partition] = _Order(at, epoch)
        node.begin_turn()
        try:
            answer = partial(self._answered, order)
            node.host.command(now, partition, lambda request: Turn(request, at), answer)
        finally:
            node.end_turn()

    def _answered(self, order: _Order, reply: Reply) -> None:
        if reply.outcome is not Outcome.SETTLED:
            order.again = time.monotonic() + ORDER_AGAIN_S
