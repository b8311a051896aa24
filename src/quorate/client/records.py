"""Record batches as Arrow columns, under the names that Spark's Kafka source gives them.

Batches are decompressed within a bound (wire/opening.py) and gathered; then `parts` finds out for all their records
together where keys and values lie, and Arrow takes them from there. A Python object is made for a record only if it
has headers, and those are asked for. Where nobody asks for what is in the records, a batch is not opened at all.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from quorate.batch import (
    BATCH_MIN,
    CONTROL,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BadBatch,
    BatchHeader,
    Buffer,
    decode_headers,
    parse_batch_header,
)
from quorate.client.errors import BadAnswer, OffsetsMissing, TopicReplaced, UnknownPartition, UnknownTopic
from quorate.client.parts import PADDING, Bytes, Numbers, Parts, follow, parts_of
from quorate.client.ranges import Range
from quorate.wire.opening import TooLarge, opened

ROWS_TARGET = 32_768
"""An Arrow batch is handed on from so many rows on,"""
ROWS_MAX = 65_536
"""in pieces of so many at most, all of one size,"""
PAYLOAD_BYTES_TARGET = 16 << 20
"""… or from so many bytes of record batches on, as they came."""
OPENED_BYTES_MAX = 256 << 20
"""What one batch may become when it is decompressed."""
US_PER_MS = 1_000
UNREADABLE = (BadBatch, TooLarge)
TIME_MS_MAX = (1 << 63) // US_PER_MS - 1
"""Whatever is further off has no place in a timestamp of Arrow or Spark, and is null."""


def arrow_batches(
    batches: Iterable[memoryview], wanted: Range, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Rows for the records of a range, in the order of the log, with exactly the columns of the schema.

    Where something is lost, what lies before it comes first.
    """
    gathered = _Gathered(wanted, schema)
    try:
        for payload in batches:
            gathered.add(payload)
            if gathered.is_full():
                yield from gathered.take()
    except (OffsetsMissing, TopicReplaced, UnknownPartition, UnknownTopic):
        yield from gathered.take()
        raise
    yield from gathered.take()


def divided(whole: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Pieces of one size, with ROWS_MAX rows at most."""
    pieces_count = -(-whole.num_rows // ROWS_MAX)
    if pieces_count:
        piece_rows = -(-whole.num_rows // pieces_count)
        for first in range(0, whole.num_rows, piece_rows):
            yield whole.slice(first, piece_rows)


class _Piece(NamedTuple):
    payload: Buffer
    header: BatchHeader
    is_opened: bool
    """Somebody asks for what is in its records, or which of them there are."""


class _Gathered:
    """Batches that wait to become an Arrow batch."""

    def __init__(self, wanted: Range, schema: pa.Schema) -> None:
        self.wanted = wanted
        self.schema = schema
        self.opens = any(name in _OPENED for name in schema.names)
        self._clear()

    def _clear(self) -> None:
        self.pieces: list[_Piece] = []
        self.rows_count = 0
        self.payload_bytes = 0

    def is_full(self) -> bool:
        return self.rows_count >= ROWS_TARGET or self.payload_bytes >= PAYLOAD_BYTES_TARGET

    def add(self, payload: Buffer) -> None:
        header = parse_batch_header(payload)
        if header.attributes & CONTROL or not header.record_count:
            return
        is_opened = self.opens or not self._is_whole(header)
        if is_opened:
            try:
                payload = opened(payload, OPENED_BYTES_MAX)
            except UNREADABLE as error:
                raise self._bad(header, error) from error
        self.pieces.append(_Piece(payload, header, is_opened))
        self.rows_count += header.record_count
        self.payload_bytes += len(payload)

    def take(self) -> Iterator[pa.RecordBatch]:
        pieces = self.pieces
        self._clear()
        for is_opened, alike in groupby(pieces, key=lambda piece: piece.is_opened):
            together = list(alike)
            rows = self._opened(together) if is_opened else _counted(self.wanted, together)
            if not rows.rows_count:
                continue
            try:
                columns = [_COLUMNS[field.name](rows, field.type) for field in self.schema]
            except BadBatch as error:
                raise self._bad(together[0].header, error) from error
            yield from divided(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def _opened(self, pieces: list[_Piece]) -> _Rows:
        content = b"".join([*(piece.payload for piece in pieces), PADDING])
        data = np.frombuffer(content, np.uint8)
        starts: list[int] = []
        lasts: list[int] = []
        edges: list[int] = []
        at = 0
        for payload, header, _ in pieces:
            end = at + len(payload)
            try:
                follow(content, data, starts, at=at + BATCH_MIN, end=end, count=header.record_count)
            except BadBatch as error:
                raise self._bad(header, error) from error
            lasts.append(len(starts) - 1)
            edges.append(end)
            at = end
        begin = np.frombuffer(array("q", starts), np.int64)
        ends = np.append(begin[1:], 0)
        ends[lasts] = edges
        headers = [piece.header for piece in pieces]
        try:
            return _opened_rows(self.wanted, headers, data, parts_of(data, begin, ends))
        except BadBatch as error:
            raise self._bad(headers[0], error) from error

    def _is_whole(self, header: BatchHeader) -> bool:
        """Every offset of it is asked for, and has a record."""
        first, count = header.base_offset, header.offsets_count
        is_inside = first >= self.wanted.first and first + count <= self.wanted.end
        return is_inside and header.record_count == count

    def _bad(self, header: BatchHeader, error: Exception) -> BadAnswer:
        return BadAnswer(
            f"{self.wanted}: the batch at offset {header.base_offset} (or one behind it) cannot be opened: {error}"
        )


class _Rows(NamedTuple):
    """What columns are made of."""

    wanted: Range
    rows_count: int
    offsets: Numbers
    types: Numbers
    data: Bytes | None = None
    parts: Parts | None = None
    times_ms: Numbers | None = None

    def bytes_at(self, at: Numbers, lengths: Numbers, kind: pa.DataType) -> pa.Array:
        """Every second of the stretches that the edges of the wanted ones divide the data into."""
        assert self.data is not None
        nulls = lengths < 0
        if nulls.all():
            return pa.nulls(self.rows_count, kind)
        edges = np.empty(2 * self.rows_count, np.int32)
        edges[0::2] = at
        edges[1::2] = at + np.maximum(lengths, 0)
        buffers = [None, pa.py_buffer(edges), pa.py_buffer(self.data)]
        stretches = pa.Array.from_buffers(pa.binary(), 2 * self.rows_count - 1, buffers)
        every_second = pa.array(
            np.arange(0, 2 * self.rows_count, 2, dtype=np.int32), mask=nulls if nulls.any() else None
        )
        return stretches.take(every_second).cast(kind)

    # ---- columns ----

    def key(self, kind: pa.DataType) -> pa.Array:
        assert self.parts is not None
        return self.bytes_at(self.parts.key_at, self.parts.key_lengths, kind)

    def value(self, kind: pa.DataType) -> pa.Array:
        assert self.parts is not None
        return self.bytes_at(self.parts.value_at, self.parts.value_lengths, kind)

    def topic(self, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(self.wanted.topic, kind), self.rows_count)

    def partition(self, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(self.wanted.partition, kind), self.rows_count)

    def offset(self, kind: pa.DataType) -> pa.Array:
        return pa.array(self.offsets).cast(kind)

    def timestamp(self, kind: pa.DataType) -> pa.Array:
        assert self.times_ms is not None
        times_ms = self.times_ms
        known = (times_ms != NO_TIMESTAMP) & (times_ms <= TIME_MS_MAX) & (times_ms >= -TIME_MS_MAX)
        all_known = bool(known.all())
        times_us = (times_ms if all_known else np.where(known, times_ms, 0)) * US_PER_MS
        return pa.array(times_us, mask=None if all_known else ~known).cast(kind)

    def timestamp_type(self, kind: pa.DataType) -> pa.Array:
        return pa.array(self.types).cast(kind)

    def headers(self, kind: pa.DataType) -> pa.Array:
        """As Spark's Kafka source: no headers are null, not an empty list."""
        assert self.parts is not None
        assert self.data is not None
        rows: list[list[dict[str, Any]] | None] = [None] * self.rows_count
        for row in np.flatnonzero(self.parts.headers_counts).tolist():
            at, end = int(self.parts.headers_at[row]), int(self.parts.ends[row])
            found = decode_headers(self.data[at:end].tobytes(), int(self.parts.headers_counts[row]))
            rows[row] = [{"key": name, "value": content} for name, content in found]
        return pa.array(rows, kind)


def _counted(wanted: Range, pieces: list[_Piece]) -> _Rows:
    """Rows of whole batches that nobody looks into."""
    headers = [piece.header for piece in pieces]
    counts = np.array([header.record_count for header in headers])
    offsets = np.concatenate(
        [np.arange(header.base_offset, header.base_offset + header.record_count) for header in headers]
    )
    return _Rows(wanted, len(offsets), offsets, _types(headers, counts))


def _opened_rows(wanted: Range, headers: list[BatchHeader], data: Bytes, parts: Parts) -> _Rows:
    counts = np.array([header.record_count for header in headers])
    lasts = np.repeat(np.array([header.last_offset_delta for header in headers]), counts)
    if (parts.offset_deltas < 0).any() or (parts.offset_deltas > lasts).any():
        raise BadBatch("a record's offset is outside of its batch")
    offsets = np.repeat(np.array([header.base_offset for header in headers]), counts) + parts.offset_deltas
    types = _types(headers, counts)
    with np.errstate(over="ignore"):
        times_ms = np.repeat(np.array([header.base_timestamp for header in headers]), counts)
        times_ms = times_ms + parts.time_deltas
    if types.any():
        greatest = np.repeat(np.array([header.max_timestamp for header in headers]), counts)
        times_ms = np.where(types == 1, greatest, times_ms)
    rows = _Rows(wanted, len(offsets), offsets, types, data, parts, times_ms)
    asked = (offsets >= wanted.first) & (offsets < wanted.end)
    return rows if asked.all() else _chosen(rows, asked)


def _chosen(rows: _Rows, asked: np.ndarray[Any, np.dtype[np.bool_]]) -> _Rows:
    assert rows.parts is not None
    assert rows.times_ms is not None
    return rows._replace(
        rows_count=int(asked.sum()),
        offsets=rows.offsets[asked],
        types=rows.types[asked],
        parts=Parts(*(numbers[asked] for numbers in rows.parts)),
        times_ms=rows.times_ms[asked],
    )


def _types(headers: list[BatchHeader], counts: Numbers) -> Numbers:
    kinds = [1 if header.attributes & LOG_APPEND_TIME else 0 for header in headers]
    return np.repeat(np.array(kinds), counts)


_COLUMNS: dict[str, Callable[[_Rows, pa.DataType], pa.Array]] = {
    "key": _Rows.key,
    "value": _Rows.value,
    "topic": _Rows.topic,
    "partition": _Rows.partition,
    "offset": _Rows.offset,
    "timestamp": _Rows.timestamp,
    "timestampType": _Rows.timestamp_type,
    "headers": _Rows.headers,
}
COLUMN_NAMES = tuple(_COLUMNS)
_OPENED = ("key", "value", "timestamp", "headers")
"""Columns for which records must be looked into."""
