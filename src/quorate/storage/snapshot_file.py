"""How a snapshot lies on the disk: one file, with a checksum per block, so that any piece can be verified alone.

magic 4 · version 1 · padding 3 · partition 20 · last epoch 8 · last offset 8 · last checksum 4 ·
size 8 · table crc 4 · header crc 4 · data · table (CRC-32C of every block of the data)
"""

from __future__ import annotations

import struct
from array import array

import msgspec
from crc32c import crc32c

from quorate.core.entry import FORMAT_VERSION, EntryId, Partition, Snapshot
from quorate.storage.disk import Buffer, Disk, DiskFailed
from quorate.storage.log import Log

SNAPSHOT_MAGIC = b"QsnP"
_HEADER = struct.Struct(">4sB3x20sQqIQI")
_CRC = struct.Struct(">I")
HEADER_BYTES = _HEADER.size + _CRC.size
BLOCK_BYTES = 64 * 1024
PREFIX = "snapshot-"
INCOMING = "incoming"
SAVING = "saving"


class Kept(msgspec.Struct, frozen=True, gc=False):
    """The newest snapshot of a log: durable, and intact when it was last looked at."""

    snapshot: Snapshot
    file: str
    table: bytes

    def is_of(self, snapshot: Snapshot) -> bool:
        """Whether it is that one: the store does not know what else is said of it."""
        mine = self.snapshot
        return (mine.last, mine.checksum, mine.size) == (snapshot.last, snapshot.checksum, snapshot.size)


class Blocks:
    """Checksums of blocks of data that arrives in pieces."""

    __slots__ = ("_crc", "_filled", "_full", "size")

    def __init__(self) -> None:
        self._full = array("L")
        self._crc = 0
        self._filled = 0
        self.size = 0

    def add(self, data: Buffer) -> None:
        view = memoryview(data)
        while view:
            piece = view[: BLOCK_BYTES - self._filled]
            self._crc = crc32c(piece, self._crc)
            self._filled += len(piece)
            if self._filled == BLOCK_BYTES:
                self._full.append(self._crc)
                self._crc = self._filled = 0
            view = view[len(piece) :]
        self.size += len(data)

    def table(self) -> bytes:
        crcs = [*self._full, self._crc] if self._filled else list(self._full)
        return b"".join(map(_CRC.pack, crcs))


def header_of(partition: Partition, kept: Kept) -> bytes:
    snapshot = kept.snapshot
    checked = _HEADER.pack(
        SNAPSHOT_MAGIC,
        FORMAT_VERSION,
        partition,
        snapshot.last.epoch,
        snapshot.last.offset,
        snapshot.checksum,
        snapshot.size,
        crc32c(kept.table),
    )
    return checked + _CRC.pack(crc32c(checked))


def file_of(log: Log, last: EntryId) -> str:
    return f"{log.directory}/{PREFIX}{last.offset}-{last.epoch}"


def id_of(name: str) -> EntryId | None:
    offset, dash, epoch = name.removeprefix(PREFIX).partition("-")
    if not (name.startswith(PREFIX) and dash and name.isascii() and offset.isdigit() and epoch.isdigit()):
        return None
    return EntryId(int(epoch), int(offset))


def is_intact(content: bytes, start: int, kept: Kept) -> bool:
    """Whether data from a block's start on is what the table says."""
    view = memoryview(content)
    first = start // BLOCK_BYTES
    return all(
        crc32c(view[at : at + BLOCK_BYTES])
        == _CRC.unpack_from(kept.table, 4 * (first + at // BLOCK_BYTES))[0]
        for at in range(0, len(content), BLOCK_BYTES)
    )


def verify_now(disk: Disk, partition: Partition, file: str, last: EntryId) -> Kept | None:
    """The snapshot in a file, if every byte of it is what was written."""
    try:
        header = disk.read_now(file, 0, HEADER_BYTES)
        if (
            len(header) < HEADER_BYTES
            or crc32c(header[: _HEADER.size]) != _CRC.unpack_from(header, _HEADER.size)[0]
        ):
            return None
        magic, version, owner, epoch, offset, checksum, size, table_crc = _HEADER.unpack_from(header)
        if (magic, version, owner) != (SNAPSHOT_MAGIC, FORMAT_VERSION, partition):
            return None
        if EntryId(epoch, offset) != last:
            return None
        table = disk.read_now(file, HEADER_BYTES + size, 4 * -(-size // BLOCK_BYTES))
        if crc32c(table) != table_crc or len(table) != 4 * -(-size // BLOCK_BYTES):
            return None
        kept = Kept(Snapshot(last, checksum, size), file, table)
        step = 16 * BLOCK_BYTES
        for at in range(0, size, step):
            content = disk.read_now(file, HEADER_BYTES + at, min(step, size - at))
            if len(content) != min(step, size - at) or not is_intact(content, at, kept):
                return None
    except DiskFailed:
        return None
    return kept
