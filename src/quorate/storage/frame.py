"""Frames: how an entry lies on a disk and travels between nodes, the same bytes on every replica.

A frame is a header of 80 bytes and the payload, a Kafka record batch:

    magic 4 · version 1 · kind 1 · flags 2 · partition 20 · epoch 8 · offset 8 · count 4 · length 4 ·
    payload crc 4 · previous epoch 8 · previous offset 8 · previous checksum 4 · header crc 4

The header's CRC-32C is the entry's *checksum*. It covers the payload's CRC, the entry's identity and the
predecessor's checksum, so that each entry vouches for the whole log below it (rule 1): a stale, misplaced
or doubled frame does not fit.

The payload's CRC is the batch's own. What that one leaves out, the batch's first 21 bytes, follows from the
frame's header and is compared with it.

In compacted files there are *parts*, too: frames of another magic that stand for one entry, or for a run of them,
of which only some records are left, or none. A part says the same as a frame, in the same 80 bytes, but where that
repeats the offset of its predecessor it has the checksum that its last entry had, and how many entries it is of:

    … payload crc 4 · previous epoch 8 · last checksum 4 · entries 4 · previous checksum 4 · header crc 4

So the chain goes through it (docs/decisions/020-compaction-keeps-the-chain.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
from crc32c import crc32c

from quorate.batch import (
    BATCH_MIN,
    CONTROL,
    HEAD_BYTES,
    LEADER_EPOCH_MASK,
    LENGTH_EXCLUDES,
    MAGIC,
    TRANSACTIONAL,
    BadBatch,
    decode_control,
    encode_control,
    stamp,
)
from quorate.core.entry import FORMAT_VERSION, Control, EntryId, Flag, Header, Kind, Partition
from quorate.storage.disk import Buffer

FRAME_MAGIC = b"QfrA"
PART_MAGIC = b"QfrC"
ANY_MAGIC = b"Qfr"
"""What both begin with."""
FRAME_HEAD_BYTES = 80
FRAME_PAYLOAD_MAX = 32 * 1024 * 1024
"""No entry is larger; a length above it is damage, whatever the checksums say."""

CONTROL_TYPE = 0x5155
"""The Kafka control record type of our own records: far from Kafka's, which count up from 0."""

_HEAD_FIELDS = "4sBBH20sQqIIIQqI"
_BATCH_FIELDS = "qiibIhi"  # the batch's header up to its last offset delta
_HEAD = struct.Struct(">" + _HEAD_FIELDS + "I")
_HEAD_WITHOUT_CRC = struct.Struct(">" + _HEAD_FIELDS)
_PART_WITHOUT_CRC = struct.Struct(">4sBBH20sQqIIIQIII")
_PART_CHECKSUM = struct.Struct(">II")
_PART_CHECKSUM_AT = 64
_BATCH = struct.Struct(">" + _BATCH_FIELDS)
_CHECKED_BYTES = _HEAD_WITHOUT_CRC.size
assert _HEAD.size == FRAME_HEAD_BYTES

_encode_control_value = msgspec.msgpack.Encoder().encode
_decode_control_value: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


class DamagedFrame(Exception):
    """No intact frame (of the expected partition) lies there."""

    def __init__(self, where: str, at: int, why: str) -> None:
        super().__init__(f"{where or 'frame'} at byte {at}: {why}")
        self.where = where
        self.at = at
        self.why = why


class Frame(msgspec.Struct, frozen=True, gc=False):
    """An entry with its bytes. `payload` may be a view of the buffer that it was parsed from."""

    header: Header
    head: bytes
    payload: Buffer
    prev: EntryId
    prev_checksum: int
    checksum: int

    @property
    def partition(self) -> Partition:
        return Partition(self.head[8:28])

    @property
    def is_part(self) -> bool:
        """Not the entry as it was written, but what compaction has left of it, or of a run of entries."""
        return self.head[:4] == PART_MAGIC

    @property
    def entries_count(self) -> int:
        """How many entries it stands for."""
        return int(_PART_CHECKSUM.unpack_from(self.head, _PART_CHECKSUM_AT)[1]) if self.is_part else 1

    @property
    def size(self) -> int:
        """Bytes on the disk and on the wire: the header says it, even where the payload is elsewhere."""
        return FRAME_HEAD_BYTES + self.header.size

    def __str__(self) -> str:
        return f"{self.header} after {self.prev}"


def _is_own(attributes: int) -> bool:
    """A control record of a protocol. The ends of transactions are control batches, too, and entries of records."""
    return attributes & (CONTROL | TRANSACTIONAL) == CONTROL


def build(partition: Partition, header: Header, payload: Buffer, prev: EntryId, prev_checksum: int) -> Frame:
    """The frame of a stamped payload behind `prev`. Its header was made from that very payload.

    The core does not know the size and CRC of control entries: those are filled in here.
    """
    size = len(payload)
    if header.kind == Kind.CONTROL and not header.size:
        header = _sized(header, payload)
    epoch, offset = header.epoch, header.offset
    assert size == header.size
    assert BATCH_MIN <= size <= FRAME_PAYLOAD_MAX
    base_offset, length, leader_epoch, magic, crc, attributes, last_delta = _BATCH.unpack_from(payload)
    assert base_offset == offset
    assert length == size - LENGTH_EXCLUDES
    assert leader_epoch == epoch & LEADER_EPOCH_MASK
    assert magic == MAGIC
    assert crc == header.crc
    assert _is_own(attributes) == (header.kind == Kind.CONTROL)
    assert last_delta + 1 == header.count
    assert prev.offset + 1 == offset
    assert prev.epoch <= epoch
    checked = _HEAD_WITHOUT_CRC.pack(
        FRAME_MAGIC,
        FORMAT_VERSION,
        header.kind,
        header.flags,
        partition,
        epoch,
        offset,
        header.count,
        size,
        crc,
        prev.epoch,
        prev.offset,
        prev_checksum,
    )
    checksum = crc32c(checked)
    return Frame(header, checked + checksum.to_bytes(4, "big"), payload, prev, prev_checksum, checksum)


def build_part(
    first: Frame, last: Frame, payload: Buffer, *, entries_count: int = 1, flags: int = 0
) -> Frame:
    """What stands for a run of entries of one epoch: a batch that covers the same offsets, with what is left."""
    epoch, offset = first.header.epoch, first.header.offset
    count, size, crc = last.header.last - offset + 1, len(payload), _BATCH.unpack_from(payload)[4]
    flags |= Flag.COMPACTED
    assert epoch == last.header.epoch
    checked = _PART_WITHOUT_CRC.pack(
        PART_MAGIC,
        FORMAT_VERSION,
        Kind.RECORDS,
        flags,
        first.partition,
        epoch,
        offset,
        count,
        size,
        crc,
        first.prev.epoch,
        last.checksum,
        entries_count,
        first.prev_checksum,
    )
    head = checked + crc32c(checked).to_bytes(4, "big")
    header = Header(epoch, offset, count, size, Kind.RECORDS, flags, crc)
    return Frame(header, head, payload, first.prev, first.prev_checksum, last.checksum)


def _sized(header: Header, payload: Buffer) -> Header:
    assert header.crc == 0
    crc = _BATCH.unpack_from(payload)[4]
    return Header(
        header.epoch,
        header.offset,
        header.count,
        len(payload),
        header.kind,
        header.flags,
        crc,
        header.control,
    )


def parse(
    buffer: Buffer, at: int = 0, partition: Partition | None = None, *, where: str = ""
) -> tuple[Frame, int]:
    """The frame at a position, wholly verified, and the position behind it.

    Its payload is a view of the buffer, which must not change while the frame lives.
    """
    frame = parse_head(buffer, at, partition, where=where)
    start = at + FRAME_HEAD_BYTES
    end = start + frame.header.size
    view = memoryview(buffer)
    if end > len(view):
        raise DamagedFrame(where, at, f"{frame.header.size} bytes of payload, {len(view) - start} are left")
    return attach(frame, view[start:end], at, where=where), end


def parse_head(buffer: Buffer, at: int = 0, partition: Partition | None = None, *, where: str = "") -> Frame:
    """The frame whose header lies at a position and whose payload is elsewhere: see `attach`."""
    head = bytes(buffer[at : at + FRAME_HEAD_BYTES])
    if len(head) < FRAME_HEAD_BYTES:
        raise DamagedFrame(where, at, f"{len(head)} bytes are too few for a frame")
    (
        magic,
        version,
        kind,
        flags,
        owner,
        epoch,
        offset,
        count,
        size,
        crc,
        prev_epoch,
        prev_offset,
        prev_checksum,
        checksum,
    ) = _HEAD.unpack(head)
    if magic == PART_MAGIC:
        prev_offset, own_checksum = offset - 1, _PART_CHECKSUM.unpack_from(head, _PART_CHECKSUM_AT)[0]
    elif magic == FRAME_MAGIC:
        own_checksum = checksum
    else:
        raise DamagedFrame(where, at, "no frame starts here")
    if crc32c(head[:_CHECKED_BYTES]) != checksum:
        raise DamagedFrame(where, at, "the frame's header does not match its checksum")
    if version != FORMAT_VERSION:
        raise DamagedFrame(where, at, f"frame format {version} is unknown to this version of quorate")
    if partition is not None and owner != partition:
        raise DamagedFrame(where, at, f"the frame is of partition {owner.hex()}, not {partition.hex()}")
    if kind > Kind.CONTROL or count == 0:
        raise DamagedFrame(where, at, f"an entry of kind {kind} with {count} offsets is unknown here")
    if not BATCH_MIN <= size <= FRAME_PAYLOAD_MAX:
        raise DamagedFrame(where, at, f"a payload of {size} bytes is out of bounds")
    if prev_offset + 1 != offset or prev_epoch > epoch:
        raise DamagedFrame(where, at, f"{prev_epoch}-{prev_offset} cannot precede {epoch}-{offset}")
    return Frame(
        Header(epoch, offset, count, size, kind, flags, crc),
        head,
        b"",
        EntryId(prev_epoch, prev_offset),
        prev_checksum,
        own_checksum,
    )


def frames_in(content: bytes) -> Iterator[tuple[int, int]]:
    """(position, length) of every whole frame, wherever it lies."""
    at = content.find(ANY_MAGIC)
    while at >= 0:
        try:
            _, end = parse(content, at)
            yield at, end - at
        except DamagedFrame:
            end = at + 1
        at = content.find(ANY_MAGIC, end)


def attach(frame: Frame, payload: Buffer, at: int = 0, *, where: str = "") -> Frame:
    """A parsed header with its payload, if it is the payload that the header speaks of."""
    header = frame.header
    if len(payload) != header.size:
        raise DamagedFrame(where, at, f"the payload has {len(payload)} bytes, not {header.size}")
    base_offset, length, leader_epoch, magic, crc, attributes, last_delta = _BATCH.unpack_from(payload)
    if (
        base_offset != header.offset
        or length != header.size - LENGTH_EXCLUDES
        or leader_epoch != header.epoch & LEADER_EPOCH_MASK
        or magic != MAGIC
        or crc != header.crc
    ):
        raise DamagedFrame(where, at, f"the payload does not start as that of {header.id} does")
    view = memoryview(payload)
    if crc32c(view[HEAD_BYTES:]) != crc:
        raise DamagedFrame(where, at, f"the payload of {header.id} does not match its checksum")
    is_control = header.kind == Kind.CONTROL
    if last_delta + 1 != header.count or _is_own(attributes) != is_control:
        raise DamagedFrame(where, at, f"the payload is not the batch that {header.id} announces")
    if is_control:
        header = _with_control(header, payload, at, where)
    return Frame(header, frame.head, payload, frame.prev, frame.prev_checksum, frame.checksum)


def control_payload(header: Header) -> Buffer:
    """The payload of a control entry: the same bytes wherever and whenever it is encoded."""
    assert header.control is not None
    batch = encode_control(CONTROL_TYPE, _encode_control_value(header.control))
    return stamp(batch, offset=header.offset, epoch=header.epoch)


def _with_control(header: Header, payload: Buffer, at: int, where: str) -> Header:
    try:
        record_type, value = decode_control(payload)
        if record_type != CONTROL_TYPE:
            raise BadBatch(f"control record type {record_type} is unknown here")
        control = _decode_control_value.decode(value)
    except (BadBatch, msgspec.MsgspecError) as error:
        raise DamagedFrame(where, at, f"the control record of {header.id} is unreadable: {error}") from error
    return Header(
        header.epoch, header.offset, header.count, header.size, header.kind, header.flags, header.crc, control
    )
