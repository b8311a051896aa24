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
from typing import NamedTuple

from quorate.wire.cursor import REQUEST_ELEMENTS_MAX, BadMessage, Buffer, Cursor
from quorate.wire.messages import Api, is_flexible
from quorate.wire.writing import NO_TAGS, array, sealed, string

ACKS_ALL = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1

_ACKS = struct.Struct(">hi")
_PARTITION = struct.Struct(">ihq")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


class ProducedPartition(NamedTuple):
    number: int
    records: memoryview | None


class ProducedTopic(NamedTuple):
    name: str
    partitions: list[ProducedPartition]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProducedTopic]


class PartitionAnswer(NamedTuple):
    """What became of one partition's batch."""

    number: int
    error: int
    offset: int = NO_OFFSET
    log_start: int = NO_OFFSET
    message: str | None = None
    append_time: int = NO_TIMESTAMP
    """Of the records, where the log gives them one."""


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


def _count(cursor: Cursor, flexible: bool) -> int:
    count = cursor.array(flexible=flexible)
    if count is None:
        raise BadMessage("a list of topics or partitions is null")
    return count
