"""Which records survive a generation of compaction, and what is left of a batch.

A generation says of every settled record up to `upto`: it stays if no later record up to there has its key; a
tombstone (no value) at or below `deleted_upto` goes, too. Nothing else is asked, neither clocks nor files, so that
the survivors of a generation are the same whether they are found in the whole log or in what an earlier one left.

What nobody can tell apart stays as it is and supersedes nothing: records without a key, control entries, batches of
transactions (which may be aborted), and batches that cannot be opened. Void records go, and supersede nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import NamedTuple

from crc32c import crc32c

from quorate.batch import (
    BATCH_HEADER,
    BATCH_MIN,
    COMPRESSION_MASK,
    HEAD_BYTES,
    LENGTH_EXCLUDES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BadBatch,
    BatchHeader,
    Buffer,
    encode_blank,
    parse_batch_header,
    stamp,
)
from quorate.core.entry import Kind
from quorate.storage.frame import Frame

KEY_BYTES = 16

Open = Callable[[Buffer], Buffer]
"""The same batch, not compressed; raises BadBatch if it cannot be opened."""


class Lying(NamedTuple):
    """One record inside of an uncompressed batch: where it lies, and what decides whether it stays."""

    start: int
    end: int
    offset: int
    timestamp: int
    key: bytes | None
    is_tombstone: bool


def key_of(key: bytes) -> bytes:
    """A key as it is remembered: long ones take no more room than short ones."""
    return blake2b(key, digest_size=KEY_BYTES).digest()


def records_in(payload: Buffer, header: BatchHeader) -> Iterator[Lying]:
    """The records of an uncompressed batch, one after the other; raises BadBatch where they make no sense."""
    content = bytes(payload)
    end, at = len(content), BATCH_MIN
    for _ in range(header.record_count):
        start = at
        length, at = _varint(content, at)
        stop = at + length
        if not at < stop <= end:
            raise BadBatch(f"a record says {length} bytes, {end - at} are left")
        timestamp, at = _varint(content, at + 1)
        delta, at = _varint(content, at)
        key_length, at = _varint(content, at)
        key = content[at : at + key_length] if key_length >= 0 else None
        value_length, at = _varint(content, at + max(key_length, 0))
        if at > stop or not 0 <= delta <= header.last_offset_delta:
            raise BadBatch("a record's key reaches beyond the record, or its offset beyond the batch")
        yield Lying(
            start,
            stop,
            header.base_offset + delta,
            header.base_timestamp + timestamp,
            key,
            value_length < 0,
        )
        at = stop


def _varint(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    try:
        while True:
            byte = content[at]
            at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number >> 1 ^ -(number & 1), at
            shift += 7
            if shift > 63:
                raise BadBatch("a number in a record is longer than 10 bytes")
    except IndexError:
        raise BadBatch("the batch ends inside a record") from None


class Survivors:
    """One generation of one log: first it is shown what is new, then asked what stays."""

    def __init__(
        self,
        *,
        upto: int,
        deleted_upto: int,
        is_void: Callable[[int], bool] = lambda offset: False,
        opened: Open = bytes,
    ) -> None:
        self._upto = upto
        self._deleted_upto = deleted_upto
        self._is_void = is_void
        self._opened = opened
        self._newest: dict[bytes, int] = {}
        """The offset of the newest record of each key among those that were shown."""

    @property
    def keys_count(self) -> int:
        return len(self._newest)

    def show(self, frame: Frame) -> None:
        """Entries that no generation has been over yet, in their order."""
        found = self._look_into(frame)
        if found is not None and not self._is_void(frame.header.offset):
            for record in found[2]:
                if record.key is not None:
                    self._newest[key_of(record.key)] = record.offset

    def left_of(self, frame: Frame) -> Buffer | None:
        """The batch that is left of an entry; None if that is nothing. The entry's own if all of it stays."""
        found = self._look_into(frame)
        if found is None:
            return frame.payload
        if self._is_void(frame.header.offset):
            return None
        payload, header, records = found
        staying = [record for record in records if self._stays(record)]
        if len(staying) == len(records) and staying:
            return frame.payload
        return _thinned(payload, header, staying) if staying else None

    def _stays(self, record: Lying) -> bool:
        if record.key is None:
            return True
        if self._newest.get(key_of(record.key), record.offset) > record.offset:
            return False
        return not (record.is_tombstone and record.offset <= self._deleted_upto)

    def _look_into(self, frame: Frame) -> tuple[Buffer, BatchHeader, list[Lying]] | None:
        """Its batch, open, if its records can be told apart."""
        assert frame.header.last <= self._upto
        if frame.header.kind == Kind.CONTROL:
            return None
        payload: Buffer = frame.payload
        header = parse_batch_header(payload)
        if header.attributes & TRANSACTIONAL:
            return None
        try:
            if header.compression:
                payload = self._opened(payload)
                header = parse_batch_header(payload)
            return payload, header, list(records_in(payload, header))
        except BadBatch:
            return None


def _thinned(payload: Buffer, header: BatchHeader, staying: list[Lying]) -> Buffer:
    """The batch with these of its records, byte for byte, not compressed: what a compressor makes may change."""
    view = memoryview(payload)
    newest = header.max_timestamp
    if not header.attributes & LOG_APPEND_TIME:
        newest = max(record.timestamp for record in staying)
    body = b"".join(view[record.start : record.end] for record in staying)
    fields = header._replace(
        length=BATCH_MIN + len(body) - LENGTH_EXCLUDES,
        attributes=header.attributes & ~COMPRESSION_MASK,
        max_timestamp=newest,
        record_count=len(staying),
        crc=0,
    )
    content = bytearray(BATCH_HEADER.pack(*fields) + body)
    with memoryview(content) as made:
        crc = crc32c(made[HEAD_BYTES:])
    content[HEAD_BYTES - 4 : HEAD_BYTES] = crc.to_bytes(4, "big")
    return bytes(content)


def blank(*, first: int, last: int, epoch: int) -> Buffer:
    """The batch of entries of which nothing is left."""
    return stamp(encode_blank(first=first, last=last), offset=first, epoch=epoch)
