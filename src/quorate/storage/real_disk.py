"""A directory of the machine as a `Disk`: the kernel and a few threads do the blocking, the caller goes on.

Every lane is a queue and a thread of its own, made when the lane is first used: jobs of a lane run in order,
lanes run side by side, and handing a job over wakes one thread and nothing else. What a store does most, a
few writes and their flush, needs no thread where the kernel flushes by itself (`kernel_flush.py`): the writes
end in the page cache, and the flush is only begun.

Completions are handed to `deliver` (`loop.call_soon_threadsafe`, say), which calls them wherever the store
lives; `watch` (by `loop.add_reader`, say) is told which descriptor says that flushes are done, and returns
what ends that. Without an event loop, `RealDisk.polled` keeps completions until `poll`.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
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
    Work,
    Write,
)
from quorate.storage.kernel_flush import KernelFlush
from quorate.storage.open_files import (
    NO_SPACE,
    OpenFile,
    OpenFiles,
    checked_name,
    flush_descriptor,
    flush_directory,
    in_our_words,
    in_words,
    make_directory,
    read_whole,
    write_whole,
)

Deliver = Callable[[Callable[[], None]], object]
Watch = Callable[[int, Callable[[], None]], Callable[[], object]]

LANES_COUNT_MAX = 16
FLUSHERS_COUNT = 16
FILES_FLUSHED_MAX = 4
SHORT_WRITE_BYTES = 1024 * 1024
"""What the caller copies to the page cache itself. A thread would take the interpreter from it, and back, several
times a write: with one, a replicated entry of 64 KiB costs each node a third more.
"""
LOCK_FILE = "lock"
SWITCH_INTERVAL_S = 0.00005
"""For `sys.setswitchinterval`: how long a disk's thread waits for a busy main thread before it may go on. Five
milliseconds, as Python has it, are longer than everything that a disk does here.
"""

_ZEROS = bytes(1024 * 1024)


class DirectoryInUse(Exception):
    """Another process has this directory open."""


class RealDisk:
    """Files below one directory. Close it, or use it in a `with`."""

    def __init__(self, directory: str | Path, deliver: Deliver, watch: Watch | None = None) -> None:
        """Without `watch`, every flush is a thread's."""
        self._root = Path(directory).absolute()
        self._deliver = deliver
        self._lanes: dict[str, _Lane] = {}
        self._closed = False
        self._mutex = threading.Lock()
        self._lock_fd: int | None = None
        self._flush_failure: str | None = None
        with in_our_words(str(self._root)):
            make_directory(self._root)
        self._files = OpenFiles(self._root, self._flush)
        self._flushers = ThreadPoolExecutor(FLUSHERS_COUNT, "disk-flush")
        self._event_fd = -1
        self._kernel: KernelFlush | None = None
        self._begun: dict[int, tuple[_Begun, str, OpenFile]] = {}
        """Flushes that the kernel carries out, by its numbers: the job, the file."""
        if watch is not None and hasattr(os, "eventfd"):
            self._event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._kernel = KernelFlush.open(self._event_fd)
            self._unwatch = watch(self._event_fd, self._flushes_done)

    @staticmethod
    def polled(directory: str | Path) -> PolledDisk:
        """A disk whose completions wait until somebody polls: for tools and benchmarks."""
        return PolledDisk(directory)

    def submit(self, lane: str, operations: Sequence[Operation], done: Done) -> None:
        assert not self._closed, "a job was submitted to a closed disk"
        queue = self._lanes.get(lane) or self._open_lane(lane)
        if queue.waiting is not None:
            queue.waiting.append((operations, done))
        elif self._kernel is None or not self._begin(queue, operations, done):
            queue.submit((operations, done))

    def _begin(self, lane: _Lane, operations: Sequence[Operation], done: Done) -> bool:
        """Write now and let the kernel flush, if that is all that is asked for and the lane is idle."""
        if len(operations) < 2 or lane.submitted != lane.completed:
            return False
        flush = operations[-1]
        if (
            type(flush) is not Flush
            or len(flush.files) > FILES_FLUSHED_MAX
            or self._flush_failure is not None
        ):
            return False
        room = SHORT_WRITE_BYTES
        for write in operations[:-1]:
            if type(write) is not Write:
                return False
            room -= sum(map(len, write.buffers))
            if room < 0 or not self._write_short(write):
                return False  # A thread writes all of it again, to the same places.
        job = _Begun(lane, operations, done)
        for file in flush.files:
            if not self._begin_flush(job, file):
                break
        else:
            job.complete = True
        if job.files_left:
            lane.waiting = []
        return job.files_left > 0

    def _write_short(self, write: Write) -> bool:
        """Whether that could be done here and now. If not, a thread does it, and says what is wrong."""
        opened = self._files.take(write.file)
        if opened is None:
            return False
        try:
            if not _may_grow(opened, write):
                write_whole(opened.fd, write.at, write.buffers)
            elif opened.growing.acquire(blocking=False):
                try:
                    self._write_growing(opened, write)
                finally:
                    opened.growing.release()
            else:
                return False  # Another lane makes it grow.
        except OSError:
            return False
        finally:
            opened.unflushed = True
            self._files.release(opened)
        return True

    def _begin_flush(self, job: _Begun, file: str) -> bool:
        assert self._kernel is not None
        opened = self._files.take(file)
        if opened is None:
            return False
        opened.unflushed = False  # A write that ends while the flush runs sets it again.
        number = self._kernel.begin(opened.fd)
        if number is None:
            opened.unflushed = True
            self._files.release(opened)
            return False
        self._begun[number] = job, file, opened
        job.files_left += 1
        return True

    def _flushes_done(self) -> None:
        """The kernel says that flushes have ended."""
        try:
            os.eventfd_read(self._event_fd)
        except BlockingIOError:
            pass  # Somebody has read it before us.
        if self._kernel is None:
            return
        try:
            ended = self._kernel.done()
        except OSError as unknown:  # Nobody will ever know what became of them.
            ended = [(number, unknown) for number in self._begun]
        for number, failure in ended:
            self._flush_ended(number, failure)

    def _flush_ended(self, number: int, failure: OSError | None) -> None:
        job, file, opened = self._begun.pop(number)
        self._files.release(opened)
        if failure is not None:
            job.error = self._failed_for_good(file, failure)
        elif self._flush_failure is not None:
            # An error is reported once: another flush of this file may have got it.
            job.error = self._unflushed_since_failure(file)
        job.files_left -= 1
        if job.files_left:
            return
        # All that was begun has ended: tell, and let the lane go on.
        lane = job.lane
        waiting, lane.waiting = lane.waiting, None
        if not job.complete and job.error is None:  # The kernel did not take all of it: a thread does it.
            lane.submit((job.operations, job.done))
        for other in waiting or ():
            lane.submit(other)
        if job.complete or job.error is not None:
            self._tell(job)

    def _tell(self, job: _Begun) -> None:
        job.done(job.error, [])

    def _open_lane(self, lane: str) -> _Lane:
        with self._mutex:
            if lane not in self._lanes:
                assert len(self._lanes) < LANES_COUNT_MAX
                made = self._lanes[lane] = _Lane()
                made.thread = threading.Thread(
                    target=self._work, args=(made,), name=f"disk-{lane}", daemon=True
                )
                made.thread.start()
            return self._lanes[lane]

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
        if self._closed:
            return
        self._closed = True
        if self._kernel is not None:
            failures = [failure for _, failure in self._kernel.close() if failure is not None]
            if failures:
                self._failed_for_good("a file", failures[0])
            for job, _, opened in self._begun.values():
                self._files.release(opened)
                for other in job.lane.waiting or ():
                    job.lane.jobs.put(other)
                job.lane.waiting = []
        for lane in self._lanes.values():
            lane.jobs.put(None)
        for lane in self._lanes.values():
            lane.thread.join()
        self._flushers.shutdown()
        if self._event_fd >= 0:
            self._unwatch()
            os.close(self._event_fd)
        self._files.close()
        if self._lock_fd is not None:
            os.close(self._lock_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self, lane: _Lane) -> None:
        while (job := lane.jobs.get()) is not None:
            operations, done = job
            error: Exception | None = None
            results: list[bytes] = []
            try:
                results = self._execute(operations)
            except Exception as raised:  # the one who submitted decides what it means
                error = raised
            with suppress(RuntimeError):  # the event loop is closed: nobody is left to be told
                self._deliver(_Completion(lane, done, error, results))

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
                        opened.size_at_least = 0
                        os.ftruncate(opened.fd, size)
                        opened.unflushed = True
                case ReadAt(file, at, length):
                    with self._files.use(file) as opened, in_our_words(file):
                        results.append(read_whole(opened.fd, at, length))
                case Work(task):
                    task()
        return results

    def _write(self, operation: Write) -> None:
        opened = self._files.acquire(operation.file, create=True)
        try:
            self._write_to(opened, operation)
        finally:
            self._files.release(opened)

    def _write_to(self, opened: OpenFile, operation: Write) -> None:
        try:
            if _may_grow(opened, operation):
                with opened.growing:
                    self._write_growing(opened, operation)
            else:
                write_whole(opened.fd, operation.at, operation.buffers)
        except OSError as error:
            raise in_words(operation.file, error) from error
        finally:
            opened.unflushed = True

    def _write_growing(self, opened: OpenFile, operation: Write) -> None:
        """All of it, or the file as it was: two lanes may write one file, and only the own growth is taken back."""
        size_before = opened.size_at_least = os.fstat(opened.fd).st_size
        try:
            write_whole(opened.fd, operation.at, operation.buffers)
        except OSError as error:
            if error.errno in NO_SPACE and os.fstat(opened.fd).st_size > size_before:
                os.ftruncate(opened.fd, size_before)
            raise
        opened.size_at_least = max(size_before, operation.at + sum(map(len, operation.buffers)))

    def _allocate(self, file: str, size: int) -> None:
        """Zeros are written, not only reserved: a flush of reserved blocks would have to flush metadata too.

        Whatever had that name is replaced. Without room there is no file.
        """
        with self._files.use(file, create=True) as opened, in_our_words(file):
            opened.size_at_least = 0
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
        flushes = [self._flushers.submit(self._flush_file, file) for file in files[1:]]
        failures: list[BaseException] = []
        try:
            for file in files[:1]:
                self._flush_file(file)
        except DiskFailed as failed:
            failures.append(failed)
        failures += [failure for flush in flushes if (failure := flush.exception()) is not None]
        if failures:
            raise failures[0]

    def _flush_file(self, file: str) -> None:
        opened = self._files.acquire(file)
        try:
            self._flush(opened, file)
        finally:
            self._files.release(opened)

    def _flush(self, opened: OpenFile, file: str) -> None:
        # Cleared first: a write that ends while the flush runs sets it again.
        opened.unflushed = False
        self._expect_no_failure(file)
        try:
            flush_descriptor(opened.fd)
        except OSError as error:
            raise self._failed_for_good(file, error) from error
        self._expect_no_failure(
            file
        )  # An error is reported once: another flush of this file may have got it.

    def _flush_directory(self, directory: str) -> None:
        what = directory or "."
        self._expect_no_failure(what)
        try:
            flush_directory(self._directory(directory))
        except OSError as error:
            raise self._failed_for_good(what, error) from error

    def _expect_no_failure(self, what: str) -> None:
        """After a failed flush the kernel has dropped the pages, and the next one would lie (rule 5)."""
        if self._flush_failure is not None:
            raise self._unflushed_since_failure(what)

    def _unflushed_since_failure(self, what: str) -> DiskFailed:
        return DiskFailed(f"{what}: not flushed, since an earlier flush failed: {self._flush_failure}")

    def _failed_for_good(self, what: str, error: OSError) -> DiskFailed:
        """Whatever the error is, even a lack of space: pages may be gone."""
        self._flush_failure = f"{what}: {error.strerror}"
        return DiskFailed(self._flush_failure)

    def _directory(self, name: str) -> Path:
        return self._root if name in ("", ".") else self._root / checked_name(name)


class PolledDisk(RealDisk):
    """A disk without an event loop: completions are called from inside `poll`."""

    def __init__(self, directory: str | Path) -> None:
        self._completions: deque[Callable[[], None]] = deque()
        self._called_count = 0
        self._selector = selectors.DefaultSelector()
        self._bell, bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._bell, selectors.EVENT_READ, lambda: os.read(self._bell, 4096))

        def keep(completion: Callable[[], None]) -> None:
            self._completions.append(completion)
            with suppress(BlockingIOError):  # It is ringing already.
                os.write(bell, b"!")

        def watch(fd: int, done: Callable[[], None]) -> Callable[[], object]:
            self._selector.register(fd, selectors.EVENT_READ, done)
            return lambda: self._selector.unregister(fd)

        self._bell_rope = bell
        super().__init__(directory, keep, watch)

    def poll(self, timeout: float | None = 0.0) -> int:
        """Call what has completed, and say how many; wait up to `timeout` (None: for ever) for the first."""
        before = self._called_count
        while True:
            for key, _ in self._selector.select(timeout):
                key.data()
            while self._completions:
                self._completions.popleft()()
                self._called_count += 1
            if timeout is not None or self._called_count > before:
                return self._called_count - before

    def _tell(self, job: _Begun) -> None:
        self._called_count += 1
        super()._tell(job)

    def close(self) -> None:
        if not self._closed:
            super().close()
            self._selector.close()
            os.close(self._bell)
            os.close(self._bell_rope)


def _may_grow(opened: OpenFile, operation: Write) -> bool:
    return operation.at + sum(map(len, operation.buffers)) > opened.size_at_least


_Job = tuple[Sequence[Operation], Done]


class _Lane:
    """Jobs that run one behind the other."""

    __slots__ = ("completed", "jobs", "submitted", "thread", "waiting")

    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.thread: threading.Thread
        self.submitted = 0
        self.completed = 0
        """Jobs given to the thread, and those of them whose completion was called."""
        self.waiting: list[_Job] | None = None
        """What was submitted while the kernel flushes for this lane; None while it does not."""

    def submit(self, job: _Job) -> None:
        """To the thread."""
        self.submitted += 1
        self.jobs.put(job)


class _Begun:
    """A job whose flushes are the kernel's."""

    __slots__ = ("complete", "done", "error", "files_left", "lane", "operations")

    def __init__(self, lane: _Lane, operations: Sequence[Operation], done: Done) -> None:
        self.lane = lane
        self.operations = operations
        self.done = done
        self.files_left = 0
        self.error: Exception | None = None
        self.complete = False
        """The flushes of all files were begun."""


class _Completion:
    __slots__ = ("done", "error", "lane", "results")

    def __init__(self, lane: _Lane, done: Done, error: Exception | None, results: list[bytes]) -> None:
        self.lane = lane
        self.done = done
        self.error = error
        self.results = results

    def __call__(self) -> None:
        self.lane.completed += 1
        self.done(self.error, self.results)
