"""Which partition a key belongs to: as Java's Kafka client decides it, so that both agree about every key.

That is murmur2 of the key's bytes. Many keys are hashed together, four bytes of each at a step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quorate.client.parts import Bytes, Numbers

Hashes = np.ndarray[Any, np.dtype[np.uint32]]

SEED, MULTIPLIER = 0x9747B28C, 0x5BD1E995
MASK = 0xFFFF_FFFF
TOGETHER_BYTES_MAX = 1024
"""Longer keys are hashed one by one: all others would wait for them."""


def partitions_of(data: Bytes, at: Numbers, lengths: Numbers, partitions_count: int) -> Numbers:
    """For keys that lie there, none of them null."""
    hashes = hashes_of(data, at, lengths)
    return (hashes & np.uint32(0x7FFF_FFFF)).astype(np.int64) % partitions_count


def hashes_of(data: Bytes, at: Numbers, lengths: Numbers) -> Hashes:
    hashes = np.empty(len(at), np.uint32)
    is_long = lengths > TOGETHER_BYTES_MAX
    for row in np.flatnonzero(is_long).tolist():
        hashes[row] = murmur2(data[at[row] : at[row] + lengths[row]].tobytes())
    together = np.flatnonzero(~is_long)
    hashes[together] = _together(data, at[together], lengths[together])
    return hashes


def murmur2(key: bytes) -> int:
    """Of one key, as an unsigned number."""
    hashed = SEED ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * MULTIPLIER & MASK
        word = (word ^ word >> 24) * MULTIPLIER & MASK
        hashed = hashed * MULTIPLIER & MASK ^ word
    if rest := key[whole:]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * MULTIPLIER & MASK
    hashed = (hashed ^ hashed >> 13) * MULTIPLIER & MASK
    return hashed ^ hashed >> 15


def _together(data: Bytes, at: Numbers, lengths: Numbers) -> Hashes:
    multiplier = np.uint32(MULTIPLIER)
    hashes = np.uint32(SEED) ^ lengths.astype(np.uint32)
    for step in range(int(lengths.max(initial=0)) // 4):
        rows = np.flatnonzero(lengths >= 4 * step + 4)
        word = _little_endian(data, at[rows] + 4 * step, 4) * multiplier
        word = (word ^ word >> np.uint32(24)) * multiplier
        hashes[rows] = hashes[rows] * multiplier ^ word
    for rest in (1, 2, 3):
        rows = np.flatnonzero(lengths & 3 == rest)
        if len(rows):
            tail = _little_endian(data, at[rows] + (lengths[rows] & ~3), rest)
            hashes[rows] = (hashes[rows] ^ tail) * multiplier
    hashes = (hashes ^ hashes >> np.uint32(13)) * multiplier
    return hashes ^ hashes >> np.uint32(15)


def _little_endian(data: Bytes, at: Numbers, width: int) -> Hashes:
    word = data[at].astype(np.uint32)
    for byte in range(1, width):
        word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word
