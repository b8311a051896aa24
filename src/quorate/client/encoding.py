"""Arrow columns as record batches: the counterpart of `records`, and as it does without a Python object a record.

A record is a few small numbers, the key, the value's length, the value, and the number of its headers. The numbers
of all rows are made together, and Arrow joins them with keys and values; what it makes is cut into batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorate.batch import encode_headers, seal
from quorate.client.partitioning import partitions_of
from quorate.client.parts import Bytes, Numbers
from quorate.wire.opening import compressed

BATCH_BYTES_TARGET = 960 << 10
"""Of a batch, before it is compressed: topics take 1 MiB, unless they say otherwise. A larger record goes alone."""
RECORD_BYTES_OVERHEAD = 32
"""What a record takes beside key, value and headers, at most."""
US_PER_MS = 1_000


class Rows(NamedTuple):
    """Rows of one topic: columns of the same length, those that are not given None."""

    value: pa.Array
    key: pa.Array | None = None
    partition: pa.Array | None = None
    timestamp_us: pa.Array | None = None
    headers: pa.Array | None = None


class Made(NamedTuple):
    partition: int
    payload: bytes
    records_count: int


class WrongPartition(ValueError):
    """A row names a partition that its topic does not have."""


class WrongHeader(ValueError):
    """A row has a header that no record can hold."""


def partitions_for(rows: Rows, partitions_count: int, spare: int) -> Numbers:
    """Where each row goes: where it says, else by its key. Rows without either go to `spare`."""
    count = len(rows.value)
    chosen = np.full(count, spare % partitions_count, np.int64)
    if rows.key is not None:
        known = np.flatnonzero(pc.is_valid(rows.key).to_numpy(zero_copy_only=False))
        if len(known):
            data, at, lengths = _lying(rows.key)
            chosen[known] = partitions_of(data, at[known], lengths[known], partitions_count)
    if rows.partition is not None:
        said = rows.partition.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        named = pc.is_valid(rows.partition).to_numpy(zero_copy_only=False)
        wrong = named & ((said < 0) | (said >= partitions_count))
        if wrong.any():
            raise WrongPartition(
                f"a row is for partition {said[wrong][0]}; there are {partitions_count}, counted from 0"
            )
        chosen = np.where(named, said, chosen)
    return chosen


def encode(rows: Rows, partitions: Numbers, *, now_ms: int, codec: int = 0) -> list[Made]:
    """Batches for the partitions, in the order of the rows."""
    order = np.argsort(partitions, kind="stable")
    if not np.array_equal(order, np.arange(len(order))):
        indices = pa.array(order)
        rows = Rows(*(None if column is None else column.take(indices) for column in rows))
        partitions = partitions[order]
    key_lengths, value_lengths = _lengths(rows.key, len(order)), _lengths(rows.value, len(order))
    tails, tail_lengths = _tails(rows.headers, len(order))
    sizes: Numbers = np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0)
    sizes = sizes + tail_lengths + RECORD_BYTES_OVERHEAD
    edges = cuts(partitions, sizes)
    times_ms = _times_ms(rows.timestamp_us, now_ms, len(order))
    firsts = np.repeat(edges[:-1], np.diff(edges))
    base_ms = times_ms[firsts]
    small = times_ms - base_ms, np.arange(len(order)) - firsts, key_lengths
    joined = _joined(rows, small, value_lengths, tails, tail_lengths)
    offsets = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset : joined.offset + len(order) + 1]
    content = memoryview(joined.buffers()[2] or b"")
    made = []
    for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        payload = seal(
            compressed(content[offsets[first] : offsets[end]], codec),
            records_count=end - first,
            base_timestamp=int(times_ms[first]),
            max_timestamp=int(times_ms[first:end].max()),
            attributes=codec,
        )
        made.append(Made(int(partitions[first]), payload, end - first))
    return made


def cuts(partitions: Numbers, sizes: Numbers) -> Numbers:
    """Where batches begin and end: at every other partition, and wherever enough has come together."""
    filled = np.cumsum(sizes)
    of_partition = np.flatnonzero(np.diff(partitions)) + 1
    edges = [0]
    for end in [*of_partition.tolist(), len(partitions)]:
        while edges[-1] < end:
            first = edges[-1]
            room = filled[first] - sizes[first] + BATCH_BYTES_TARGET
            edges.append(min(max(int(np.searchsorted(filled, room, "right")), first + 1), end))
    return np.array(edges, np.int64)


# ---- helpers ----


def _joined(
    rows: Rows, small: Sequence[Numbers], value_lengths: Numbers, tails: Any, tail_lengths: Numbers | int
) -> pa.Array:
    """The records, one element each; `small` are what stands before a key, the last of them its length."""
    before_key = [_varint(numbers) for numbers in small]
    key_lengths = small[-1]
    value_head = _varint(value_lengths)
    lengths = 1 + sum(part.lengths for part in before_key) + value_head.lengths + tail_lengths
    lengths = lengths + np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0)
    attributes = _Varint(np.zeros((len(lengths), 1), np.uint8), np.ones(len(lengths), np.int64))
    head = _binary([_varint(lengths), attributes, *before_key])
    parts = [head]
    if rows.key is not None:
        parts.append(_filled(rows.key))
    parts += [_binary([value_head]), _filled(rows.value), tails]
    return pc.binary_join_element_wise(*parts, b"")


class _Varint(NamedTuple):
    """Numbers as their bytes: a row each, of which the first so many count."""

    matrix: Bytes
    lengths: Numbers


def _varint(numbers: Numbers) -> _Varint:
    left = ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)
    width = max(1, -(-int(left.max(initial=np.uint64(0))).bit_length() // 7))
    matrix = np.empty((len(numbers), width), np.uint8)
    lengths = np.ones(len(numbers), np.int64)
    for column in range(width):
        low, left = left & np.uint64(127), left >> np.uint64(7)
        goes_on = left > 0
        matrix[:, column] = low | goes_on.astype(np.uint64) << np.uint64(7)
        lengths += goes_on
    return _Varint(matrix, lengths)


def _binary(parts: Sequence[_Varint]) -> pa.Array:
    """What is in these, side by side, as one binary column."""
    matrix = np.concatenate([part.matrix for part in parts], axis=1)
    counts = np.concatenate(
        [np.arange(part.matrix.shape[1]) < part.lengths[:, None] for part in parts], axis=1
    )
    edges = np.zeros(len(matrix) + 1, np.int32)
    np.cumsum(sum(part.lengths for part in parts), out=edges[1:])
    content = matrix.reshape(-1) if counts.all() else matrix[counts]
    return pa.Array.from_buffers(
        pa.binary(), len(matrix), [None, pa.py_buffer(edges), pa.py_buffer(np.ascontiguousarray(content))]
    )


def _tails(headers: pa.Array | None, count: int) -> tuple[Any, Numbers | int]:
    """The number of headers, and the headers."""
    if headers is None or headers.null_count == count:
        return pa.scalar(b"\0", pa.binary()), 1
    rows = headers.to_pylist()
    if any(each is None or each["key"] is None for row in rows for each in row or ()):
        raise WrongHeader(
            "a row has a header without a key; every header needs one, though its value may be null"
        )
    tails = [encode_headers(tuple((each["key"], each["value"]) for each in row or ())) for row in rows]
    return pa.array(tails, pa.binary()), np.array([len(tail) for tail in tails], np.int64)


def _times_ms(timestamp_us: pa.Array | None, now_ms: int, count: int) -> Numbers:
    if timestamp_us is None:
        return np.full(count, now_ms, np.int64)
    numbers = timestamp_us.cast(pa.int64()).fill_null(now_ms * US_PER_MS)
    found: Numbers = numbers.to_numpy(zero_copy_only=False) // US_PER_MS
    return found


def _lengths(column: pa.Array | None, count: int) -> Numbers:
    """-1 where it is null."""
    if column is None:
        return np.full(count, -1, np.int64)
    lengths: Numbers = pc.binary_length(column).cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return lengths


def _filled(column: pa.Array) -> pa.Array:
    return column.fill_null(b"") if column.null_count else column


def _lying(column: pa.Array) -> tuple[Bytes, Numbers, Numbers]:
    """The bytes of a binary column, where each row lies in them, and how long it is."""
    edges: Numbers = np.frombuffer(column.buffers()[1], np.int32).astype(np.int64)
    edges = edges[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    return data, edges[:-1], np.diff(edges)
