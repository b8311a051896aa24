"""The one narrow way to the disk: jobs are submitted and complete later; the caller goes on.

A job is a short list of operations, done in order, in one *lane*. Jobs of one lane run one after the
other; lanes run side by side. `done` is called later, by whoever drives the disk (the event loop, the
simulator), never from inside `submit`. The first operation that fails ends its job.

The methods ending in `_now` block, and are for opening a store, when nothing else runs yet.
Names are relative paths that storage itself makes ("journal.a", "partitions/0a…-3/00000000000000000000.log").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

Buffer = bytes | bytearray | memoryview


class DiskFull(Exception):
    """No space left: nothing of the job's failed operation was kept."""


class DiskFailed(Exception):
    """The disk said no (EIO and its kin). After a failed flush nothing unflushed can be trusted: rule 5."""


class Write(msgspec.Struct, frozen=True, gc=False):
    """Put the buffers at a position, creating the file if need be. Not durable until flushed."""

    file: str
    at: int
    buffers: tuple[Buffer, ...]


class Flush(msgspec.Struct, frozen=True, gc=False):
    """Make every finished write to these files durable (fdatasync), side by side."""

    files: tuple[str, ...]


class FlushDirectory(msgspec.Struct, frozen=True, gc=False):
    """Make creations, renames and unlinks in a directory durable (rule 6)."""

    directory: str


class Allocate(msgspec.Struct, frozen=True, gc=False):
    """Create a file of `size` zero bytes, really allocated, so that writing to it cannot run out of space."""

    file: str
    size: int


class Rename(msgspec.Struct, frozen=True, gc=False):
    source: str
    target: str


class Unlink(msgspec.Struct, frozen=True, gc=False):
    file: str


class Truncate(msgspec.Struct, frozen=True, gc=False):
    file: str
    size: int


class ReadAt(msgspec.Struct, frozen=True, gc=False):
    """Read up to `length` bytes; fewer at the end of the file. Its bytes are in the job's results."""

    file: str
    at: int
    length: int


class Work(msgspec.Struct, frozen=True, gc=False):
    """Call this: it takes long, and touches nothing that anybody else touches before the job is done."""

    task: Callable[[], None]


Operation = Write | Flush | FlushDirectory | Allocate | Rename | Unlink | Truncate | ReadAt | Work

Done = Callable[[Exception | None, list[bytes]], None]
"""Called with None and what the job's ReadAt operations read, or with DiskFull or DiskFailed."""


class Disk(Protocol):
    """What storage needs of a disk."""

    def submit(self, lane: str, operations: Sequence[Operation], done: Done) -> None: ...

    def list_now(self, directory: str) -> list[str]:
        """Sorted names in a directory; empty if there is none."""
        ...

    def size_now(self, file: str) -> int | None:
        """None if there is no such file."""
        ...

    def read_now(self, file: str, at: int, length: int) -> bytes: ...

    def run_now(self, operations: Sequence[Operation]) -> None:
        """Do these at once, blocking; raises DiskFull or DiskFailed."""
        ...
