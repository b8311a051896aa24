"""Fetch: settled entries out of the log, as they lie there; a fetch that finds nothing waits for more.

Partitions are read one after the other, in the order of the request, until it has as many bytes as it may. The
first batch that is found is sent even if it is larger: otherwise a consumer would never get past it. A batch
is sent whole; clients skip what lies before the offset they asked for.

Only a leader answers, and only what is settled. A waiting fetch is woken when one of its partitions settles
more, and when it has another leader, which it says at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from quorate.batch import BATCH_MIN, encode_blank, parse_batch_header
from quorate.core.entry import TOPIC_ID_BYTES, Partition
from quorate.kafka.call import Call
from quorate.kafka.leader_epochs import end_of_epoch
from quorate.kafka.stable import aborted_between, stable_end
from quorate.storage.frame import Frame
from quorate.wire.cursor import Buffer
from quorate.wire.fetch import (
    FIRST_EPOCH,
    LAST_EPOCH,
    NO_OFFSET,
    NO_SESSION,
    READ_COMMITTED,
    TOPIC_IDS_FROM,
    FetchedPartition,
    FetchedTopic,
    WantedPartition,
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


def handle(broker: Broker, call: Call) -> None:
    Fetching(broker, call)


class Part:
    """One partition of a fetch, and what was found there."""

    __slots__ = ("batches", "batches_bytes", "diverging", "error", "log_start", "partition", "wanted")

    def __init__(self, wanted: WantedPartition, error: int, partition: Partition) -> None:
        self.wanted = wanted
        self.error = error
        self.partition = partition
        self.diverging: tuple[int, int] | None = None
        self.batches: list[Buffer] = []
        self.batches_bytes = 0
        self.log_start = NO_OFFSET


class Fetching:
    """One request, from when it came to when it is answered."""

    def __init__(self, broker: Broker, call: Call) -> None:
        self._broker = broker
        self._call = call
        broker.node.metrics.fetch_requests += 1
        request = call.door.fetch_requests.parse(call.frame, call.head.body_at, call.head.version)
        error, self._session = call.door.sessions.asked(request)
        if error:
            call.answer(*encode_response(call.head.version, call.head.correlation, [], error))
            return
        self._asked = request.topics if self._session is None else self._session.topics()
        self._is_committed = request.isolation == READ_COMMITTED
        self._tells_all = request.session_epoch in (FIRST_EPOCH, LAST_EPOCH)
        self._bytes_max = min(request.bytes_max, FETCH_BYTES_MAX)
        self._bytes_min = min(request.bytes_min, self._bytes_max)
        self._bytes_count = 0
        self._parts: list[Part] = []
        self._topics = self._find_parts()
        self._to_read = deque([part for part in self._parts if not part.error])
        self._reading: Part | None = None
        self._in_loop = False
        self._is_waiting = False
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        wait_ms = min(request.wait_ms, WAIT_MS_MAX)
        self._expired = wait_ms <= 0 or not self._parts
        call.abandon = self._end
        self._read()
        if not self._is_over:
            delay_s = READ_TIMEOUT_S if self._expired else wait_ms / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _find_parts(self) -> list[list[Part]]:
        broker = self._broker
        image = broker.node.metadata.image
        by_id = self._call.head.version >= TOPIC_IDS_FROM
        topics = []
        for asked in self._asked:
            topic = image.by_id.get(asked.id) if by_id else image.topics.get(asked.name)
            parts = []
            for wanted in asked.partitions:
                error, partition = broker.find(topic, wanted.number)
                if topic is None and by_id:
                    error = ErrorCode.unknown_topic_id
                parts.append(Part(wanted, error, partition))
            topics.append(parts)
            self._parts += parts
        return topics

    # --- reading ---

    def _read(self) -> None:
        """The partitions that wait to be read, one after the other. A read from memory comes back at once."""
        if self._in_loop:
            return
        self._in_loop = True
        while self._to_read and self._reading is None:
            self._read_part(self._to_read.popleft())
        self._in_loop = False
        if self._reading is None:
            self._decide()

    def _read_part(self, part: Part) -> None:
        if part.batches:
            self._bytes_count -= part.batches_bytes
            part.batches, part.batches_bytes = [], 0
        part.error = self._judge(part)
        if part.error or part.diverging or part.wanted.offset >= self._end_of(part.partition):
            return
        room = min(part.wanted.bytes_max, PARTITION_BYTES_MAX, self._bytes_max - self._bytes_count)
        if room <= 0 and self._bytes_count:
            return
        self._reading = part
        got = partial(self._got, part, room)
        self._broker.node.fetch(part.partition, part.wanted.offset, max(room, 1), got)

    def _end_of(self, partition: Partition) -> int:
        """The first offset that this reader does not see yet."""
        node = self._broker.node
        return stable_end(node, partition) if self._is_committed else node.commit(partition) + 1

    def _judge(self, part: Part) -> int:
        node = self._broker.node
        wanted, partition = part.wanted, part.partition
        if not node.is_leader(partition):
            deleted = node.metadata.image.is_deleted(partition[:TOPIC_ID_BYTES])
            return ErrorCode.unknown_topic_or_partition if deleted else ErrorCode.not_leader_or_follower
        if wanted.leader_epoch >= 0:
            error = self._broker.judge_epoch(partition, wanted.leader_epoch)
            if error:
                return error
        part.log_start = node.log_base(partition) + 1
        if not part.log_start <= wanted.offset <= node.head(partition) + 1:
            return ErrorCode.offset_out_of_range
        if wanted.last_epoch >= 0:
            epoch, end = end_of_epoch(node, partition, wanted.last_epoch)
            part.diverging = (epoch, end) if epoch < wanted.last_epoch or end < wanted.offset else None
        return ErrorCode.none

    def _got(self, part: Part, room: int, frames: list[Frame], _: int) -> None:
        if self._is_over:
            return
        self._reading = None
        position = part.wanted.offset
        if self._is_committed:
            # A transaction begins with a batch: none is half stable.
            end = self._end_of(part.partition) if self._broker.node.holds(part.partition) else 0
            frames = [frame for frame in frames if frame.header.last < end]
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
            self._to_read.extend(part for part in self._parts if part.partition == partition)
        self._read()

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        if self._reading is None:
            self._broker.in_turn(self._answer)
        elif not self._expired:
            self._expired = True  # Answered when the read is done.
            self._timer = loop.call_later(READ_TIMEOUT_S, self._expire)
        else:
            self._reading.error = ErrorCode.kafka_storage_error
            self._broker.in_turn(self._answer)

    # --- the answer ---

    def _answer(self) -> None:
        self._end()
        topics, session = [], self._session
        for asked, parts in zip(self._asked, self._topics, strict=True):
            fetched = [self._fetched(part) for part in parts]
            news = fetched if session is None else session.news(asked.name, asked.id, fetched)
            if self._tells_all or news:
                topics.append(FetchedTopic(asked.name, asked.id, fetched if self._tells_all else news))
        head = self._call.head
        number = NO_SESSION if session is None else session.number
        self._call.answer(*encode_response(head.version, head.correlation, topics, session=number))

    def _fetched(self, part: Part) -> FetchedPartition:
        node, partition = self._broker.node, part.partition
        if not part.error and not node.holds(partition):
            part.error = ErrorCode.unknown_topic_or_partition  # Deleted meanwhile.
        metrics = node.metrics
        if part.error:
            metrics.error("fetch", ErrorCode(part.error).name)
            return FetchedPartition(part.wanted.number, part.error)
        metrics.fetch_batches += len(part.batches)
        metrics.fetch_bytes += part.batches_bytes
        return FetchedPartition(
            part.wanted.number,
            ErrorCode.none,
            node.commit(partition) + 1,
            part.log_start,
            part.batches,
            part.batches_bytes,
            part.diverging,
            stable_end(node, partition),
            self._aborted(part) if self._is_committed and part.batches else (),
        )

    def _aborted(self, part: Part) -> list[tuple[int, int]]:
        """What of the batches found was aborted, for readers that want to know."""
        header = parse_batch_header(part.batches[-1])
        end = header.base_offset + header.offsets_count
        return aborted_between(self._broker.node, part.partition, first=part.wanted.offset, end=end)

    def _end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._is_waiting:
            for part in self._parts:
                self._broker.forget(part.partition, self)
