"""A store on a simulated disk, with a heap for a clock: orders in, answers collected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any

from quorate.batch import encode_records
from quorate.core.entry import EntryId, Header, Kind, NoOp, Partition, Span, partition_of
from quorate.sim.disk import SimDisk, SimDiskSettings
from quorate.storage.frame import Frame
from quorate.storage.settings import TINY, StoreSettings
from quorate.storage.store import Store

P0 = partition_of(bytes(range(16)), 0)
P1 = partition_of(bytes(range(16)), 1)
P2 = partition_of(b"another topic id", 7)


class World:
    """Time, a disk, and whoever listens to the store."""

    def __init__(
        self, seed: int = 0, settings: StoreSettings = TINY, files: dict[str, bytes] | None = None
    ) -> None:
        self.now = 0.0
        self.settings = settings
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        disk_settings = SimDiskSettings()
        if files is None:
            self.disk = SimDisk(Random(seed), self._schedule, disk_settings)
        else:
            self.disk = SimDisk.from_files(files, Random(seed), self._schedule, disk_settings)
        self.answers: list[tuple[Any, ...]] = []
        self.ios: dict[Partition, int] = {}
        self.store: Store

    def _schedule(self, delay: float, call: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._events, (self.now + delay, self._count, call))

    # --- the listener ---

    def persisted(self, partition: Partition, io: int) -> None:
        self.answers.append(("persisted", partition, io))

    def failed(self, partition: Partition, io: int, reason: str) -> None:
        self.answers.append(("failed", partition, io, reason))

    def damaged(self, partition: Partition, span: Span) -> None:
        self.answers.append(("damaged", partition, span))

    def fatal(self, reason: str) -> None:
        self.answers.append(("fatal", reason))

    # --- time ---

    def open(self) -> Store:
        self.ios = {}
        self.answers = []
        self.store = Store.open(self.disk, self.settings, self)
        return self.store

    def step(self) -> bool:
        """One completion of the disk, or one tick; False if nothing is left to happen."""
        due = self.store.deadline()
        if self._events and (due is None or self._events[0][0] <= due):
            self.now, _, call = heappop(self._events)
            call()
            self.store.pump(self.now)
            return True
        if due is None:
            return False
        self.now = max(self.now, due)
        self.store.tick(self.now)
        return True

    def run(self, *, steps_max: int = 100_000) -> list[tuple[Any, ...]]:
        """Until nothing happens any more. What was answered meanwhile."""
        self.store.pump(self.now)
        answered = len(self.answers)
        for _ in range(steps_max):
            if not self.step():
                return self.answers[answered:]
        raise AssertionError("the store never comes to rest")

    def crash(self) -> None:
        self.store.close()
        self.disk.crash()
        self._events.clear()

    def power_loss(self) -> None:
        self.store.close()
        self.disk.power_loss()
        self._events.clear()

    # --- orders ---

    def io(self, partition: Partition) -> int:
        self.ios[partition] = self.ios.get(partition, 0) + 1
        return self.ios[partition]

    def create(self, partition: Partition = P0, state: bytes = b"new") -> None:
        self.store.create(partition, self.io(partition), state)

    def append(
        self, partition: Partition = P0, sizes: Sequence[int] = (10,), *, epoch: int = 1
    ) -> list[Frame]:
        frames = self.frames(partition, sizes, epoch=epoch)
        self.store.append(partition, self.io(partition), frames)
        return frames

    def frames(self, partition: Partition, sizes: Sequence[int], *, epoch: int = 1) -> list[Frame]:
        """Frames that continue the log: a batch with a value of each size, or a no-op for size 0."""
        offset = self.store._logs[partition].head.offset + 1
        headers = []
        payloads = []
        for size in sizes:
            if not size:
                headers.append(Header(epoch, offset, kind=Kind.CONTROL, control=NoOp(1)))
            else:
                payload = batch_of(size, offset)
                payloads.append(payload)
                crc = int.from_bytes(payload[17:21], "big")
                headers.append(Header(epoch, offset, 1, len(payload), Kind.RECORDS, 0, crc))
            offset += 1
        return self.store.seal(partition, headers, payloads)

    def cut(self, to: EntryId, partition: Partition = P0) -> None:
        self.store.cut(partition, self.io(partition), to)

    def save(self, state: bytes, partition: Partition = P0) -> None:
        self.store.save_state(partition, self.io(partition), state)

    def read(
        self, first: int = 0, last: int = 1 << 40, partition: Partition = P0, bytes_max: int = 1 << 40
    ) -> list[Frame]:
        """All frames from `first` on, read until nothing more comes."""
        found: list[Frame] = []
        while True:
            got: list[list[Frame]] = []
            self.store.read(partition, first, last, bytes_max, got.append)
            while not got:
                assert self.step()
            if not got[0]:
                return found
            found += got[0]
            first = found[-1].header.last + 1

    def check(self, partition: Partition = P0) -> list[Span]:
        got: list[list[Span]] = []
        self.store.check(partition, got.append)
        while not got:
            assert self.step()
        return got[0]

    def reopen(self) -> Store:
        self.crash()
        return self.open()


def batch_of(size: int, seed: int) -> bytes:
    return encode_records([(None, Random(seed * 1009 + size).randbytes(size))], timestamp=1_000 + seed)


def ids(frames: Sequence[Frame]) -> list[str]:
    return [str(frame.header.id) for frame in frames]
