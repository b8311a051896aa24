"""Writers that never rest, and how long each of them had to wait for an acknowledgement meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic

from tests.cluster.fault_support import DELIVERY_MS, PARTITIONS_COUNT, Writer

RETRY_S = 10.0
"""What a client may see as a short retry. Its own time-out for one delivery is six times as long, and on a machine
whose cores are shared by nodes, clients and tests a second is nothing: a client that hangs until it asks again of
itself, or until somebody else moves, is far above it."""
RETRY_OF_KILLED_S = 20.0
"""The same where a node is killed, and only started again when writes go on: a client may have to find out that it
is gone (`REQUEST_MS`) before it asks another."""
assert RETRY_S < RETRY_OF_KILLED_S < DELIVERY_MS / 1000


class Acknowledged(set[int]):
    """Numbers of records, and the longest time between two of one partition."""

    def __init__(self, numbers: set[int]) -> None:
        super().__init__(numbers)
        self._last_s = [monotonic()] * PARTITIONS_COUNT
        self.longest_s = 0.0

    def add(self, number: int) -> None:
        super().add(number)
        now, partition = monotonic(), number % PARTITIONS_COUNT
        self.longest_s = max(self.longest_s, now - self._last_s[partition])
        self._last_s[partition] = now


class Pauses(dict[str, float]):
    """By topic: the longest pause between two acknowledgements of one partition, in seconds."""

    def expect_short(self, what: str, at_most_s: float = RETRY_S) -> None:
        said = ", ".join(f"{topic} {pause_s:.2f} s" for topic, pause_s in self.items())
        print(f"longest pause of a writer, {what}: {said}")
        assert self, "somebody wrote"
        assert max(self.values()) < at_most_s, f"{what}: {said}"


@asynccontextmanager
async def written_steadily(writers: Sequence[Writer]) -> AsyncIterator[Pauses]:
    """Each has something under way all the time; what it waited for is known when this is over."""
    pauses = Pauses()
    noted = [Acknowledged(writer.acknowledged) for writer in writers]
    for writer, acknowledged in zip(writers, noted, strict=True):
        writer.acknowledged = acknowledged
    is_over = asyncio.Event()

    async def write(writer: Writer) -> None:
        while not is_over.is_set():
            await writer.go_on()

    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(write(writer))
        try:
            yield pauses
        finally:
            is_over.set()
    for writer, acknowledged in zip(writers, noted, strict=True):
        pauses[writer.topic] = acknowledged.longest_s
        writer.acknowledged = set(acknowledged)
