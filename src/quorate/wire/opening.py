"""Compressed record batches, opened within a bound; and records compressed for one.

A kilobyte of zstd may say that it is a terabyte. Whoever opens what others wrote says how much it may become; more
is TooLarge, before it is allocated (rule 10 of the reliability rules).
"""

from __future__ import annotations

import struct

import cramjam

from quorate.batch import (
    BATCH_MIN,
    COMPRESSION_MASK,
    LENGTH_EXCLUDES,
    BadBatch,
    Buffer,
    header_bytes,
    parse_batch_header,
)

OPENED_BYTES_MAX = 64 << 20

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
CODECS = {"none": 0, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
"""As `compression.type` calls them."""

_XERIAL = b"\x82SNAPPY\0"
"""Java's snappy, and with it most Kafka clients, divides into blocks behind this and two version numbers."""
_XERIAL_HEAD_BYTES = 16
_BLOCK = struct.Struct(">i")
_FIRST_GUESS = 4
"""So many times as large as it is compressed, a batch is thought to be at first."""


class TooLarge(Exception):
    """The records would take more room than they may."""


def opened(payload: Buffer, bytes_max: int = OPENED_BYTES_MAX) -> Buffer:
    """The same batch, not compressed; its checksum is no longer right. Raises BadBatch, TooLarge."""
    header = parse_batch_header(payload)
    if not header.compression:
        return payload
    records = _decompressed(header.compression, memoryview(payload)[BATCH_MIN:], bytes_max)
    plain = header_bytes(
        header,
        attributes=header.attributes & ~COMPRESSION_MASK,
        length=BATCH_MIN + len(records) - LENGTH_EXCLUDES,
    )
    return plain + records


def compressed(records: Buffer, codec: int) -> Buffer:
    """With one of CODECS; 0 leaves them as they are."""
    if not codec:
        return records
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(bytes(records)))
    modules = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}
    return bytes(modules[codec].compress(bytes(records)))


def _decompressed(codec: int, content: memoryview, bytes_max: int) -> bytes:
    if codec == SNAPPY:
        return _snappy(bytes(content), bytes_max)
    modules = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}
    if codec not in modules:
        raise BadBatch(f"compression {codec} is unknown")
    room = min(max(_FIRST_GUESS * len(content), 1 << 16), bytes_max)
    while True:
        buffer = bytearray(room)
        try:
            size = modules[codec].decompress_into(bytes(content), buffer)
            return bytes(memoryview(buffer)[:size])
        except cramjam.DecompressionError as error:
            # The codecs say in the same words that there was no room, and nothing else in these.
            if "whole buffer" not in str(error):
                raise BadBatch(f"the records cannot be decompressed: {error}") from None
        if room == bytes_max:
            raise TooLarge("the records of a batch take more room than they may")
        room = min(_FIRST_GUESS * room, bytes_max)


def _snappy(content: bytes, bytes_max: int) -> bytes:
    """Its blocks say how large they become: that is compared with the bound first."""
    if not content.startswith(_XERIAL):
        return _snappy_block(content, bytes_max)
    parts: list[bytes] = []
    at, left = _XERIAL_HEAD_BYTES, bytes_max
    while at + _BLOCK.size <= len(content):
        size = _BLOCK.unpack_from(content, at)[0]
        at += _BLOCK.size
        if not 0 < size <= len(content) - at:
            raise BadBatch(f"a block of {size} bytes, {len(content) - at} are left")
        parts.append(_snappy_block(content[at : at + size], left))
        left -= len(parts[-1])
        at += size
    return b"".join(parts)


def _snappy_block(block: bytes, bytes_max: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(block) > bytes_max:
            raise TooLarge("the records of a batch take more room than they may")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise BadBatch(f"the records cannot be decompressed: {error}") from None
