"""Snapshots: one file each, with a checksum per block, so that any piece can be verified by itself.

    magic 4 · version 1 · padding 3 · partition 20 · last epoch 8 · last offset 8 · last checksum 4 ·
    size 8 · table crc 4 · header crc 4 · data · table (CRC-32C of every block of the data)

Written under another name, flushed, renamed, and its directory flushed (rule 6); only then are older ones
removed. A snapshot that arrives in pieces is kept as `incoming` until it is whole.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable

import msgspec
from crc32c import crc32c

from quorate.core.entry import FORMAT_VERSION, EntryId, Partition, Snapshot
from quorate.storage.disk import (
    Disk,
    DiskFailed,
    Flush,
    FlushDirectory,
    Operation,
    ReadAt,
    Rename,
    Unlink,
    Write,
)
from quorate.storage.errors import StoreError
from quorate.storage.log import Log
from quorate.storage.shared import LANE_READ, LANE_SNAPSHOTS, Shared

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


class Blocks:
    """Checksums of blocks of data that arrives in pieces."""

    __slots__ = ("_crc", "_filled", "_full", "size")

    def __init__(self) -> None:
        self._full = array("L")
        self._crc = 0
        self._filled = 0
        self.size = 0

    def add(self, data: bytes) -> None:
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


class Snapshots:
    __slots__ = ("_incoming", "_kept", "_shared")

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._kept: dict[Log, Kept] = {}
        self._incoming: dict[Log, Blocks] = {}

    def newest(self, log: Log) -> Snapshot | None:
        kept = self._kept.get(log)
        return kept.snapshot if kept is not None else None

    def forget(self, log: Log) -> None:
        self._kept.pop(log, None)
        self._incoming.pop(log, None)

    # --- opening ---

    def load_now(self, log: Log, names: list[str]) -> None:
        """Find the newest snapshot that is intact and that the log goes on behind."""
        candidates = sorted(filter(None, map(_id_of, names)), key=lambda last: -last.offset)
        for last in candidates:
            if log.base.offset <= last.offset <= log.head.offset:
                kept = _verify_now(self._shared.disk, log.partition, _file(log, last), last)
                if kept is not None:
                    self._kept[log] = kept
                    return

    def data_now(self, log: Log) -> bytes | None:
        kept = self._kept.get(log)
        if kept is None:
            return None
        try:
            data = self._shared.disk.read_now(kept.file, HEADER_BYTES, kept.snapshot.size)
        except DiskFailed:
            return None
        return data if _intact(data, 0, kept) else None

    # --- own snapshots ---

    def save(
        self, log: Log, last: EntryId, checksum: int, data: bytes, done: Callable[[Exception | None], None]
    ) -> None:
        if not log.durable_state[1]:
            # Files of a partition that the journal does not know would belong to nobody after a crash.
            early = StoreError(f"{log.directory} is not on the disk yet: take the snapshot later")
            self._shared.submit(LANE_SNAPSHOTS, (), lambda _: done(early))
            return
        blocks = Blocks()
        blocks.add(data)
        kept = Kept(Snapshot(last, checksum, len(data)), _file(log, last), blocks.table())
        saving = f"{log.directory}/{SAVING}"
        operations: tuple[Operation, ...] = (
            Unlink(saving),  # A longer one may have been left behind.
            Write(saving, 0, (_header(log.partition, kept), data, kept.table)),
            Flush((saving,)),
            Rename(saving, kept.file),
            FlushDirectory(log.directory),
        )

        def saved(error: Exception | None) -> None:
            if log.deleted:
                return
            if error is None:
                log.directory_made = True
                self._keep(log, kept)
            done(error)

        self._shared.submit(LANE_SNAPSHOTS, operations, saved)

    def read(self, log: Log, at: int, length: int, done: Callable[[bytes], None]) -> None:
        """A piece of the newest snapshot; nothing if it cannot be read as it was written."""
        kept = self._kept.get(log)
        if kept is None or not 0 <= at < kept.snapshot.size:
            self._shared.submit(LANE_READ, (), lambda _: done(b""))
            return
        end = min(at + length, kept.snapshot.size)
        start = at // BLOCK_BYTES * BLOCK_BYTES
        stop = min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, kept.snapshot.size)

        def completed(error: Exception | None, results: list[bytes]) -> None:
            if self._shared.dead:
                return
            content = results[0] if error is None else b""
            if len(content) == stop - start and _intact(content, start, kept):
                done(content[at - start : end - start])
                return
            if self._kept.get(log) is kept:
                del self._kept[log]  # A new one will be taken, or asked of a peer.
            done(b"")

        operation = ReadAt(kept.file, HEADER_BYTES + start, stop - start)
        self._shared.disk.submit(LANE_READ, (operation,), completed)

    # --- a peer's snapshot ---

    def stage(self, log: Log, at: int, data: bytes) -> list[Operation] | None:
        """Keep a piece. None if it does not go on where the last one ended."""
        incoming = f"{log.directory}/{INCOMING}"
        operations: list[Operation] = []
        if at == 0:
            self._incoming[log] = Blocks()
            operations.append(Unlink(incoming))
        blocks = self._incoming.get(log)
        if blocks is None or blocks.size != at:
            return None
        blocks.add(data)
        operations.append(Write(incoming, HEADER_BYTES + at, (data,)))
        return operations

    def install(self, log: Log, snapshot: Snapshot) -> tuple[list[Operation], Callable[[], None]] | None:
        """What makes the staged pieces this log's snapshot, and what to do when that is durable."""
        blocks = self._incoming.pop(log, None)
        if blocks is None or blocks.size != snapshot.size:
            return None
        incoming = f"{log.directory}/{INCOMING}"
        kept = Kept(snapshot, _file(log, snapshot.last), blocks.table())
        operations: list[Operation] = [
            Write(incoming, HEADER_BYTES + blocks.size, (kept.table,)),
            Write(incoming, 0, (_header(log.partition, kept),)),
            Flush((incoming,)),
            Rename(incoming, kept.file),
            FlushDirectory(log.directory),
        ]
        return operations, lambda: self._keep(log, kept)

    def _keep(self, log: Log, kept: Kept) -> None:
        older = self._kept.get(log)
        if older is not None and older.snapshot.last.offset > kept.snapshot.last.offset:
            kept, older = older, kept  # A peer's arrived while ours was being written.
        self._kept[log] = kept
        if older is not None and older.file != kept.file:
            self._shared.submit(LANE_SNAPSHOTS, (Unlink(older.file),), lambda _: None)


def _header(partition: Partition, kept: Kept) -> bytes:
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


def _file(log: Log, last: EntryId) -> str:
    return f"{log.directory}/{PREFIX}{last.offset}-{last.epoch}"


def _id_of(name: str) -> EntryId | None:
    offset, dash, epoch = name.removeprefix(PREFIX).partition("-")
    if not (name.startswith(PREFIX) and dash and name.isascii() and offset.isdigit() and epoch.isdigit()):
        return None
    return EntryId(int(epoch), int(offset))


def _intact(content: bytes, start: int, kept: Kept) -> bool:
    """Whether data from a block's start on is what the table says."""
    view = memoryview(content)
    first = start // BLOCK_BYTES
    return all(
        crc32c(view[at : at + BLOCK_BYTES])
        == _CRC.unpack_from(kept.table, 4 * (first + at // BLOCK_BYTES))[0]
        for at in range(0, len(content), BLOCK_BYTES)
    )


def _verify_now(disk: Disk, partition: Partition, file: str, last: EntryId) -> Kept | None:
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
            if len(content) != min(step, size - at) or not _intact(content, at, kept):
                return None
    except DiskFailed:
        return None
    return kept
