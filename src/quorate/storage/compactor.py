"""Compaction on one disk: new files beside the old ones, and then, by one record of the journal, in their place.

It is done in two steps, and somebody outside decides on each. *Prepare* reads the log up to where a generation
reaches, writes what survives into files that end where the generation says, flushes them, and tells a checksum of
what is in them, which is the same on every replica. *Swap* lets go of the old files, not before everybody has
prepared the same (docs/decisions/020-compaction-keeps-the-chain.md). Until then, whatever happens, the log is what
it was.

Where a generation ends inside of one of our segments, what follows there is copied, as it is, to a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from crc32c import crc32c

from quorate.core.entry import EntryId, Partition, Span
from quorate.core.generation import Generation
from quorate.storage import starting
from quorate.storage.building import Building, Finished
from quorate.storage.disk import FlushDirectory, Operation, Unlink
from quorate.storage.finding import Finding
from quorate.storage.log import Log
from quorate.storage.reading import Reader
from quorate.storage.records import BASE, Base, Fault, Segment, behind_rewritten, encode_body
from quorate.storage.rounds import Rounds
from quorate.storage.segment import Made, generation_named, segment_file
from quorate.storage.shared import LANE_CHECK, LANE_SEGMENTS, Shared
from quorate.storage.surviving import Survivors
from quorate.storage.write_back import WriteBack

Done = Callable[[int | None], None]
"""The checksum of what was prepared; None if it could not be."""


class Prepared(msgspec.Struct, frozen=True):
    generation: Generation
    files: tuple[Segment, ...]
    """What is to be in the place of the old segments, the copied rest of the last of them included."""
    replaced: tuple[Segment, ...]
    last: int
    """The last offset in them."""
    crc: int
    """Of all that the generation says about them: the same on every replica."""


class Compactor:
    """One log at a time: keys need memory."""

    def __init__(self, shared: Shared, rounds: Rounds, write_back: WriteBack, reader: Reader) -> None:
        self._shared = shared
        self._rounds = rounds
        self._write_back = write_back
        self._reader = reader
        self._prepared: dict[Log, Prepared] = {}
        self._busy: Log | None = None

    def crc(self, partition: Partition, generation: Generation) -> int | None:
        """That of the files that are prepared for it; None if there are none."""
        prepared = self._of(partition, generation)
        return None if prepared is None else prepared.crc

    def _of(self, partition: Partition, generation: Generation) -> Prepared | None:
        log = self._shared.logs.get(partition)
        found = self._prepared.get(log) if log is not None else None
        return found if found is not None and found.generation == generation else None

    def start(self, partition: Partition) -> tuple[EntryId, int]:
        """The entry below the log, and the checksum of its frame."""
        log = self._shared.logs[partition]
        return log.base, log.base_checksum

    def state(self, partition: Partition) -> tuple[int, tuple[Span, ...]]:
        """How far the generation reaches that the log is of, and what of the log is damaged."""
        log = self._shared.logs[partition]
        return log.compacted_upto, log.spans

    # --- prepare ---

    def why_not(self, partition: Partition, generation: Generation) -> str:
        """Why its files cannot be made now; empty if they can."""
        log = self._shared.logs[partition]
        if self._busy is not None:
            return f"{self._busy.directory} is being compacted"
        if log.failed or log.deleted or not log.durable_state[1]:
            return "the log is not there, or refuses everything"
        if (log.base, log.base_checksum) != (generation.start, generation.start_checksum):
            return f"the log starts behind {log.base}, not behind {generation.start}"
        if generation.upto <= log.compacted_upto:
            return "it was done before"
        if log.head.offset < generation.upto or log.under_repair:
            return "the log does not reach as far, or is being repaired"
        return "the disk is full" if self._shared.full else ""

    def prepare(self, partition: Partition, generation: Generation, survivors: Survivors, done: Done) -> None:
        """Make its files, or find them made before a restart. `done` is called later, and once."""
        log = self._shared.logs[partition]
        self._prepared.pop(log, None)
        if self.why_not(partition, generation):
            self._shared.submit(LANE_CHECK, (), lambda _: done(None))
            return
        self._busy = log
        self._remove_strays(log, generation)
        self._end_segment(log, generation.upto)

        def ended(finished: Finished | None) -> None:
            self._busy = None
            if finished is None or log.deleted:
                done(None)
                return
            self._prepared[log] = _prepared(log, generation, finished)
            done(self._prepared[log].crc)

        building = Building(self._shared, self._reader, log, generation, survivors, ended)

        def looked(found: list[tuple[Segment, Made]] | None) -> None:
            if found is not None:
                building.go_on_behind(found)
            elif log.faulty:
                ended(None)
            else:
                building.begin()

        Finding(self._shared, log, generation, looked).begin()

    def _remove_strays(self, log: Log, generation: Generation) -> None:
        """Files of generations that nobody wants any more. Nothing is known by these names, nor ever will be."""
        names = self._shared.disk.list_now(log.directory)
        known = {log.file(segment.base) for segment in log.segments}
        strays = [f"{log.directory}/{name}" for name in names if generation_named(name) is not None]
        own = {segment_file(log.directory, base, generation.upto) for base in bases_of(generation)}
        operations: list[Operation] = [Unlink(file) for file in strays if file not in known | own]
        if operations:
            self._shared.submit(LANE_SEGMENTS, operations, lambda _: None)

    def _end_segment(self, log: Log, upto: int) -> None:
        """What is compacted is never written to again: a log that still is goes on in another file."""
        if log.segments[-1].base <= upto:
            starting.roll_behind(log, log.head)
            batch = self._rounds.batch(log)
            batch.add_record(BASE, log, encode_body(Base(log.partition, log.view())))
            batch.add_unasked(log)
            self._rounds.pump()

    # --- swap ---

    def swap(self, partition: Partition, generation: Generation) -> int | None:
        """Let the prepared files be the log's: up to where everything is in new files then, and was seen to be
        whole. None if it has to wait. Old files go when it is durable."""
        log, prepared = self._shared.logs[partition], self._of(partition, generation)
        if prepared is None or log.failed or log.under_repair or self._shared.dead:
            return None
        if log.durable.cuts != log.cuts or log.flushed().id.offset < prepared.last:
            self._write_back.hurry()
            return None
        replaced = tuple(found for found in log.segments if found.base <= prepared.last)
        if log.base != generation.start or replaced != prepared.replaced:
            del self._prepared[log]
            return None
        before = {log.file(found.base) for found in replaced}
        batch = self._rounds.batch(log)
        _put_in_place(log, prepared)
        gone = sorted(before.difference(log.file(found.base) for found in prepared.files))
        record = Base(partition, log.view(), prepared.last)
        batch.add_record(BASE, log, encode_body(record))
        batch.add_unasked(log)

        def durable() -> None:
            self._prepared.pop(log, None)
            operations: list[Operation] = [Unlink(file) for file in gone]
            operations.append(FlushDirectory(log.directory))
            self._shared.submit(LANE_SEGMENTS, operations, lambda _: None)

        batch.after.append((log, durable))
        self._rounds.pump()
        return prepared.last

    def refill(self, partition: Partition, generation: Generation) -> Span | None:
        """Where a log is being filled up to a snapshot, let that begin again, in a file of this generation."""
        log = self._shared.logs[partition]
        fault = _filling(log)
        if fault is None or log.failed or log.under_repair or log.compacted_upto >= generation.upto:
            return None
        first = log.segments[0].base
        old = log.file(first)
        batch = self._rounds.batch(log)
        segment = Segment(first, log.base, log.base_checksum, 0, generation.upto)
        log.segments = (segment, *log.segments[1:])
        log.compacted = {found.base: found.compacted for found in log.segments if found.compacted >= 0}
        fault = msgspec.structs.replace(
            fault, before=log.base, before_checksum=log.base_checksum, segment=first, position=0
        )
        rest = tuple(other for other in log.faulty if other.last.offset > fault.last.offset)
        log.faulty = (fault, *rest)
        log.start = first, 0
        log.rolled.pop(first, None)
        log.changes += 1
        batch.add_record(BASE, log, encode_body(Base(partition, log.view())))
        batch.add_unasked(log)
        unlink: tuple[Operation, ...] = (Unlink(old),)
        batch.after.append((log, lambda: self._shared.submit(LANE_SEGMENTS, unlink, lambda _: None)))
        self._rounds.pump()
        return Span(fault.before, fault.last)


def _filling(log: Log) -> Fault | None:
    """What is missing of a log whose first file holds nothing but what was filled in so far."""
    if len(log.segments) < 2 or log.segments[0].base != log.base.offset + 1:
        return None
    first, following = log.segments[:2]
    for fault in log.faulty:
        if (fault.segment, fault.position) == (first.base, first.size) and fault.last == following.before:
            return fault
    return None


def bases_of(generation: Generation) -> list[int]:
    """The first offset of each file."""
    return [generation.start.offset + 1, *(end + 1 for end in generation.ends[:-1])]


def _prepared(log: Log, generation: Generation, finished: Finished) -> Prepared:
    files = tuple(segment for segment, _ in finished.files)
    crcs = b"".join(made.crc.to_bytes(4, "big") for _, made in finished.files)
    if finished.rest is not None:
        files += (finished.rest,)
    last = finished.last.offset
    replaced = tuple(found for found in log.segments if found.base <= last)
    return Prepared(generation, files, replaced, last, crc32c(crcs))


def _put_in_place(log: Log, prepared: Prepared) -> None:
    kept = log.segments[len(prepared.replaced) :]
    assert kept
    assert kept[0].base == prepared.last + 1
    for found in prepared.replaced:
        log.rolled.pop(found.base, None)
    log.segments = prepared.files + kept
    log.compacted = {found.base: found.compacted for found in log.segments if found.compacted >= 0}
    log.start = prepared.files[0].base, 0
    log.faulty = behind_rewritten(log.faulty, kept[0])
    log.forget_tail(prepared.last)
    log.changes += 1
