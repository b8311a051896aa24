"""A snapshot of our own that is written piece by piece, so that nobody has to wait for all of it, or hold it.

Its first bytes, `head`, say how much follows and so are known last: their place is left free, and the first
block, in which they are, gets its checksum at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quorate.core.entry import EntryId, Snapshot
from quorate.storage.disk import Flush, FlushDirectory, Operation, Rename, Unlink, Write
from quorate.storage.errors import StoreError
from quorate.storage.log import Log
from quorate.storage.snapshot_file import (
    BLOCK_BYTES,
    HEADER_BYTES,
    SAVING,
    Blocks,
    Kept,
    file_of,
    header_of,
)

Done = Callable[[Exception | None], None]


class Saving:
    """One at a time for each log."""

    __slots__ = ("_began", "_file", "_first", "_head_bytes", "_log", "_rest", "_saved", "_write")

    def __init__(
        self,
        log: Log,
        head_bytes: int,
        write: Callable[[Log, Sequence[Operation], Done], None],
        saved: Callable[[Log, Kept, Exception | None, Done], None],
    ) -> None:
        assert head_bytes < BLOCK_BYTES
        self._log = log
        self._head_bytes = head_bytes
        self._write = write
        self._saved = saved
        self._file = f"{log.directory}/{SAVING}"
        self._began = False
        self._first = bytearray()
        """What is in the first block, behind the head."""
        self._rest = Blocks()

    def add(self, piece: bytes, done: Done) -> None:
        """The next piece; `done` when there is room for another."""
        log = self._log
        if not log.durable_state[1]:
            self._write(log, (), lambda _: done(too_early(log)))
            return
        at = HEADER_BYTES + self._head_bytes + len(self._first) + self._rest.size
        split = BLOCK_BYTES - self._head_bytes - len(self._first)
        self._first += piece[:split]
        self._rest.add(memoryview(piece)[split:])
        operations: list[Operation] = [] if self._began else [Unlink(self._file)]
        self._began = True
        self._write(log, (*operations, Write(self._file, at, (piece,))), done)

    def finish(self, last: EntryId, checksum: int, head: bytes, tail: bytes, done: Done) -> None:
        """That was all of it: from now on it is the newest snapshot, once it is durable."""
        assert len(head) == self._head_bytes
        log = self._log
        if not log.durable_state[1]:
            self._write(log, (), lambda _: done(too_early(log)))
            return
        at = self._head_bytes + len(self._first) + self._rest.size
        whole = Blocks()
        whole.add(head)
        whole.add(self._first)
        (self._rest if self._rest.size else whole).add(tail)
        size = whole.size + self._rest.size
        kept = Kept(Snapshot(last, checksum, size), file_of(log, last), whole.table() + self._rest.table())
        operations: tuple[Operation, ...] = (
            *(() if self._began else (Unlink(self._file),)),
            Write(self._file, HEADER_BYTES + at, (tail, kept.table)),
            Write(self._file, 0, (header_of(log.partition, kept), head)),
            Flush((self._file,)),
            Rename(self._file, kept.file),
            FlushDirectory(log.directory),
        )
        self._write(log, operations, lambda error: self._saved(log, kept, error, done))

    def abort(self) -> None:
        """What is written so far is of no use."""
        if self._began and not self._log.deleted:
            self._write(self._log, (Unlink(self._file),), lambda _: None)


def too_early(log: Log) -> StoreError:
    """Files of a partition that the journal does not know would belong to nobody after a crash."""
    return StoreError(f"{log.directory} is not on the disk yet: take the snapshot later")
