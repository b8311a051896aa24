"""A disk of a made-up world: it is slow, loses, tears, fills up and lies exactly as real ones do, by seed.

Every file has two contents: what reads see (the kernel's page cache) and what would survive the power going
out. In between lie its unflushed writes, one by one, since a real disk may write them back in any order, or
half. Names have two states in the same way: creations, renames and unlinks are lost unless their directory
is flushed, but in order: file systems keep a journal of names.

A job does nothing until its time has come, and then everything at once. If the process or the power dies
before that, a random part of what was in flight has happened, and nobody is told.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Self

import msgspec

from quorate.sim.disk_file import SimDirectory, SimFile
from quorate.storage.disk import (
    Allocate,
    DiskFailed,
    DiskFull,
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

Schedule = Callable[[float, Callable[[], None]], object]
"""Calls something after a delay in seconds, in the time of the made-up world."""


class SimDiskSettings(msgspec.Struct, frozen=True, gc=False):
    """How quick a disk is when nothing is wrong with it, and what it writes in one piece."""

    latency_min: float = 0.0001
    latency_max: float = 0.002
    slow_factor: float = 100.0
    sector_bytes: int = 512


USUAL = SimDiskSettings()


class SimDisk:
    """One node's disk. It outlives the node's processes; `crash` and `power_loss` tell it of their end."""

    def __init__(self, rng: Random, schedule: Schedule, settings: SimDiskSettings = USUAL) -> None:
        self._rng = rng
        self._schedule = schedule
        self._settings = settings
        self._latency_span = settings.latency_max - settings.latency_min
        self._slowness = 1.0
        self._lanes: dict[str, _Lane] = {}
        self._files: dict[str, SimFile] = {}
        self._directories: dict[str, SimDirectory] = {"": SimDirectory()}
        self._used_bytes = 0
        self._capacity_bytes: int | None = None
        self._failing_flushes: list[str | None] = []
        self.watches: list[list[tuple[str, int, int]]] = []
        """Every write is noted in each of them: (file, start, end)."""
        self._handlers: dict[type, Callable[..., bytes | None]] = {
            Write: self._write,
            Flush: self._flush,
            FlushDirectory: self._flush_directory,
            Allocate: self._allocate,
            Rename: self._rename,
            Unlink: self._unlink,
            Truncate: self._truncate,
            ReadAt: self._read,
            Work: lambda operation: operation.task(),
        }

    @classmethod
    def from_files(
        cls,
        files: Mapping[str, bytes],
        rng: Random,
        schedule: Schedule,
        settings: SimDiskSettings = USUAL,
    ) -> Self:
        """A disk on which these files lie, flushed, names and all."""
        disk = cls(rng, schedule, settings)
        for name in sorted(files):
            file = disk._create(name)
            file.write(0, files[name])
            file.flush()
        for directory in disk._directories.values():
            directory.flush()
        disk._count_used()
        return disk

    # What storage sees

    def submit(self, lane: str, operations: Sequence[Operation], done: Done) -> None:
        queue = self._lanes.get(lane)
        if queue is None:
            queue = self._lanes[lane] = _Lane()
        queue.jobs.append((operations, done))
        if len(queue.jobs) == 1:
            self._begin(queue)

    def list_now(self, directory: str) -> list[str]:
        prefix = _path_of(directory)
        prefix = f"{prefix}/" if prefix else ""
        paths = (*self._files, *self._directories)
        return sorted(
            {path[len(prefix) :].split("/", 1)[0] for path in paths if path.startswith(prefix)} - {""}
        )

    def size_now(self, file: str) -> int | None:
        found = self._files.get(file)
        return len(found.cached) if found is not None else None

    def read_now(self, file: str, at: int, length: int) -> bytes:
        return self._read(ReadAt(file, at, length))

    def run_now(self, operations: Sequence[Operation]) -> None:
        self._execute(operations)

    # What can happen to it

    def crash(self) -> None:
        """The process dies, the kernel lives: what was written stays, flushed or not."""
        self._abandon_jobs()
        for file in self._files.values():
            file.evict_dropped(self._rng)
        self._count_used()

    def power_loss(self) -> None:
        """What was not flushed stays, goes or is torn, each write for itself; names go from the end."""
        self._abandon_jobs()
        kept_share = self._rng.random()
        self._files = {}
        for path in sorted(self._directories):
            self._files.update(self._directories[path].power_loss(self._rng))
        for file in self._files.values():
            file.power_loss(self._rng, kept_share, self._settings.sector_bytes)
        self._count_used()

    def wipe(self) -> None:
        """Somebody put in an empty disk. (The process that used the old one is dead, too.)"""
        self._lanes_end()
        self._files = {}
        self._directories = {"": SimDirectory()}
        self._used_bytes = 0

    def set_slow(self, slow: bool) -> None:
        """Jobs that begin from now on take `slow_factor` times as long."""
        self._slowness = self._settings.slow_factor if slow else 1.0

    def set_full(self, full: bool | int) -> None:
        """True: no more room than is used now. A number: that many bytes in all. False: no limit."""
        if isinstance(full, bool):
            self._capacity_bytes = self._used_bytes if full else None
        else:
            self._capacity_bytes = full

    def fail_next_flush(self, file: str | None = None) -> None:
        """The next flush (of this file) fails. The kernel forgets what it should have written, and that it
        has not: reads still see it, and the flush after that succeeds without it."""
        self._failing_flushes.append(file)

    def heal(self) -> None:
        """From now on it is quick, has room and does not fail. What it has lost stays lost."""
        self._slowness = 1.0
        self._capacity_bytes = None
        self._failing_flushes.clear()

    # What lies on it, for those who damage and compare

    def files(self) -> list[str]:
        return sorted(self._files)

    def content(self, file: str) -> bytes:
        """What reads see."""
        return bytes(self._files[file].cached)

    def durable_files(self) -> dict[str, bytes]:
        """What would be left if the power went and took everything with it that was not flushed."""
        return {
            path: bytes(file.durable)
            for directory in sorted(self._directories)
            for path, file in sorted(self._directories[directory].durable.items())
        }

    def flip(self, file: str, at: int, bit: int) -> None:
        def change(content: bytearray) -> None:
            if at < len(content):
                content[at] ^= 1 << bit

        assert at < len(self._files[file].cached)
        self._files[file].damage(change, (at, at + 1))

    def zero(self, file: str, at: int, length: int) -> None:
        def change(content: bytearray) -> None:
            content[at : at + length] = bytes(max(0, min(length, len(content) - at)))

        self._files[file].damage(change, (at, at + length))

    def swap(self, file: str, first: int, second: int, length: int) -> None:
        """Two stretches of a file take each other's place."""

        def change(content: bytearray) -> None:
            if max(first, second) + length <= len(content):
                one, other = content[first : first + length], content[second : second + length]
                content[first : first + length], content[second : second + length] = other, one

        assert abs(first - second) >= length
        self._files[file].damage(change, (first, first + length), (second, second + length))

    def truncate_to(self, file: str, size: int) -> None:
        self._files[file].damage_end(size)
        self._count_used()

    # Jobs

    def _begin(self, lane: _Lane) -> None:
        delay = (self._settings.latency_min + self._rng.random() * self._latency_span) * self._slowness
        self._schedule(delay, partial(self._finish, lane))

    def _finish(self, lane: _Lane) -> None:
        if lane.ended:
            return
        operations, done = lane.jobs.popleft()
        if lane.jobs:
            self._begin(lane)
        try:
            results = self._execute(operations)
        except (DiskFull, DiskFailed) as error:
            done(error, [])
            return
        done(None, results)

    def _execute(self, operations: Sequence[Operation]) -> list[bytes]:
        results: list[bytes] = []
        handlers = self._handlers
        for operation in operations:
            result = handlers[type(operation)](operation)
            if result is not None:
                results.append(result)
        return results

    def _abandon_jobs(self) -> None:
        """Of every job in flight a random part happens yet; those that wait never began."""
        for lane in self._lanes.values():
            if not lane.jobs:
                continue
            operations, _ = lane.jobs[0]
            done_count = self._rng.randint(0, len(operations))
            try:
                self._execute(operations[:done_count])
                if done_count < len(operations):
                    self._execute_half(operations[done_count])
            except (DiskFull, DiskFailed):
                pass
        self._lanes_end()

    def _execute_half(self, operation: Operation) -> None:
        """Only a write can be interrupted half-way: it is a loop over pages inside of the kernel."""
        if isinstance(operation, Write):
            content = b"".join(operation.buffers)
            sector = self._settings.sector_bytes
            end = (operation.at // sector + self._rng.randint(0, len(content) // sector + 1)) * sector
            if end > operation.at:
                self._write(Write(operation.file, operation.at, (content[: end - operation.at],)))

    def _lanes_end(self) -> None:
        for lane in self._lanes.values():
            lane.ended = True
        self._lanes = {}

    # Operations

    def _write(self, operation: Write) -> None:
        file = self._files.get(operation.file)
        if file is None:
            file = self._create(operation.file)
        buffers = operation.buffers
        content = bytes(buffers[0]) if len(buffers) == 1 else b"".join(buffers)
        if content:
            self._take_room(operation.file, max(0, operation.at + len(content) - len(file.cached)))
            file.write(operation.at, content)
            self._note(operation.file, operation.at, operation.at + len(content))

    def _note(self, file: str, start: int = 0, end: int = sys.maxsize) -> None:
        for writes in self.watches:
            writes.append((file, start, end))

    def _flush(self, operation: Flush) -> None:
        """Files are flushed side by side: one that fails does not keep the others from being flushed."""
        failed = ""
        fails_all = self._takes_failure(None)
        for name in operation.files:
            file = self._find(name)
            if fails_all or self._takes_failure(name):
                file.drop_unflushed()
                failed = failed or name
            else:
                file.flush()
        if failed or fails_all:
            raise DiskFailed(f"{failed}: Input/output error")

    def _takes_failure(self, file: str | None) -> bool:
        if file not in self._failing_flushes:
            return False
        self._failing_flushes.remove(file)
        return True

    def _flush_directory(self, operation: FlushDirectory) -> None:
        directory = self._directories.get(_path_of(operation.directory))
        if directory is None:
            raise DiskFailed(f"{operation.directory}: No such file or directory")
        directory.flush()

    def _allocate(self, operation: Allocate) -> None:
        """Whatever had that name is replaced. Without room there is no file."""
        file = self._files.get(operation.file)
        try:
            self._take_room(operation.file, operation.size - (len(file.cached) if file is not None else 0))
        except DiskFull:
            self._unlink(Unlink(operation.file))
            raise
        if file is None:
            file = self._create(operation.file)
        else:
            file.truncate(0)
        file.write(0, bytes(operation.size))
        self._note(operation.file)

    def _rename(self, operation: Rename) -> None:
        # Between directories there would be two of them to flush, and a moment with both names or none.
        assert _parent(operation.source) == _parent(operation.target), "a rename stays in its directory"
        file = self._find(operation.source)
        if operation.source == operation.target:
            return
        self._note(operation.target)
        replaced = self._files.get(operation.target)
        if replaced is not None:
            self._used_bytes -= len(replaced.cached)
        del self._files[operation.source]
        self._files[operation.target] = file
        self._directory_of(operation.source).pending.append(
            ((operation.source, None), (operation.target, file))
        )

    def _unlink(self, operation: Unlink) -> None:
        self._note(operation.file)
        file = self._files.pop(operation.file, None)
        if file is not None:
            self._used_bytes -= len(file.cached)
            self._directory_of(operation.file).pending.append(((operation.file, None),))

    def _truncate(self, operation: Truncate) -> None:
        self._note(operation.file)
        file = self._find(operation.file)
        self._take_room(operation.file, operation.size - len(file.cached))
        file.truncate(operation.size)

    def _read(self, operation: ReadAt) -> bytes:
        file = self._find(operation.file)
        return bytes(memoryview(file.cached)[operation.at : operation.at + operation.length])

    # Names and room

    def _find(self, name: str) -> SimFile:
        file = self._files.get(name)
        if file is None:
            raise DiskFailed(f"{name}: No such file or directory")
        return file

    def _create(self, name: str) -> SimFile:
        assert not name.startswith("/")
        assert ".." not in name.split("/")
        file = self._files[name] = SimFile()
        self._directory_of(name).pending.append(((name, file),))
        return file

    def _directory_of(self, name: str) -> SimDirectory:
        """Directories are made when they are needed, and flushed into their parents at once."""
        path = _parent(name)
        directory = self._directories.get(path)
        if directory is None:
            directory = self._directories[path] = SimDirectory()
            self._directory_of(path)
        return directory

    def _take_room(self, name: str, growth: int) -> None:
        capacity = self._capacity_bytes
        if growth > 0 and capacity is not None and self._used_bytes + growth > capacity:
            raise DiskFull(f"{name}: No space left on device")
        self._used_bytes += growth

    def _count_used(self) -> None:
        self._used_bytes = sum(len(file.cached) for file in self._files.values())


class _Lane:
    """Jobs in order; the first one is in flight."""

    __slots__ = ("ended", "jobs")

    def __init__(self) -> None:
        self.jobs: deque[tuple[Sequence[Operation], Done]] = deque()
        self.ended = False


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _path_of(directory: str) -> str:
    return "" if directory == "." else directory
