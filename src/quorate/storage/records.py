"""What the journal is made of: records, each with a checksum of its own, so that damage hurts one of them.

A record is a header of 24 bytes (magic 2 · type 1 · version 1 · length 4 · sequence 8 · ordinal 4 · crc 4) and a
body. Sequence and ordinal say which round it belongs to and where in it, so that records that are found
loose, doubled or in the wrong place still have exactly one place in history, and stale ones have none.

Entries and marks are packed by hand, because there are many of them; everything else is msgpack.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import msgspec
from crc32c import crc32c

from quorate.core.entry import FORMAT_VERSION, EntryId, Header, Partition
from quorate.storage.disk import Buffer
from quorate.storage.frame import FRAME_HEAD_BYTES, DamagedFrame, Frame, attach, parse_head

RECORD_MAGIC = b"Q\xa6"
_PREFIX = struct.Struct(">2sBBIQI")
_CRC = struct.Struct(">I")
_HEADER = struct.Struct(">2sBBIQII")
RECORD_HEADER_BYTES = _HEADER.size
PLACE = struct.Struct(">qqI")
"""Where an entry lies: segment, position in it; and how often the log had been cut by then."""
ENTRY_OVERHEAD = RECORD_HEADER_BYTES + PLACE.size
_ENTRY_HEADER = struct.Struct(">2sBBIQIqqI")
_MARKS = struct.Struct(">QQ")
_MARK = struct.Struct(">20sQqIqQqQI")
_COPY = struct.Struct(">QIB")
MARKS_BYTES = RECORD_HEADER_BYTES + _MARKS.size
MARK_BYTES = _MARK.size
COPY_BYTES = RECORD_HEADER_BYTES + _COPY.size
"""What marks as such, each single one, and a copy beside its content take in a round."""


Item = tuple[Frame, int, int, int, bool]
"""An entry with its place: frame, segment, position, cuts, and whether it went straight to its segment."""


class Type(IntEnum):
    META = 1
    CHECKPOINT = 2
    ENTRY = 3
    LARGE = 4
    CUT = 5
    STATE = 6
    BASE = 7
    CREATE = 8
    DELETE = 9
    MARKS = 10
    COPY = 11
    REPAIRED = 12


COPIED = (Type.CUT, Type.STATE, Type.BASE, Type.CREATE, Type.DELETE)
"""Records that nothing else implies: each is written again, with the next round and in the second place."""

# mypy and the loops below are both happier with plain numbers.
META, CHECKPOINT, ENTRY, LARGE = int(Type.META), int(Type.CHECKPOINT), int(Type.ENTRY), int(Type.LARGE)
CUT, STATE, BASE, CREATE = int(Type.CUT), int(Type.STATE), int(Type.BASE), int(Type.CREATE)
DELETE, MARKS, COPY, REPAIRED = int(Type.DELETE), int(Type.MARKS), int(Type.COPY), int(Type.REPAIRED)
ENTRIES = (ENTRY, LARGE, REPAIRED)
"""Records of entries. All but the first leave the payload to the segment."""


OPEN = -1


class Segment(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A file of a log: it starts at offset `base`, behind `before`. `size` is OPEN until it is sealed."""

    base: int
    before: EntryId
    before_checksum: int
    size: int = OPEN
    compacted: int = -1
    """Up to which offset the generation reaches that made this file; -1: entries are in it as they came."""


class Fault(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A faulty span with all that is needed to repair it in place, or to cut the log at either end of it."""

    before: EntryId
    before_checksum: int
    segment: int
    position: int
    last: EntryId
    last_checksum: int
    next_segment: int
    next_position: int

    def covers(self, offset: int) -> bool:
        return self.before.offset < offset <= self.last.offset


def with_fault(faulty: tuple[Fault, ...], fault: Fault) -> tuple[Fault, ...]:
    """Faults in the order of the log; overlapping ones become one."""
    kept = []
    first, last = fault, fault
    for other in faulty:
        if other.last.offset <= fault.before.offset or other.before.offset >= fault.last.offset:
            kept.append(other)
            continue
        # Of two that start or end alike the older one knows better: it was there when the log went on.
        first = other if other.before.offset <= first.before.offset else first
        last = other if other.last.offset >= last.last.offset else last
    merged = Fault(
        first.before,
        first.before_checksum,
        first.segment,
        first.position,
        last.last,
        last.last_checksum,
        last.next_segment,
        last.next_position,
    )
    return tuple(sorted((*kept, merged), key=lambda other: other.before.offset))


def behind_rewritten(faulty: tuple[Fault, ...], following: Segment) -> tuple[Fault, ...]:
    """Faults that are left where everything before a segment is in new files, which are whole."""
    rest = []
    for fault in faulty:
        if fault.last.offset < following.base:
            continue
        if fault.before.offset + 1 < following.base:
            before = following.before, following.before_checksum, following.base, 0
            fault = Fault(*before, fault.last, fault.last_checksum, fault.next_segment, fault.next_position)
        rest.append(fault)
    return tuple(rest)


class View(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A log at one moment: everything about it but its bytes."""

    base: EntryId
    base_checksum: int
    start: tuple[int, int]
    """(segment, position) of the first kept entry."""
    head: EntryId
    checksum: int
    segments: tuple[Segment, ...]
    end: int
    """Where the last segment ends."""
    epochs: tuple[tuple[int, int], ...]
    controls: tuple[Header, ...]
    faulty: tuple[Fault, ...]
    cuts: int


class Flushed(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Up to here a log's bytes were flushed in its segments when a generation began; the rest is carried."""

    id: EntryId
    checksum: int
    segment: int
    position: int


class Meta(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The start of a generation."""

    generation: int
    journal_bytes: int
    marks_bytes: int
    partitions: tuple[bytes, ...]


class Checkpoint(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Everything about one partition when a generation began."""

    partition: bytes
    view: View
    flushed: Flushed
    state: bytes
    state_number: int
    state_damaged: bool
    commit: int
    index: tuple[tuple[int, int, int], ...]
    deleted: bool = False


class Cut(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The log ends at `to`, and the next entry goes to `position` of `segment` (-1: to a new one)."""

    partition: bytes
    to: EntryId
    checksum: int
    segment: int
    position: int
    cuts: int


class State(msgspec.Struct, frozen=True, gc=False, array_like=True):
    partition: bytes
    number: int
    state: bytes


class Base(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A prefix was removed, a snapshot installed or the log compacted: the log as it is from then on."""

    partition: bytes
    view: View
    rewritten: int = -1
    """Everything up to this offset is in files that are new with it; -1: nothing is."""


class Create(msgspec.Struct, frozen=True, gc=False, array_like=True):
    partition: bytes
    state: bytes


class Delete(msgspec.Struct, frozen=True, gc=False, array_like=True):
    partition: bytes


class Mark(msgspec.Struct, frozen=True, gc=False):
    """What is known to be flushed of one partition."""

    partition: Partition
    head: EntryId
    checksum: int
    segment: int
    end: int
    commit: int
    state_number: int
    cuts: int


class Record(msgspec.Struct, frozen=True, gc=False):
    type: int
    sequence: int
    ordinal: int
    body: Buffer


_encode = msgspec.msgpack.Encoder().encode
_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    META: msgspec.msgpack.Decoder(Meta),
    CHECKPOINT: msgspec.msgpack.Decoder(Checkpoint),
    CUT: msgspec.msgpack.Decoder(Cut),
    STATE: msgspec.msgpack.Decoder(State),
    BASE: msgspec.msgpack.Decoder(Base),
    CREATE: msgspec.msgpack.Decoder(Create),
    DELETE: msgspec.msgpack.Decoder(Delete),
}


class DamagedRecord(Exception):
    """No intact record lies there."""


def encode_body(body: msgspec.Struct) -> bytes:
    return _encode(body)


def decode_body(record_type: int, body: Buffer) -> Any:
    """The Struct of a record whose checksum is right; raises DamagedRecord if it is none we know."""
    try:
        return _DECODERS[record_type].decode(body)
    except (KeyError, msgspec.MsgspecError) as error:
        raise DamagedRecord(f"a record of type {record_type} is unreadable: {error}") from error


def pack_record(record_type: int, sequence: int, ordinal: int, body: bytes) -> bytes:
    """One whole record."""
    prefix = _PREFIX.pack(RECORD_MAGIC, record_type, FORMAT_VERSION, len(body), sequence, ordinal)
    return b"".join((prefix, crc32c(body, crc32c(prefix)).to_bytes(4, "big"), body))


def pack_entry(into: list[Buffer], kind: int, sequence: int, ordinal: int, item: Item) -> None:
    """The record of an entry, as buffers. Its checksum binds that of the frame's header, which covers the rest."""
    frame, segment, position, cuts, large = item
    prefix = _ENTRY_HEADER.pack(
        RECORD_MAGIC,
        kind,
        FORMAT_VERSION,
        PLACE.size + FRAME_HEAD_BYTES + (0 if large else frame.header.size),
        sequence,
        ordinal,
        segment,
        position,
        cuts,
    )
    # Of a part, that is not its entry's checksum; those are only ever repaired.
    bound = frame.checksum if kind == ENTRY else int.from_bytes(frame.head[-4:], "big")
    crc = crc32c(prefix, bound).to_bytes(4, "big")
    into += (prefix[:20], crc, prefix[20:], frame.head)
    if not large:
        into.append(frame.payload)


def item_bytes(item: Item) -> int:
    """What an entry takes in a round."""
    return ENTRY_OVERHEAD + FRAME_HEAD_BYTES + (0 if item[4] else item[0].header.size)


def pack_marks(after: int, upto: int, marks: list[bytes]) -> bytes:
    """Every partition that rounds `after + 1 … upto` touched is named, as it was after `upto`."""
    return b"".join((_MARKS.pack(after, upto), *marks))


pack_mark = _MARK.pack
"""One line of marks: partition, epoch, offset, checksum, segment, end, commit, state number, cuts."""


def unpack_marks(body: Buffer) -> tuple[int, int, list[Mark]]:
    """(after, upto, marks)"""
    if len(body) < _MARKS.size or (len(body) - _MARKS.size) % _MARK.size:
        raise DamagedRecord(f"{len(body)} bytes cannot be marks")
    after, upto = _MARKS.unpack_from(body)
    marks = [
        Mark(Partition(partition), EntryId(epoch, offset), *rest)
        for partition, epoch, offset, *rest in _MARK.iter_unpack(body[_MARKS.size :])
    ]
    return after, upto, marks


def pack_copy(record: Record) -> bytes:
    """The body of a second copy of a record."""
    return _COPY.pack(record.sequence, record.ordinal, record.type) + bytes(record.body)


def unpack_copy(body: Buffer) -> Record:
    if len(body) < _COPY.size:
        raise DamagedRecord(f"{len(body)} bytes cannot be a copy of a record")
    sequence, ordinal, record_type = _COPY.unpack_from(body)
    return Record(record_type, sequence, ordinal, body[_COPY.size :])


def unpack_entry(record: Record, partition: Partition | None = None) -> tuple[Frame, int, int, int]:
    """(frame, segment, position, cuts). What is in its segment comes without its payload."""
    segment, position, cuts = PLACE.unpack_from(record.body)
    try:
        frame = parse_head(record.body, PLACE.size, partition)
        if len(record.body) > PLACE.size + FRAME_HEAD_BYTES:
            # A copy, so that an entry that is kept does not keep the whole journal in memory.
            frame = attach(frame, bytes(record.body[PLACE.size + FRAME_HEAD_BYTES :]))
    except DamagedFrame as error:
        raise DamagedRecord(str(error)) from error
    return frame, segment, position, cuts


def parse_record(buffer: memoryview, at: int) -> tuple[Record, int]:
    """The record at a position, verified, and the position behind it; raises DamagedRecord."""
    if len(buffer) - at < RECORD_HEADER_BYTES:
        raise DamagedRecord("too few bytes for a record")
    magic, record_type, version, length, sequence, ordinal, crc = _HEADER.unpack_from(buffer, at)
    start = at + RECORD_HEADER_BYTES
    if magic != RECORD_MAGIC or version != FORMAT_VERSION or length > len(buffer) - start:
        raise DamagedRecord("no record starts here")
    body = buffer[start : start + length]
    if record_type in ENTRIES:
        if length < PLACE.size + FRAME_HEAD_BYTES:
            raise DamagedRecord("too few bytes for an entry")
        checksum = _CRC.unpack_from(body, PLACE.size + FRAME_HEAD_BYTES - 4)[0]
        expected = crc32c(body[: PLACE.size], crc32c(buffer[at : at + 20], checksum))
    else:
        expected = crc32c(body, crc32c(buffer[at : at + 20]))
    if crc != expected:
        raise DamagedRecord("the record does not match its checksum")
    return Record(record_type, sequence, ordinal, body), start + length


def parse_all(buffer: memoryview) -> list[Record] | None:
    """The records of a body, one behind the other to its end; None if any is damaged."""
    records = []
    at = 0
    try:
        while at < len(buffer):
            record, at = parse_record(buffer, at)
            records.append(record)
    except DamagedRecord:
        return None
    return records


def salvage(content: bytes, start: int, end: int, *, after: int, upto: int) -> Iterator[Record]:
    """Every intact record in a stretch whose sequence is above `after` and not above `upto`."""
    view = memoryview(content)[:end]
    at = content.find(RECORD_MAGIC, start, end)
    while at >= 0 and end - at >= RECORD_HEADER_BYTES:
        following = at + 1
        # Most of what is found is stale: look at the sequence first.
        if after < _HEADER.unpack_from(content, at)[4] <= upto:
            try:
                record, following = parse_record(view, at)
                if record.type in ENTRIES:
                    unpack_entry(record)  # Its payload is not covered by the record's own checksum.
                yield record
            except DamagedRecord:
                pass
        at = content.find(RECORD_MAGIC, following, end)
