"""Fetch by hand, in both directions: record batches are handed through as views, never copied.

Request, and from which version on: replica (until 14), wait, least and greatest bytes, isolation; session id and
epoch (7); topics: name, or id (13); partitions: number, leader epoch (9), offset, last fetched epoch (12), log
start (5), greatest bytes; forgotten topics (7); rack (11). Response: throttle time; error, session id (7);
topics; partitions: number, error, high watermark, last stable offset, log start (5), aborted transactions,
preferred replica (11), records; where the consumer's epoch ended, if that is below its offset (12). Versions
from 12 are flexible.

A client that has a session (7) names only what is new or other than before, and what it wants no more; it hears
only of partitions with something to say (kafka/sessions.py).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from quorate.batch import BATCH_MIN, LENGTH_EXCLUDES
from quorate.wire.cursor import REQUEST_ELEMENTS_MAX, BadMessage, Buffer, Cursor
from quorate.wire.messages import FLEXIBLE_FROM, SIZE_BYTES, Api, is_flexible
from quorate.wire.writing import NO_TAGS, array, request_head, sealed, string, uvarint

NO_ERROR = 0
"""As ErrorCode.none, without asking the enumeration on every fetch."""
NO_EPOCH = -1
NO_OFFSET = -1
CONSUMER = -1
NO_REPLICA = -1
"""No other one is preferred."""
NO_SESSION = 0
FIRST_EPOCH = 0
"""Of a session that is to begin."""
LAST_EPOCH = -1
"""No session is wanted; one that is there may end."""
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
NO_TOPIC_ID = bytes(16)
TOPIC_IDS_FROM = 13
_FLEXIBLE_FROM = FLEXIBLE_FROM[Api.FETCH]

NAMED_BYTES_MAX = 1 << 10
"""Of what a request names, to be remembered until the next one of its connection."""

_OLDEST_HEAD = struct.Struct(">4xiiib")
_OLDER_HEAD = struct.Struct(">4xiiibii")
_HEAD = struct.Struct(">iiibii")
"""What a request begins with: its numbers. Until 14 that of a replica comes first."""
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_ANSWER = struct.Struct(">i5xhi")
"""How a flexible answer begins behind its size: correlation, no tagged fields or throttle time, error, session."""
_OLDER_ANSWER = struct.Struct(">i4x")
_OLDER_SESSION = struct.Struct(">hi")
_PARTITION = struct.Struct(">ihqq")
_PLAIN = struct.Struct(">ihqqq")
_NONE_ABORTED = b"\x01" + _I32.pack(NO_REPLICA)
"""How a flexible one goes on of which nothing is aborted; no other replica is preferred."""
_NOTHING = _NONE_ABORTED + b"\x01" + NO_TAGS
"""How it ends where nothing was found."""
_ABORTED = struct.Struct(">qq")
_BATCH_LENGTH_AT = 8
_DIVERGING = struct.Struct(">bbbiqb")
"""One tagged field, number 0, its size, and a structure without tagged fields of its own."""


class WantedPartition(msgspec.Struct, frozen=True, gc=False):
    number: int
    offset: int
    bytes_max: int
    leader_epoch: int = NO_EPOCH
    last_epoch: int = NO_EPOCH
    """Of the record before the offset, as the client has read it."""


class WantedTopic(msgspec.Struct, frozen=True, gc=False):
    """By name below version 13, by id from there on."""

    name: str
    id: bytes
    partitions: list[WantedPartition]


class FetchRequest(msgspec.Struct, frozen=True, gc=False):
    wait_ms: int
    bytes_min: int
    bytes_max: int
    topics: list[WantedTopic]
    isolation: int = READ_UNCOMMITTED
    session: int = NO_SESSION
    session_epoch: int = LAST_EPOCH
    forgotten: Sequence[tuple[str, bytes, list[int]]] = ()
    """Topics, by name or id, and their partitions that the session is to be without."""


Named = tuple[list[WantedTopic], list[tuple[str, bytes, list[int]]]]
"""What a request names: wanted and forgotten."""


class FetchedPartition(msgspec.Struct, frozen=True, gc=False):
    """What is there from the offset on. `batches` are whole record batches, `batches_bytes` their sum."""

    number: int
    error: int
    high_watermark: int = NO_OFFSET
    log_start: int = NO_OFFSET
    batches: Sequence[Buffer] = ()
    batches_bytes: int = 0
    diverging: tuple[int, int] | None = None
    """An epoch up to the one that the client knows, and where it ended: what the client has read from there on is
    not what is here."""
    last_stable: int = NO_OFFSET
    """One behind what readers of committed records see."""
    aborted: Sequence[tuple[int, int]] = ()
    """(producer id, first offset) of aborted transactions among the batches, for readers of committed records."""


class FetchedTopic(msgspec.Struct, frozen=True, gc=False):
    name: str
    id: bytes
    partitions: list[FetchedPartition]


# ---- the broker's side ----


def parse_request(frame: Buffer, at: int, version: int) -> FetchRequest:
    """The body that starts at `at`; raises BadMessage. Bytes behind it are ignored, as Kafka does."""
    return Requests().parse(frame, at, version)


class Requests:
    """Those of one connection: what one names is mostly what the one before named, and is not read again then."""

    __slots__ = ("_named", "_named_as", "_version")

    def __init__(self) -> None:
        self._version = -1
        self._named_as = b""
        """The bytes that said so."""
        self._named: Named = [], []

    def parse(self, frame: Buffer, at: int, version: int) -> FetchRequest:
        """As `parse_request`."""
        head = _HEAD if version > 14 else _OLDER_HEAD if version >= 7 else _OLDEST_HEAD
        named_at = at + head.size
        named_bytes = len(frame) - named_at
        if named_bytes < 0:
            raise BadMessage(f"the message ends at byte {len(frame)}, inside a field")
        if named_bytes > NAMED_BYTES_MAX:
            topics, forgotten = _parse_named(frame, named_at, version)
        else:
            named = frame[named_at:]
            if version != self._version or named != self._named_as:
                self._named = _parse_named(frame, named_at, version)
                self._named_as = bytes(named)
                self._version = version
            topics, forgotten = self._named
        if version < 7:
            wait_ms, bytes_min, bytes_max, isolation = head.unpack_from(frame, at)
            return FetchRequest(wait_ms, bytes_min, bytes_max, topics, isolation, forgotten=forgotten)
        wait_ms, bytes_min, bytes_max, isolation, session, epoch = head.unpack_from(frame, at)
        return FetchRequest(wait_ms, bytes_min, bytes_max, topics, isolation, session, epoch, forgotten)


def _parse_named(frame: Buffer, at: int, version: int) -> Named:
    cursor = Cursor(frame, at, elements_max=REQUEST_ELEMENTS_MAX)
    flexible = is_flexible(Api.FETCH, version)
    topics = []
    for _ in range(_count(cursor, flexible)):
        name, topic_id = _topic(cursor, version, flexible)
        partitions = [_wanted(cursor, version) for _ in range(_count(cursor, flexible))]
        if flexible:
            cursor.skip_tags()
        topics.append(WantedTopic(name, topic_id, partitions))
    forgotten = []
    if version >= 7:
        for _ in range(_count(cursor, flexible)):
            name, topic_id = _topic(cursor, version, flexible)
            forgotten.append((name, topic_id, [cursor.i32() for _ in range(_count(cursor, flexible))]))
            if flexible:
                cursor.skip_tags()
    if version >= 11 and cursor.string(flexible=flexible) is None:
        raise BadMessage("the rack is null")
    if flexible:
        cursor.skip_tags()
    return topics, forgotten


def encode_response(
    version: int,
    correlation: int,
    topics: Sequence[FetchedTopic],
    error: int = NO_ERROR,
    *,
    session: int = NO_SESSION,
) -> tuple[list[Buffer], int]:
    """The response as buffers to be sent one after the other, its size included, and how long they are."""
    flexible = version >= _FLEXIBLE_FROM
    buffers: list[Buffer] = []
    size = 0
    if flexible:
        out = [_ANSWER.pack(correlation, error, session), uvarint(len(topics) + 1)]
    else:
        out = [_OLDER_ANSWER.pack(correlation)]
        if version >= 7:
            out.append(_OLDER_SESSION.pack(error, session))
        out.append(_I32.pack(len(topics)))
    for topic in topics:
        out.append(topic.id if version >= TOPIC_IDS_FROM else string(topic.name, flexible=flexible))
        count = len(topic.partitions)
        out.append(uvarint(count + 1) if flexible else _I32.pack(count))
        for fetched in topic.partitions:
            if flexible and not (fetched.batches or fetched.aborted or fetched.diverging):
                out += (_plain(fetched), _NOTHING)
                continue
            out.append(_fetched_head(fetched, version, flexible))
            if fetched.batches:
                head = b"".join(out)
                buffers.append(head)
                buffers += fetched.batches
                size += len(head) + fetched.batches_bytes
                out = []
            if flexible:
                out.append(NO_TAGS if fetched.diverging is None else _diverging(*fetched.diverging))
        if flexible:
            out.append(NO_TAGS)
    if flexible:
        out.append(NO_TAGS)
    if out:
        head = b"".join(out)
        buffers.append(head)
        size += len(head)
    buffers[0] = _I32.pack(size) + buffers[0]
    return buffers, SIZE_BYTES + size


def _fetched_head(fetched: FetchedPartition, version: int, flexible: bool) -> bytes:
    if flexible and not fetched.aborted:
        return _plain(fetched) + _NONE_ABORTED + uvarint(fetched.batches_bytes + 1)
    parts = [_PARTITION.pack(fetched.number, fetched.error, fetched.high_watermark, fetched.last_stable)]
    if version >= 5:
        parts.append(_I64.pack(fetched.log_start))
    parts.append(array(len(fetched.aborted), flexible=flexible))
    for producer_id, first in fetched.aborted:
        parts.append(_ABORTED.pack(producer_id, first))
        if flexible:
            parts.append(NO_TAGS)
    if version >= 11:
        parts.append(_I32.pack(NO_REPLICA))
    parts.append(array(fetched.batches_bytes, flexible=flexible))
    return b"".join(parts)


def _plain(fetched: FetchedPartition) -> bytes:
    return _PLAIN.pack(
        fetched.number, fetched.error, fetched.high_watermark, fetched.last_stable, fetched.log_start
    )


def _diverging(epoch: int, end: int) -> bytes:
    return _DIVERGING.pack(1, 0, _DIVERGING.size - 3, epoch, end, 0)


def _wanted(cursor: Cursor, version: int) -> WantedPartition:
    number = cursor.i32()
    leader_epoch = cursor.i32() if version >= 9 else NO_EPOCH
    offset = cursor.i64()
    last_epoch = cursor.i32() if version >= 12 else NO_EPOCH
    if version >= 5:
        cursor.skip(8)  # Log start is what followers say.
    bytes_max = cursor.i32()
    if version >= 12:
        cursor.skip_tags()
    return WantedPartition(number, offset, bytes_max, leader_epoch, last_epoch)


# ---- the client's side ----


def encode_request(version: int, correlation: int, client_id: str | None, request: FetchRequest) -> bytearray:
    flexible = is_flexible(Api.FETCH, version)
    out = request_head(Api.FETCH, version, correlation, client_id, flexible=flexible)
    if version <= 14:
        out += _I32.pack(CONSUMER)
    out += struct.pack(">iiib", request.wait_ms, request.bytes_min, request.bytes_max, request.isolation)
    if version >= 7:
        out += struct.pack(">ii", request.session, request.session_epoch)
    out += array(len(request.topics), flexible=flexible)
    for topic in request.topics:
        out += topic.id if version >= TOPIC_IDS_FROM else string(topic.name, flexible=flexible)
        out += array(len(topic.partitions), flexible=flexible)
        for wanted in topic.partitions:
            out += _I32.pack(wanted.number)
            if version >= 9:
                out += _I32.pack(wanted.leader_epoch)
            out += _I64.pack(wanted.offset)
            if version >= 12:
                out += _I32.pack(wanted.last_epoch)
            if version >= 5:
                out += _I64.pack(NO_OFFSET)
            out += _I32.pack(wanted.bytes_max)
            if flexible:
                out += NO_TAGS
        if flexible:
            out += NO_TAGS
    if version >= 7:
        out += array(len(request.forgotten), flexible=flexible)
        for name, topic_id, numbers in request.forgotten:
            out += topic_id if version >= TOPIC_IDS_FROM else string(name, flexible=flexible)
            out += array(len(numbers), flexible=flexible)
            out += b"".join(map(_I32.pack, numbers))
            if flexible:
                out += NO_TAGS
    if version >= 11:
        out += string("", flexible=flexible)
    if flexible:
        out += NO_TAGS
    return sealed(out)


def parse_response(frame: Buffer, version: int) -> tuple[int, int, list[FetchedTopic]]:
    """Correlation, error and topics of a response without its size; raises BadMessage.

    Batches are views of the frame. A batch that is cut off at the end, as brokers may send, is left out.
    """
    flexible = is_flexible(Api.FETCH, version)
    cursor = Cursor(frame)
    correlation = cursor.i32()
    if flexible:
        cursor.skip_tags()
    cursor.skip(4)
    error = 0
    if version >= 7:
        error = cursor.i16()
        cursor.skip(4)
    topics = []
    for _ in range(_count(cursor, flexible)):
        name, topic_id = _topic(cursor, version, flexible)
        partitions = [_parse_fetched(cursor, version, flexible) for _ in range(_count(cursor, flexible))]
        if flexible:
            cursor.skip_tags()
        topics.append(FetchedTopic(name, topic_id, partitions))
    if flexible:
        cursor.skip_tags()
    cursor.finish()
    return correlation, error, topics


def split_batches(records: memoryview) -> list[memoryview]:
    """The whole batches that lie one behind the other in a response's records; raises BadMessage."""
    batches = []
    at, end = 0, len(records)
    while end - at >= BATCH_MIN:
        length: int = _I32.unpack_from(records, at + _BATCH_LENGTH_AT)[0]
        size = length + LENGTH_EXCLUDES
        if size < BATCH_MIN:
            raise BadMessage(f"a record batch of {size} bytes is too short")
        if size > end - at:
            break
        batches.append(records[at : at + size])
        at += size
    return batches


def _parse_fetched(cursor: Cursor, version: int, flexible: bool) -> FetchedPartition:
    number, error, high_watermark = cursor.i32(), cursor.i16(), cursor.i64()
    last_stable = cursor.i64()
    log_start = cursor.i64() if version >= 5 else NO_OFFSET
    aborted = []
    for _ in range(cursor.array(flexible=flexible) or 0):
        aborted.append((cursor.i64(), cursor.i64()))
        if flexible:
            cursor.skip_tags()
    if version >= 11:
        cursor.skip(4)
    records = cursor.records(flexible=flexible)
    if flexible:
        cursor.skip_tags()
    batches = split_batches(records) if records is not None else []
    size = sum(map(len, batches))
    return FetchedPartition(
        number, error, high_watermark, log_start, batches, size, None, last_stable, aborted
    )


# ---- both ----


def _topic(cursor: Cursor, version: int, flexible: bool) -> tuple[str, bytes]:
    if version >= TOPIC_IDS_FROM:
        return "", cursor.uuid()
    name = cursor.string(flexible=flexible)
    if name is None:
        raise BadMessage("a topic without a name")
    return name, NO_TOPIC_ID


def _count(cursor: Cursor, flexible: bool) -> int:
    count = cursor.array(flexible=flexible)
    if count is None:
        raise BadMessage("a list of topics or partitions is null")
    return count
