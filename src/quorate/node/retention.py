"""What is too old, or too much, goes: the leader decides where a log may start, and the image says so to everybody.

Each node looks, now and then, at the segments of the partitions that it leads and whose topic keeps less than
everything. A segment goes as a whole: when its newest record is too old (`retention.ms`), or when as much as is
to be kept lies above it (`retention.bytes`). So the place is always the last entry of a segment, and nothing is
read for it but footers. All partitions of a look are one command to the metadata group, in which a start only
rises; whoever follows the image lets its replica know (docs/decisions/016-retention-is-wanted-in-the-image.md).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from quorate.core.entry import TOPIC_ID_BYTES, Partition, number_of, partition_of
from quorate.machine.changing import Start
from quorate.machine.compactions import CLEANUP_POLICY, compacts
from quorate.machine.metadata import LetStart, Topic
from quorate.machine.purpose import TOPIC
from quorate.node.logs import WARNING
from quorate.node.metadata import NoMetadata, TooNew
from quorate.storage.frame import Frame
from quorate.storage.index import UNKNOWN_TIME
from quorate.storage.starting import Stretch

if TYPE_CHECKING:
    from quorate.node.node import Node

RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"
SEGMENT_BYTES = "segment.bytes"
SEGMENT_MS = "segment.ms"
DIRTY_RATIO = "min.cleanable.dirty.ratio"
LAG_MS = "min.compaction.lag.ms"
DELETE_RETENTION_MS = "delete.retention.ms"
OF_RECORDS = (
    RETENTION_MS,
    RETENTION_BYTES,
    SEGMENT_BYTES,
    SEGMENT_MS,
    CLEANUP_POLICY,
    DIRTY_RATIO,
    LAG_MS,
    DELETE_RETENTION_MS,
)
"""Settings that only records have: any other log is what its machine is made from."""

UNLIMITED = -1
SEGMENT_MS_DEFAULT = 7 * 24 * 3600 * 1000
READ_TIMEOUT_S = 30.0
STARTS_COUNT_MAX = 500
"""Of one command."""


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Keep(msgspec.Struct, frozen=True, gc=False):
    """How much of each partition of a topic is kept; UNLIMITED: everything."""

    ms: int = UNLIMITED
    bytes: int = UNLIMITED

    @property
    def is_everything(self) -> bool:
        return self.ms == self.bytes == UNLIMITED


def keep_of(topic: Topic) -> Keep:
    if topic.purpose != TOPIC or compacts(topic.config):
        return Keep()
    return Keep(
        int(topic.config.get(RETENTION_MS, UNLIMITED)), int(topic.config.get(RETENTION_BYTES, UNLIMITED))
    )


# ---- what may go ----


def may_go(stretches: Sequence[Stretch], keep: Keep, *, settled: int, now_ms: int) -> Stretch | None:
    """The newest of a log's segments, oldest first, that need not be kept; nor what is below it.

    The one that is still written to goes for its age only: as a whole, when nothing came for so long.
    """
    going = None
    left = sum(stretch.size for stretch in stretches)
    too_old, too_much = keep.ms != UNLIMITED, keep.bytes != UNLIMITED
    for place, stretch in enumerate(stretches):
        if stretch.last.offset > settled or not stretch.size:
            break
        left -= stretch.size
        too_old = too_old and stretch.newest is not None and stretch.newest < now_ms - keep.ms
        too_much = too_much and left >= keep.bytes and place + 1 < len(stretches)
        if not too_old and not too_much:
            break
        going = stretch
    return going


# ---- what the image says, here ----


def start_of(node: Node, partition: Partition) -> Start | None:
    if not node.config.voters:
        return None
    topic = node.metadata.image.by_id.get(partition[:TOPIC_ID_BYTES])
    return None if topic is None or not topic.starts else topic.starts.get(number_of(partition))


def start_log(node: Node, topic: Topic, number: int) -> None:
    """Let the replica here know what of its log need not be kept."""
    start = topic.starts.get(number)
    if start is not None:
        node.host.expire(time.monotonic(), partition_of(topic.id, number), start.entry, start.checksum)


async def start_before(node: Node, partition: Partition, offset: int) -> Start | None:
    """Where a log may start if readers are to see nothing below a settled offset, or behind the last: behind the
    entry before the one that holds it. None if that cannot be read."""
    is_end = offset > node.commit(partition)
    holding = offset - 1 if is_end else offset
    found: asyncio.Future[list[Frame]] = asyncio.get_running_loop().create_future()

    def done(frames: list[Frame]) -> None:
        if not found.done():
            found.set_result(frames)

    node.host.store.read(partition, holding, holding, 1, done)
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            frames = await found
    except TimeoutError:
        return None
    if not frames:
        return None
    frame = frames[0]
    if is_end and frame.header.last == holding:
        return Start(frame.header.id, frame.checksum, offset)
    return Start(frame.prev, frame.prev_checksum, offset)


def shape_log(node: Node, topic: Topic, partition: Partition) -> None:
    """Segments of the size that the topic wants. They end by time only where something goes by time."""
    if topic.purpose != TOPIC:
        return
    config = topic.config
    size = config.get(SEGMENT_BYTES)
    has_time = SEGMENT_MS in config or keep_of(topic).ms != UNLIMITED or compacts(config)
    node.host.store.shape(
        partition,
        segment_bytes=None if size is None else int(size),
        segment_ms=int(config.get(SEGMENT_MS, SEGMENT_MS_DEFAULT)) if has_time else None,
    )


async def read_newest(node: Node, partition: Partition, stretch: Stretch) -> int:
    """The newest timestamp of a segment, from its footer."""
    found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(newest: int) -> None:
        if not found.done():
            found.set_result(newest)

    node.host.store.newest_time(partition, stretch.segment, done)
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await found
    except TimeoutError:
        return UNKNOWN_TIME


class Retention:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._seen: dict[Partition, dict[Stretch, int]] = {}
        """Segments whose time nobody knows, and when each was first seen as it is: as if written then."""
        self._said = ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._node.config.retention_every_s)
            if self._node.is_over:
                return
            try:
                await self.look()
                self._said = ""
            except (NoMetadata, TooNew) as error:
                if str(error) != self._said:
                    self._said = str(error)
                    self._node.log(f"what is too old stays for now: {error}", level=WARNING)

    async def look(self) -> None:
        """Say what may go of the partitions that are led here, and remind replicas of what they still have."""
        self._remind()
        wanted = []
        seen: dict[Partition, dict[Stretch, int]] = {}
        for topic in tuple(self._node.metadata.image.topics.values()):
            keep = keep_of(topic)
            if keep.is_everything:
                continue
            for partition in topic.partitions():
                if self._node.is_settled_leader(partition):
                    start = await self._place(partition, keep, seen)
                    if start is not None:
                        wanted.append((partition, start))
        self._seen = seen
        for first in range(0, len(wanted), STARTS_COUNT_MAX):
            await self._node.metadata.command(LetStart(tuple(wanted[first : first + STARTS_COUNT_MAX])))

    def _remind(self) -> None:
        """A disk that was full, or damage, may have been in the way."""
        self._node.begin_turn()
        for topic in self._node.metadata.image.topics.values():
            for number in topic.starts:
                if self._node.holds(partition_of(topic.id, number)):
                    start_log(self._node, topic, number)
        self._node.end_turn()

    async def _place(
        self, partition: Partition, keep: Keep, seen: dict[Partition, dict[Stretch, int]]
    ) -> Start | None:
        """Where the log may start, if that is further on than it may already."""
        now_ms = wall_ms()
        stretches = self._node.host.store.stretches(partition)
        if keep.ms != UNLIMITED:
            known = self._seen.get(partition, {})
            for place, stretch in enumerate(stretches):
                newest = stretch.newest
                if newest is None:
                    newest = await read_newest(self._node, partition, stretch)
                if not 0 <= newest < UNKNOWN_TIME:
                    newest = seen.setdefault(partition, {})[stretch] = known.get(stretch, now_ms)
                stretches[place] = msgspec.structs.replace(stretch, newest=newest)
                if newest >= now_ms - keep.ms:
                    break
        if not self._node.is_settled_leader(partition):  # While footers were read, that may have ended.
            return None
        going = may_go(stretches, keep, settled=self._node.commit(partition), now_ms=now_ms)
        before = start_of(self._node, partition)
        if self._compacts_yet(partition):
            return None
        if going is None or (before is not None and before.entry.offset >= going.last.offset):
            return None
        return Start(going.last, going.checksum, going.last.offset + 1)

    def _compacts_yet(self, partition: Partition) -> bool:
        """Where a topic was compacted, files end alike only when that is done: a start must be known to all."""
        topic = self._node.metadata.image.by_id.get(partition[:TOPIC_ID_BYTES])
        known = None if topic is None else topic.compactions.get(number_of(partition))
        agreed = None if known is None else known.agreed
        log = self._node.host.hosted[partition].replica.log
        return agreed is not None and bool(log.compacted < agreed.upto)
