"""Kafka record batches (magic 2), as far as a log must know them; every payload of a log is one.

Layout, big-endian: base offset i64, length i32 (of what follows it), leader epoch i32, magic i8, crc u32,
attributes i16, last offset delta i32, base timestamp i64, max timestamp i64, producer id i64, producer
epoch i16, base sequence i32, record count i32; then the records. The CRC-32C covers everything from the
attributes on, so filling in base offset and leader epoch (`stamp`) does not change it.

A leaf: anything may import it. Compressed records are opened elsewhere, by a compiled codec.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from crc32c import crc32c

Buffer = bytes | bytearray | memoryview

BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
BATCH_MIN = BATCH_HEADER.size
HEAD = struct.Struct(">qiibI")
HEAD_BYTES = HEAD.size
"""The first bytes, which the batch's own CRC does not cover; crc itself is the last of them."""
LENGTH_EXCLUDES = 12
"""Base offset and length itself are not counted in a batch's length."""
MAGIC = 2
LEADER_EPOCH_MASK = 0x7FFF_FFFF
"""A batch has 31 bits for the epoch; frames hold all of it."""

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

NO_TIMESTAMP = -1
CONTROL_VERSION = 0

_STAMP = struct.Struct(">qii")
_ATTRIBUTES_AT = 22
"""Their lower byte."""
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43
"""Producer id, producer epoch and base sequence."""
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIME = struct.Struct(">q")
_MAX_TIME_AT = 35
_CONTROL_KEY = struct.Struct(">hh")
_RECORD_MIN = 7
_BYTE = [bytes((number,)) for number in range(128)]


class BadBatch(Exception):
    """These bytes are not a whole, intact v2 batch."""


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The fixed part of a batch, in the order of the wire."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return self.length + LENGTH_EXCLUDES

    @property
    def offsets_count(self) -> int:
        """Offsets covered, which compaction does not lessen; `record_count` is what is left."""
        return self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def has_append_time(self) -> bool:
        """All its records have the time at which a log took them: `max_timestamp`."""
        return self.attributes & LOG_APPEND_TIME != 0


class Record(NamedTuple):
    """One record. `offset` is known after decoding only; encoding takes the batch's time in place of -1."""

    key: bytes | None
    value: bytes | None
    timestamp: int = NO_TIMESTAMP
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int = -1


def parse_batch_header(payload: Buffer) -> BatchHeader:
    """The header of a payload that is exactly one batch. Looks at no record and computes no checksum."""
    size = len(payload)
    if size < BATCH_MIN:
        raise BadBatch(f"{size} bytes are too few for a record batch, which has at least {BATCH_MIN}")
    header = BatchHeader(*BATCH_HEADER.unpack_from(payload))
    records_count, offsets_count = header.record_count, header.last_offset_delta + 1
    if header.magic != MAGIC:
        raise BadBatch(f"record batch format {header.magic} is not supported, only format {MAGIC}")
    if header.length != size - LENGTH_EXCLUDES:
        raise BadBatch(f"the batch says {header.length + LENGTH_EXCLUDES} bytes, and {size} are there")
    if offsets_count < 1:
        raise BadBatch(f"last offset delta {header.last_offset_delta} is negative")
    if not 0 <= records_count <= offsets_count:
        raise BadBatch(f"{records_count} records cannot take {offsets_count} offsets")
    if records_count * _RECORD_MIN > size - BATCH_MIN and not header.compression:
        raise BadBatch(f"{records_count} records cannot be in {size - BATCH_MIN} bytes")
    return header


def header_bytes(header: BatchHeader, **changes: int) -> bytes:
    """The header with these fields in place of its own, as it is on the wire; no checksum is computed."""
    return BATCH_HEADER.pack(*msgspec.structs.astuple(msgspec.structs.replace(header, **changes)))


def verify(payload: Buffer) -> BatchHeader:
    """The header of a payload whose bytes are what its producer sent; raises BadBatch otherwise."""
    header = parse_batch_header(payload)
    if crc32c(memoryview(payload)[HEAD_BYTES:]) != header.crc:
        raise BadBatch("the batch's checksum does not match its bytes")
    return header


def stamp(payload: Buffer, *, offset: int, epoch: int) -> Buffer:
    """The batch with its place in a log filled in.

    A writable payload was given away, and is stamped where it lies. Of any other a copy is made.
    """
    view = memoryview(payload)
    length, epoch = len(payload) - LENGTH_EXCLUDES, epoch & LEADER_EPOCH_MASK
    if view.readonly:
        return b"".join((_STAMP.pack(offset, length, epoch), view[_STAMP.size :]))
    _STAMP.pack_into(payload, 0, offset, length, epoch)
    return payload


def with_producer(
    payload: Buffer, *, producer_id: int, epoch: int, sequence: int, transactional: bool = False
) -> bytearray:
    """A copy that says another producer wrote it, in a transaction or not as it did; its records are the same."""
    made = bytearray(payload)
    if transactional:
        made[_ATTRIBUTES_AT] |= TRANSACTIONAL
    _PRODUCER.pack_into(made, _PRODUCER_AT, producer_id, epoch, sequence)
    with memoryview(made) as view:
        crc = crc32c(view[HEAD_BYTES:])
    made[HEAD_BYTES - 4 : HEAD_BYTES] = crc.to_bytes(4, "big")
    return made


def set_append_time(payload: bytearray | memoryview, time_ms: int) -> None:
    """Let all records have this time, when the log took them; only the header says so. In place."""
    (attributes,) = _ATTRIBUTES.unpack_from(payload, HEAD_BYTES)
    _ATTRIBUTES.pack_into(payload, HEAD_BYTES, attributes | LOG_APPEND_TIME)
    _MAX_TIME.pack_into(payload, _MAX_TIME_AT, time_ms)
    with memoryview(payload) as view:
        crc = crc32c(view[HEAD_BYTES:])
    payload[HEAD_BYTES - 4 : HEAD_BYTES] = crc.to_bytes(4, "big")


def is_same_but_for_producer(one: Buffer, two: Buffer) -> bool:
    """Whether two batches hold the same records, whoever wrote them and wherever they lie."""
    left, right = memoryview(one), memoryview(two)
    behind = _PRODUCER_AT + _PRODUCER.size
    return left[HEAD_BYTES:_PRODUCER_AT] == right[HEAD_BYTES:_PRODUCER_AT] and left[behind:] == right[behind:]


def encode_records(
    records: Iterable[Record | tuple[bytes | None, bytes | None]],
    timestamp: int = NO_TIMESTAMP,
    *,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """An uncompressed batch at offset 0 and epoch 0, to be stamped later."""
    parts = bytearray(BATCH_MIN)
    max_timestamp = timestamp
    count = 0
    for record in records:
        key, value, own_timestamp, headers, _ = Record(*record)
        delta = own_timestamp - timestamp if own_timestamp != NO_TIMESTAMP else 0
        if delta > max_timestamp - timestamp:
            max_timestamp = own_timestamp
        _append_record(parts, delta, count, key, value, headers)
        count += 1
    if not count:
        raise BadBatch("a batch without records covers no offset")
    fields = (
        attributes,
        count - 1,
        timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return _sealed(parts, fields)


def seal(
    records: Buffer, *, records_count: int, base_timestamp: int, max_timestamp: int, attributes: int = 0
) -> bytes:
    """A batch of records that are encoded already, and compressed if the attributes say so; to be stamped later."""
    made = bytearray(BATCH_MIN)
    made += records
    return _sealed(
        made, (attributes, records_count - 1, base_timestamp, max_timestamp, -1, -1, -1, records_count)
    )


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """How many there are, and each: as a record ends."""
    body = [_varint(len(headers))]
    for name, content in headers:
        _add_bytes(body, name.encode())
        _add_bytes(body, content)
    return b"".join(body)


def _sealed(made: bytearray, fields: tuple[int, ...]) -> bytes:
    """`made` has room for the header in front, which these are the fields of that the checksum covers."""
    BATCH_HEADER.pack_into(made, 0, 0, len(made) - LENGTH_EXCLUDES, 0, MAGIC, 0, *fields)
    with memoryview(made) as view:
        crc = crc32c(view[HEAD_BYTES:])
    made[HEAD_BYTES - 4 : HEAD_BYTES] = crc.to_bytes(4, "big")
    return bytes(made)


def decode_records(payload: Buffer) -> list[Record]:
    """The records of an uncompressed batch, control records included; raises BadBatch."""
    header = verify(payload)
    if header.compression:
        raise BadBatch(f"the batch is compressed (codec {header.compression})")
    cursor = _Cursor(bytes(payload), BATCH_MIN)
    records = [_read_record(cursor, header) for _ in range(header.record_count)]
    if cursor.at != len(payload):
        raise BadBatch(f"{len(payload) - cursor.at} bytes are left behind the last record")
    return records


def decode_headers(content: bytes, count: int) -> tuple[tuple[str, bytes | None], ...]:
    """So many headers of a record, which are all that is there; raises BadBatch."""
    cursor = _Cursor(content, 0)
    headers = _read_headers(cursor, count)
    if cursor.at != len(content):
        raise BadBatch(f"{len(content) - cursor.at} bytes are left behind a record's headers")
    return headers


def encode_control(record_type: int, value: bytes) -> bytes:
    """A control batch: one record, one offset, no time; skipped by every Kafka client."""
    return encode_records([(_CONTROL_KEY.pack(CONTROL_VERSION, record_type), value)], attributes=CONTROL)


def encode_blank(*, first: int, last: int) -> bytes:
    """A batch that covers these offsets and holds no record: every Kafka client reads on behind it."""
    fields = (0, last - first, NO_TIMESTAMP, NO_TIMESTAMP, -1, -1, -1, 0)
    checked = BATCH_HEADER.pack(0, 0, 0, MAGIC, 0, *fields)[HEAD_BYTES:]
    return HEAD.pack(first, BATCH_MIN - LENGTH_EXCLUDES, 0, MAGIC, crc32c(checked)) + checked


def decode_control(payload: Buffer) -> tuple[int, bytes]:
    """The type and value of a control batch's one record; raises BadBatch."""
    if not parse_batch_header(payload).is_control:
        raise BadBatch("the batch is not a control batch")
    records = decode_records(payload)
    if len(records) != 1:
        raise BadBatch(f"a control batch has one record, not {len(records)}")
    key, value = records[0].key, records[0].value
    if key is None or value is None or len(key) != _CONTROL_KEY.size:
        raise BadBatch("a control record has a key of four bytes and a value")
    version, record_type = _CONTROL_KEY.unpack(key)
    if version != CONTROL_VERSION:
        raise BadBatch(f"control record version {version} is unknown here")
    return record_type, value


def _append_record(
    parts: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...],
) -> None:
    body = [b"\0", _varint(timestamp_delta), _varint(offset_delta)]
    _add_bytes(body, key)
    _add_bytes(body, value)
    body.append(encode_headers(headers))
    encoded = b"".join(body)
    parts += _varint(len(encoded))
    parts += encoded


def _add_bytes(body: list[bytes], content: bytes | None) -> None:
    if content is None:
        body.append(b"\1")  # zigzag of -1
    else:
        body.append(_varint(len(content)))
        body.append(content)


def _varint(number: int) -> bytes:
    """Zigzag: small numbers of either sign stay short."""
    number = number << 1 if number >= 0 else (-number << 1) - 1
    if number < 128:
        return _BYTE[number]
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class _Cursor:
    """Reads forward through bytes of unknown origin: every length is checked before it is used."""

    def __init__(self, content: bytes, at: int) -> None:
        self.content = content
        self.at = at

    def varint(self) -> int:
        number = shift = 0
        while True:
            if self.at >= len(self.content):
                raise BadBatch("the batch ends inside a record")
            byte = self.content[self.at]
            self.at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 63:
                raise BadBatch("a number in a record is longer than 10 bytes")
        return number >> 1 ^ -(number & 1)

    def take(self, length: int) -> bytes:
        if not 0 <= length <= len(self.content) - self.at:
            raise BadBatch(f"a record's part says {length} bytes, {len(self.content) - self.at} are left")
        self.at += length
        return self.content[self.at - length : self.at]

    def nullable(self) -> bytes | None:
        length = self.varint()
        return None if length == -1 else self.take(length)


def _read_record(cursor: _Cursor, header: BatchHeader) -> Record:
    length = cursor.varint()
    start = cursor.at
    cursor.take(1)  # attributes of a record: unused in format 2
    timestamp = header.base_timestamp + cursor.varint()
    if header.has_append_time:
        timestamp = header.max_timestamp
    offset_delta = cursor.varint()
    if not 0 <= offset_delta <= header.last_offset_delta:
        raise BadBatch(f"offset delta {offset_delta} is outside of the batch")
    key = cursor.nullable()
    value = cursor.nullable()
    headers = _read_headers(cursor, cursor.varint())
    if cursor.at - start != length:
        raise BadBatch(f"a record says {length} bytes and has {cursor.at - start}")
    return Record(key, value, timestamp, headers, header.base_offset + offset_delta)


def _read_headers(cursor: _Cursor, count: int) -> tuple[tuple[str, bytes | None], ...]:
    if not 0 <= count <= len(cursor.content) - cursor.at:
        raise BadBatch(f"{count} headers cannot be in what is left of the batch")
    try:
        return tuple((cursor.take(cursor.varint()).decode(), cursor.nullable()) for _ in range(count))
    except UnicodeDecodeError as error:
        raise BadBatch(f"a header's name is not UTF-8: {error}") from error
