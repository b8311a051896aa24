"""A store's directory, to be read only, while its node may be writing.

Journals are read whole, from their end to their start, and their second place before them. A round is written when
the one before it is flushed. So whoever has seen a round, or a mark of one, reads the rounds before it later than
they were written, and never takes what is still being written for damage.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from quorate.storage.disk import DiskFailed, Done, Operation
from quorate.storage.recovery import FILES

BLOCK_BYTES = 64 * 1024
HEAD_BYTES = 4096
LOOKS_MAX = 20


class ReadingDisk:
    """What storage reads through; raises DiskFailed where a file cannot be read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._journals: dict[str, bytes] = {}

    def keep_journals(self) -> None:
        """Read them all at one moment: again, where a new generation has begun meanwhile."""
        for _ in range(LOOKS_MAX):
            before = self._heads()
            self._journals = {
                name: content
                for name in sorted(FILES, reverse=True)  # marks first
                if (content := self._backwards(name)) is not None
            }
            if before == self._heads():
                return

    def _heads(self) -> list[bytes]:
        return [self._read(name, 0, HEAD_BYTES) if self.size_now(name) else b"" for name in FILES]

    def _backwards(self, name: str) -> bytes | None:
        try:
            descriptor = os.open(self.root / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            size = os.fstat(descriptor).st_size
            starts = range(0, size, BLOCK_BYTES)
            blocks = [os.pread(descriptor, BLOCK_BYTES, at) for at in reversed(starts)]
            return b"".join(reversed(blocks))
        except OSError:
            return b""
        finally:
            os.close(descriptor)

    # --- as a disk ---

    def list_now(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / directory))
        except OSError:
            return []

    def size_now(self, file: str) -> int | None:
        if file in self._journals:
            return len(self._journals[file])
        try:
            return (self.root / file).stat().st_size
        except OSError:
            return None

    def read_now(self, file: str, at: int, length: int) -> bytes:
        if file in self._journals:
            return self._journals[file][at : at + length]
        return self._read(file, at, length)

    def _read(self, file: str, at: int, length: int) -> bytes:
        try:
            descriptor = os.open(self.root / file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DiskFailed(f"{file}: {error.strerror}") from error
        try:
            return os.pread(descriptor, length, at)
        except OSError as error:
            raise DiskFailed(f"{file}: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def submit(self, lane: str, operations: Sequence[Operation], done: Done) -> None:
        raise AssertionError("an audit writes nothing")

    def run_now(self, operations: Sequence[Operation]) -> None:
        raise AssertionError("an audit writes nothing")
