"""The journal's records, applied again in the order in which they were given, gaps and all.

Per partition the chain is the truth: an entry names its predecessor, and marks name the head after a round.
Where they do not fit together, records in between were lost, and what they were follows from how they do
not fit: entries (a faulty span), a cut (applied now), or both (nothing above what was settled is believed).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorate.core.entry import EntryId, Partition
from quorate.storage.frame import FRAME_HEAD_BYTES, Frame
from quorate.storage.index import SparseIndex
from quorate.storage.log import NO_SEGMENT, Log, item_in_place
from quorate.storage.records import (
    BASE,
    CREATE,
    CUT,
    DELETE,
    ENTRY,
    LARGE,
    REPAIRED,
    STATE,
    Base,
    Checkpoint,
    Create,
    Cut,
    Fault,
    Mark,
    Record,
    State,
    behind_rewritten,
    decode_body,
    unpack_entry,
    with_fault,
)
from quorate.storage.shared import Shared


class Replayed:
    """A log on its way back, and what was found out about it."""

    __slots__ = ("attested", "found", "log", "next", "state_needed")

    def __init__(self, log: Log) -> None:
        self.log = log
        self.found: list[Fault] = []
        """Faults that this recovery found, beside those known before."""
        self.state_needed = 0
        """The number of the newest state that ever was."""
        self.attested = 0
        """The last round after which it is known, from a mark, what this log was."""
        self.next: tuple[EntryId, int, int, int] | None = None
        """While carried entries arrive: the last one's id, checksum, and where it ends."""


class Replay:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.logs: dict[Partition, Replayed] = {}
        self.deleted: dict[Partition, Log] = {}
        self._handlers: dict[int, Callable[[Any], None]] = {
            CUT: self._cut,
            STATE: self._state,
            BASE: self._base,
            CREATE: self._create,
        }

    # --- the start of a generation ---

    def start(self, checkpoint: Checkpoint) -> None:
        partition = Partition(checkpoint.partition)
        log = self._new(partition)
        log.state = checkpoint.state
        log.state_number = checkpoint.state_number
        log.state_damaged = checkpoint.state_damaged
        log.commit = checkpoint.commit
        if checkpoint.deleted:
            self.deleted[partition] = log
            return
        log.become(checkpoint.view)
        log.index = SparseIndex(self._shared.settings.index_bytes, checkpoint.index)
        flushed = checkpoint.flushed
        replayed = self.logs[partition] = Replayed(log)
        replayed.next = flushed.id, flushed.checksum, flushed.segment, flushed.position

    def carried(self, record: Record) -> None:
        """An entry that was not flushed in its segment when the generation began."""
        frame, segment, position, cuts = unpack_entry(record)
        replayed = self.logs.get(frame.partition)
        if replayed is None or replayed.next is None:
            return
        before, checksum, _, _ = replayed.next
        if frame.header.offset <= before.offset or frame.header.last > replayed.log.head.offset:
            return
        if (frame.prev, frame.prev_checksum) != (before, checksum):
            self._missing(replayed, frame.prev, frame.prev_checksum, segment, position)
        replayed.log.lazy.append((frame, segment, position, cuts, record.type == LARGE))
        end = position + FRAME_HEAD_BYTES + frame.header.size
        replayed.next = frame.header.id, frame.checksum, segment, end

    def started(self) -> None:
        """All that was carried over has been seen."""
        for replayed in self.logs.values():
            log = replayed.log
            assert replayed.next is not None
            if replayed.next[:2] != (log.head, log.checksum):
                segment = log.segments[-1].base if log.segments else NO_SEGMENT
                self._missing(replayed, log.head, log.checksum, segment, log.end)
            replayed.next = None
            _fill_tail(log)

    def _missing(self, replayed: Replayed, last: EntryId, checksum: int, segment: int, position: int) -> None:
        """Carried entries up to `last` are unreadable, unless they were known to be faulty already."""
        assert replayed.next is not None
        log = replayed.log
        if any(fault.before == replayed.next[0] and fault.last == last for fault in log.faulty):
            return
        if last.offset > replayed.next[0].offset:
            fault = Fault(*replayed.next, last, checksum, segment, position)
            log.faulty = _merged(log, fault)
            replayed.found.append(fault)

    # --- rounds ---

    def apply(self, record: Record) -> None:
        """Raises DamagedRecord where a record is intact but makes no sense."""
        if record.type in (ENTRY, LARGE):
            self._entry(record)
            return
        if record.type == REPAIRED:
            self._repaired(record)
            return
        if record.type == DELETE:
            partition = Partition(decode_body(DELETE, record.body).partition)
            gone = self.logs.pop(partition, None)
            self.deleted[partition] = gone.log if gone is not None else self._new(partition)
            return
        handler = self._handlers.get(record.type)
        if handler is not None:
            handler(decode_body(record.type, record.body))

    def attest(self, mark: Mark, upto: int) -> None:
        """After round `upto` this log was what the mark says."""
        replayed = self.logs.get(mark.partition)
        if replayed is None:
            replayed = self._lost(mark.partition)
        log = replayed.log
        if (mark.head, mark.checksum, mark.cuts) != (log.head, log.checksum, log.cuts):
            self._bring_to(replayed, mark.head, mark.checksum, mark.segment, mark.end, mark.cuts)
        log.commit = max(log.commit, mark.commit)
        replayed.state_needed = max(replayed.state_needed, mark.state_number)
        replayed.attested = max(replayed.attested, upto)

    def _entry(self, record: Record) -> None:
        frame, segment, position, cuts = unpack_entry(record)
        replayed = self.logs.get(frame.partition)
        if replayed is None:
            if frame.partition in self.deleted:
                return
            replayed = self._lost(frame.partition)
        log = replayed.log
        if (frame.prev, frame.prev_checksum, cuts) != (log.head, log.checksum, log.cuts):
            self._bring_to(replayed, frame.prev, frame.prev_checksum, segment, position, cuts)
        log.push(frame, segment, position)
        log.lazy.append((frame, segment, position, cuts, record.type == LARGE))

    def _repaired(self, record: Record) -> None:
        """An entry came from a peer, and was flushed in its place."""
        frame, segment, position, cuts = unpack_entry(record)
        replayed = self.logs.get(frame.partition)
        if replayed is not None and replayed.log.repair(frame) is not None and replayed.log.lazy:
            # Otherwise all of the log is in its segments, and what lies behind this entry need not be carried.
            replayed.log.whole_again(item_in_place(frame, segment, position, cuts))

    def _cut(self, cut: Cut) -> None:
        replayed = self.logs.get(Partition(cut.partition)) or self._lost(Partition(cut.partition))
        log = replayed.log
        if cut.cuts == log.cuts + 1 and log.base.offset <= cut.to.offset <= log.head.offset:
            self._cut_at(replayed, cut.to, cut.checksum, cut.segment, cut.position)
        else:
            self._bring_to(replayed, cut.to, cut.checksum, cut.segment, cut.position, cut.cuts)

    def _state(self, state: State) -> None:
        replayed = self.logs.get(Partition(state.partition)) or self._lost(Partition(state.partition))
        log = replayed.log
        if state.number > log.state_number:
            log.state, log.state_number, log.state_damaged = state.state, state.number, False

    def _base(self, base: Base) -> None:
        """The record says everything; but bytes that are missing do not come back by that."""
        replayed = self.logs.get(Partition(base.partition)) or self._lost(Partition(base.partition))
        log, view = replayed.log, base.view
        if view.segments and view.head.offset > log.head.offset:
            # Entries before it were lost with the journal's own record of them.
            segment = view.segments[-1].base
            self._bring_to(replayed, view.head, view.checksum, segment, view.end, view.cuts)
        missing = [fault for fault in log.faulty if any(_overlap(fault, found) for found in replayed.found)]
        log.become(view)
        log.forget_outside(max(view.base.offset, base.rewritten), view.head.offset)
        if base.rewritten >= 0:
            log.forget_tail(base.rewritten)
            following = view.segments[log.segment_at(base.rewritten + 1)]
            missing = list(behind_rewritten(tuple(missing), following))
        for fault in missing:
            if view.base.offset < fault.last.offset <= view.head.offset:
                log.faulty = _merged(log, fault)

    def _create(self, create: Create) -> None:
        partition = Partition(create.partition)
        log = self._new(partition)
        log.state, log.state_number = create.state, 1
        self.logs[partition] = Replayed(log)
        self.deleted.pop(partition, None)

    # --- gaps ---

    def _bring_to(
        self, replayed: Replayed, to: EntryId, checksum: int, segment: int, position: int, cuts: int
    ) -> None:
        """Records were lost; after them the log ended with `to`, and went on at a place."""
        log = replayed.log
        place = (
            _end_of(log, to, segment, position) if log.base.offset <= to.offset <= log.head.offset else None
        )
        if place is not None:
            # The same epoch at the same offset: the log is right up to there, and was cut (log matching).
            self._cut_at(replayed, to, checksum, *place)
        else:
            if cuts != log.cuts or to.offset <= log.head.offset:
                _distrust(log, to)
            if to.offset > log.head.offset:
                self._lose(replayed, to, checksum, segment, position)
        log.cuts = cuts

    def _cut_at(self, replayed: Replayed, to: EntryId, checksum: int, segment: int, position: int) -> None:
        """The log was cut, perhaps inside of what is lost: then less of that matters."""
        log = replayed.log
        fault = log.fault_at(to.offset)
        if fault is None or fault.last == to:
            _cut_log(log, to, checksum, segment, position)
            return
        _cut_log(log, fault.before, fault.before_checksum, fault.segment, fault.position)
        self._lose(replayed, to, checksum, segment, position)

    def _lose(self, replayed: Replayed, last: EntryId, checksum: int, segment: int, position: int) -> None:
        log = replayed.log
        before = log.head
        log.lose(last, checksum, segment, position)
        replayed.found += [fault for fault in log.faulty if (fault.before, fault.last) == (before, last)]

    def _lost(self, partition: Partition) -> Replayed:
        """Something is said about a partition whose creation was lost: it exists, and little is known."""
        replayed = self.logs[partition] = Replayed(self._new(partition))
        replayed.state_needed = 1
        return replayed

    def _new(self, partition: Partition) -> Log:
        return Log(partition, self._shared.settings, self._shared.memory)


def _cut_log(log: Log, to: EntryId, checksum: int, segment: int, position: int) -> None:
    log.cut(to, checksum, segment, position)
    log.forget_outside(-1, to.offset)


def _distrust(log: Log, to: EntryId) -> None:
    """A cut was lost, nobody knows to where: only what was settled is still certain."""
    settled = min(log.commit, to.offset - 1)
    safe = log.base, log.base_checksum, *log.first_place()
    for sealed, following in zip(log.segments, log.segments[1:], strict=False):
        if safe[0].offset < following.before.offset <= settled and log.can_end_at(following.before):
            safe = following.before, following.before_checksum, sealed.base, sealed.size
    for frame, segment, position, _, _ in log.lazy:
        # A snapshot may have taken the log's place since, and what was carried then lies where nothing is yet.
        if safe[0].offset < frame.header.last <= settled and log.can_end_at(frame.header.id):
            end = position + FRAME_HEAD_BYTES + frame.header.size
            safe = frame.header.id, frame.checksum, segment, end
    _cut_log(log, *safe)


def _end_of(log: Log, to: EntryId, segment: int, position: int) -> tuple[int, int] | None:
    """Where `to` ends, if this log holds it. The log then went on at the place given, or in a new segment."""
    epoch = log.base.epoch if to.offset == log.base.offset else log.epoch_at(to.offset)
    if epoch != to.epoch:
        return None
    if segment == NO_SEGMENT or any(found.base == segment for found in log.segments):
        return segment, position
    if to == log.head:
        return log.segments[-1].base if log.segments else NO_SEGMENT, log.end
    for frame, own_segment, own_position, _, _ in log.lazy:
        if frame.header.id == to:
            return own_segment, own_position + FRAME_HEAD_BYTES + frame.header.size
    return None


def _overlap(one: Fault, other: Fault) -> bool:
    return one.before.offset < other.last.offset and other.before.offset < one.last.offset


def _merged(log: Log, fault: Fault) -> tuple[Fault, ...]:
    if fault.before.offset < log.base.offset:
        fault = Fault(
            log.base,
            log.base_checksum,
            *log.first_place(),
            fault.last,
            fault.last_checksum,
            fault.next_segment,
            fault.next_position,
        )
    return with_fault(log.faulty, fault)


def _fill_tail(log: Log) -> None:
    """Carried frames that lead to the head are the newest frames in memory."""
    chosen: list[Frame] = []
    expected = log.head, log.checksum
    for item in reversed(log.lazy):
        frame = item[0]
        if (frame.header.id, frame.checksum) != expected or not frame.payload:
            break
        chosen.append(frame)
        expected = frame.prev, frame.prev_checksum
    for frame in reversed(chosen):
        log.remember(frame)
