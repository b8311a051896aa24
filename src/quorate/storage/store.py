"""One store per node: the logs, states and snapshots of all its replicas on one disk.

Orders (`append`, `cut`, `save_state`, …) take effect in memory at once and are answered later, per replica in the
order in which they were given: `listener.persisted` or `listener.failed`. Until then they promise nothing.
`docs/STORAGE.md` explains how bytes lie on the disk and why a restart can tell torn from damaged.

Never blocks, but for two rare things: opening, and finding the place of an old entry when the log is cut there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import msgspec

from quorate import batch as batches
from quorate.core.entry import EntryId, Header, Kind, Partition, Snapshot, Span
from quorate.storage import starting
from quorate.storage.aside import Note, set_aside
from quorate.storage.check import check_now
from quorate.storage.compactor import Compactor
from quorate.storage.disk import Buffer, Disk, DiskFull, Flush, FlushDirectory, Operation, Unlink, Write
from quorate.storage.frame import FRAME_HEAD_BYTES, Frame, build, control_payload
from quorate.storage.index import UNKNOWN_TIME
from quorate.storage.log import Log, item_in_place
from quorate.storage.places import locate
from quorate.storage.reading import Reader
from quorate.storage.records import (
    BASE,
    CREATE,
    CUT,
    DELETE,
    ENTRY,
    ENTRY_OVERHEAD,
    LARGE,
    REPAIRED,
    STATE,
    Base,
    Create,
    Cut,
    Delete,
    Fault,
    Item,
    State,
    encode_body,
    item_bytes,
)
from quorate.storage.recovery import RecoveredLog, Recovery
from quorate.storage.rounds import DISK_FULL, Batch, Rounds
from quorate.storage.saving import Saving
from quorate.storage.settings import TINY, StoreSettings
from quorate.storage.shared import LANE_SEGMENTS, LANE_SNAPSHOTS, Listener, Shared
from quorate.storage.snapshots import Snapshots
from quorate.storage.write_back import WriteBack

__all__ = ["TINY", "Listener", "RecoveredLog", "Store", "StoreSettings"]

_ENTRY_BYTES = ENTRY_OVERHEAD + FRAME_HEAD_BYTES
_ALL = 1 << 62


class Store:
    def __init__(self, shared: Shared) -> None:
        """Use `open`."""
        self._shared = shared
        self._logs = shared.logs
        self._rounds = Rounds(shared)
        self._write_back = WriteBack(shared, self._rounds)
        self._snapshots = Snapshots(shared)
        self._reader = Reader(shared)
        self.compactor = Compactor(shared, self._rounds, self._write_back, self._reader)
        self._recovered: dict[Partition, RecoveredLog] = {}
        self._strangers: frozenset[str] = frozenset()
        """Directories of partitions that the journal does not know: never touched (rule 4)."""

    @classmethod
    def open(cls, disk: Disk, settings: StoreSettings, listener: Listener) -> Store:
        """Read the disk, and start a new generation of the journal. Blocks.

        Raises ForeignDirectory or DamagedStore where nothing can be proven about what is there.
        """
        shared = Shared(disk, settings, listener)
        store = cls(shared)
        recovery = Recovery(shared, store._write_back, store._snapshots)
        recovery.run()
        store._recovered = recovery.recovered
        store._strangers = recovery.strangers
        for partition in recovery.deleted:
            store._remove_files(shared.deleting[partition])
        store._write_back.housekeep()
        return store

    def close(self) -> None:
        """Nothing is written or told any more; what is durable is enough to open the store again."""
        self._shared.dead = True

    # --- what is there ---

    def partitions(self) -> list[Partition]:
        return list(self._logs)

    def recovered(self, partition: Partition) -> RecoveredLog:
        """What was found of a log when the store was opened, or what a new one starts with."""
        found = self._recovered.get(partition)
        log = self._logs[partition]
        if found is None:
            found = RecoveredLog(log.base, log.head)
        return msgspec.structs.replace(
            found,
            state=log.state if log.state_number else None,
            state_damaged=log.state_damaged,
            snapshot=self._snapshots.newest(log),
            base_checksum=log.base_checksum,
            compacted=log.compacted_upto,
        )

    def create(self, partition: Partition, io: int, state: bytes) -> None:
        """A new replica, with its first state."""
        assert partition not in self._logs
        shared = self._shared
        log = Log(partition, shared.settings, shared.memory)
        self._logs[partition] = log
        if log.directory in self._strangers:
            self._rounds.refuse(log, io, f"{log.directory} is there and unknown to the journal: move it away")
            return
        batch = self._rounds.batch(log)
        if partition in shared.deleting or partition in shared.leaving:
            # Not before the files of the one that had this name are gone.
            batch = self._rounds.next_batch()
            batch.awaits.append(partition)
        log.state = state
        log.state_number = 1
        batch.add_record(CREATE, log, encode_body(Create(partition, state)))
        # Files of a partition that the journal does not know would belong to nobody after a crash.
        batch.barred.add(log)
        batch.add(log, io)

    def delete(self, partition: Partition) -> None:
        """Forget a replica and remove its files."""
        shared = self._shared
        log = self._logs.pop(partition)
        self._recovered.pop(partition, None)
        if not log.state_number:
            return  # Its creation was refused: there is nothing to delete.
        log.deleted = True
        if partition in shared.leaving or partition in shared.deleting:
            self._rounds.cancel(log)  # Its creation still waits for the files of its predecessor to go.
            return
        shared.leaving[partition] = log
        self._snapshots.forget(log)
        self._rounds.forget(log)
        batch = self._rounds.batch(log)
        batch.add_record(DELETE, log, encode_body(Delete(partition)))
        batch.after.append((None, lambda: self._deleted(log)))

    def _deleted(self, log: Log) -> None:
        shared = self._shared
        log.gone = True
        shared.lazy_bytes -= log.forget_outside(0, -1)
        shared.deleting[log.partition] = shared.leaving.pop(log.partition)
        self._remove_files(log)

    def _remove_files(self, log: Log) -> None:
        """Behind whatever is still being written there: list what is left, and remove it."""
        shared = self._shared

        def listed(_: DiskFull | None) -> None:
            names = shared.disk.list_now(log.directory)
            operations: list[Operation] = [Unlink(f"{log.directory}/{name}") for name in names]
            if names:
                operations.append(FlushDirectory(log.directory))
            shared.submit(LANE_SEGMENTS, operations, removed)

        def removed(_: DiskFull | None) -> None:
            del shared.deleting[log.partition]
            self._rounds.pump()

        if self._snapshots.writes(log):  # In a lane of its own; nothing follows it there.
            shared.submit(LANE_SNAPSHOTS, (), lambda _: shared.submit(LANE_SEGMENTS, (), listed))
        else:
            shared.submit(LANE_SEGMENTS, (), listed)

    # --- the log ---

    def seal(
        self, partition: Partition, headers: Sequence[Header], payloads: Sequence[Buffer]
    ) -> list[Frame]:
        """Frames that continue this log's chain. Control entries have no payload of their own yet.

        None where an order has failed and its replica does not know: the entries would be refused, too.
        """
        log = self._logs[partition]
        if log.failed:
            return []
        prev, checksum = log.head, log.checksum
        if len(headers) == len(payloads) == 1:  # By far the most frequent.
            header = headers[0]
            payload = batches.stamp(payloads[0], offset=header.offset, epoch=header.epoch)
            return [build(partition, header, payload, prev, checksum)]
        frames = []
        waiting = iter(payloads)
        for header in headers:
            if header.kind == Kind.CONTROL:
                payload = control_payload(header)
            else:
                payload = batches.stamp(next(waiting), offset=header.offset, epoch=header.epoch)
            frame = build(partition, header, payload, prev, checksum)
            frames.append(frame)
            prev, checksum = frame.header.id, frame.checksum
        return frames

    def append(self, partition: Partition, io: int, frames: Sequence[Frame]) -> None:
        """The log goes on with these entries. Frames that do not continue its chain are refused."""
        log = self._logs[partition]
        shared = self._shared
        if log.failed or shared.dead:
            return
        if not _chained(log, frames):
            self._rounds.refuse(log, io, f"chain broken: {', '.join(map(str, frames))} do not continue {log}")
            return
        size = _ENTRY_BYTES * len(frames)
        for frame in frames:
            size += frame.header.size
        if shared.full and not self._fits(frames, size):
            self._rounds.refuse(log, io, DISK_FULL)
            return
        # An order is never divided between rounds: one that is too big for the journal goes around it.
        settings = shared.settings
        large_from = settings.journal_entry_max if size <= settings.round_bytes_max else 0
        if size <= large_from:  # Even the sum is small: the most frequent case by far.
            batch = self._rounds.batch(log)
            for frame in frames:
                segment, position = log.extend(frame)
                batch.orders.append((ENTRY, log, (frame, segment, position, log.cuts, False), None))
            batch.size += size
        else:
            # Control entries are small, and recovery must be able to decode them from the journal alone.
            around = [
                frame.header.size > large_from and frame.header.kind != Kind.CONTROL for frame in frames
            ]
            batch = self._rounds.batch(log, direct=any(around))
            for frame, large in zip(frames, around, strict=True):
                self._order(batch, log, frame, large)
        batch.add(log, io)

    def _order(self, batch: Batch, log: Log, frame: Frame, large: bool) -> None:
        """One entry goes into the journal, or straight to its segment."""
        segment, position = log.extend(frame)
        if not large:
            batch.orders.append((ENTRY, log, (frame, segment, position, log.cuts, False), None))
            batch.size += _ENTRY_BYTES + frame.header.size
            return
        file = log.file(segment)
        batch.orders.append((LARGE, log, (frame, segment, position, log.cuts, True), None))
        batch.size += _ENTRY_BYTES
        batch.large.append((log, Write(file, position, (frame.head, frame.payload))))
        batch.files.append((log, file))
        if segment not in log.named:
            batch.directories.append((log, log.directory))
            batch.after.append((log, partial(log.name, segment, log.changes)))

    def _fits(self, frames: Sequence[Frame], size: int) -> bool:
        """Whether the journal has room to keep these entries for as long as the disk is full."""
        settings, journal = self._shared.settings, self._shared.journal
        if any(frame.header.size > settings.journal_entry_max for frame in frames):
            return False
        reserve = settings.reserve_bytes
        if all(frame.header.kind == Kind.CONTROL for frame in frames):
            reserve //= 2
        return self._live_bytes() + size <= journal.size - reserve

    def _live_bytes(self) -> int:
        """What the next generation must hold at least."""
        return self._write_back.checkpoint_bytes + self._shared.lazy_bytes + self._rounds.waiting_bytes

    def head(self, partition: Partition) -> EntryId:
        """The last entry of the log as it will be, or after a failure as it is: perhaps not readable."""
        return self._logs[partition].head

    def cut(self, partition: Partition, io: int, to: EntryId, *, aside: Note | None = None) -> None:
        """Forget every entry above `to`. Durable before anything is written over them.

        With `aside`, a copy of them is kept for people; it is told where that was not possible.
        """
        log = self._logs[partition]
        if self._shared.dead or (log.failed and not log.told):
            return
        log.failed = False
        place = locate(self._shared, log, to)
        if place is None:
            self._look_for_damage(log, to.offset)
            self._rounds.refuse(log, io, f"{to} cannot be found in {log}")
            return
        if aside is not None:
            set_aside(self._shared, self._rounds, log, to, place, aside)
        checksum, segment, position = place
        batch = self._rounds.batch(log)
        gone = log.cut(to, checksum, segment, position)
        self._reader.forget(log, (*gone, segment))
        record = Cut(partition, to, checksum, segment, position, log.cuts)
        batch.add_record(CUT, log, encode_body(record), kept=(-1, to.offset))
        batch.add(log, io)
        if gone:
            # Segments of these names may come again: nothing goes on before they are gone.
            batch.after.append((log, lambda: self._write_back.unlink(log, gone, hold=True)))

    def can_cut(self, partition: Partition, to: EntryId) -> bool:
        """Whether `cut` would find that entry now. If its place turns out to be damaged, its replica hears so."""
        log = self._logs[partition]
        if self._shared.dead or log.failed:
            return False
        if locate(self._shared, log, to) is None:
            self._look_for_damage(log, to.offset)
            return False
        return True

    def _look_for_damage(self, log: Log, offset: int) -> None:
        """An entry that must be there cannot be found: if its segment is damaged, somebody must hear of it."""
        if log.segments and log.base.offset < offset <= log.head.offset and log.fault_at(offset) is None:
            settings = self._shared.settings
            place = log.segment_at(offset)
            self._reader.tell(log, check_now(self._shared.disk, log, place, settings.read_bytes))

    def remove_prefix(self, partition: Partition, io: int, to: EntryId, checksum: int | None = None) -> None:
        """Entries up to `to` need not be kept. Segments that hold nothing else are removed afterwards.

        With its checksum, it may lie inside of what cannot be read, and the newest segment may go as well.
        """
        log = self._logs[partition]
        if log.failed or self._shared.dead:
            return
        batch = self._rounds.batch(log)
        batch.add(log, io)
        place = locate(self._shared, log, to) if to.offset > log.base.offset else None
        if place is not None:
            if checksum is not None:
                starting.roll_behind(log, to)
            gone = log.remove_prefix(to, place[0], place[1:])
        elif checksum is not None and starting.can_start_inside(log, to):
            gone = starting.start_inside(log, to, checksum)
        else:
            return  # Nothing needs to be removed: it is only allowed.
        self._reader.forget(log, gone)
        batch.add_record(BASE, log, encode_body(Base(partition, log.view())), kept=(to.offset, _ALL))
        batch.after.append((log, lambda: self._write_back.unlink(log, gone, hold=False)))

    def repair(self, partition: Partition, io: int, frames: Sequence[Frame]) -> None:
        """Write these entries where faulty ones were. They must fit the span's chain on either side."""
        log = self._logs[partition]
        if log.failed or self._shared.dead:
            return
        batch = self._rounds.batch(log, direct=True)
        before = log.view()
        writes = []
        orders: list[tuple[int, Log, Item, None]] = []
        for frame in frames:
            place = log.repair(frame)
            if place is None:
                log.become(before)
                self._rounds.refuse(log, io, f"chain broken: {frame} fits no faulty span of {log}")
                return
            writes.append(Write(log.file(place[0]), place[1], (frame.head, frame.payload)))
            orders.append((REPAIRED, log, item_in_place(frame, *place, log.cuts), None))
        # Flushed before the journal says so; and the file itself may have been what was lost.
        files = tuple(dict.fromkeys(write.file for write in writes))
        batch.before += [(log, write) for write in writes]
        batch.before += [(log, Flush(files)), (log, FlushDirectory(log.directory))]
        batch.orders += orders
        batch.size += sum(item_bytes(order[2]) for order in orders)
        batch.add(log, io)

    # --- state and snapshots ---

    def save_state(self, partition: Partition, io: int, state: bytes) -> None:
        log = self._logs[partition]
        if log.failed or self._shared.dead:
            return
        batch = self._rounds.batch(log)
        log.state = state
        log.state_number += 1
        log.state_damaged = False
        batch.add_record(STATE, log, encode_body(State(partition, log.state_number, state)))
        batch.add(log, io)

    def stage_chunk(self, partition: Partition, io: int, at: int, data: bytes) -> None:
        """Keep a piece of an arriving snapshot; `at` 0 starts a new one."""
        log = self._logs[partition]
        if log.failed or self._shared.dead:
            return
        operations = self._snapshots.stage(log, at, data)
        if operations is None:
            self._rounds.refuse(log, io, f"a piece at {at} does not continue the incoming snapshot")
            return
        batch = self._rounds.batch(log, direct=True)
        batch.before += [(log, operation) for operation in operations]
        batch.add(log, io)

    def install_snapshot(
        self,
        partition: Partition,
        io: int,
        snapshot: Snapshot,
        *,
        keep: bool,
        start: tuple[EntryId, int] | None = None,
        compacted: int = -1,
    ) -> None:
        """The staged snapshot is whole: the log starts behind it; with `keep`, what is above it stays.

        With `start` (an entry, and the checksum of its frame) the log starts there; with `keep` as well, as it did.
        What lies between is then of the generation that reaches to `compacted`.
        """
        log = self._logs[partition]
        if log.failed or self._shared.dead:
            return
        place = locate(self._shared, log, snapshot.last) if keep else None
        installing = self._snapshots.install(log, snapshot)
        if keep and place is None:
            self._look_for_damage(log, snapshot.last.offset)
        if installing is None or (keep and place is None):
            self._rounds.refuse(log, io, f"the snapshot of {snapshot.last} is not whole, or not of {log}")
            return
        operations, kept = installing
        batch = self._rounds.batch(log, direct=True)
        batch.before += [(log, operation) for operation in operations]
        if place is not None and start is not None:
            gone, left = [], (log.base.offset, _ALL)
        elif place is not None:
            gone = log.remove_prefix(snapshot.last, place[0], (place[1], place[2]))
            left = snapshot.last.offset, _ALL
        else:
            gone = log.restart_after(snapshot.last, snapshot.checksum, ())
            left = _ALL, _ALL
            if start is not None:
                starting.reach_back(log, *start, compacted=compacted)
        batch.add_record(BASE, log, encode_body(Base(partition, log.view())), kept=left)
        batch.add(log, io)
        self._reader.forget(log, gone)
        batch.after.append((log, kept))
        batch.after.append((log, lambda: self._write_back.unlink(log, gone, hold=not keep)))

    def save_snapshot(
        self,
        partition: Partition,
        last: EntryId,
        checksum: int,
        data: bytes,
        done: Callable[[Exception | None], None],
    ) -> None:
        """Keep a snapshot of everything up to `last`; older ones are removed when it is durable."""
        if not self._shared.dead:
            self._snapshots.save(self._logs[partition], last, checksum, data, done)

    def begin_snapshot(self, partition: Partition, head_bytes: int) -> Saving:
        """The same piece by piece: so many bytes, which are said last, and then what is added."""
        return self._snapshots.begin(self._logs[partition], head_bytes)

    def read_snapshot(
        self,
        partition: Partition,
        snapshot: Snapshot,
        at: int,
        length: int,
        done: Callable[[bytes | None], None],
    ) -> None:
        """A piece of that one; None if another is the newest; empty if there is none or it is not intact."""
        if not self._shared.dead:
            self._snapshots.read(self._logs[partition], snapshot, at, length, done)

    def snapshot_now(self, partition: Partition) -> bytes | None:
        """All of the newest snapshot, verified. Blocks: for opening."""
        return self._snapshots.data_now(self._logs[partition])

    # --- reading ---

    def note_commit(self, partition: Partition, offset: int) -> None:
        """A hint, saved along with marks: everything up to `offset` is settled."""
        log = self._logs[partition]
        log.commit = max(log.commit, offset)

    def frames(self, partition: Partition, first: int, last: int, bytes_max: int) -> list[Frame] | None:
        """Entries from the one that holds `first` on, from memory; None if that is not there."""
        return self._logs[partition].frames(first, last, bytes_max)

    def read(
        self,
        partition: Partition,
        first: int,
        last: int,
        bytes_max: int,
        done: Callable[[list[Frame]], None],
    ) -> None:
        """Entries from the one that holds `first` on, without a gap, at least one if it is there and intact."""
        if not self._shared.dead:
            self._reader.read(self._logs[partition], first, last, bytes_max, done)

    def check(self, partition: Partition, done: Callable[[list[Span]], None]) -> None:
        """Verify every byte of a log's segments, in bounded steps. The spans that are newly found faulty."""
        if not self._shared.dead:
            self._reader.check(self._logs[partition], done)

    # --- segments ---

    def shape(self, partition: Partition, *, segment_bytes: int | None, segment_ms: int | None) -> None:
        """How large a segment of this log gets, and how far apart in time its entries are; None: as by default."""
        self._logs[partition].shape(segment_bytes=segment_bytes, segment_ms=segment_ms)

    def stretches(self, partition: Partition) -> list[starting.Stretch]:
        """The log's segments, oldest first; the newest is still written to."""
        return starting.stretches(self._logs[partition])

    def newest_time(self, partition: Partition, segment: int, done: Callable[[int], None]) -> None:
        """The highest timestamp of a sealed segment, from its footer; UNKNOWN_TIME where that does not say."""
        log = self._logs.get(partition)
        if log is None:
            done(UNKNOWN_TIME)
        elif not self._shared.dead:
            self._reader.newest_time(log, segment, done)

    def fault_over(self, partition: Partition, entry: EntryId) -> Fault | None:
        """The damage inside of which an entry lies such that no log can start there: nobody knows where in a file
        the one behind it belongs."""
        log = self._logs[partition]
        fault = log.fault_at(entry.offset)
        return (
            None if fault is None or fault.last == entry or starting.can_start_inside(log, entry) else fault
        )

    # --- turns ---

    @property
    def waiting_bytes(self) -> int:
        """What has been ordered and is not durable yet, of all logs."""
        return self._rounds.waiting_bytes

    @property
    def is_full(self) -> bool:
        """Whether the disk had no room when it was last asked for some."""
        return self._shared.full

    def room_for(self, bytes_count: int) -> bool:
        """Whether data of this size would be accepted now."""
        shared = self._shared
        if not shared.full:
            return True
        fits = (
            self._live_bytes() + _ENTRY_BYTES + bytes_count
            <= shared.journal.size - shared.settings.reserve_bytes
        )
        return fits and bytes_count <= shared.settings.journal_entry_max

    def pump(self, now: float | None = None) -> None:
        """Start a round if something is ordered and none is on its way. Called at the end of every turn."""
        if now is not None:
            self._shared.now = now
        self._rounds.pump()
        memory = self._shared.memory
        if len(memory.oldest) > memory.tidy_at:
            memory.tidy(self._logs.values())
        if self._shared.memory.bytes > self._shared.settings.tail_bytes:
            self._shared.memory.shrink(self._shared.settings.tail_bytes)

    def deadline(self) -> float | None:
        """When `tick` wants to be called."""
        return None if self._shared.dead else self._write_back.deadline()

    def tick(self, now: float) -> None:
        self._shared.now = now
        if not self._shared.dead:
            self._write_back.tick(now)
            self._rounds.pump()


def _chained(log: Log, frames: Sequence[Frame]) -> bool:
    """Whether frames continue a log, each the one before it."""
    first = frames[0]
    if first.prev_checksum != log.checksum or first.prev != log.head:
        return False
    return len(frames) == 1 or all(
        after.prev_checksum == before.checksum and after.prev == before.header.id
        for before, after in pairwise(frames)
    )
