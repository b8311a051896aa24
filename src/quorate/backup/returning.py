"""A topic out of a place, into one that is empty, or that an earlier restore has begun to fill.

Batches are proposed as they were saved, but for who wrote them: producer ids belong to a cluster, and those of the
backup may be given to others there, or have been. So all that is restored carries one new id, and numbers of its
own; that also makes it harmless to send something again.

Batches of committed transactions come back as batches of none, and those of others not at all: nobody coordinates
them any more, and a leader takes no batch of a transaction for which nobody vouches.

Offsets are kept where they can be. What has no records in the backup (a log's own entries, what was taken back,
what was gone before it was saved), or is left out, is stood for by an empty batch of the same offsets. Where the
new log has entries of its own in other places, because its leader changed or because `confirm` settles otherwise,
records behind them lie higher, until the next such place makes up for it; how many did is told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from quorate.backup.batches import Batch, checked_batches
from quorate.backup.errors import BackupError, Stopped
from quorate.backup.manifest import Manifest, PartitionSaved
from quorate.backup.outcomes import Uncommitted
from quorate.backup.pace import Progress, Throttle, in_bits
from quorate.backup.place import Place
from quorate.backup.resuming import SEQUENCES_COUNT, Standing
from quorate.batch import Buffer, encode_blank, with_producer
from quorate.core.entry import Partition, partition_of
from quorate.node.client import BadRequest, Client, NotWritten, OutcomeUnknown, Settled, Unreachable

FLIGHTS_COUNT_MAX = 5
"""As many batches of one producer as a partition remembers: each can be sent again."""
PARTITIONS_AT_ONCE = 4
"""Each has a data file in memory."""
FILLER_OFFSETS_MAX = 1 << 24
TRY_S = 20.0
GIVE_UP_S = 120.0
STATUS_S = 5.0
LOOK_EVERY_S = 0.01
EPOCH = 0
INTERRUPTED = "stopped: what is restored so far stands; the same command with --resume goes on from there"


class Returned(NamedTuple):
    records: int
    """That were written now."""
    moved: int
    """Records whose offset is not the one that they had, written now or before."""
    first_moved: int
    """The first of these offsets, -1: none."""
    not_committed: int = 0
    """Records of the backup that are left out: their transactions were not committed."""


class Target(NamedTuple):
    name: str
    id: bytes
    replication: str


class _Flight(NamedTuple):
    task: asyncio.Task[Settled]
    batch: Batch
    expected: int | None


class Returning:
    """All partitions of a topic."""

    def __init__(
        self,
        place: Place,
        client: Client,
        target: Target,
        *,
        throttle: Throttle,
        progress: Progress,
        whole: int,
        is_stopped: Callable[[], bool],
    ) -> None:
        self.place = place
        self.client = client
        self.target = target
        self.is_stopped = is_stopped
        self._throttle = throttle
        self._progress = progress
        self._whole = whole

    async def run(
        self,
        manifest: Manifest,
        uncommitted: list[Uncommitted],
        standings: list[Standing],
        producer_id: int,
    ) -> list[Returned]:
        """By partition, as the lists are; raises Stopped and BackupError. `producer_id` is a new one."""
        room = asyncio.Semaphore(PARTITIONS_AT_ONCE)

        async def one(number: int, standing: Standing) -> Returned:
            if standing.producer_id < 0:
                standing = standing._replace(producer_id=producer_id)
            async with room:
                if self.is_stopped():
                    raise Stopped(INTERRUPTED)
                part = _Part(self, number, standing)
                return await part.run(manifest.partitions[number], uncommitted[number])

        assert len(manifest.partitions) == len(uncommitted) == len(standings)
        tasks = [asyncio.create_task(one(number, standing)) for number, standing in enumerate(standings)]
        try:
            return list(await asyncio.gather(*tasks))
        except Stopped:
            await asyncio.wait(tasks)  # Each lets land what is under way.
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def went(self, bytes_count: int) -> None:
        """Pauses as long as the rate asks for."""
        self._progress.went(bytes_count, done=self._progress.bytes_count + bytes_count, whole=self._whole)
        for pause_s in in_bits(self._throttle.pause_s(monotonic(), bytes_count)):
            if not self.is_stopped():
                await asyncio.sleep(pause_s)


class _Part:
    """One partition, from where it stands."""

    def __init__(self, whole: Returning, number: int, standing: Standing) -> None:
        self._whole = whole
        self._where = f"{whole.target.name}/{number}"
        self._partition: Partition = partition_of(whole.target.id, number)
        self._confirms = whole.target.replication == "confirm"
        """Then every write is followed by a CONFIRM, which takes an offset, too."""
        self._producer_id, self._sequence = standing.producer_id, standing.sequence
        self._skip = standing.batches
        self._records = self._not_committed = 0
        self._moved, self._first_moved = standing.moved, standing.first_moved
        self._flights: deque[_Flight] = deque()
        self._next: int | None = None
        """The offset of what is written next; None: to be asked for."""
        self._leader = 0
        self._head_min = -1
        """The CONFIRM of what has landed, which may be on its way: until it is there, nobody knows what is next."""
        self._ahead = 0
        """By how much the last one lies above its place in the backup."""

    async def run(self, partition: PartitionSaved, uncommitted: Uncommitted) -> Returned:
        try:
            for file in partition.files:
                for batch in await asyncio.to_thread(checked_batches, self._whole.place, file):
                    if not batch.has_records:
                        continue
                    if uncommitted.holds(batch):
                        self._not_committed += batch.header.record_count
                    else:
                        await self._put(batch)
            await self._drain()
            await self._align(partition.end)
        finally:
            for flight in self._flights:
                flight.task.cancel()
        return Returned(self._records, self._moved, self._first_moved, self._not_committed)

    async def _put(self, batch: Batch) -> None:
        if self._skip:
            self._skip -= 1
            return
        if self._whole.is_stopped():
            await self._drain()
            raise Stopped(INTERRUPTED)
        await self._align(batch.first)
        task = self._send(batch.plain, batch.header.offsets_count)
        self._flights.append(_Flight(task, batch, self._next))
        if self._next is not None:
            self._next = None if self._confirms else self._next + batch.header.offsets_count
        if len(self._flights) >= FLIGHTS_COUNT_MAX:
            await self._land()
        await self._whole.went(len(batch.content))

    # --- offsets ---

    async def _align(self, offset: int) -> None:
        """Let the next one have this offset, if it is not taken yet."""
        if self._next is not None and self._next >= offset:
            return
        if self._confirms and self._ahead > 0 and self._flights:
            return
        await self._drain()
        self._next = await self._head() + 1
        gap = offset - self._next - self._confirms
        while gap > 0:
            count = min(gap, FILLER_OFFSETS_MAX)
            settled = await self._send(encode_blank(first=0, last=count - 1), count)
            self._next = settled.offset + count + self._confirms
            gap = offset - self._next - self._confirms

    async def _head(self) -> int:
        """The last offset of the leader's log, settled or not: nothing of ours is under way."""
        client = self._whole.client
        deadline = monotonic() + GIVE_UP_S
        while monotonic() < deadline:
            # Whoever has just settled something knows; else the leader of the newest epoch, of all that answer.
            found = await self._heads(self._leader) if self._leader else []
            found = found or [head for node in client.nodes for head in await self._heads(node)]
            if found and max(found)[1] >= self._head_min:
                return max(found)[1]
            await asyncio.sleep(LOOK_EVERY_S)
        raise BackupError(f"{self._where}: nobody leads it; is a majority of its nodes up? Then: --resume")

    async def _heads(self, node: int) -> list[tuple[int, int]]:
        """(epoch, offset), if that node leads."""
        try:
            async with asyncio.timeout(STATUS_S):
                status = await self._whole.client.status(node)
        except (Unreachable, TimeoutError):
            return []
        return [
            (replica.epoch, replica.head.offset)
            for replica in status.replicas
            if replica.partition == self._partition and replica.role == "leader"
        ]

    # --- sending ---

    def _send(self, content: Buffer, offsets_count: int) -> asyncio.Task[Settled]:
        numbered = with_producer(content, producer_id=self._producer_id, epoch=EPOCH, sequence=self._sequence)
        self._sequence = (self._sequence + offsets_count) % SEQUENCES_COUNT
        return asyncio.create_task(self._settle(bytes(numbered)))

    async def _settle(self, content: bytes) -> Settled:
        """Sent again until it is settled: it has a number, and is written once."""
        deadline = monotonic() + GIVE_UP_S
        while True:
            try:
                return await self._whole.client.propose(self._partition, [content], timeout_s=TRY_S)
            except BadRequest as refused:
                raise BackupError(f"{self._where}: {refused}") from refused
            except (NotWritten, OutcomeUnknown) as error:
                if monotonic() >= deadline:
                    raise BackupError(
                        f"{self._where}: nothing is settled within {GIVE_UP_S:g} s ({error}); is a majority of "
                        f"its nodes up? Then: --resume"
                    ) from error

    async def _drain(self) -> None:
        while self._flights:
            await self._land()

    async def _land(self) -> None:
        flight = self._flights.popleft()
        settled = await flight.task
        self._leader = settled.node
        batch = flight.batch
        self._records += batch.header.record_count
        if self._confirms:
            self._head_min = settled.offset + batch.header.offsets_count
        self._ahead = settled.offset - batch.first
        if self._ahead:
            self._moved += batch.header.record_count
            self._first_moved = batch.first if self._first_moved < 0 else self._first_moved
        if settled.offset != flight.expected:
            self._next = None
