"""ListOffsets: where a partition begins and ends, and which record is the first at or after a time.

Whoever asks for an end hears of everything that was acknowledged before, to anybody: the leader makes sure that
it still leads before it answers (a linearizable read; core/raft/reading.py).

A time is looked for from the start of the log, in bounded steps: batch headers say when a batch's last record
is, and only the batch that holds the record is opened. That reads the log up to there; the index of times that
would spare it comes with the index beside the segments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.errors import ErrorCode

from quorate import batch
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Partition
from quorate.core.events import ReadLevel
from quorate.kafka.call import Call
from quorate.kafka.fetch import READ_TIMEOUT_S
from quorate.kafka.stable import stable_end
from quorate.storage.frame import Frame
from quorate.wire.cursor import Buffer
from quorate.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED
from quorate.wire.messages import decode_request
from quorate.wire.opening import TooLarge, opened

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

LATEST = -1
EARLIEST = -2
GREATEST_TIME = -3
GREATEST_TIME_FROM = 7
"""The version that knows it."""
OFFSET_NOT_AVAILABLE_FROM = 5
NOWHERE = -1
NO_TIME = -1
STEP_BYTES = 4 << 20
CURRENT_TIMEOUT_S = 5.0
"""A leader that cannot reach a majority by then is none, or not for long."""

Place = tuple[int, int]
"""A record's time and offset."""


def handle(broker: Broker, call: Call) -> None:
    request = decode_request(call.frame).body
    call.door.run(Listing(broker, call).run(request))


class Asked(NamedTuple):
    """A partition that a client named, and whether what it asks for is sure only after a majority was heard."""

    error: int
    partition: Partition
    epoch: int
    needs_current: bool


class Listing:
    def __init__(self, broker: Broker, call: Call) -> None:
        self._broker = broker
        self._call = call
        self._is_committed = False

    async def run(self, request: Any) -> None:
        self._is_committed = getattr(request, "isolation_level", READ_UNCOMMITTED) == READ_COMMITTED
        found = {
            (place, number): self._find(topic.name, wanted)
            for place, topic in enumerate(request.topics)  # A topic may be named twice.
            for number, wanted in enumerate(topic.partitions)
        }
        to_be_current = {each.partition for each in found.values() if each.needs_current}
        errors = await self._not_current(to_be_current)
        topics = []
        for place, topic in enumerate(request.topics):
            partitions = []
            for number, wanted in enumerate(topic.partitions):
                asked = found[place, number]
                error = asked.error or (errors[asked.partition] if asked.needs_current else ErrorCode.none)
                partitions.append(await self._answer(asked._replace(error=error), wanted))
            topics.append({"name": topic.name, "partitions": partitions})
        values = {"throttle_time": timedelta(0), "topics": topics}
        self._broker.in_turn(lambda: self._call.answer_with(values))

    def _find(self, name: str, wanted: Any) -> Asked:
        topic = self._broker.node.metadata.image.topics.get(name)
        error, partition = self._broker.find(topic, wanted.partition_index)
        if not error:
            error = self._broker.judge_epoch(partition, getattr(wanted, "current_leader_epoch", -1))
        # Asked before anything is awaited: the partition may be deleted while its log is read.
        epoch = -1 if error else self._broker.node.leader_of(partition)[1] & batch.LEADER_EPOCH_MASK
        return Asked(error, partition, epoch, not error and wanted.timestamp != EARLIEST)

    async def _answer(self, asked: Asked, wanted: Any) -> dict[str, Any]:
        error, place = asked.error, (NO_TIME, NOWHERE)
        if not error and not self._broker.node.holds(asked.partition):
            error = ErrorCode.not_leader_or_follower
        if not error:
            try:
                error, place = await self._place(asked.partition, wanted.timestamp)
            except TimeoutError:
                error = ErrorCode.kafka_storage_error
        return {
            "partition_index": wanted.partition_index,
            "error_code": ErrorCode(error),
            "timestamp": place[0],
            "offset": place[1],
            "leader_epoch": asked.epoch if not error and place[1] != NOWHERE else -1,
        }

    async def _not_current(self, partitions: set[Partition]) -> dict[Partition, int]:
        """For each no error, once it is sure that everything acknowledged so far is known here."""
        loop, node = asyncio.get_running_loop(), self._broker.node
        errors: dict[Partition, int] = dict.fromkeys(partitions, self._not_available())
        missing = loop.create_future()
        waiting = set()

        def got(partition: Partition, reply: Reply) -> None:
            waiting.discard(partition)
            if reply.outcome is Outcome.SETTLED:
                errors[partition] = ErrorCode.none
            elif reply.outcome is Outcome.NOT_LEADER:
                errors[partition] = ErrorCode.not_leader_or_follower
            if not waiting and not missing.done():
                missing.set_result(None)

        def ask() -> None:
            # A new leader may not know yet how much its predecessor has settled. It must not name an end.
            waiting.update(filter(node.is_settled_leader, sorted(partitions)))
            for partition in sorted(waiting):
                node.read(partition, ReadLevel.LINEARIZABLE, partial(got, partition))

        self._broker.in_turn(ask)
        if waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout(CURRENT_TIMEOUT_S):
                    await missing
        return errors

    def _not_available(self) -> int:
        """Retriable, in the words of this version."""
        if self._call.head.version >= OFFSET_NOT_AVAILABLE_FROM:
            return ErrorCode.offset_not_available
        return ErrorCode.leader_not_available

    async def _place(self, partition: Partition, time_ms: int) -> tuple[int, Place]:
        node = self._broker.node
        if time_ms == EARLIEST:
            return ErrorCode.none, (NO_TIME, node.log_base(partition) + 1)
        if time_ms == LATEST:
            return ErrorCode.none, (NO_TIME, self._end_of(partition))
        if time_ms == GREATEST_TIME and self._call.head.version >= GREATEST_TIME_FROM:
            async with self._broker.looking:
                return ErrorCode.none, await self._greatest(partition)
        if time_ms < 0:
            return ErrorCode.unsupported_version, (NO_TIME, NOWHERE)
        async with self._broker.looking:
            return ErrorCode.none, await self._first_at(partition, time_ms)

    def _end_of(self, partition: Partition) -> int:
        """The first offset that whoever asks does not see."""
        hosted = self._broker.node.host.hosted[partition]
        return stable_end(hosted) if self._is_committed else hosted.commit + 1

    async def _first_at(self, partition: Partition, time_ms: int) -> Place:
        async for header, payload in self._batches(partition):
            if header.max_timestamp >= time_ms:
                found = await self._first_in(payload, time_ms)
                if found is not None:
                    return found
        return (NO_TIME, NOWHERE)

    async def _greatest(self, partition: Partition) -> Place:
        """The first record with the greatest time."""
        greatest, payload_of = NO_TIME, None
        async for header, payload in self._batches(partition):
            if header.max_timestamp > greatest:
                greatest, payload_of = header.max_timestamp, payload
        if payload_of is None:
            return (NO_TIME, NOWHERE)
        return await self._first_in(payload_of, greatest) or (NO_TIME, NOWHERE)

    async def _first_in(self, payload: Buffer, time_ms: int) -> Place | None:
        """In a thread, as a batch may hold millions of records; and few at once, as they take memory."""
        async with self._broker.opening:
            return await asyncio.to_thread(first_record_at, payload, time_ms)

    async def _batches(self, partition: Partition) -> AsyncIterator[tuple[batch.BatchHeader, Buffer]]:
        """All that clients have written and is settled, in order."""
        node = self._broker.node
        if not node.holds(partition):
            return
        at, end = node.log_base(partition) + 1, self._end_of(partition)
        while at < end:
            frames = await self._frames(partition, at)
            for frame in frames:
                header = batch.parse_batch_header(frame.payload)
                if not header.is_control and frame.header.last < end:
                    yield header, frame.payload
            if not frames:
                return  # Deleted meanwhile, or damaged and being repaired.
            at = frames[-1].header.last + 1

    async def _frames(self, partition: Partition, offset: int) -> list[Frame]:
        found: asyncio.Future[list[Frame]] = asyncio.get_running_loop().create_future()

        def got(frames: list[Frame], _: int) -> None:
            if not found.done():
                found.set_result(frames)

        def ask() -> None:
            if self._broker.node.holds(partition):
                self._broker.node.fetch(partition, offset, STEP_BYTES, got)
            else:
                got([], 0)

        self._broker.in_turn(ask)
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await found


def first_record_at(payload: Buffer, time_ms: int) -> Place | None:
    """The first record of a batch that is at or after a time. Opens the batch, compressed or not.

    Few nodes are ever asked for it, and aiokafka takes long to import: it is, in a thread, when somebody asks.
    """
    from aiokafka.errors import KafkaError
    from aiokafka.record.default_records import DefaultRecordBatch

    try:
        for record in DefaultRecordBatch(bytes(opened(payload))):
            if record.timestamp is not None and record.timestamp >= time_ms:
                return record.timestamp, record.offset
    except TooLarge:
        # Its start: whoever reads from there misses nothing.
        header = batch.parse_batch_header(payload)
        return header.max_timestamp, header.base_offset
    except (batch.BadBatch, KafkaError, ValueError, OverflowError):
        # Its checksum holds, so this is what a client wrote: nobody can read it, and no time is in it.
        return None
    return None
