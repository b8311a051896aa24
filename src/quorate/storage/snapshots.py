"""Snapshots of logs: our own, and those that come from peers. How one lies on the disk: snapshot_file.py.

Written under another name, flushed, renamed, and its directory flushed (rule 6); only then are older ones
removed. A snapshot that arrives in pieces is kept as `incoming` until it is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quorate.core.entry import EntryId, Snapshot
from quorate.storage.disk import (
    DiskFailed,
    Flush,
    FlushDirectory,
    Operation,
    ReadAt,
    Rename,
    Unlink,
    Write,
)
from quorate.storage.log import Log
from quorate.storage.saving import Saving, too_early
from quorate.storage.shared import LANE_READ, LANE_SNAPSHOTS, Shared
from quorate.storage.snapshot_file import (
    BLOCK_BYTES,
    HEADER_BYTES,
    INCOMING,
    SAVING,
    Blocks,
    Kept,
    file_of,
    header_of,
    id_of,
    is_intact,
    verify_now,
)


class Snapshots:
    __slots__ = ("_incoming", "_kept", "_shared", "_under_way")

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._kept: dict[Log, Kept] = {}
        self._incoming: dict[Log, Blocks] = {}
        self._under_way: dict[Log, int] = {}
        """How many jobs that write to a file of ours are on their way."""

    def newest(self, log: Log) -> Snapshot | None:
        kept = self._kept.get(log)
        return kept.snapshot if kept is not None else None

    def forget(self, log: Log) -> None:
        self._kept.pop(log, None)
        self._incoming.pop(log, None)

    # --- opening ---

    def load_now(self, log: Log, names: list[str]) -> None:
        """Find the newest snapshot that is intact and that the log goes on behind."""
        candidates = sorted(filter(None, map(id_of, names)), key=lambda last: -last.offset)
        for last in candidates:
            if log.base.offset <= last.offset <= log.head.offset:
                kept = verify_now(self._shared.disk, log.partition, file_of(log, last), last)
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
        return data if is_intact(data, 0, kept) else None

    # --- own snapshots ---

    def save(
        self, log: Log, last: EntryId, checksum: int, data: bytes, done: Callable[[Exception | None], None]
    ) -> None:
        if not log.durable_state[1]:
            # Files of a partition that the journal does not know would belong to nobody after a crash.
            self._write(log, (), lambda _: done(too_early(log)))
            return
        blocks = Blocks()
        blocks.add(data)
        kept = Kept(Snapshot(last, checksum, len(data)), file_of(log, last), blocks.table())
        saving = f"{log.directory}/{SAVING}"
        self._write(
            log,
            (
                Unlink(saving),  # A longer one may have been left behind.
                Write(saving, 0, (header_of(log.partition, kept), data, kept.table)),
                Flush((saving,)),
                Rename(saving, kept.file),
                FlushDirectory(log.directory),
            ),
            lambda error: self._saved(log, kept, error, done),
        )

    def begin(self, log: Log, head_bytes: int) -> Saving:
        """The same piece by piece."""
        return Saving(log, head_bytes, self._write, self._saved)

    def _write(
        self, log: Log, operations: Sequence[Operation], done: Callable[[Exception | None], None]
    ) -> None:
        """Nobody hears of it if the log is deleted meanwhile."""
        self._under_way[log] = self._under_way.get(log, 0) + 1

        def completed(error: Exception | None) -> None:
            self._under_way[log] -= 1
            if not self._under_way[log]:
                del self._under_way[log]
            if not log.deleted:
                done(error)

        self._shared.submit(LANE_SNAPSHOTS, operations, completed)

    def _saved(
        self, log: Log, kept: Kept, error: Exception | None, done: Callable[[Exception | None], None]
    ) -> None:
        if error is None:
            log.directory_made = True
            self._keep(log, kept)
        done(error)

    def writes(self, log: Log) -> bool:
        """Whether something is still being written for it."""
        return log in self._under_way

    def read(
        self, log: Log, snapshot: Snapshot, at: int, length: int, done: Callable[[bytes | None], None]
    ) -> None:
        """A piece of that one; empty if it cannot be read as it was written; None if another is the newest."""
        kept = self._kept.get(log)
        if kept is not None and not kept.is_of(snapshot):
            self._shared.submit(LANE_READ, (), lambda _: done(None))
            return
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
            if len(content) == stop - start and is_intact(content, start, kept):
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
        kept = Kept(snapshot, file_of(log, snapshot.last), blocks.table())
        operations: list[Operation] = [
            Write(incoming, HEADER_BYTES + blocks.size, (kept.table,)),
            Write(incoming, 0, (header_of(log.partition, kept),)),
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
