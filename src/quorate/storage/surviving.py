"""Which records survive a generation of compaction, and what is left of a batch.

A generation says of every settled record up to `upto`: it stays if no later record up to there has its key; a
tombstone (no value) at or below `deleted_upto` goes, too. Nothing else is asked, neither clocks nor files, so that
the survivors of a generation are the same whether they are found in the whole log or in what an earlier one left.

What nobody can tell apart stays as it is and supersedes nothing: records without a key, control entries, batches of
transactions (which may be aborted), and batches that cannot be opened. Void records go, and supersede nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from crc32c import crc32c

from quorate.batch import (
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
    header_bytes,
    parse_batch_header,
    stamp,
)
from quorate.core.entry import Kind
from quorate.storage.frame import Frame

KEY_BYTES = 16
NO_TIME = -(1 << 63)

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


class Staying(NamedTuple):
    """Of the records of a batch those that survive."""

    records_count: int
    newest: int
    """The greatest of their timestamps."""
    runs: list[tuple[int, int]]
    """Where they lie; neighbours are one run, so that a batch of very many takes little memory."""


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
        self._void: frozenset[int] = frozenset()
        """Offsets of entries that are."""

    @property
    def keys_count(self) -> int:
        return len(self._newest)

    def expect(self, frames: Sequence[Frame]) -> None:
        """These are shown, or asked about, next. All that has to be known of them beside their bytes is asked for
        now: what follows may be done in a thread."""
        records = [frame.header.offset for frame in frames if frame.header.kind != Kind.CONTROL]
        self._void = frozenset(filter(self._is_void, records))

    def show(self, frame: Frame) -> None:
        """Entries that no generation has been over yet, in their order."""
        batch = self._look_into(frame)
        if batch is None or frame.header.offset in self._void:
            return
        try:
            keyed = ((record.key, record.offset) for record in records_in(*batch))
            newest = {key_of(key): offset for key, offset in keyed if key is not None}
        except BadBatch:
            return
        self._newest.update(newest)

    def left_of(self, frame: Frame) -> Buffer | None:
        """The batch that is left of an entry; None if that is nothing. The entry's own if all of it stays."""
        batch = self._look_into(frame)
        if batch is None:
            return frame.payload
        try:
            staying = self._staying(*batch)
        except BadBatch:
            return frame.payload
        if not staying.records_count or frame.header.offset in self._void:
            return None
        return frame.payload if staying.records_count == batch[1].record_count else _thinned(*batch, staying)

    def _staying(self, payload: Buffer, header: BatchHeader) -> Staying:
        runs: list[tuple[int, int]] = []
        count, newest = 0, NO_TIME
        for record in records_in(payload, header):
            if not self._stays(record):
                continue
            count += 1
            newest = max(newest, record.timestamp)
            start = runs.pop()[0] if runs and runs[-1][1] == record.start else record.start
            runs.append((start, record.end))
        return Staying(count, newest, runs)

    def _stays(self, record: Lying) -> bool:
        if record.key is None:
            return True
        if self._newest.get(key_of(record.key), record.offset) > record.offset:
            return False
        return not (record.is_tombstone and record.offset <= self._deleted_upto)

    def _look_into(self, frame: Frame) -> tuple[Buffer, BatchHeader] | None:
        """Its batch, open, if its records can be told apart."""
        assert frame.header.last <= self._upto
        if frame.header.kind == Kind.CONTROL:
            return None
        payload: Buffer = frame.payload
        header = parse_batch_header(payload)
        if header.attributes & TRANSACTIONAL:
            return None
        if not header.compression:
            return payload, header
        try:
            payload = self._opened(payload)
            return payload, parse_batch_header(payload)
        except BadBatch:
            return None


def _thinned(payload: Buffer, header: BatchHeader, staying: Staying) -> Buffer:
    """The batch with these of its records, byte for byte, not compressed: what a compressor makes may change."""
    view = memoryview(payload)
    newest = header.max_timestamp
    if not header.attributes & LOG_APPEND_TIME:
        newest = staying.newest
    body = b"".join(view[start:end] for start, end in staying.runs)
    fields = header_bytes(
        header,
        length=BATCH_MIN + len(body) - LENGTH_EXCLUDES,
        attributes=header.attributes & ~COMPRESSION_MASK,
        max_timestamp=newest,
        record_count=staying.records_count,
        crc=0,
    )
    content = bytearray(fields + body)
    with memoryview(content) as made:
        crc = crc32c(made[HEAD_BYTES:])
    content[HEAD_BYTES - 4 : HEAD_BYTES] = crc.to_bytes(4, "big")
    return bytes(content)


def blank(*, first: int, last: int, epoch: int) -> Buffer:
    """The batch of entries of which nothing is left."""
    return stamp(encode_blank(first=first, last=last), offset=first, epoch=epoch)
