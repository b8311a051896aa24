"""Open files by name, and system calls that need care: whole writes, real flushes, errors in our words."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from quorate.storage.disk import Buffer, DiskFailed, DiskFull

FILES_OPEN_MAX = 256
"""Systems commonly allow a process 1,024 descriptors: most of them are for sockets."""
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)
_PART = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._-]{1,255}"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")


class BadName(ValueError):
    """A name that may not become a path (rule 10)."""


def checked_name(name: str) -> str:
    """A relative path of plain parts, or BadName."""
    if not _NAME.fullmatch(name):
        raise BadName(f"{name!r} is not a relative path of letters, digits, dots, dashes and underscores")
    return name


class OpenFile:
    __slots__ = ("fd", "forgotten", "growing", "size_at_least", "unflushed", "users_count")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size_at_least = 0
        """A write below this does not make the file grow."""
        self.growing = threading.Lock()
        """Held by whoever makes it grow: without room, the growth is taken back, and only that."""
        self.users_count = 0
        self.unflushed = False
        self.forgotten = False


class OpenFiles:
    """Open files by name, at most FILES_OPEN_MAX while that many are not in use at once.

    A file with unflushed writes is flushed before it is closed: a failure to write it back that happened
    while nobody had it open could go unreported.
    """

    def __init__(self, root: Path, flush: Callable[[OpenFile, str], None]) -> None:
        self._root = root
        self._flush = flush
        self._open: OrderedDict[str, OpenFile] = OrderedDict()
        self._safe_directories = {root}
        self._names = threading.Lock()
        """Held while names change or are opened, so that no descriptor is kept under a name that has moved on."""
        self._mutex = threading.Lock()
        """Held for a moment only: whoever uses a file that is open never waits for the disk."""

    @contextmanager
    def use(self, file: str, *, create: bool = False) -> Iterator[OpenFile]:
        opened = self.acquire(file, create=create)
        try:
            yield opened
        finally:
            self.release(opened)

    def rename(self, source: str, target: str) -> None:
        source_path, target_path = self._root / checked_name(source), self._root / checked_name(target)
        assert source_path.parent == target_path.parent, "a rename stays in its directory"
        with in_our_words(f"{source} to {target}"), self._names:
            os.rename(source_path, target_path)
            if source != target:
                self._forget(target)
                with self._mutex:
                    moved = self._open.pop(source, None)
                    if moved is not None:
                        self._open[target] = moved

    def unlink(self, file: str) -> None:
        """What is gone already need not be removed: whoever repeats a clean-up after a crash is right."""
        path = self._root / checked_name(file)
        with self._names:
            with in_our_words(file), suppress(FileNotFoundError):
                os.unlink(path)
            self._forget(file)

    def close(self) -> None:
        with self._mutex:
            for opened in self._open.values():
                assert not opened.users_count
                os.close(opened.fd)
            self._open.clear()

    def acquire(self, file: str, *, create: bool = False) -> OpenFile:
        opened = self.take(file)
        if opened is not None:
            return opened
        path = self._root / checked_name(file)
        with in_our_words(file):
            if create:
                self._make_safe(path.parent)
            with self._names:
                opened = self.take(file)
                if opened is None:
                    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
                    opened = OpenFile(os.open(path, flags, 0o644))
                    opened.users_count = 1
                    with self._mutex:
                        self._open[file] = opened
        try:
            self._shrink()
        except BaseException:
            self.release(opened)
            raise
        return opened

    def take(self, file: str) -> OpenFile | None:
        """As `acquire`, but only what is open already: nobody waits for the disk."""
        with self._mutex:
            opened = self._open.get(file)
            if opened is not None:
                self._open.move_to_end(file)
                opened.users_count += 1
            return opened

    def _make_safe(self, directory: Path) -> None:
        """A directory that is there may be one whose maker died before flushing it into its parent."""
        if directory not in self._safe_directories:
            self._make_safe(directory.parent)
            directory.mkdir(exist_ok=True)
            flush_directory(directory.parent)
            self._safe_directories.add(directory)

    def release(self, opened: OpenFile) -> None:
        with self._mutex:
            opened.users_count -= 1
            last = opened.forgotten and not opened.users_count
        if last:  # To close what was unlinked frees its blocks, which takes a while.
            os.close(opened.fd)

    def _forget(self, file: str) -> None:
        """Let the name go; the descriptor stays as long as somebody uses it."""
        with self._mutex:
            opened = self._open.pop(file, None)
            if opened is None:
                return
            opened.forgotten = True
            unused = not opened.users_count
        if unused:
            os.close(opened.fd)

    def _shrink(self) -> None:
        while (victim := self._close_one()) is not None:
            file, opened = victim
            try:
                self._flush(opened, file)
            finally:
                self.release(opened)

    def _close_one(self) -> tuple[str, OpenFile] | None:
        """Close what was used least recently; or return, as in use, what must be flushed before that."""
        with self._mutex:
            while len(self._open) > FILES_OPEN_MAX:
                unused = [(file, opened) for file, opened in self._open.items() if not opened.users_count]
                if not unused:
                    return None
                file, opened = next((each for each in unused if not each[1].unflushed), unused[0])
                if opened.unflushed:
                    opened.users_count += 1
                    return file, opened
                del self._open[file]
                opened.forgotten = True
                os.close(opened.fd)
            return None


@contextmanager
def in_our_words(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise in_words(what, error) from error


def in_words(what: str, error: OSError) -> DiskFull | DiskFailed:
    kind = DiskFull if error.errno in NO_SPACE else DiskFailed
    return kind(f"{what}: {error.strerror}")


def write_whole(fd: int, at: int, buffers: Sequence[Buffer]) -> None:
    size = sum(map(len, buffers))
    written = os.pwritev(fd, buffers, at) if 0 < len(buffers) <= _IOV_MAX else 0
    if written < size:
        _write_rest(fd, at, buffers, written)


def _write_rest(fd: int, at: int, buffers: Sequence[Buffer], written: int) -> None:
    """What the system did not take at once."""
    left = deque(memoryview(buffer).cast("B") for buffer in buffers if len(buffer))
    at += written
    _drop(left, written)
    while left:
        written = os.pwritev(fd, [left[index] for index in range(min(len(left), _IOV_MAX))], at)
        if not written:
            raise OSError(errno.EIO, "the system writes nothing and does not say why")
        at += written
        _drop(left, written)


def _drop(left: deque[memoryview], written: int) -> None:
    while written:
        if written < len(left[0]):
            left[0] = left[0][written:]
            return
        written -= len(left.popleft())


def read_whole(fd: int, at: int, length: int) -> bytes:
    length = min(length, max(0, os.fstat(fd).st_size - at))  # never allocate for bytes that are not there
    content = os.pread(fd, length, at)
    if len(content) == length:
        return content
    pieces = [content]
    length -= len(content)
    while content and length:
        at += len(content)
        content = os.pread(fd, length, at)
        pieces.append(content)
        length -= len(content)
    return b"".join(pieces)


def flush_descriptor(fd: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync there does not reach the disk
    else:
        os.fdatasync(fd)


def flush_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(directory: Path) -> None:
    """With its parents, each flushed into its own before it is used: it does not vanish with the power."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    flush_directory(directory.parent)
