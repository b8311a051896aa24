"""Produce by hand: the requests as a broker reads them, the responses as it writes them.

A request's record batches are views of the bytes that were received, never copies: writable where those are, so
that a log can fill in base offset and epoch where the batch lies.

Request, and from which version on: transactional id (3), acks, timeout; topics: name; partitions: number,
records. Response: topics: name; partitions: number, error, base offset, log append time (2), log start offset
(5), record errors and error message (8); throttle time (1). Versions from 9 are flexible. From 13 on topics
have ids in place of names; that is not served.
"""

from __future__ import annotations

import struct
from functools import lru_cache

import msgspec

from quorate.wire.cursor import REQUEST_ELEMENTS_MAX, BadMessage, Buffer, Cursor
from quorate.wire.messages import FLEXIBLE_FROM, Api, is_flexible
from quorate.wire.writing import NO_TAGS, array, sealed, string

ACKS_ALL = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1
FRONT_BYTES_MAX = 1 << 10
"""Of a request, in front of its only partition's number: kept by every connection that writes."""
FRONTS_COUNT_MAX = 10_000
"""Of responses, by topic."""

_ACKS = struct.Struct(">hi")
_PARTITION = struct.Struct(">ihq")
_NUMBER_AND_LENGTH = struct.Struct(">ii")
_ONLY = struct.Struct(">ihqqq")
_HEAD = struct.Struct(">ii")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


class ProducedPartition(msgspec.Struct, gc=False):
    number: int
    records: memoryview | None


class ProducedTopic(msgspec.Struct, gc=False):
    name: str
    partitions: list[ProducedPartition]


class ProduceRequest(msgspec.Struct, gc=False):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProducedTopic]


class PartitionAnswer(msgspec.Struct, frozen=True, gc=False):
    """What became of one partition's batch."""

    number: int
    error: int
    offset: int = NO_OFFSET
    log_start: int = NO_OFFSET
    message: str | None = None
    append_time: int = NO_TIMESTAMP
    """Of the records, where the log gives them one."""


class Requests:
    """Those of one connection: most are of one batch, for the topic that the one before was for.

    All that lies in front of the partition's number is compared with what it was then, and not read again.
    """

    __slots__ = ("_front", "_request", "_topic", "_version")

    def __init__(self) -> None:
        self._version = -1
        self._front = b""
        self._topic = ""
        self._request = ProduceRequest(None, 0, 0, [])

    def parse(self, frame: Buffer, at: int, version: int) -> ProduceRequest:
        """As `parse_request`."""
        end = at + len(self._front)
        if version == self._version and frame[at:end] == self._front:
            partition = _only_partition(frame, end, version)
            if partition is not None:
                request = self._request
                topics = [ProducedTopic(self._topic, [partition])]
                return ProduceRequest(request.transactional_id, request.acks, request.timeout_ms, topics)
        request = parse_request(frame, at, version)
        if len(request.topics) == 1 and len(request.topics[0].partitions) == 1:
            self._remember(frame, at, version, request)
        return request

    def _remember(self, frame: Buffer, at: int, version: int, request: ProduceRequest) -> None:
        """What this one begins with, written anew; a client that writes it in more bytes is read each time."""
        topic = request.topics[0].name
        flexible = is_flexible(Api.PRODUCE, version)
        front = string(request.transactional_id, flexible=flexible) if version >= 3 else b""
        front += _ACKS.pack(request.acks, request.timeout_ms)
        front += array(1, flexible=flexible) + string(topic, flexible=flexible) + array(1, flexible=flexible)
        if len(front) <= FRONT_BYTES_MAX and frame[at : at + len(front)] == front:
            self._version, self._front, self._topic = version, bytes(front), topic
            self._request = ProduceRequest(request.transactional_id, request.acks, request.timeout_ms, [])


def _only_partition(frame: Buffer, at: int, version: int) -> ProducedPartition | None:
    """What is behind the front, where that is a batch as it should be; None: read all of it with care."""
    if version >= FLEXIBLE_FROM[Api.PRODUCE]:
        cursor = Cursor(frame, at, elements_max=REQUEST_ELEMENTS_MAX)
        partition = ProducedPartition(cursor.i32(), cursor.records(flexible=True))
        for _ in range(3):  # Of the partition, of its topic, and of the request.
            cursor.skip_tags()
        return partition
    start = at + _NUMBER_AND_LENGTH.size
    if start > len(frame):
        return None
    number, length = _NUMBER_AND_LENGTH.unpack_from(frame, at)
    end = start + length
    if length < 0 or end > len(frame):
        return None
    return ProducedPartition(number, memoryview(frame)[start:end])


def parse_request(frame: Buffer, at: int, version: int) -> ProduceRequest:
    """The body that starts at `at`; raises BadMessage. Bytes behind it are ignored, as Kafka does."""
    flexible = is_flexible(Api.PRODUCE, version)
    cursor = Cursor(frame, at, elements_max=REQUEST_ELEMENTS_MAX)
    transactional_id = cursor.string(flexible=flexible) if version >= 3 else None
    acks, timeout_ms = cursor.numbers(_ACKS)
    topics = []
    for _ in range(_count(cursor, flexible)):
        name = cursor.string(flexible=flexible)
        if name is None:
            raise BadMessage("a topic without a name")
        partitions = []
        for _ in range(_count(cursor, flexible)):
            partitions.append(ProducedPartition(cursor.i32(), cursor.records(flexible=flexible)))
            if flexible:
                cursor.skip_tags()
        if flexible:
            cursor.skip_tags()
        topics.append(ProducedTopic(name, partitions))
    if flexible:
        cursor.skip_tags()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def encode_response(
    version: int, correlation: int, topics: list[tuple[str, list[PartitionAnswer]]]
) -> bytearray:
    """The whole response, its size included."""
    if version >= 5 and len(topics) == 1 and len(topics[0][1]) == 1 and topics[0][1][0].message is None:
        return _only_response(version, correlation, *topics[0])
    flexible = is_flexible(Api.PRODUCE, version)
    out = bytearray(4)
    out += _I32.pack(correlation)
    if flexible:
        out += NO_TAGS
    out += array(len(topics), flexible=flexible)
    for name, answers in topics:
        out += string(name, flexible=flexible)
        out += array(len(answers), flexible=flexible)
        for answer in answers:
            out += _PARTITION.pack(answer.number, answer.error, answer.offset)
            if version >= 2:
                out += _I64.pack(answer.append_time)
            if version >= 5:
                out += _I64.pack(answer.log_start)
            if version >= 8:
                out += array(0, flexible=flexible)
                out += string(answer.message, flexible=flexible)
            if flexible:
                out += NO_TAGS
        if flexible:
            out += NO_TAGS
    if version >= 1:
        out += bytes(4)  # throttle time
    if flexible:
        out += NO_TAGS
    return sealed(out)


def _only_response(version: int, correlation: int, name: str, answers: list[PartitionAnswer]) -> bytearray:
    """For one batch, with nothing to say in words: what nearly all responses are, in one piece."""
    front, back = _around(version, name)
    answer = answers[0]
    out = bytearray(_HEAD.pack(_HEAD.size - 4 + len(front) + _ONLY.size + len(back), correlation))
    out += front
    out += _ONLY.pack(answer.number, answer.error, answer.offset, answer.append_time, answer.log_start)
    out += back
    return out


@lru_cache(FRONTS_COUNT_MAX)
def _around(version: int, name: str) -> tuple[bytes, bytes]:
    """What is in front of and behind one partition's numbers in a response."""
    flexible = is_flexible(Api.PRODUCE, version)
    tags = NO_TAGS if flexible else b""
    one = array(1, flexible=flexible)
    front = tags + one + string(name, flexible=flexible) + one
    words = array(0, flexible=flexible) + string(None, flexible=flexible) if version >= 8 else b""
    return front, words + tags + tags + bytes(4) + tags


def _count(cursor: Cursor, flexible: bool) -> int:
    count = cursor.array(flexible=flexible)
    if count is None:
        raise BadMessage("a list of topics or partitions is null")
    return count
