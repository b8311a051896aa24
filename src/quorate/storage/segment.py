"""Segments: files of frames, one behind the other, and the footer that seals one.

A segment has no header: its name says where it starts, and its frames say the rest. The footer repeats what a
reader wants to know before it reads (identity, first and last entry, sparse index, epochs, controls), and is made
anew by reading the segment if it is damaged. It ends with its own length and a magic, so that a tool finds
it from the end of the file.
"""

from __future__ import annotations

import struct

import msgspec
from crc32c import crc32c

from quorate.core.entry import FORMAT_VERSION, PARTITION_BYTES, EntryId, Header, Partition
from quorate.storage.index import Point

FOOTER_MAGIC = b"QfoT"
_HEAD = struct.Struct(">4sBxxxI")
_TAIL = struct.Struct(">II4s")
FOOTER_BYTES_MAX = 4 * 1024 * 1024
FOOTER_TAIL_BYTES = _TAIL.size

PARTITIONS = "partitions"
_OFFSET_DIGITS = 20
_SUFFIX = ".log"


class Made(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What compaction made a segment from: the same on every replica."""

    upto: int
    deleted_upto: int
    entries_count: int
    """Of how many entries something or nothing is in here."""
    records_count: int
    """That are left."""
    crc: int
    """CRC-32C of all that lies before the footer."""


class Footer(msgspec.Struct, frozen=True, gc=False, array_like=True):
    partition: bytes
    before: EntryId
    before_checksum: int
    last: EntryId
    checksum: int
    size: int
    """Where the frames end and this footer starts."""
    index: tuple[Point, ...]
    epochs: tuple[tuple[int, int], ...]
    """(epoch, first offset in this segment)"""
    controls: tuple[Header, ...]
    made: Made | None = None


class DamagedFooter(Exception):
    """No intact footer (of the expected segment) lies there."""


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Footer] = msgspec.msgpack.Decoder(Footer)


def directory_of(partition: Partition) -> str:
    assert len(partition) == PARTITION_BYTES
    return f"{PARTITIONS}/{partition[:16].hex()}-{int.from_bytes(partition[16:], 'big')}"


def partition_named(name: str) -> Partition | None:
    """The partition whose directory has this name; None if it is nobody's."""
    topic, dash, number = name.partition("-")
    try:
        partition = Partition(bytes.fromhex(topic) + int(number).to_bytes(4, "big"))
    except (ValueError, OverflowError):
        return None
    if len(partition) != PARTITION_BYTES or directory_of(partition) != f"{PARTITIONS}/{name}" or not dash:
        return None
    return partition


def segment_file(directory: str, base: int, compacted: int = -1) -> str:
    """A file that compaction made is named by how far its generation reaches, too: it stands beside the old one."""
    generation = f"-{compacted:0{_OFFSET_DIGITS}d}" if compacted >= 0 else ""
    return f"{directory}/{base:0{_OFFSET_DIGITS}d}{generation}{_SUFFIX}"


def generation_named(name: str) -> int | None:
    """How far the generation reaches that made a file of this name; None if none did."""
    base, dash, generation = name.removesuffix(_SUFFIX).partition("-")
    made = dash and name.endswith(_SUFFIX) and segment_base(base + _SUFFIX) is not None
    return segment_base(generation + _SUFFIX) if made else None


def segment_base(name: str) -> int | None:
    """The base offset of the segment with this name; None if it is no segment's."""
    digits = name.removesuffix(_SUFFIX)
    if digits == name or len(digits) != _OFFSET_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def encode_footer(footer: Footer) -> bytes:
    body = _encode(footer)
    head = _HEAD.pack(FOOTER_MAGIC, FORMAT_VERSION, len(body))
    crc = crc32c(body, crc32c(head))
    return b"".join((head, body, _TAIL.pack(crc, len(head) + len(body) + _TAIL.size, FOOTER_MAGIC)))


def footer_at(end: bytes, size: int) -> int:
    """Where the footer of a file of that size starts, by the last bytes of it; raises DamagedFooter."""
    if len(end) != _TAIL.size:
        raise DamagedFooter("too few bytes for a footer")
    _, whole, closing = _TAIL.unpack(end)
    if closing != FOOTER_MAGIC or not 0 < whole <= size:
        raise DamagedFooter("no footer ends here")
    return size - int(whole)


def parse_footer(content: bytes, partition: Partition) -> Footer:
    """The footer at the start of `content`; raises DamagedFooter."""
    if len(content) < _HEAD.size + _TAIL.size:
        raise DamagedFooter("too few bytes for a footer")
    magic, version, length = _HEAD.unpack_from(content)
    end = _HEAD.size + length
    if magic != FOOTER_MAGIC or version != FORMAT_VERSION or end + _TAIL.size > len(content):
        raise DamagedFooter("no footer starts here")
    crc, whole, closing = _TAIL.unpack_from(content, end)
    if crc32c(content[:end]) != crc or whole != end + _TAIL.size or closing != FOOTER_MAGIC:
        raise DamagedFooter("the footer does not match its checksum")
    try:
        footer = _decoder.decode(content[_HEAD.size : end])
    except msgspec.MsgspecError as error:
        raise DamagedFooter(f"the footer is unreadable: {error}") from error
    if footer.partition != partition:
        raise DamagedFooter(f"the footer is of partition {footer.partition.hex()}")
    return footer
