"""The records of many batches at once: where each one and its parts lie, found by passes over arrays.

A record is: its length, attributes (one byte), the deltas of its time and offset, key, value, and headers. All
numbers are zigzag varints, a length of -1 is null. Only where a record begins depends on the one before it. That is
followed in Python, a step a record; of records that are equally long a thousand in one step, as all of them begin
with the same bytes. Everything else is read for all records together.

Bytes are of unknown origin: every length is compared with the end of its record before anything is taken from it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from quorate.batch import BadBatch

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PADDING = bytes(64)
"""Behind all records, so that a number that does not end is read without looking at where it is."""
RUN_MAX = 1024
RUN_MIN = 32
"""Records that must be equally long for a look at the next ones to have paid."""
PATIENCE_MAX = 4096
_VARINT_BITS_MAX = 63
_LENGTH_BYTES_MAX = 5
_SHORT, _MEDIUM = 64, 8193
"""Records up to so long have a length of one byte, and of two."""


class Parts(NamedTuple):
    """Of each record, where it and its parts lie; lengths of -1 are null."""

    starts: Numbers
    ends: Numbers
    time_deltas: Numbers
    offset_deltas: Numbers
    key_at: Numbers
    key_lengths: Numbers
    value_at: Numbers
    value_lengths: Numbers
    headers_at: Numbers
    headers_counts: Numbers


def follow(content: bytes, array: Bytes, starts: list[int], *, at: int, end: int, count: int) -> None:
    """Note where so many records begin that fill the bytes from `at` to `end`; raises BadBatch.

    `array` is a view of the same bytes.
    """
    note = starts.append
    left = count
    before = patience = waited = 0
    try:
        while left:
            note(at)
            left -= 1
            first = content[at]
            if first < 128:
                size = (first >> 1) + 1
            else:
                second = content[at + 1]
                size = ((second << 7 | first & 127) >> 1) + 2 if second < 128 else _long(content, at)
            if first & 1:
                raise BadBatch("a record says that it has less than no bytes")
            at += size
            if at > end:
                raise BadBatch(f"a record ends {at - end} bytes behind its batch")
            if size != before:
                before = size
                continue
            waited += 1
            if waited < patience or left < RUN_MIN:
                continue
            waited = 0
            alike = _equally_long(array, at, size, min(left, (end - at) // size, RUN_MAX))
            patience = 0 if alike >= RUN_MIN else min(2 * patience + RUN_MIN, PATIENCE_MAX)
            starts += range(at, at + size * alike, size)
            at += size * alike
            left -= alike
    except IndexError:
        raise BadBatch("the batch ends inside a record") from None
    if at != end:
        raise BadBatch(f"{end - at} bytes are left behind the last record")


def parts_of(data: Bytes, starts: Numbers, ends: Numbers) -> Parts:
    """`data` ends with PADDING; raises BadBatch."""
    _, at = varints(data, starts)
    time_deltas, at = varints(data, at + 1)
    offset_deltas, at = varints(data, at)
    key_lengths, key_at = _lengths(data, at, ends)
    value_lengths, value_at = _lengths(data, key_at + np.maximum(key_lengths, 0), ends)
    headers_counts, headers_at = varints(data, np.minimum(value_at + np.maximum(value_lengths, 0), ends))
    if (headers_at > ends).any() or (headers_counts < 0).any():
        raise BadBatch("the headers of a record do not fit into it")
    if ((headers_counts == 0) & (headers_at != ends)).any():
        raise BadBatch("a record is longer than its parts")
    return Parts(
        starts,
        ends,
        time_deltas,
        offset_deltas,
        key_at,
        key_lengths,
        value_at,
        value_lengths,
        headers_at,
        headers_counts,
    )


def varints(data: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """The numbers that begin there, and where each ends; raises BadBatch."""
    byte = data[at]
    numbers = (byte & 127).astype(np.uint64)
    behind = at + 1
    more = np.flatnonzero(byte > 127)
    shift = 7
    while len(more):
        if shift > _VARINT_BITS_MAX:
            raise BadBatch("a number in a record is longer than 10 bytes")
        byte = data[behind[more]]
        numbers[more] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
        behind[more] += 1
        more = more[byte > 127]
        shift += 7
    signs = -(numbers & np.uint64(1)).astype(np.int64)
    return (numbers >> np.uint64(1)).astype(np.int64) ^ signs, behind


def _lengths(data: Bytes, at: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """Lengths of byte strings, and where these begin."""
    lengths, behind = varints(data, np.minimum(at, ends))
    if (lengths < -1).any() or (lengths > ends - behind).any():
        raise BadBatch("a part of a record is longer than the record")
    return lengths, behind


def _equally_long(array: Bytes, at: int, size: int, count: int) -> int:
    """How many records from there on say that they are as long as the one before."""
    if count <= 0:
        return 0
    prefix = 1 if size <= _SHORT else 2 if size <= _MEDIUM else _LENGTH_BYTES_MAX
    rows = array[at : at + count * size].reshape(count, size)[:, :prefix]
    same = (rows == array[at - size : at - size + prefix]).all(axis=1)
    return count if same.all() else int(same.argmin())


def _long(content: bytes, at: int) -> int:
    """What a record of 8 KiB or more takes."""
    number = 0
    for count in range(_LENGTH_BYTES_MAX):
        byte = content[at + count]
        number |= (byte & 127) << 7 * count
        if byte < 128:
            return (number >> 1) + count + 1
    raise BadBatch(f"a record's length is longer than {_LENGTH_BYTES_MAX} bytes")
