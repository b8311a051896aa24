"""A client's work on a cluster: what was acknowledged, and whether all of it is still there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from time import perf_counter
from types import TracebackType
from typing import Self

import msgspec

from quorate import batch
from quorate.core.entry import Kind, Partition
from quorate.node.client import Client, NotWritten, OutcomeUnknown

FETCH_BYTES = 4 << 20


class Findings(msgspec.Struct, frozen=True):
    """What reading everything back showed. Lost and foreign must be empty."""

    acknowledged_count: int
    unknown_count: int
    unknown_kept_count: int
    """Proposals without an answer that turned out to be settled."""
    entries_read_count: int
    lost: tuple[str, ...]
    foreign: tuple[str, ...]
    """Entries that nobody proposed, or that are there twice."""


class Ledger:
    """Writes values that are never the same twice, and keeps what was acknowledged, to be compared later."""

    def __init__(
        self,
        client: Client,
        partitions: Sequence[Partition],
        *,
        seed: int,
        value_bytes: int,
        after: Mapping[Partition, int] | None = None,
    ) -> None:
        """`after`: what others wrote, up to these offsets, is not ours to judge."""
        self.acknowledged: dict[Partition, dict[int, int]] = {partition: {} for partition in partitions}
        """Offset → the batch's checksum. Values are random, so checksums tell them apart."""
        self.unknown: dict[Partition, set[int]] = {partition: set() for partition in partitions}
        self.longest_gap_s = 0.0
        """The longest time in which nothing at all was acknowledged."""
        self.client = client
        self._partitions = partitions
        self._rng = Random(seed)
        self._value_bytes = value_bytes
        self._after = after or {}
        self._stopping = False
        self._tasks: asyncio.TaskGroup
        self._last_acknowledged = 0.0

    @property
    def acknowledged_count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    async def __aenter__(self) -> Self:
        """Begin to write, one proposal per partition under way."""
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._last_acknowledged = perf_counter()
        for partition in self._partitions:
            self._tasks.create_task(self._write_to(partition))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        await self._tasks.__aexit__(kind, error, trace)

    async def _write_to(self, partition: Partition) -> None:
        acknowledged, unknown = self.acknowledged[partition], self.unknown[partition]
        while not self._stopping:
            payload = batch.encode_records([(None, self._rng.randbytes(self._value_bytes))])
            checksum = batch.parse_batch_header(payload).crc
            try:
                settled = await self.client.propose(partition, (payload,), timeout_s=5.0)
            except OutcomeUnknown:
                unknown.add(checksum)
                continue
            except NotWritten:
                continue  # Certainly not there: if it is found, it is foreign.
            assert settled.offset not in acknowledged, "one offset was acknowledged twice"
            acknowledged[settled.offset] = checksum
            now = perf_counter()
            self.longest_gap_s = max(self.longest_gap_s, now - self._last_acknowledged)
            self._last_acknowledged = now

    async def compare(self, node: int) -> Findings:
        """Read everything that this node has settled, and compare."""
        lost: list[str] = []
        foreign: list[str] = []
        kept_count = read_count = 0
        for partition in self._partitions:
            found = await self._read(node, partition)
            read_count += len(found)
            acknowledged, unknown = self.acknowledged[partition], self.unknown[partition]
            for offset, checksum in acknowledged.items():
                if found.get(offset) != checksum:
                    lost.append(f"node {node} partition {partition.hex()} offset {offset}")
            left = set(unknown)
            for offset, checksum in found.items():
                if acknowledged.get(offset) == checksum:
                    continue
                if checksum in left:
                    left.remove(checksum)
                    kept_count += 1
                else:
                    foreign.append(f"node {node} partition {partition.hex()} offset {offset}")
        unknown_count = sum(map(len, self.unknown.values()))
        return Findings(
            self.acknowledged_count, unknown_count, kept_count, read_count, tuple(lost), tuple(foreign)
        )

    async def _read(self, node: int, partition: Partition) -> dict[int, int]:
        """Offset → checksum of every settled entry of records; each was verified against its bytes."""
        found: dict[int, int] = {}
        offset = self._after.get(partition, -1) + 1
        while True:
            frames, commit = await self.client.fetch(node, partition, offset, FETCH_BYTES)
            for frame in frames:
                assert frame.header.offset == offset, "entries are contiguous"
                assert frame.partition == partition
                offset = frame.header.last + 1
                if frame.header.kind == Kind.RECORDS:
                    found[frame.header.offset] = frame.header.crc
            if offset > commit:
                return found
            assert frames, f"node {node} has settled {commit} and serves nothing from {offset} on"
