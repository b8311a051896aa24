"""Group commit: whatever is ordered while a round is being flushed goes into the next one together.

One round is in flight at a time: [what goes straight to segments …, the journal's round, flush all of that].
Only what goes straight to segments for the next one may be written meanwhile.
When it is done, the orders in it are durable, and the round after it starts by saying so (rule 2: the mark).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from quorate.core.entry import Partition
from quorate.storage.disk import Buffer, DiskFull, Flush, FlushDirectory, Operation, Write
from quorate.storage.frame import FRAME_HEAD_BYTES
from quorate.storage.journal import Round
from quorate.storage.log import NO_SEGMENT, Log, without_payload
from quorate.storage.records import (
    COPIED,
    COPY,
    COPY_BYTES,
    DELETE,
    ENTRIES,
    ENTRY,
    ENTRY_OVERHEAD,
    LARGE,
    MARK_BYTES,
    MARKS,
    MARKS_BYTES,
    RECORD_HEADER_BYTES,
    REPAIRED,
    Fault,
    Record,
    View,
    pack_copy,
    pack_entry,
    pack_mark,
    pack_marks,
    pack_record,
    with_fault,
)
from quorate.storage.shared import LANE_EARLY, LANE_JOURNAL, Shared

DISK_FULL = "disk full"
_COPIED = frozenset(int(kind) for kind in COPIED)
_ENTRY_BYTES = ENTRY_OVERHEAD + FRAME_HEAD_BYTES


class Batch:
    """Orders that become durable together."""

    __slots__ = (
        "after",
        "awaits",
        "barred",
        "before",
        "directories",
        "early",
        "failures",
        "files",
        "firsts",
        "ios",
        "large",
        "orders",
        "size",
        "views",
    )

    def __init__(self) -> None:
        self.orders: list[tuple[int, Log, Any, tuple[int, int] | None]] = []
        """(type, log, item or body, the offsets that are left), in the order in which they were given."""
        self.size = 0
        """Of their records in the journal."""
        self.ios: dict[Log, int] = {}
        self.firsts: dict[Log, int] = {}
        """The last and the first io of each log."""
        self.before: list[tuple[Log, Operation]] = []
        """What must be done before the journal says that it is."""
        self.large: list[tuple[Log, Write]] = []
        """Entries that go straight to their segments, and are not written yet."""
        self.early: list[tuple[Log, Write]] = []
        """Those that are being written before the round's turn has come: see `Rounds._write_early`."""
        self.files: list[tuple[Log, str]] = []
        self.directories: list[tuple[Log, str]] = []
        """What is flushed along with the journal."""
        self.barred: set[Log] = set()
        """Logs that are cut in here: nothing may be written straight over what is cut until that is durable."""
        self.failures: list[tuple[Log, int, str]] = []
        self.after: list[tuple[Log | None, Callable[[], None]]] = []
        """What can be done once all of it is durable."""
        self.awaits: list[Partition] = []
        """Deleted partitions whose files must be gone before this is written."""
        self.views: dict[Log, tuple[View, tuple[bytes, int, bool]]] | None = None
        """The logs as this round leaves them: set when nothing can be added any more."""

    def add(self, log: Log, io: int) -> None:
        if not self.ios.get(log):
            self.firsts[log] = io
        self.ios[log] = io

    def add_unasked(self, log: Log) -> None:
        """The log changes by something that no replica has ordered, and none waits for."""
        self.ios.setdefault(log, 0)

    def add_record(self, kind: int, log: Log, body: bytes, kept: tuple[int, int] | None = None) -> None:
        """`kept`: the entries between these offsets are left, because of this order."""
        self.orders.append((kind, log, body, kept))
        self.size += RECORD_HEADER_BYTES + len(body)
        if kept is not None:
            self.barred.add(log)

    def close(self) -> None:
        if self.views is None:
            self.views = {}
            for log in self.ios:
                self.views[log] = log.view(), (log.state, log.state_number, log.state_damaged)

    def remove(self, log: Log) -> None:
        """As if this log had ordered nothing; unless it was to be deleted."""
        self.orders = [order for order in self.orders if order[1] is not log or order[0] == DELETE]
        self.before = [pair for pair in self.before if pair[0] is not log]
        self.large = [pair for pair in self.large if pair[0] is not log]
        self.early = [pair for pair in self.early if pair[0] is not log]
        self.files = [pair for pair in self.files if pair[0] is not log]
        self.directories = [pair for pair in self.directories if pair[0] is not log]
        self.after = [pair for pair in self.after if pair[0] is not log]
        self.failures = [failure for failure in self.failures if failure[0] is not log]
        self.ios.pop(log, None)
        self.firsts.pop(log, None)
        if self.views is not None:
            self.views.pop(log, None)

    @property
    def idle(self) -> bool:
        return not (self.ios or self.failures or self.after)


class Rounds:
    """The queue of batches, and the one in flight."""

    __slots__ = (
        "_copies",
        "_early",
        "_held",
        "_notifying",
        "_previous",
        "_queue",
        "_shared",
        "busy",
        "completed",
        "make_room",
        "unmirrored",
        "unmirrored_copies",
    )

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._queue: deque[Batch] = deque((Batch(),))
        self._previous: list[Log] | None = None
        """Logs that the last round touched: the next one starts with their marks."""
        self._copies: list[Record] = []
        self._held = 0
        self._early = False
        """Entries of the next round are being written; it does not start before that is done."""
        self._notifying = False
        self.busy = False
        """A round, or a change of generation, is on its way in the journal's lane."""
        self.unmirrored: dict[Log, None] = {}
        self.unmirrored_copies: list[Record] = []
        """What has happened since the second place was last written."""
        self.completed: Callable[[bool], None] = lambda cut: None
        """Called when a round is durable, before anybody hears of it; with whether a log was cut in it."""
        self.make_room: Callable[[int], None] = lambda need: None
        shared.faulted = self._faulted

    # --- orders ---

    def batch(self, log: Log, *, direct: bool = False) -> Batch:
        """The batch that the next order belongs to."""
        batch = self._queue[-1]
        if batch.views is not None:
            batch = self._open()
        elif batch.size > self._shared.settings.round_bytes_max or (direct and log in batch.barred):
            batch = self.next_batch()
        return batch

    def next_batch(self) -> Batch:
        """A batch of its own for what must not go together with what was ordered before."""
        self._queue[-1].close()
        return self._open()

    def _open(self) -> Batch:
        batch = Batch()
        self._queue.append(batch)
        return batch

    def refuse(self, log: Log, io: int, reason: str) -> None:
        """An order that cannot be carried out fails after everything ordered before it is durable."""
        log.failed = True
        log.told = False
        batch = self._queue[-1]
        if batch.views is not None:
            batch = self._open()
        batch.failures.append((log, io, reason))

    def fail_waiting(self, logs: list[Log], reason: str) -> None:
        """Orders of these logs that are not durable never will be."""
        for log in logs:
            io = next((batch.firsts[log] for batch in self._queue if log in batch.firsts), 0)
            for batch in self._queue:
                batch.remove(log)
            log.go_back()
            log.failed = True
            log.told = False
            self._queue[0].failures.append((log, io, reason))

    def cancel(self, log: Log) -> None:
        """Nothing that this log has ordered has begun, and nothing of it will."""
        for batch in self._queue:
            batch.remove(log)

    def _faulted(self, log: Log, fault: Fault) -> None:
        """A round that ends after damage was found must not make it forgotten."""
        for batch in self._queue:
            if batch.views is not None and log in batch.views:
                view, state = batch.views[log]
                if fault.last.offset <= view.head.offset:
                    view = msgspec.structs.replace(view, faulty=with_fault(view.faulty, fault))
                    batch.views[log] = view, state

    def forget(self, log: Log) -> None:
        """The log is deleted: nobody waits for its orders."""
        for batch in self._queue:
            batch.ios.pop(log, None)
            batch.failures = [failure for failure in batch.failures if failure[0] is not log]

    def waiting_entries(self) -> list[Log]:
        """Logs whose entries wait for a round."""
        orders = (order for batch in self._queue for order in batch.orders)
        return list(dict.fromkeys(log for kind, log, _, _ in orders if kind in (ENTRY, LARGE)))

    @property
    def waiting_bytes(self) -> int:
        waiting = 0
        for batch in self._queue:
            waiting += batch.size
        return waiting

    # --- rounds ---

    def hold(self) -> None:
        """No round may start until `release`."""
        self._held += 1

    def release(self) -> None:
        self._held -= 1
        assert self._held >= 0
        self.pump()

    def pump(self) -> None:
        """Start a round, if none is on its way and something is ordered."""
        queue, shared = self._queue, self._shared
        if self._held or self._notifying or shared.dead:
            return
        if self.busy:
            if len(queue) > 1:
                self._write_early()
            return
        while len(queue) > 1 and queue[0].idle:
            queue.popleft()
        batch = queue[0]
        if batch.idle or (batch.awaits and self._files_are_left(batch.awaits)):
            return
        batch.close()
        if self._early:
            return  # It starts when its large entries are written; nothing joins it any more.
        if not batch.orders and not batch.before and not batch.large:
            self.busy = True
            shared.submit(LANE_JOURNAL, (), lambda _: self._finish(batch, None))
            return
        need = batch.size + self._opening_size()
        if not shared.journal.fits(need):
            self.make_room(need)
            return
        self.busy = True
        self._start(batch)

    def _files_are_left(self, partitions: list[Partition]) -> bool:
        """Whether files of one of these deleted partitions are not gone yet."""
        leaving, deleting = self._shared.leaving, self._shared.deleting
        return any(partition in leaving or partition in deleting for partition in partitions)

    def _start(self, batch: Batch) -> None:
        journal = self._shared.journal
        prepared = None
        operations: list[Operation] = []
        if batch.large or batch.before:
            operations = joined(operation for _, operation in (*batch.large, *batch.before))
        files: dict[str, None] = {}
        for _, file in batch.files:
            files[file] = None
        if batch.orders:
            prepared = journal.prepare(*self._build(batch, journal.sequence + 1))
            operations.append(prepared.write)
            files[journal.file] = None
        if files:
            operations.append(Flush(tuple(files)))
        if batch.directories:
            directories = dict.fromkeys(name for _, name in batch.directories)
            operations += [FlushDirectory(directory) for directory in directories]
        self._shared.submit(LANE_JOURNAL, operations, partial(self._done, batch, prepared))

    def _write_early(self) -> None:
        """Large entries of the next round can be written while this one is being flushed.

        Not where a log was cut: before that is durable, nothing may be written over what is cut.
        """
        if self._early or len(self._queue) < 2 or self._shared.full:
            return
        batch = self._queue[1]
        if not batch.large or batch.awaits or batch.barred or self._queue[0].barred:
            return
        if not _reach(batch.large, self._shared.settings.early_bytes):
            return
        if not all(log.durable_state[1] for log, _ in batch.large):
            return  # Files of a partition that the journal does not know would belong to nobody after a crash.
        batch.early, batch.large = batch.large, []

        def done(error: DiskFull | None) -> None:
            self._early = False
            if error is not None:  # The round repeats what is still wanted, and says what became of it.
                batch.large[:0] = batch.early
            batch.early = []
            if not self.busy:
                self.pump()

        self._early = True
        self._shared.submit(LANE_EARLY, joined(write for _, write in batch.early), done)

    def _opening_size(self) -> int:
        """Bytes of what a round says about the one before it."""
        size = MARKS_BYTES + MARK_BYTES * len(self._previous or ())
        for record in self._copies:
            size += COPY_BYTES + len(record.body)
        return size

    def _build(self, batch: Batch, sequence: int) -> tuple[list[Buffer], int]:
        """The records of a round: first what is now certain about the round before, then the orders."""
        buffers: list[Buffer] = []
        ordinal = 0
        if self._previous is not None:
            marks = [mark_of(log) for log in self._previous if not log.gone]
            buffers.append(pack_record(MARKS, sequence, 0, pack_marks(sequence - 2, sequence - 1, marks)))
            ordinal = 1
        for record in self._copies:
            buffers.append(pack_record(COPY, sequence, ordinal, pack_copy(record)))
            ordinal += 1
        for kind, _, what, _ in batch.orders:
            if kind in ENTRIES:
                pack_entry(buffers, kind, sequence, ordinal, what)
            else:
                buffers.append(pack_record(kind, sequence, ordinal, what))
            ordinal += 1
        return buffers, ordinal

    # --- completions ---

    def _done(self, batch: Batch, prepared: Round | None, error: DiskFull | None) -> None:
        shared = self._shared
        if error is not None:
            logs = list(dict.fromkeys(log for log, _ in (*batch.large, *batch.before)))
            if not logs:  # The journal's own space was allocated long ago.
                shared.die(f"the journal cannot be written: {error}")
                return
            shared.full = True
            self.fail_waiting(logs, DISK_FULL)
            self._again(batch)
            return
        if prepared is not None:
            self._note(batch, prepared)
        self._finish(batch, prepared)

    def _again(self, batch: Batch) -> None:
        """What is left of a batch after some of its logs have failed."""
        if batch.orders or batch.before or batch.large:
            self._start(batch)
        else:
            self._shared.submit(LANE_JOURNAL, (), lambda _: self._finish(batch, None))

    def _note(self, batch: Batch, prepared: Round) -> None:
        """The next round, and the second place, will say what this one did."""
        ordinal = (self._previous is not None) + len(self._copies)
        self._copies = []
        for kind, _, what, _ in batch.orders:
            if kind in _COPIED:
                self._copies.append(Record(kind, prepared.sequence, ordinal, what))
            ordinal += 1
        self.unmirrored_copies += self._copies
        self._shared.journal.written(prepared)

    def _finish(self, batch: Batch, prepared: Round | None) -> None:
        assert self._queue[0] is batch
        assert batch.views is not None
        self._queue.popleft()
        if not self._queue:
            self._queue.append(Batch())
        self._settle(batch)
        for log, (view, state) in batch.views.items():
            log.durable = view
            log.durable_state = state
            if prepared is not None:
                self.unmirrored[log] = None
        if prepared is not None:
            self._previous = list(batch.views)
            for log, _ in batch.directories:
                log.directory_made = True
        self.busy = False
        self._notifying = True
        try:
            # First of all, what frees names of files: the pass that may start next could use them again.
            for _, after in batch.after:
                after()
            self.completed(bool(batch.barred))
            self._notify(batch)
        finally:
            self._notifying = False
        self.pump()

    def _settle(self, batch: Batch) -> None:
        """Entries are the journal's to keep until their segments are flushed; cut ones are nobody's."""
        added = 0
        for kind, log, what, kept in batch.orders:
            if log.gone:
                continue
            if kind == ENTRY:
                log.lazy.append(what)
                added += _ENTRY_BYTES + what[0].header.size
            elif kind == LARGE:
                frame, segment, position, cuts, _ = what
                log.lazy.append((without_payload(frame), segment, position, cuts, True))
                added += _ENTRY_BYTES
            elif kind == REPAIRED:
                added += log.whole_again(what)
            elif kept is not None:
                added -= log.forget_outside(*kept)
        self._shared.lazy_bytes += added

    def _notify(self, batch: Batch) -> None:
        listener = self._shared.listener
        for log, io in batch.ios.items():
            if not log.deleted:
                listener.persisted(log.partition, io)
        for log, io, reason in batch.failures:
            if not log.deleted:
                log.told = True
                listener.failed(log.partition, io, reason)

    def generation_began(self) -> None:
        """A checkpoint has said everything, in both places."""
        self._previous = None
        self._copies = []
        self.unmirrored = {}
        self.unmirrored_copies = []


def _reach(writes: list[tuple[Log, Write]], bytes_count: int) -> bool:
    """Whether these writes are so many bytes."""
    for _, write in writes:
        bytes_count -= sum(map(len, write.buffers))
        if bytes_count <= 0:
            return True
    return False


def joined(operations: Iterable[Operation]) -> list[Operation]:
    """Writes that continue one another become one: as many system calls as there are gaps."""
    result: list[Operation] = []
    buffers: list[Buffer] = []
    file, start, end = "", 0, -1
    for operation in operations:
        if type(operation) is Write and operation.file == file and operation.at == end:
            buffers += operation.buffers
            end += sum(map(len, operation.buffers))
            continue
        if buffers:
            result.append(Write(file, start, tuple(buffers)))
            buffers = []
        file, end = "", -1
        if type(operation) is Write:
            file, start, buffers = operation.file, operation.at, list(operation.buffers)
            end = start + sum(map(len, buffers))
        else:
            result.append(operation)
    if buffers:
        result.append(Write(file, start, tuple(buffers)))
    return result


def mark_of(log: Log) -> bytes:
    """What is durable of a log, in one line of a record."""
    view = log.durable
    head, segments = view.head, view.segments
    return pack_mark(
        log.partition,
        head.epoch,
        head.offset,
        view.checksum,
        segments[-1].base if segments else NO_SEGMENT,
        view.end,
        log.commit,
        log.durable_state[1],
        view.cuts,
    )
