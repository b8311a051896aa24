"""A directory of the machine as a `Disk`: a few threads do the blocking, the caller never does.

Every lane is a queue. A worker takes a lane, does one job of it, and puts the lane back behind the others:
jobs of a lane run in order, lanes run side by side, and no lane starves another. Completions are handed to
`deliver` (`loop.call_soon_threadsafe`, say), which calls them wherever the store lives. Without an event
loop, `RealDisk.polled` keeps them until `poll`.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

from quorate.storage.disk import (
    Allocate,
    DiskFailed,
    Done,
    Flush,
    FlushDirectory,
    Operation,
    ReadAt,
    Rename,
    Truncate,
    Unlink,
    Write,
)
from quorate.storage.open_files import (
    NO_SPACE,
    OpenFile,
    OpenFiles,
    checked_name,
    flush_descriptor,
    flush_directory,
    in_our_words,
    make_directory,
    read_whole,
    write_whole,
)

Deliver = Callable[[Callable[[], None]], object]

WORKERS_COUNT = 4
FLUSHERS_COUNT = 16
LOCK_FILE = "lock"

_ZEROS = bytes(1024 * 1024)


class DirectoryInUse(Exception):
    """Another process has this directory open."""


class RealDisk:
    """Files below one directory. Close it, or use it in a `with`."""

    def __init__(self, directory: str | Path, deliver: Deliver) -> None:
        self._root = Path(directory).absolute()
        self._deliver = deliver
        self._lanes: dict[str, _Lane] = {}
        self._waiting: SimpleQueue[_Lane | None] = SimpleQueue()
        self._unfinished_count = 0
        self._closed = False
        self._mutex = threading.Lock()
        self._idle = threading.Condition(self._mutex)
        self._lock_fd: int | None = None
        self._flush_failure: str | None = None
        with in_our_words(str(self._root)):
            make_directory(self._root)
        self._files = OpenFiles(self._root, self._flush)
        self._flushers = ThreadPoolExecutor(FLUSHERS_COUNT, "disk-flush")
        self._workers = [
            threading.Thread(target=self._work, name=f"disk-{number}", daemon=True)
            for number in range(WORKERS_COUNT)
        ]
        for worker in self._workers:
            worker.start()

    @staticmethod
    def polled(directory: str | Path) -> PolledDisk:
        """A disk whose completions wait until somebody polls: for tools and benchmarks."""
        return PolledDisk(directory)

    def submit(self, lane: str, operations: Sequence[Operation], done: Done) -> None:
        with self._mutex:
            assert not self._closed, "a job was submitted to a closed disk"
            queue = self._lanes.get(lane)
            if queue is None:
                queue = self._lanes[lane] = _Lane()
            queue.jobs.append((operations, done))
            self._unfinished_count += 1
            if not queue.active:
                queue.active = True
                self._waiting.put(queue)

    def list_now(self, directory: str) -> list[str]:
        path = self._directory(directory)
        with in_our_words(directory):
            if not path.exists():
                return []
            return sorted(name for name in os.listdir(path) if (path, name) != (self._root, LOCK_FILE))

    def size_now(self, file: str) -> int | None:
        path = self._root / checked_name(file)
        with in_our_words(file):
            return path.stat().st_size if path.exists() else None

    def read_now(self, file: str, at: int, length: int) -> bytes:
        return self._execute((ReadAt(file, at, length),))[0]

    def run_now(self, operations: Sequence[Operation]) -> None:
        self._execute(operations)

    def lock_now(self) -> None:
        """Keep every other process (and disk) off the directory until closed; raises DirectoryInUse."""
        assert self._lock_fd is None
        with in_our_words(str(self._root / LOCK_FILE)):
            fd = os.open(self._root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
            os.close(fd)
            raise DirectoryInUse(
                f"{self._root} is in use by process {holder or '(unknown)'}: "
                "stop that process, or choose another directory"
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        self._lock_fd = fd

    def close(self) -> None:
        """Finish what was submitted, then let go of threads, files and the lock."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            self._idle.wait_for(lambda: not self._unfinished_count)
        for _ in self._workers:
            self._waiting.put(None)
        for worker in self._workers:
            worker.join()
        self._flushers.shutdown()
        self._files.close()
        if self._lock_fd is not None:
            os.close(self._lock_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        while (lane := self._waiting.get()) is not None:
            operations, done = lane.jobs.popleft()
            error: Exception | None = None
            results: list[bytes] = []
            try:
                results = self._execute(operations)
            except Exception as raised:  # the one who submitted decides what it means
                error = raised
            with suppress(RuntimeError):  # the event loop is closed: nobody is left to be told
                self._deliver(_Completion(done, error, results))
            with self._mutex:
                self._unfinished_count -= 1
                if not self._unfinished_count:
                    self._idle.notify_all()
                if lane.jobs:
                    self._waiting.put(lane)
                else:
                    lane.active = False

    def _execute(self, operations: Sequence[Operation]) -> list[bytes]:
        results: list[bytes] = []
        for operation in operations:
            match operation:
                case Write():
                    self._write(operation)
                case Flush(files):
                    self._flush_all(files)
                case FlushDirectory(directory):
                    self._flush_directory(directory)
                case Allocate(file, size):
                    self._allocate(file, size)
                case Rename(source, target):
                    self._files.rename(source, target)
                case Unlink(file):
                    self._files.unlink(file)
                case Truncate(file, size):
                    with self._files.use(file) as opened, in_our_words(file):
                        os.ftruncate(opened.fd, size)
                        opened.unflushed = True
                case ReadAt(file, at, length):
                    with self._files.use(file) as opened, in_our_words(file):
                        results.append(read_whole(opened.fd, at, length))
        return results

    def _write(self, operation: Write) -> None:
        with self._files.use(operation.file, create=True) as opened, in_our_words(operation.file):
            size_before = os.fstat(opened.fd).st_size
            try:
                write_whole(opened.fd, operation.at, operation.buffers)
            except OSError as error:
                if error.errno in NO_SPACE and os.fstat(opened.fd).st_size > size_before:
                    os.ftruncate(opened.fd, size_before)
                raise
            finally:
                opened.unflushed = True

    def _allocate(self, file: str, size: int) -> None:
        """Zeros are written, not only reserved: a flush of reserved blocks would have to flush metadata too.

        Whatever had that name is replaced. Without room there is no file.
        """
        with self._files.use(file, create=True) as opened, in_our_words(file):
            try:
                os.ftruncate(opened.fd, 0)
                if hasattr(os, "posix_fallocate") and size:
                    os.posix_fallocate(opened.fd, 0, size)  # says at once when there is no room
                for at in range(0, size, len(_ZEROS)):
                    write_whole(opened.fd, at, (memoryview(_ZEROS)[: size - at],))
            except OSError:
                self._files.unlink(file)
                raise
            finally:
                opened.unflushed = True

    def _flush_all(self, files: tuple[str, ...]) -> None:
        """All of them are flushed, side by side, even if one fails: the failure is reported at the end."""
        if len(files) == 1:
            return self._flush_file(files[0])
        flushes = [self._flushers.submit(self._flush_file, file) for file in files]
        failures = [failure for flush in flushes if (failure := flush.exception()) is not None]
        if failures:
            raise failures[0]
        return None

    def _flush_file(self, file: str) -> None:
        with self._files.use(file) as opened:
            self._flush(opened, file)

    def _flush(self, opened: OpenFile, file: str) -> None:
        # Cleared first: a write that ends while the flush runs sets it again.
        opened.unflushed = False
        with self._failing_for_good(file):
            flush_descriptor(opened.fd)

    def _flush_directory(self, directory: str) -> None:
        with self._failing_for_good(directory or "."):
            flush_directory(self._directory(directory))

    @contextmanager
    def _failing_for_good(self, what: str) -> Iterator[None]:
        """After a failed flush the kernel has dropped the pages, and the next one would lie (rule 5)."""
        if self._flush_failure is not None:
            raise DiskFailed(f"{what}: not flushed, since an earlier flush failed: {self._flush_failure}")
        try:
            yield
        except OSError as error:  # whatever it is, even a lack of space: pages may be gone
            self._flush_failure = f"{what}: {error.strerror}"
            raise DiskFailed(self._flush_failure) from error

    def _directory(self, name: str) -> Path:
        return self._root if name in ("", ".") else self._root / checked_name(name)


class PolledDisk(RealDisk):
    """A disk without an event loop: completions are called from inside `poll`."""

    def __init__(self, directory: str | Path) -> None:
        self._completions: SimpleQueue[Callable[[], None]] = SimpleQueue()
        super().__init__(directory, self._completions.put)

    def poll(self, timeout: float | None = 0.0) -> int:
        """Call what has completed, and say how many; wait up to `timeout` (None: for ever) for the first."""
        called_count = 0
        try:
            completion = self._completions.get(timeout != 0, timeout or None)
            while True:
                completion()
                called_count += 1
                completion = self._completions.get_nowait()
        except Empty:
            return called_count


class _Lane:
    """Jobs that wait, and whether a worker has this lane or will have it."""

    __slots__ = ("active", "jobs")

    def __init__(self) -> None:
        self.jobs: deque[tuple[Sequence[Operation], Done]] = deque()
        self.active = False


class _Completion:
    __slots__ = ("done", "error", "results")

    def __init__(self, done: Done, error: Exception | None, results: list[bytes]) -> None:
        self.done = done
        self.error = error
        self.results = results

    def __call__(self) -> None:
        self.done(self.error, self.results)
