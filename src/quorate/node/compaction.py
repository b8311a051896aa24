"""Of records of one key only the newest stays: who decides that, who makes what is left, who lets go of the rest.

Each node looks, now and then, at the partitions of topics with `cleanup.policy=compact`. Where it leads, it wants a
generation when enough of the sealed segments is new (`min.cleanable.dirty.ratio`) and old enough
(`min.compaction.lag.ms`). Where it has a copy, it makes what is wanted ready, beside what there is, and says so in
the image, with a checksum. When all holders have said the same, it is agreed, and each lets go of what it had
(docs/decisions/020-compaction-keeps-the-chain.md). One copy is made ready at a time, in small steps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from quorate.batch import Buffer
from quorate.core.entry import TOPIC_ID_BYTES, EntryId, Member, Partition, number_of, partition_of
from quorate.core.generation import Generation
from quorate.machine.compactions import Compaction, LetCompact, NoteReady, Ready, compacts
from quorate.machine.metadata import Topic
from quorate.machine.purpose import TOPIC
from quorate.node.logs import ERROR, WARNING
from quorate.node.metadata import NoMetadata, TooNew
from quorate.node.retention import (
    DELETE_RETENTION_MS,
    DIRTY_RATIO,
    LAG_MS,
    SEGMENT_BYTES,
    read_newest,
    start_of,
    wall_ms,
)
from quorate.storage.index import UNKNOWN_TIME
from quorate.storage.starting import Stretch

if TYPE_CHECKING:
    from quorate.node.node import Node

DIRTY_RATIO_DEFAULT = "0.5"
LAG_MS_DEFAULT = "0"
DELETE_RETENTION_MS_DEFAULT = str(24 * 3600 * 1000)
PREPARE_TIMEOUT_S = 3600.0


class Clean(msgspec.Struct, frozen=True, gc=False):
    """When a topic's partitions are to be compacted."""

    dirty_ratio: float
    lag_ms: int
    delete_retention_ms: int


def clean_of(topic: Topic) -> Clean | None:
    """None: not at all."""
    config = topic.config
    if topic.purpose != TOPIC or not compacts(config):
        return None
    return Clean(
        float(config.get(DIRTY_RATIO, DIRTY_RATIO_DEFAULT)),
        int(config.get(LAG_MS, LAG_MS_DEFAULT)),
        int(config.get(DELETE_RETENTION_MS, DELETE_RETENTION_MS_DEFAULT)),
    )


# ---- what is to be compacted ----


def chosen(
    sealed: Sequence[Stretch], *, agreed_upto: int, settled: int, clean: Clean, bytes_max: int, now_ms: int
) -> Stretch | None:
    """The last of a log's sealed segments that a generation is worth wanting for; None: none yet.

    `newest` of each is known where that matters. What is new is bounded: its keys have to fit into memory.
    """
    clean_bytes = sum(stretch.size for stretch in sealed if stretch.last.offset <= agreed_upto)
    dirty_bytes, last = 0, None
    for stretch in sealed:
        if stretch.last.offset <= agreed_upto:
            continue
        is_young = clean.lag_ms > 0 and (stretch.newest is None or stretch.newest > now_ms - clean.lag_ms)
        if stretch.last.offset > settled or is_young:
            break
        if last is not None and dirty_bytes + stretch.size > bytes_max:
            break
        dirty_bytes, last = dirty_bytes + stretch.size, stretch
    total = clean_bytes + dirty_bytes
    return last if total and dirty_bytes / total >= clean.dirty_ratio else None


def ends_of(sealed: Sequence[Stretch], upto: int, *, segment_bytes: int) -> tuple[int, ...]:
    """Where files end: as our segments do, small ones together."""
    ends: list[int] = []
    size = 0
    for stretch in sealed:
        if stretch.last.offset > upto:
            break
        if ends and size + stretch.size <= segment_bytes:
            ends.pop()
            size += stretch.size
        else:
            size = stretch.size
        ends.append(stretch.last.offset)
    return tuple(ends)


# ---- what the image says, here ----


def compact_log(node: Node, topic: Topic, number: int) -> None:
    """Let the replica here know what everybody has: it may let go of what it had."""
    compaction = topic.compactions.get(number)
    if compaction is not None and compaction.agreed is not None:
        let_go(node, partition_of(topic.id, number), compaction.agreed)


def let_go(node: Node, partition: Partition, generation: Generation) -> bool:
    """In a turn: everybody has that generation ready. Whether the log here is of it now."""
    hosted = node.host.hosted[partition]
    before: int = hosted.replica.log.compacted if hosted.started else generation.upto
    is_done = node.host.compact(time.monotonic(), partition, generation)
    if is_done and before < generation.upto:
        node.metrics.compactions += 1
    return is_done


class Compacting:
    def __init__(self, node: Node) -> None:
        self._node = node
        self.opened: Callable[[Buffer], Buffer] | None = None
        """How compressed batches are opened: whoever serves clients knows. Without it nothing is compacted."""
        self._said: dict[Partition, str] = {}
        self._why = ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._node.config.compaction_every_s)
            if self._node.is_over:
                return
            try:
                await self.look()
                self._why = ""
            except (NoMetadata, TooNew) as error:
                if str(error) != self._why:
                    self._why = str(error)
                    self._node.log(f"nothing is compacted for now: {error}", level=WARNING)

    async def look(self) -> None:
        """Make ready what is wanted of the copies here, and want what is worth it where this node leads."""
        node = self._node
        if self.opened is None or not node.metadata.is_current:
            return
        for topic in tuple(node.metadata.image.topics.values()):
            for number in tuple(topic.compactions):
                partition = partition_of(topic.id, number)
                if node.holds(partition):
                    await self._tend(partition)
        wishes = []
        for topic in tuple(node.metadata.image.topics.values()):
            clean = clean_of(topic)
            for partition in topic.partitions() if clean is not None else ():
                if clean is not None and node.is_settled_leader(partition):
                    generation = await self._wish(topic, partition, clean)
                    if generation is not None:
                        wishes.append((partition, generation, wall_ms()))
        if wishes:
            await node.metadata.command(LetCompact(tuple(wishes)))

    def _of(self, partition: Partition) -> Compaction:
        topic = self._node.metadata.image.by_id.get(partition[:TOPIC_ID_BYTES])
        return Compaction() if topic is None else topic.compactions.get(number_of(partition), Compaction())

    # --- copies ---

    async def _tend(self, partition: Partition) -> None:
        node, known = self._node, self._of(partition)
        if known.agreed is not None and not self._swap(partition, known.agreed):
            await self._prepare(partition, known.agreed)
            self._swap(partition, known.agreed)
        elif known.wanted is not None:
            crc = node.host.store.compactor.crc(partition, known.wanted)
            if crc is None:
                crc = await self._prepare(partition, known.wanted)
            if crc is not None and node.holds(partition):
                await self._say_ready(partition, known.wanted, crc)

    def _swap(self, partition: Partition, generation: Generation) -> bool:
        node = self._node
        if not node.holds(partition):
            return True
        node.begin_turn()
        is_done = let_go(node, partition, generation)
        node.end_turn()
        return is_done

    async def _prepare(self, partition: Partition, generation: Generation) -> int | None:
        node = self._node
        assert self.opened is not None
        found: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

        def done(crc: int | None) -> None:
            if not found.done():
                found.set_result(crc)

        node.begin_turn()
        why = node.host.prepare_compaction(time.monotonic(), partition, generation, self.opened, done)
        node.end_turn()
        if why:
            return None
        try:
            async with asyncio.timeout(PREPARE_TIMEOUT_S):
                return await found
        except TimeoutError:
            return None

    async def _say_ready(self, partition: Partition, generation: Generation, crc: int) -> None:
        """Once; and again where everybody has it by now, because somebody who had not is no holder any more."""
        node = self._node
        topic = node.metadata.image.by_id.get(partition[:TOPIC_ID_BYTES])
        if topic is None:
            return
        known, me = self._of(partition), node.host.hosted[partition].record.me
        if known.wanted != generation:
            return
        holders = topic.holders(number_of(partition))
        is_said = dict(known.ready).get(me) == crc
        if is_said and known.differs(holders):
            self._complain(partition, known.made(holders))
        elif not is_said or not known.missing(holders):
            await node.metadata.command(NoteReady((Ready(partition, generation.upto, me, crc),)))

    def _complain(self, partition: Partition, crcs: dict[Member, int]) -> None:
        made = ", ".join(f"node {member.node} {crc:08x}" for member, crc in crcs.items())
        if self._said.get(partition) != made:
            self._said[partition] = made
            name = self._node.metadata.image.by_id[partition[:TOPIC_ID_BYTES]].name
            where = f"{name}/{number_of(partition)}"
            self._node.log(
                f"{where}: copies made different things of the same compaction ({made}); nothing was "
                f"removed, and it is not compacted any further: `quorate doctor` says which copy to make anew, "
                f"where that can be told; please report this",
                level=ERROR,
            )

    # --- leaders ---

    async def _wish(self, topic: Topic, partition: Partition, clean: Clean) -> Generation | None:
        """What is worth wanting, if nothing is under way."""
        node, known = self._node, self._of(partition)
        upto = -1 if known.agreed is None else known.agreed.upto
        log = node.host.hosted[partition].replica.log
        expired = start_of(node, partition)
        if known.wanted is not None and known.wanted.start == log.base:
            return None
        if log.faulty or log.compacted != upto or (expired is not None and expired.entry != log.base):
            return None
        sealed = node.host.store.stretches(partition)[:-1]
        if clean.lag_ms:
            sealed = await self._with_times(partition, sealed, upto)
            if not node.is_settled_leader(partition):
                return None
        config = node.config
        last = chosen(
            sealed,
            agreed_upto=upto,
            settled=node.commit(partition),
            clean=clean,
            bytes_max=config.compaction_bytes,
            now_ms=wall_ms(),
        )
        if last is None:
            return None
        start: tuple[EntryId, int] = node.host.store.compactor.start(partition)
        size = int(topic.config.get(SEGMENT_BYTES, config.store.segment_bytes))
        return Generation(
            *start,
            last.last,
            last.checksum,
            known.deleted_upto(before_ms=wall_ms() - clean.delete_retention_ms),
            ends_of(sealed, last.last.offset, segment_bytes=size),
        )

    async def _with_times(self, partition: Partition, sealed: list[Stretch], upto: int) -> list[Stretch]:
        """Times from footers, where they are not in memory. What has none counts as old."""
        found = []
        for stretch in sealed:
            newest = stretch.newest
            if newest is None and stretch.last.offset > upto:
                newest = await read_newest(self._node, partition, stretch)
            if newest is not None and newest >= UNKNOWN_TIME:
                newest = 0
            found.append(msgspec.structs.replace(stretch, newest=newest))
        return found
