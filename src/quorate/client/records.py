"""Record batches as Arrow columns, under the names that Spark's Kafka source gives them.

Batches are decompressed within a bound (wire/opening.py), and a compiled codec opens them. Python then touches
each record once for each column that is asked for, and for some not at all: topic, partition and kind of
timestamp are the same all through a batch, and offsets mostly count upwards.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from aiokafka.record.default_records import DefaultRecordBatch

from quorate.batch import CONTROL, LOG_APPEND_TIME, NO_TIMESTAMP, BadBatch, BatchHeader, parse_batch_header
from quorate.client.errors import BadAnswer
from quorate.client.ranges import Range
from quorate.wire.opening import TooLarge, opened

ROWS_TARGET = 32_768
"""An Arrow batch is handed on from so many rows on."""
PAYLOAD_BYTES_TARGET = 16 << 20
"""… or from so many bytes of record batches on, as they came."""
OPENED_BYTES_MAX = 256 << 20
"""What one batch may become when it is decompressed."""
US_PER_MS = 1_000
UNREADABLE = (BadBatch, TooLarge, RuntimeError, ValueError, OverflowError)
"""What opening a batch can end with; errors of the codec are RuntimeErrors."""
TIME_MS_MAX = (1 << 63) // US_PER_MS - 1
"""Whatever is further off has no place in a timestamp of Arrow or Spark, and is null."""


def arrow_batches(
    batches: Iterable[memoryview], wanted: Range, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Rows for the records of a range, in the order of the log, with exactly the columns of the schema."""
    gathered = _Gathered(wanted, schema)
    for payload in batches:
        gathered.add(payload)
        if gathered.is_full():
            yield gathered.take()
    if gathered.rows_count:
        yield gathered.take()


class _Gathered:
    """Opened records that wait to become an Arrow batch."""

    def __init__(self, wanted: Range, schema: pa.Schema) -> None:
        self.wanted = wanted
        self.schema = schema
        self.opened = tuple(name for name in _OPENED if name in schema.names)
        self._clear()

    def _clear(self) -> None:
        self.rows_count = 0
        self.payload_bytes = 0
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.times_ms: list[int] = []
        self.header_lists: list[list[tuple[str, bytes | None]]] = []
        self.runs: list[tuple[int, int]] = []
        """Offsets that count upwards: the first of them, and how many."""
        self.types: list[tuple[int, int]] = []
        """Kinds of timestamp: the kind, and of how many records."""

    def is_full(self) -> bool:
        return self.rows_count >= ROWS_TARGET or self.payload_bytes >= PAYLOAD_BYTES_TARGET

    def add(self, payload: memoryview) -> None:
        header = parse_batch_header(payload)
        if header.attributes & CONTROL:
            return
        try:
            self._add(payload, header)
        except UNREADABLE as error:
            raise BadAnswer(
                f"{self.wanted}: the batch at offset {header.base_offset} cannot be opened: {error}"
            ) from error

    def take(self) -> pa.RecordBatch:
        columns = [_COLUMNS[field.name](self, field.type) for field in self.schema]
        self._clear()
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _add(self, payload: memoryview, header: BatchHeader) -> None:
        """Whole and without gaps, a batch is opened only if somebody asks for what is in its records."""
        base, end = header.base_offset, header.base_offset + header.offsets_count
        is_whole = base >= self.wanted.first and end <= self.wanted.end and header.record_count == end - base
        records: Iterable[Any] = ()
        if self.opened or not is_whole:
            records = DefaultRecordBatch(opened(payload, OPENED_BYTES_MAX))
        if is_whole:
            runs = [(base, end - base)]
        else:
            records = [record for record in records if self.wanted.first <= record.offset < self.wanted.end]
            runs = [(record.offset, 1) for record in records]
        count = sum(length for _, length in runs)
        self.rows_count += count
        self.payload_bytes += len(payload)
        self.runs = _joined(self.runs, runs)
        self.types.append((1 if header.attributes & LOG_APPEND_TIME else 0, count))
        self._open(records)

    def _open(self, records: Iterable[Any]) -> None:
        """One pass that keeps no record: keeping them until all are there takes three times as long."""
        if not self.opened:
            return
        if self.opened == ("value",):
            self.values += map(_value, records)
            return
        add_key, add_value, add_time = self.keys.append, self.values.append, self.times_ms.append
        if "headers" not in self.opened:
            for record in records:
                add_key(record.key)
                add_value(record.value)
                add_time(record.timestamp)
            return
        for record in records:
            add_key(record.key)
            add_value(record.value)
            add_time(record.timestamp)
            self.header_lists.append(record.headers)

    # ---- columns ----

    def key(self, kind: pa.DataType) -> pa.Array:
        return pa.array(self.keys, kind)

    def value(self, kind: pa.DataType) -> pa.Array:
        return pa.array(self.values, kind)

    def topic(self, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(self.wanted.topic, kind), self.rows_count)

    def partition(self, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(self.wanted.partition, kind), self.rows_count)

    def offset(self, kind: pa.DataType) -> pa.Array:
        offsets = array("q", chain.from_iterable(range(first, first + count) for first, count in self.runs))
        return _of_integers(offsets).cast(kind)

    def timestamp(self, kind: pa.DataType) -> pa.Array:
        times_ms = _of_integers(array("q", self.times_ms))
        known = pc.not_equal(times_ms, NO_TIMESTAMP)
        known = pc.and_(known, pc.less_equal(times_ms, TIME_MS_MAX))
        known = pc.and_(known, pc.greater_equal(times_ms, -TIME_MS_MAX))
        return pc.if_else(known, pc.multiply(times_ms, US_PER_MS), None).cast(kind)

    def timestamp_type(self, kind: pa.DataType) -> pa.Array:
        parts = [pa.repeat(pa.scalar(number, kind), count) for number, count in _merged(self.types)]
        return pa.concat_arrays(parts)

    def headers(self, kind: pa.DataType) -> pa.Array:
        # As Spark's Kafka source: no headers are null, not an empty list.
        return pa.array([_header_rows(headers) for headers in self.header_lists], kind)


_COLUMNS: dict[str, Callable[[_Gathered, pa.DataType], pa.Array]] = {
    "key": _Gathered.key,
    "value": _Gathered.value,
    "topic": _Gathered.topic,
    "partition": _Gathered.partition,
    "offset": _Gathered.offset,
    "timestamp": _Gathered.timestamp,
    "timestampType": _Gathered.timestamp_type,
    "headers": _Gathered.headers,
}
COLUMN_NAMES = tuple(_COLUMNS)
_OPENED = ("key", "value", "timestamp", "headers")
"""Columns for which records must be looked into."""
_value = attrgetter("value")


def _of_integers(numbers: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _header_rows(headers: list[tuple[str, bytes | None]]) -> list[dict[str, Any]] | None:
    return [{"key": name, "value": content} for name, content in headers] or None


def _joined(runs: list[tuple[int, int]], more: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Runs of offsets, those that touch made one."""
    for first, count in more:
        if runs and sum(runs[-1]) == first:
            runs[-1] = (runs[-1][0], runs[-1][1] + count)
        else:
            runs.append((first, count))
    return runs


def _merged(types: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for number, count in types:
        if merged and merged[-1][0] == number:
            merged[-1] = (number, merged[-1][1] + count)
        else:
            merged.append((number, count))
    return merged
