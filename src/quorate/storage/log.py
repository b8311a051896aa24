"""One partition's log in memory: what has been ordered, what of it is durable, and the newest frames.

A log changes at the moment of an order. `durable` is what it was after the last round that was flushed, and is
where it goes back to when an order fails. Replaying the journal makes the same changes in the same order.

Its size in memory does not depend on the log's length, but for some tens of bytes per segment.
"""

from __future__ import annotations

from bisect import bisect_right, insort

import msgspec

from quorate.batch import NO_TIMESTAMP
from quorate.core.entry import (
    NOWHERE,
    STICKY_CONTROLS,
    EntryId,
    Header,
    Kind,
    Partition,
    Rollback,
    Span,
    in_force,
)
from quorate.storage.frame import FRAME_HEAD_BYTES, Frame
from quorate.storage.index import UNKNOWN_TIME, SparseIndex, newest_in
from quorate.storage.memory import Memory
from quorate.storage.records import OPEN, Fault, Flushed, Item, Segment, View, item_bytes, with_fault
from quorate.storage.segment import directory_of, segment_file
from quorate.storage.settings import StoreSettings

NO_SEGMENT = -1
CONTROLS_MAX = 16
"""With so many sticky controls in a log those are forgotten whose successor is settled, and so is for good."""

EMPTY = View(NOWHERE, 0, (NO_SEGMENT, 0), NOWHERE, 0, (), 0, (), (), (), 0)


class Log:
    __slots__ = (
        "_memory",
        "_settings",
        "base",
        "base_checksum",
        "changes",
        "checksum",
        "commit",
        "compacted",
        "controls",
        "cuts",
        "deleted",
        "directory",
        "directory_made",
        "durable",
        "durable_state",
        "end",
        "epochs",
        "failed",
        "faulty",
        "first_time",
        "gone",
        "head",
        "index",
        "lazy",
        "named",
        "partition",
        "repairs",
        "repairs_open",
        "rolled",
        "segment_bytes",
        "segment_ms",
        "segments",
        "start",
        "state",
        "state_damaged",
        "state_number",
        "tail_frames",
        "tail_offsets",
        "told",
        "writing",
    )

    def __init__(self, partition: Partition, settings: StoreSettings, memory: Memory) -> None:
        self._settings = settings
        self._memory = memory
        self.partition = partition
        self.directory = directory_of(partition)
        self.segment_bytes = settings.segment_bytes
        """A segment that has reached this size is sealed."""
        self.segment_ms: int | None = None
        """So is one whose first entry is older than the next by more than this."""
        self.first_time = NO_TIMESTAMP
        """The timestamp of the first entry in the newest segment that has one, as far as is known."""
        self.index = SparseIndex(settings.index_bytes)
        self.rolled: dict[int, SparseIndex] = {}
        """Indexes of segments that are sealed and have no footer on the disk yet."""
        self.state = b""
        self.state_number = 0
        """Rises with every state, so that the newest of several copies is known."""
        self.state_damaged = False
        self.commit = -1
        self.tail_frames: list[Frame] = []
        self.tail_offsets: list[int] = []
        """The newest entries, without a gap up to the head, and their first offsets."""
        self.lazy: list[Item] = []
        """Durable entries that are not flushed in their segments yet: the journal must keep them."""
        self.writing: list[Item] = []
        """Those of them that are being written to their segments just now; older than `lazy`."""
        self.changes = 0
        """Counts what makes positions that a reader has found out invalid."""
        self.repairs = 0
        """Counts repairs, both when they are ordered and when they are flushed."""
        self.repairs_open = 0
        """Those that are ordered and not flushed."""
        self.failed = False
        """An order failed: everything is refused until its replica knows (`told`) and cuts the log."""
        self.told = False
        self.deleted = False
        """Its deletion is ordered: nobody is told of it any more."""
        self.gone = False
        """And is durable: nothing of it needs to be kept."""
        self.directory_made = False
        self.named: set[int] = set()
        """Segments whose names are known to be flushed in their directory (rule 6). Of those that were there when
        the store was opened, nothing is known: one may never have been written, if its entries were removed first.
        """
        self.segments: tuple[Segment, ...] = ()
        self.compacted: dict[int, int] = {}
        """Segments that compaction made, and how far their generation reaches."""
        self.become(EMPTY)
        self.durable = EMPTY
        self.durable_state = (self.state, self.state_number, self.state_damaged)

    def __str__(self) -> str:
        faulty = "".join(f" faulty {fault.before.offset + 1}..{fault.last.offset}" for fault in self.faulty)
        return f"{self.directory} {self.base.offset + 1}..{self.head.offset} head {self.head}{faulty}"

    @property
    def rewrites(self) -> int:
        """What was read under another number may be neither what is there now nor where it belongs."""
        return self.changes + self.repairs

    @property
    def under_repair(self) -> bool:
        """Whether repairs are ordered that are not in their segments yet."""
        return self.repairs_open > 0

    # --- pictures ---

    def view(self) -> View:
        return View(
            self.base,
            self.base_checksum,
            self.start,
            self.head,
            self.checksum,
            self.segments,
            self.end,
            self.epochs,
            self.controls,
            self.faulty,
            self.cuts,
        )

    def become(self, view: View) -> None:
        """Everything is as it was, or as somebody else says."""
        self._reopen_segments(view.segments, view.end)
        self.base = view.base
        self.base_checksum = view.base_checksum
        self.start = view.start
        self.head = view.head
        self.checksum = view.checksum
        self.end = view.end
        self.epochs = view.epochs
        self.controls = view.controls
        self.faulty = view.faulty
        self.cuts = view.cuts
        self.compacted = {found.base: found.compacted for found in view.segments if found.compacted >= 0}
        self.repairs_open = 0
        self._trim_tail()
        self.changes += 1

    def go_back(self) -> None:
        """Forget every order that is not durable."""
        was_cut = self.cuts != self.durable.cuts
        self.become(self.durable)
        if was_cut:
            # Points of entries that never were stand among those of entries that come back: none is better.
            self.index = SparseIndex(self._settings.index_bytes)
            self.rolled = {base: SparseIndex(self._settings.index_bytes) for base in self.rolled}
        self.state, self.state_number, self.state_damaged = self.durable_state

    def flushed(self) -> Flushed:
        """Up to where the segments hold everything; what comes behind it is carried by the journal."""
        items = self.writing or self.lazy
        durable = self.durable
        if not items:
            segment = durable.segments[-1].base if durable.segments else NO_SEGMENT
            return Flushed(durable.head, durable.checksum, segment, durable.end)
        frame, segment, position, _, _ = items[0]
        return Flushed(frame.prev, frame.prev_checksum, segment, position)

    # --- changes, each at the moment of its order ---

    def extend(self, frame: Frame) -> tuple[int, int]:
        """The log goes on with an entry, in a new segment if the last one is full: (segment, position)."""
        segments, end = self.segments, self.end
        if (
            segments
            and segments[-1].compacted < 0
            and (
                not end
                or (
                    end + FRAME_HEAD_BYTES + frame.header.size <= self.segment_bytes
                    and (self.segment_ms is None or not self._is_long_after(frame, self.segment_ms))
                )
            )
        ):
            place = segments[-1].base, end
        else:
            place = frame.header.offset, 0
        self.push(frame, *place)
        return place

    def push(self, frame: Frame, segment: int, position: int) -> None:
        """The log goes on with an entry at a place."""
        header = frame.header
        epoch, offset = header.epoch, header.offset
        if not self.segments or self.segments[-1].base != segment:
            self.open_segment(segment)
        index = self.index
        timestamp = newest_in(frame.payload)
        if position >= index.due:
            index.add(offset, position, timestamp)
        elif timestamp > index.times[-1]:
            index.times[-1] = timestamp
        if self.first_time < 0 and timestamp != UNKNOWN_TIME:
            self.first_time = timestamp
        if epoch > self.head.epoch:
            self.epochs = (*self.epochs, (epoch, offset))
        if header.control is not None and isinstance(header.control, STICKY_CONTROLS):
            if len(self.controls) >= CONTROLS_MAX:
                self.controls = tuple(in_force(self.controls, settled=self.commit))
            self.controls = (*self.controls, header)
        self.head = EntryId(epoch, offset + header.count - 1)
        self.checksum = frame.checksum
        self.end = position + FRAME_HEAD_BYTES + header.size
        if frame.payload:
            self.remember(frame)
        else:
            self._clear_tail()  # Replayed from the journal, while the payload is in the segment.

    def remember(self, frame: Frame) -> None:
        """Keep a frame in memory: the next one behind those that are."""
        self.tail_frames.append(frame)
        self.tail_offsets.append(frame.header.offset)
        memory = self._memory
        memory.bytes += FRAME_HEAD_BYTES + frame.header.size
        memory.oldest.append(self)

    def cut(self, to: EntryId, checksum: int, segment: int, position: int) -> list[int]:
        """Forget every entry above `to`; the next one goes to the place given. Segments that are gone."""
        assert self.base.offset <= to.offset <= self.head.offset
        assert self.can_end_at(to), "nobody knows where an entry ends that cannot be read"
        kept = tuple(found for found in self.segments if found.base <= segment)
        gone = [found.base for found in self.segments if found.base > segment]
        assert not kept or kept[-1].base == segment
        self._reopen_segments(kept, position)
        self.end = position
        self.head = to
        self.checksum = checksum
        self.epochs = tuple(start for start in self.epochs if start[1] <= to.offset)
        self.controls = tuple(header for header in self.controls if header.last <= to.offset)
        self.faulty = tuple(fault for fault in self.faulty if fault.last.offset <= to.offset)
        self.cuts += 1
        self._trim_tail()
        self.changes += 1
        return gone

    def remove_prefix(self, to: EntryId, checksum: int, start: tuple[int, int]) -> list[int]:
        """Let the log start behind `to`, at a place. Segments that nothing is left of."""
        assert self.base.offset <= to.offset <= self.head.offset
        place = max(bisect_right([found.base for found in self.segments], to.offset + 1) - 1, 0)
        gone = [found.base for found in self.segments[:place]]
        self.segments = self.segments[place:]
        self.faulty = tuple(fault for fault in self.faulty if fault.last.offset > to.offset)
        self.start_behind(to, checksum, start, gone)
        return gone

    def start_behind(self, to: EntryId, checksum: int, start: tuple[int, int], gone: list[int]) -> None:
        """The segments are those that are left: nothing up to `to` is known any more."""
        self.start = start
        if self.segments and self.segments[0].base > start[0]:
            self.start = self.segments[0].base, 0
        self.epochs = tuple(first for first in self.epochs if first[1] > to.offset)
        self.controls = tuple(
            header
            for header in in_force(self.controls, settled=to.offset)
            if type(header.control) is not Rollback or header.offset > to.offset
        )
        self.base = to
        self.base_checksum = checksum
        self.named.difference_update(gone)
        for base in gone:
            self.rolled.pop(base, None)
        self.forget_tail(to.offset)
        self.changes += 1

    def restart_after(self, last: EntryId, checksum: int, controls: tuple[Header, ...]) -> list[int]:
        """A snapshot takes the place of everything. Segments that are gone."""
        gone = [found.base for found in self.segments]
        self._clear_tail()
        self.become(
            View(last, checksum, (NO_SEGMENT, 0), last, checksum, (), 0, (), controls, (), self.cuts + 1)
        )
        return gone

    def lose(self, last: EntryId, checksum: int, segment: int, position: int) -> None:
        """Entries up to `last` were here, behind the head, and cannot be read. The log goes on behind them."""
        assert last.offset > self.head.offset
        start = self.segments[-1].base if self.segments else self.head.offset + 1
        fault = Fault(self.head, self.checksum, start, self.end, last, checksum, segment, position)
        self.faulty = with_fault(self.faulty, fault)
        if not self.segments:
            self.open_segment(start)
        if last.epoch > (self.epochs[-1][0] if self.epochs else self.base.epoch):
            self.epochs = (*self.epochs, (last.epoch, last.offset))
        if self.segments[-1].base != segment:
            self.open_segment(segment)
            # A segment that starts inside of the span: what precedes it is known only when that is repaired.
            before = (last, checksum) if segment > last.offset else (EntryId(0, segment - 1), 0)
            self.segments = (*self.segments[:-1], Segment(segment, *before))
        self.head = last
        self.checksum = checksum
        self.end = position
        self._clear_tail()

    def mark_faulty(self, fault: Fault) -> bool:
        """Durable entries turned out to be unreadable. False if that does not matter any more."""
        if fault.last.offset <= self.base.offset or fault.before.offset >= self.head.offset:
            return False
        if fault.last.offset <= self.head.offset and self.epoch_at(fault.last.offset) not in (
            0,
            fault.last.epoch,
        ):
            return False  # What was there has been cut, and something else is there now.
        self.faulty = with_fault(self.faulty, fault)
        self.durable = msgspec.structs.replace(self.durable, faulty=with_fault(self.durable.faulty, fault))
        return True

    def repair(self, frame: Frame) -> tuple[int, int] | None:
        """The first entry of a faulty span is whole again. Its place; None if it fits no span."""
        for fault in self.faulty:
            if fault.before != frame.prev or fault.before_checksum != frame.prev_checksum:
                continue
            last = frame.header.id
            if last.offset > fault.last.offset:
                return None
            if last.offset == fault.last.offset and (last, frame.checksum) != (
                fault.last,
                fault.last_checksum,
            ):
                return None
            place = fault.segment, fault.position
            if frame.header.offset != fault.segment and any(
                found.base == frame.header.offset for found in self.segments
            ):
                place = frame.header.offset, 0  # A segment starts inside of the span.
            self._shrink_fault(fault, frame, *place)
            self.repairs += 1
            self.repairs_open += 1
            return place
        return None

    # --- what is durable ---

    def forget_outside(self, below: int, upto: int) -> int:
        """Durably, only offsets above `below` up to `upto` are left. Bytes that need no segment any more."""
        forgotten = 0
        for items in (self.lazy, self.writing):
            kept = []
            for item in items:
                if below < item[0].header.offset <= upto:
                    kept.append(item)
                else:
                    forgotten += item_bytes(item)
            items[:] = kept
        return forgotten

    def whole_again(self, item: Item) -> int:
        """A repaired entry is flushed in its place. Among entries that only the journal holds it is like one
        that went around the journal. Bytes that the journal has to carry for it."""
        frame = item[0]
        self.repairs += 1
        self.repairs_open = max(0, self.repairs_open - 1)
        waiting = self.writing if self.writing and item[1:3] < self.writing[-1][1:3] else self.lazy
        if frame.header.offset <= self.flushed().id.offset or item in waiting:
            return 0
        insort(waiting, item, key=lambda other: other[0].header.offset)
        return item_bytes(item)

    @property
    def lazy_bytes(self) -> int:
        return sum(map(item_bytes, self.lazy)) + sum(map(item_bytes, self.writing))

    def name(self, segment: int, changes: int) -> None:
        """The name of a segment's file is flushed; unless another one has that name since `changes`."""
        self.directory_made = True
        if changes == self.changes:
            self.named.add(segment)

    # --- the newest frames ---

    def frames(self, first: int, last: int, bytes_max: int) -> list[Frame] | None:
        """From the entry that holds `first` on; None if that is not in memory."""
        offsets = self.tail_offsets
        if not offsets or first < offsets[0]:
            return None
        if offsets[-1] <= first <= last:
            return self.tail_frames[-1:]  # The newest: what is asked for most.
        start = bisect_right(offsets, first) - 1
        end = bisect_right(offsets, last)
        chosen = self.tail_frames[start:end]
        total = 0
        for count, frame in enumerate(chosen):
            total += frame.header.size
            if total > bytes_max and count:  # One entry always goes, however large it is.
                return chosen[:count]
        return chosen

    def evict(self, count: int) -> int:
        """Drop the oldest frames from memory, if they can be read again. Bytes dropped."""
        # What is not durable stays: nobody could read it. What is, is in its segment, or held in `lazy`.
        if self.cuts != self.durable.cuts:
            return 0
        count = min(count, bisect_right(self.tail_offsets, self.durable.head.offset))
        return self._drop_tail(0, count)

    # --- segments ---

    def shape(self, *, segment_bytes: int | None, segment_ms: int | None) -> None:
        self.segment_bytes = self._settings.segment_bytes if segment_bytes is None else segment_bytes
        self.segment_ms = segment_ms

    def _is_long_after(self, frame: Frame, segment_ms: int) -> bool:
        return self.first_time >= 0 and newest_in(frame.payload) - self.first_time > segment_ms

    # --- helpers ---

    @property
    def spans(self) -> tuple[Span, ...]:
        return tuple(Span(fault.before, fault.last) for fault in self.faulty)

    def fault_at(self, offset: int) -> Fault | None:
        for fault in self.faulty:
            if fault.covers(offset):
                return fault
        return None

    def can_end_at(self, entry: EntryId) -> bool:
        """Whether it is known, and does not lie inside of what cannot be read."""
        fault = self.fault_at(entry.offset) if self.faulty else None
        return fault is None or fault.last == entry

    def epoch_at(self, offset: int) -> int:
        """The epoch at an offset above base; 0 where it cannot be known."""
        fault = self.fault_at(offset) if self.faulty else None
        if fault is not None:
            return fault.last.epoch if offset == fault.last.offset else 0
        epochs = self.epochs
        place = bisect_right(epochs, offset, key=lambda start: start[1])
        return epochs[place - 1][0] if place else self.base.epoch

    def first_place(self) -> tuple[int, int]:
        """(segment, position) of the first kept entry, or of where it will be."""
        if self.start[0] == NO_SEGMENT and self.segments:
            return self.segments[0].base, 0
        return self.start

    def file(self, segment: int) -> str:
        return segment_file(self.directory, segment, self.compacted.get(segment, -1))

    @property
    def compacted_upto(self) -> int:
        """What is at or below is not as it came: neither a machine nor a peer's log is made from it."""
        return max(self.compacted.values(), default=-1)

    def segment_at(self, offset: int) -> int:
        """The place in `segments` of the one that holds `offset`."""
        place = bisect_right([found.base for found in self.segments], offset) - 1
        assert place >= 0
        return place

    def open_segment(self, segment: int) -> None:
        """The log goes on in a file that starts at this offset."""
        if self.segments:
            sealed = self.segments[-1]
            self.rolled[sealed.base] = self.index
            self.segments = (*self.segments[:-1], msgspec.structs.replace(sealed, size=self.end))
        self.segments = (*self.segments, Segment(segment, self.head, self.checksum))
        self.index = SparseIndex(self._settings.index_bytes)
        self.first_time = NO_TIMESTAMP

    def _reopen_segments(self, segments: tuple[Segment, ...], end: int) -> None:
        """These are the segments; the last of them is open and ends at `end`."""
        self.first_time = NO_TIMESTAMP
        if segments:
            last = segments[-1]
            if not self.segments or self.segments[-1].base != last.base:
                index = self.rolled.pop(last.base, None)
                self.index = index if index is not None else SparseIndex(self._settings.index_bytes)
            segments = (*segments[:-1], msgspec.structs.replace(last, size=OPEN))
            self.index.cut(end)
        else:
            self.index = SparseIndex(self._settings.index_bytes)
        known = {found.base for found in segments}
        self.rolled = {base: index for base, index in self.rolled.items() if base in known}
        self.named &= known
        self.segments = segments

    def _trim_tail(self) -> None:
        """Nothing is above the head; and the frames are those that lead to it."""
        self._drop_tail(bisect_right(self.tail_offsets, self.head.offset), len(self.tail_offsets))
        if self.tail_frames and self.tail_frames[-1].checksum != self.checksum:
            self._clear_tail()

    def forget_tail(self, upto: int) -> None:
        self._drop_tail(0, bisect_right(self.tail_offsets, upto))

    def _clear_tail(self) -> None:
        self._drop_tail(0, len(self.tail_offsets))

    def _drop_tail(self, start: int, end: int) -> int:
        """Bytes that were dropped."""
        dropped = 0
        for frame in self.tail_frames[start:end]:
            dropped += FRAME_HEAD_BYTES + frame.header.size
        del self.tail_frames[start:end]
        del self.tail_offsets[start:end]
        self._memory.bytes -= dropped
        return dropped

    def _shrink_fault(self, fault: Fault, frame: Frame, segment: int, position: int) -> None:
        """`frame`, the first of `fault`, is whole."""
        header = frame.header
        end = position + FRAME_HEAD_BYTES + header.size
        rest = Fault(
            header.id,
            frame.checksum,
            segment,
            end,
            fault.last,
            fault.last_checksum,
            fault.next_segment,
            fault.next_position,
        )
        finished = header.last == fault.last.offset
        self.faulty = tuple(
            rest if other is fault else other for other in self.faulty if other is not fault or not finished
        )
        self.segments = tuple(_with_repaired(found, frame, segment, end) for found in self.segments)
        self._insert_epoch(header.epoch, header.offset)
        if header.control is not None and isinstance(header.control, STICKY_CONTROLS):
            known = [other for other in self.controls if other.offset != header.offset]
            self.controls = tuple(sorted((*known, header), key=lambda other: other.offset))

    def _insert_epoch(self, epoch: int, offset: int) -> None:
        starts = [start for start in self.epochs if start[0] != epoch]
        firsts = [start[1] for start in self.epochs if start[0] == epoch]
        if epoch > self.base.epoch:
            starts.append((epoch, min([offset, *firsts])))
        self.epochs = tuple(sorted(starts))


def _with_repaired(found: Segment, frame: Frame, segment: int, end: int) -> Segment:
    """A segment inside of a span starts behind, and ends with, what its repaired entries say."""
    if found.base != segment:
        return found
    before, checksum = found.before, found.before_checksum
    if frame.header.offset == segment:
        before, checksum = frame.prev, frame.prev_checksum
    size = end if OPEN < found.size < end else found.size
    return Segment(segment, before, checksum, size, found.compacted)


def item_in_place(frame: Frame, segment: int, position: int, cuts: int) -> Item:
    """An entry that is in its segment already. Control entries keep their payload: it says what they are."""
    large = frame.header.kind != Kind.CONTROL
    return without_payload(frame) if large else frame, segment, position, cuts, large


def without_payload(frame: Frame) -> Frame:
    """An entry that is in its segment already need not be kept in memory."""
    return Frame(frame.header, frame.head, b"", frame.prev, frame.prev_checksum, frame.checksum)
