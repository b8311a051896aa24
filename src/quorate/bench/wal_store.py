"""A real store on a real disk, driven as a node drives it: so many appends in flight, nothing in between."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from quorate import batch
from quorate.core.entry import Header, Partition, Span, partition_of
from quorate.storage.disk import Buffer, Done, Flush, Operation, ReadAt, Write
from quorate.storage.real_disk import SWITCH_INTERVAL_S, PolledDisk
from quorate.storage.store import Store, StoreSettings

TOPIC = bytes(range(16))
EPOCH = 1


class CountingDisk(PolledDisk):
    """Counts what passes through."""

    def __init__(self, directory: Path) -> None:
        self.flushes = 0
        self.bytes_read = 0
        self.jobs_open = 0
        self.journal_file = ""
        """The journal's file that was written last: it changes with the journal's generation."""
        super().__init__(directory)

    def submit(self, lane: str, operations: Sequence[Operation], done: Done) -> None:
        self.jobs_open += 1

        def counted(error: Exception | None, results: list[bytes]) -> None:
            self.jobs_open -= 1
            done(error, results)

        for operation in operations:
            if type(operation) is Flush:
                self.flushes += len(operation.files)
            elif type(operation) is Write and operation.file.startswith("journal"):
                self.journal_file = operation.file
            elif type(operation) is ReadAt:
                self.bytes_read += operation.length
        super().submit(lane, operations, counted)

    def read_now(self, file: str, at: int, length: int) -> bytes:
        found = super().read_now(file, at, length)
        self.bytes_read += len(found)
        return found


class Log:
    """One partition's end, as the bench appends to it."""

    __slots__ = ("io", "offset", "partition", "persisted")

    def __init__(self, partition: Partition, offset: int) -> None:
        self.partition = partition
        self.offset = offset
        self.io = 0
        self.persisted = 0


class OpenStore:
    """A store with some partitions, made new or found on the disk."""

    def __init__(
        self,
        directory: Path,
        *,
        partitions: int,
        settings: StoreSettings | None = None,
        state: bytes = b"bench",
    ) -> None:
        self.done = 0
        self._parsed: tuple[Buffer, int, int] = b"", 0, 0
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self.disk = CountingDisk(directory)
        self.store = Store.open(self.disk, settings or StoreSettings(), self)
        self.logs: dict[Partition, Log] = {}
        known = set(self.store.partitions())
        for number in range(partitions):
            partition = partition_of(TOPIC, number)
            if partition in known:
                head = self.store.recovered(partition).head
                self.logs[partition] = Log(partition, head.offset + 1)
            else:
                log = self.logs[partition] = Log(partition, 0)
                log.io += 1
                self.store.create(partition, log.io, state)
        self.settle()
        self.done = 0

    def append(self, payloads: Iterable[Buffer], *, in_flight: int) -> int:
        """Append each payload to the next log in turn, `in_flight` at a time; returns how many.

        Half of them start: while one half is being flushed, the other gathers.
        """
        logs = list(self.logs.values())
        waiting = iter(payloads)
        self.done = started = 0
        allowed = (in_flight + 1) // 2
        while True:
            for payload in islice(waiting, allowed - (started - self.done)):
                self._append(logs[started % len(logs)], payload)
                started += 1
            if started == self.done:
                return started
            self.store.pump()
            if allowed < in_flight:
                allowed = in_flight
            else:
                self.disk.poll(None)

    def _append(self, log: Log, payload: Buffer) -> None:
        if payload is not self._parsed[0]:  # Whoever receives a batch parses it, before anything is stored.
            found = batch.parse_batch_header(payload)
            self._parsed = payload, found.offsets_count, found.crc
        _, count, crc = self._parsed
        header = Header(EPOCH, log.offset, count, len(payload), crc=crc)
        frames = self.store.seal(log.partition, (header,), [payload])
        log.io += 1
        log.offset += header.count
        self.store.append(log.partition, log.io, frames)

    def settle(self) -> None:
        """Until everything ordered is on the disk."""
        self.store.pump()
        while any(log.persisted < log.io for log in self.logs.values()):
            self.disk.poll(None)
            self.store.pump()

    def rest(self) -> None:
        """Until nothing is under way, not even what nobody waits for."""
        self.settle()
        while self.disk.jobs_open:
            self.disk.poll(None)
            self.store.pump()

    # --- what the store says ---

    def persisted(self, partition: Partition, io: int) -> None:
        log = self.logs[partition]
        self.done += io - log.persisted
        log.persisted = io

    def failed(self, partition: Partition, io: int, reason: str) -> None:
        raise AssertionError(f"the store refused order {io}: {reason}")

    def damaged(self, partition: Partition, span: Span) -> None:
        raise AssertionError(f"damage in a log that was just written: {span}")

    def fatal(self, reason: str) -> None:
        raise AssertionError(reason)

    def close(self) -> None:
        self.disk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def payload_of(size: int, seed: int = 1) -> bytes:
    """A batch of one record, of `size` bytes or, where no batch has that size, a byte or two less."""
    value = Random(seed).randbytes(size)
    sizes = range(size - batch.BATCH_MIN, 0, -1)
    return next(
        payload for length in sizes if len(payload := batch.encode_records([(None, value[:length])])) <= size
    )
