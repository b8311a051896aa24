"""Fetch: settled entries out of the log, as they lie there; a fetch that finds nothing waits for more.

Partitions are read one after the other, in the order of the request, until it has as many bytes as it may. The
first batch that is found is sent even if it is larger: otherwise a consumer would never get past it. A batch
is sent whole; clients skip what lies before the offset they asked for.

Only a leader answers, and only what is settled. A waiting fetch is woken when one of its partitions settles
more, and when it has another leader, which it says at once. That an offset is out of range says only a leader that
has made sure that it still leads.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from kio.schema.errors import ErrorCode

from quorate.batch import BATCH_MIN, encode_blank, parse_batch_header
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import TOPIC_ID_BYTES, Partition, partition_of
from quorate.core.events import ReadLevel
from quorate.host import Hosted
from quorate.kafka.call import Call
from quorate.kafka.leader_epochs import NO_EPOCH, end_of_epoch
from quorate.kafka.stable import aborted_between, stable_end
from quorate.storage.frame import Frame
from quorate.wire.cursor import BadMessage, Buffer
from quorate.wire.fetch import (
    FIRST_EPOCH,
    NO_ERROR,
    NO_OFFSET,
    NO_SESSION,
    READ_COMMITTED,
    TOPIC_IDS_FROM,
    FetchedPartition,
    FetchedTopic,
    WantedPartition,
    WantedTopic,
    encode_response,
)

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

FETCH_BYTES_MAX = 64 << 20
"""For one answer, whatever the client would take."""
PARTITION_BYTES_MAX = 16 << 20
WAIT_MS_MAX = 5 * 60_000
READ_TIMEOUT_S = 30.0
"""A read of the disk that has not come back by then is not waited for."""
BLANKS_READ_MAX = 64
"""Reads that find nothing but blanks, as in compacted segments of which nothing is left, before that is an answer:
librdkafka takes such answers for batches that are too large, and says so after a few."""
REPEATED_COUNT_MAX = 100
"""Of partitions in a fetch without a session; in a larger one each must be another, or whatever is written to the
one that is named a hundred thousand times is looked for as often."""
NO_PARTITION = Partition(bytes(20))
"""Of a topic or number that is not known here."""


class Part(msgspec.Struct, eq=False, gc=False):
    """One partition of a fetch, and what was found there."""

    wanted: WantedPartition
    error: int
    partition: Partition
    diverging: tuple[int, int] | None = None
    batches: list[Buffer] = []
    batches_bytes: int = 0
    log_start: int = NO_OFFSET
    is_doubted: bool = False
    """A client knows of more than there is here: whether another leads by now is being asked."""
    is_sure: bool = False
    """None does: what is not here is nowhere."""


def _is_blank(frame: Frame) -> bool:
    """It takes offsets, and holds no record."""
    return len(frame.payload) == BATCH_MIN


class Fetching:
    """One request, from when it came to when it is answered."""

    __slots__ = (
        "_broker",
        "_bytes_count",
        "_bytes_max",
        "_bytes_min",
        "_call",
        "_expired",
        "_in_loop",
        "_is_committed",
        "_is_over",
        "_is_waiting",
        "_node",
        "_parts",
        "_reading",
        "_session",
        "_tells_all",
        "_timer",
        "_to_read",
        "_topics",
    )

    def __init__(self, broker: Broker, call: Call) -> None:
        self._broker = broker
        self._node = node = broker.node
        self._call = call
        node.metrics.fetch_requests += 1
        head, door = call.head, call.door
        request = door.fetch_requests.parse(call.frame, head.body_at, head.version)
        error, self._session = door.sessions.asked(request)
        if error:
            call.answer(*encode_response(head.version, head.correlation, [], error))
            return
        asked = request.topics if self._session is None else self._session.topics()
        self._is_committed = request.isolation == READ_COMMITTED
        self._tells_all = self._session is None or request.session_epoch == FIRST_EPOCH
        self._bytes_max = min(request.bytes_max, FETCH_BYTES_MAX)
        self._bytes_min = min(request.bytes_min, self._bytes_max)
        self._bytes_count = 0
        self._parts: list[Part] = []
        self._topics = self._find_parts(asked)
        if len(self._parts) > REPEATED_COUNT_MAX and self._session is None:
            self._refuse_repeated()
        self._to_read = self._parts[::-1]
        self._reading: Part | None = None
        self._in_loop = False
        self._is_waiting = False
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._expired = request.wait_ms <= 0 or not self._parts
        self._read()
        if not self._is_over:
            call.abandon = self._end
            delay_s = READ_TIMEOUT_S if self._expired else min(request.wait_ms, WAIT_MS_MAX) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _find_parts(self, wanted_topics: list[WantedTopic]) -> list[tuple[WantedTopic, list[Part]]]:
        image = self._node.metadata.image
        by_id = self._call.head.version >= TOPIC_IDS_FROM
        topics = []
        for asked in wanted_topics:
            topic = image.by_id.get(asked.id) if by_id else image.topics.get(asked.name)
            parts = []
            for wanted in asked.partitions:
                if topic is not None and 0 <= wanted.number < len(topic.ensembles):
                    part = Part(wanted, NO_ERROR, partition_of(topic.id, wanted.number))
                elif topic is None and by_id:
                    part = Part(wanted, ErrorCode.unknown_topic_id, NO_PARTITION)
                else:
                    part = Part(wanted, ErrorCode.unknown_topic_or_partition, NO_PARTITION)
                parts.append(part)
            topics.append((asked, parts))
            self._parts += parts
        return topics

    def _refuse_repeated(self) -> None:
        known = [part.partition for part in self._parts if part.partition is not NO_PARTITION]
        if len(set(known)) < len(known):
            raise BadMessage(f"{len(known)} partitions, and some of them more than once")

    # --- reading ---

    def _read(self) -> None:
        """The partitions that wait to be read, one after the other. A read from memory comes back at once."""
        if self._in_loop:
            return
        self._in_loop = True
        while self._to_read and self._reading is None:
            self._read_part(self._to_read.pop())
        self._in_loop = False
        if self._reading is None:
            self._decide()

    def _read_part(self, part: Part) -> None:
        if part.partition is NO_PARTITION:
            return
        if part.batches:
            self._bytes_count -= part.batches_bytes
            part.batches, part.batches_bytes = [], 0
        hosted = self._node.host.hosted.get(part.partition)
        part.error = self._judge(part, hosted)
        if part.error or part.diverging:
            return
        assert hosted is not None
        if part.wanted.offset > hosted.replica.log.head.offset + 1:
            part.is_doubted, self._reading = True, part
            asyncio.get_running_loop().call_soon(self._broker.in_turn, partial(self._doubt, part))
            return
        end = stable_end(hosted) if self._is_committed else hosted.commit + 1
        if part.wanted.offset >= end:
            return
        room = min(part.wanted.bytes_max, PARTITION_BYTES_MAX, self._bytes_max - self._bytes_count)
        if room <= 0 and self._bytes_count:
            return
        self._reading = part
        got = partial(self._got, part, room, ())
        self._node.fetch(part.partition, part.wanted.offset, max(room, 1), got)

    def _judge(self, part: Part, hosted: Hosted | None) -> int:
        node, wanted, partition = self._node, part.wanted, part.partition
        if hosted is None or not node.is_leader(partition):
            deleted = node.metadata.image.is_deleted(partition[:TOPIC_ID_BYTES])
            return ErrorCode.unknown_topic_or_partition if deleted else ErrorCode.not_leader_or_follower
        if wanted.leader_epoch >= 0:
            error = self._broker.judge_epoch(partition, wanted.leader_epoch)
            if error:
                return error
        part.log_start = node.log_base(partition) + 1
        is_above = part.is_sure and wanted.offset > hosted.replica.log.head.offset + 1
        if wanted.offset < part.log_start or is_above:
            return ErrorCode.offset_out_of_range
        if wanted.last_epoch >= 0:
            epoch, end = end_of_epoch(node, partition, wanted.last_epoch)
            if epoch == NO_EPOCH:
                return (
                    ErrorCode.unknown_leader_epoch
                )  # It was told so by another leader, who is ahead of this one.
            part.diverging = (epoch, end) if epoch < wanted.last_epoch or end < wanted.offset else None
        return NO_ERROR

    def _doubt(self, part: Part) -> None:
        """One that was cut off may not know that another leads, who has told this client more than is here. To say
        that this is out of range would send the client back to the beginning, or on to the end."""
        if self._is_over:
            return
        if part.partition in self._node.host.hosted:
            self._node.read(part.partition, ReadLevel.LINEARIZABLE, partial(self._when_sure, part))
        else:
            self._go_on(part, Outcome.NOT_LEADER)

    def _when_sure(self, part: Part, reply: Reply) -> None:
        """In the middle of the node's work."""
        go_on = partial(self._go_on, part, reply.outcome)
        asyncio.get_running_loop().call_soon(self._broker.in_turn, go_on)

    def _go_on(self, part: Part, outcome: Outcome) -> None:
        if self._is_over:
            return
        self._reading, part.is_doubted = None, False
        if outcome is Outcome.SETTLED:
            part.is_sure = True
            self._to_read.append(part)
        else:
            part.error = ErrorCode.not_leader_or_follower
        self._read()

    def _got(self, part: Part, room: int, blanks: tuple[Frame, ...], frames: list[Frame], _: int) -> None:
        """`blanks`: the last one of each read before, which found nothing else."""
        if self._is_over:
            return
        position = part.wanted.offset
        hosted = self._node.host.hosted.get(part.partition)
        if self._is_committed:
            # A transaction begins with a batch: none is half stable.
            end = 0 if hosted is None else stable_end(hosted)
            frames = [frame for frame in frames if frame.header.last < end]
        if blanks and not frames:
            frames = [blanks[-1]]
        elif frames and hosted is not None and len(blanks) < BLANKS_READ_MAX and all(map(_is_blank, frames)):
            got = partial(self._got, part, room, (*blanks, frames[-1]))
            self._node.fetch(part.partition, frames[-1].header.last + 1, max(room, 1), got)
            return
        self._reading = None
        for is_later, frame in enumerate(frames):
            size = len(frame.payload)
            if (self._bytes_count or is_later) and part.batches_bytes + size > room:
                break
            if frame.header.offset > position:
                # Void entries are left out. That they are is said, so that nobody has to take a hole for it.
                part.batches.append(encode_blank(first=position, last=frame.header.offset - 1))
                part.batches_bytes += BATCH_MIN
            part.batches.append(frame.payload)
            part.batches_bytes += size
            position = frame.header.last + 1
        self._bytes_count += part.batches_bytes
        self._read()

    # --- waiting ---

    def _decide(self) -> None:
        """Everything is read: enough, or wait for more?"""
        enough = self._expired or self._bytes_count >= self._bytes_min
        if enough or any(part.error or part.diverging for part in self._parts):
            self._answer()
        elif not self._is_waiting:
            self._is_waiting = True
            for part in self._parts:
                self._broker.wait(part.partition, self)

    def woken(self, partition: Partition) -> None:
        """It has settled more, or has another leader: read it again."""
        waiting = any(part.partition == partition for part in self._to_read)
        if not waiting:
            self._to_read[:0] = [part for part in reversed(self._parts) if part.partition == partition]
        self._read()

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        if self._reading is None:
            self._broker.in_turn(self._answer)
        elif not self._expired and not self._reading.is_doubted:
            self._expired = True  # Answered when the read is done.
            self._timer = loop.call_later(READ_TIMEOUT_S, self._expire)
        else:
            is_doubted = self._reading.is_doubted
            error = ErrorCode.not_leader_or_follower if is_doubted else ErrorCode.kafka_storage_error
            self._reading.error = error
            self._broker.in_turn(self._answer)

    # --- the answer ---

    def _answer(self) -> None:
        self._end()
        topics, session = [], self._session
        for asked, parts in self._topics:
            fetched = list(map(self._fetched, parts))
            news = fetched if session is None else session.news(asked.name, asked.id, fetched)
            if self._tells_all or news:
                topics.append(FetchedTopic(asked.name, asked.id, fetched if self._tells_all else news))
        head = self._call.head
        number = NO_SESSION if session is None else session.number
        buffers, answer_bytes = encode_response(head.version, head.correlation, topics, session=number)
        self._call.answer(buffers, answer_bytes)

    def _fetched(self, part: Part) -> FetchedPartition:
        node = self._node
        hosted = node.host.hosted.get(part.partition)
        if hosted is None and not part.error:
            part.error = ErrorCode.unknown_topic_or_partition  # Deleted meanwhile.
        if hosted is None or part.error:
            node.metrics.error("fetch", ErrorCode(part.error).name)
            return FetchedPartition(part.wanted.number, part.error)
        if part.batches:
            node.metrics.fetch_batches += len(part.batches)
            node.metrics.fetch_bytes += part.batches_bytes
        return FetchedPartition(
            part.wanted.number,
            NO_ERROR,
            hosted.commit + 1,
            part.log_start,
            part.batches,
            part.batches_bytes,
            part.diverging,
            stable_end(hosted),
            self._aborted(part) if self._is_committed and part.batches else (),
        )

    def _aborted(self, part: Part) -> list[tuple[int, int]]:
        """What of the batches found was aborted, for readers that want to know."""
        header = parse_batch_header(part.batches[-1])
        end = header.base_offset + header.offsets_count
        return aborted_between(self._node, part.partition, first=part.wanted.offset, end=end)

    def _end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._is_waiting:
            for part in self._parts:
                self._broker.forget(part.partition, self)
