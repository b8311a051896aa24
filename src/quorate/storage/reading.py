"""Entries from segments: found with the sparse index, verified one by one, never trusted further than that.

A read that meets damage gives what was good before it, and has the segment checked, so that both ends of
the damage are known and its replica can ask a peer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from quorate.core.entry import EntryId, Header, Kind, Partition, Span
from quorate.storage.check import SegmentCheck
from quorate.storage.disk import Disk, DiskFailed, DiskFull, ReadAt
from quorate.storage.frame import (
    FRAME_HEAD_BYTES,
    DamagedFrame,
    Frame,
    attach,
    parse,
    parse_head,
)
from quorate.storage.index import UNKNOWN_TIME, SparseIndex
from quorate.storage.log import Log
from quorate.storage.records import OPEN, Fault, Item
from quorate.storage.segment import FOOTER_BYTES_MAX, DamagedFooter, parse_footer
from quorate.storage.shared import LANE_CHECK, LANE_READ, Shared

INDEXES_MAX = 64
"""Indexes of sealed segments that are kept in memory."""
RETRIES_MAX = 8

GotFrames = Callable[[list[Frame]], None]
GotSpans = Callable[[list[Span]], None]


class Run(msgspec.Struct):
    """Frames found one behind the other in a stretch of a segment."""

    frames: list[Frame]
    position: int
    """Behind the last of them."""
    need: int = 0
    """Bytes that the next one needs, if it was not wholly there."""
    damaged: bool = False


def follow(
    content: bytes,
    at: int,
    start: int,
    partition: Partition,
    *,
    first: int,
    last: int,
    bytes_max: int,
    heads: bool,
) -> Run:
    """The entries that hold offsets `first … last`, from the frame at position `start` on.

    `content` lies at position `at`. With `heads`, payloads are left out but for control entries.
    """
    run = Run([], start)
    total = 0
    before: Frame | None = None
    position = start
    while True:
        if position + FRAME_HEAD_BYTES > at + len(content):
            run.need = FRAME_HEAD_BYTES
            break
        try:
            frame = parse_head(content, position - at, partition)
            if before is not None and (
                frame.prev != before.header.id or frame.prev_checksum != before.checksum
            ):
                raise DamagedFrame("", position, "the frame does not follow the one before it")
            end = position + frame.size
            wanted = frame.header.last >= first
            if wanted and (not heads or frame.header.kind == Kind.CONTROL):
                if end > at + len(content):
                    run.need = frame.size
                    break
                frame = attach(frame, memoryview(content)[position - at + FRAME_HEAD_BYTES : end - at])
        except DamagedFrame:
            run.damaged = True
            break
        if frame.header.offset > last:
            break
        if wanted:
            total += frame.header.size
            if total > bytes_max and run.frames:
                break
            run.frames.append(frame)
        before = frame
        position = run.position = end
        if frame.header.last >= last:
            break
    return run


class Request:
    __slots__ = ("alone", "bytes_max", "compacted", "done", "first", "last", "log", "retries", "rewrites")

    def __init__(self, log: Log, first: int, last: int, bytes_max: int, done: GotFrames) -> None:
        self.log = log
        self.first = first
        self.last = last
        self.bytes_max = bytes_max
        self.done = done
        self.rewrites = log.rewrites
        self.compacted = log.compacted_upto
        self.retries = 0
        self.alone = False
        """Together with those behind it, the first entry was not what it should be: it is read by itself."""


class Reader:
    __slots__ = ("_hints", "_indexes", "_shared")

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._indexes: OrderedDict[str, SparseIndex] = OrderedDict()
        self._hints: OrderedDict[Log, tuple[int, int, int, int]] = OrderedDict()
        """Where the last read of a log ended: (changes, offset, segment, position). The next goes on there."""

    def read(self, log: Log, first: int, last: int, bytes_max: int, done: GotFrames) -> None:
        self._begin(Request(log, first, last, bytes_max, done))

    def forget(self, log: Log, segments: Iterable[int]) -> None:
        """These files are about to change or to go, and with them what is known of where entries lie."""
        for segment in segments:
            self._indexes.pop(log.file(segment), None)

    # --- steps of a read ---

    def _begin(self, request: Request) -> None:
        log, first = request.log, request.first
        request.rewrites = log.rewrites
        request.compacted = log.compacted_upto
        request.retries += 1
        frames = [] if log.deleted or request.retries > RETRIES_MAX else self._from_memory(request)
        if frames is not None:
            self._later(request, frames)
            return
        item = waiting_item(log, first)
        if item is not None:
            frame, base, position, _, _ = item
            bytes_max = min(self._shared.settings.read_bytes, request.bytes_max)
            end = position + frame.size if request.alone else _end_of_waiting(log, first, bytes_max)
            self._fetch(request, log.file(base), position, position, end - position, end)
            return
        segment = log.segments[log.segment_at(first)]
        file = log.file(segment.base)
        end = segment.size if segment.size != OPEN else log.end
        hint = self._hints.get(log)
        if hint is not None and hint[:3] == (log.changes, first, segment.base):
            self._fetch(request, file, hint[3], hint[3], self._shared.settings.read_bytes, end)
            return
        index = log.index if segment.size == OPEN else log.rolled.get(segment.base) or self._indexes.get(file)
        if index is None:
            self._load_index(request, file, segment.size)
            return
        position = scan_from(log, segment.base, index, first)
        self._fetch(request, file, position, position, self._shared.settings.read_bytes, end)

    def _from_memory(self, request: Request) -> list[Frame] | None:
        """What can be said without reading; None if it must be read."""
        log, first = request.log, request.first
        if not log.base.offset < first <= min(log.head.offset, request.last):
            return []
        frames = log.frames(first, request.last, request.bytes_max)
        if frames is not None:
            return frames
        if log.fault_at(first) is not None or not log.segments:
            return []
        if log.under_repair and any(fault.covers(first) for fault in log.durable.faulty):
            return []  # Nothing yet: whoever waits for it hears when the repair is flushed.
        return waiting_frames(log, first, request.last, request.bytes_max)

    def _later(self, request: Request, frames: list[Frame]) -> None:
        def done(_: DiskFull | None) -> None:
            if frames and request.log.compacted_upto != request.compacted:
                self._begin(request)  # They are of another generation than the log by now.
            else:
                request.done(frames)

        self._shared.submit(LANE_READ, (), done)

    def _load_index(self, request: Request, file: str, size: int) -> None:
        def done(content: bytes) -> None:
            self._indexes[file] = self._index_in(content, request.log)
            if len(self._indexes) > INDEXES_MAX:
                self._indexes.popitem(last=False)
            self._begin(request)

        self._submit(LANE_READ, file, size, FOOTER_BYTES_MAX, done)

    def _index_in(self, footer: bytes, log: Log) -> SparseIndex:
        """Empty where it is damaged: slower, as the segment is read from its start."""
        try:
            return SparseIndex(self._shared.settings.index_bytes, parse_footer(footer, log.partition).index)
        except DamagedFooter:
            return SparseIndex(self._shared.settings.index_bytes)

    def newest_time(self, log: Log, segment: int, done: Callable[[int], None]) -> None:
        """The highest timestamp that the footer of a sealed segment says."""
        found = [each for each in log.segments[:-1] if each.base == segment]
        if not found or log.deleted:
            self._shared.submit(LANE_READ, (), lambda _: done(UNKNOWN_TIME))
            return

        def read(content: bytes) -> None:
            done(self._index_in(content, log).newest_time)

        self._submit(LANE_READ, log.file(segment), found[0].size, FOOTER_BYTES_MAX, read)

    def _fetch(self, request: Request, file: str, start: int, at: int, length: int, end: int) -> None:
        """Read from `at`, and go on with the frame at `start`."""

        def done(content: bytes) -> None:
            if request.log.rewrites != request.rewrites:
                self._begin(request)
                return
            log = request.log
            last = min(request.last, _last_on_disk(log, request.first))
            run = follow(
                content,
                at,
                start,
                log.partition,
                first=request.first,
                last=last,
                bytes_max=request.bytes_max,
                heads=False,
            )
            short = len(content) < min(length, end - at)
            if not _belong(log, request.first, run.frames):
                self._investigate(request, [])
            elif run.frames and not run.damaged:
                self._finish(request, run)
            elif run.need and not short and not run.damaged and run.position + run.need <= end:
                self._fetch(request, file, run.position, run.position, max(run.need, length), end)
            else:
                self._investigate(request, run.frames)

        self._submit(LANE_READ, file, at, min(length, end - at), done)

    def _finish(self, request: Request, run: Run) -> None:
        log = request.log
        frames = run.frames
        segment = log.segments[log.segment_at(frames[-1].header.offset)].base
        self._hints[log] = (log.changes, frames[-1].header.last + 1, segment, run.position)
        self._hints.move_to_end(log)
        if len(self._hints) > INDEXES_MAX:
            self._hints.popitem(last=False)
        request.done(frames)

    def _investigate(self, request: Request, good: list[Frame]) -> None:
        """Something is wrong in this segment: find out what, tell, and answer with what was good."""
        log = request.log
        if request.rewrites != log.rewrites or log.deleted:
            self._begin(request)
            return
        item = waiting_item(log, request.first)
        if item is not None and item[4]:  # Beyond what a check of the segment covers.
            if good:
                self.read(log, good[-1].header.last + 1, request.last, 0, lambda _: None)
            elif request.alone:
                self.tell(log, [fault_of(item)])
            else:
                request.alone = True
                self._begin(request)
                return
            request.done(good)
            return

        def checked(_: list[Span]) -> None:
            if good or log.fault_at(request.first) is not None:
                request.done(good)
            else:
                self._begin(request)  # It was damaged when it was read, and has been repaired since.

        self._check_segment(log, log.segment_at(request.first), [], checked, checked)

    def _submit(self, lane: str, file: str, at: int, length: int, done: Callable[[bytes], None]) -> None:
        """Read; what cannot be read is as bad as what is not there."""
        shared = self._shared

        def completed(error: Exception | None, results: list[bytes]) -> None:
            if not shared.dead:
                done(results[0] if error is None else b"")

        shared.disk.submit(lane, (ReadAt(file, at, max(length, 0)),), completed)

    # --- checks ---

    def check(self, log: Log, done: GotSpans) -> None:
        """Verify all of a log's segments, block by block.

        First the entries behind what the segments' checks cover: meanwhile they may become covered.
        """
        self._check_from_start(log, [], done)

    def _check_from_start(self, log: Log, found: list[Span], done: GotSpans) -> None:
        large: list[Item] = []
        if log.cuts == log.durable.cuts:  # Otherwise some of them are cut, and something else may be there.
            large = [item for items in (log.writing, log.lazy) for item in items if item[4]]

        def go_on(spans: list[Span]) -> None:
            self._check_segments(log, spans, done)

        def start_again(spans: list[Span]) -> None:
            self._check_from_start(log, spans, done)

        self._check_waiting(log, large, found, go_on, start_again)

    def _check_segments(self, log: Log, found: list[Span], done: GotSpans) -> None:
        """Two of them side by side: one is read while the other is verified."""
        written = [segment.base for segment in log.segments if segment.base <= log.flushed().segment]
        left = 2
        all_found = list(found)

        def ended(spans: list[Span]) -> None:
            nonlocal left
            left -= 1
            all_found.extend(spans)
            if not left:
                done(all_found)

        for bases in (written[::2], written[1::2]):
            self._check_next(log, bases, [], ended)

    def _check_next(self, log: Log, bases: list[int], found: list[Span], done: GotSpans) -> None:
        """Verify these segments, one after the other; those that have gone meanwhile are left out."""
        known = {segment.base: place for place, segment in enumerate(log.segments)}
        bases = [base for base in bases if base in known]
        if not bases or log.deleted:
            self._shared.submit(LANE_CHECK, (), lambda _: done(found))
            return

        def go_on(spans: list[Span]) -> None:
            self._check_next(log, bases[1:], spans, done)

        def start_again(spans: list[Span]) -> None:
            self._check_next(log, bases, spans, done)

        self._check_segment(log, known[bases[0]], found, go_on, start_again)

    def _check_waiting(
        self, log: Log, items: list[Item], found: list[Span], done: GotSpans, again: GotSpans
    ) -> None:
        """Entries that went straight to their segment and are not yet counted as being there."""
        if not items or log.deleted:
            done(found)
            return
        (frame, segment, position, _, _), *rest = items
        rewrites = log.rewrites

        def fed(content: bytes) -> None:
            whole = _holds(content, log.partition, frame.checksum)
            if log.rewrites != rewrites or (not whole and log.under_repair):
                again(found)
                return
            spans = found if whole else found + self.tell(log, [fault_of(items[0])])
            self._check_waiting(log, rest, spans, done, again)

        self._submit(LANE_CHECK, log.file(segment), position, frame.size, fed)

    def _check_segment(
        self, log: Log, place: int, found: list[Span], done: GotSpans, again: GotSpans
    ) -> None:
        """Verify one segment; `again` if what was checked is not what stands there now."""
        checking = SegmentCheck(log, place, self._shared.settings.check_bytes)
        rewrites = log.rewrites
        file = log.file(log.segments[place].base)

        def read() -> None:
            if checking.request is not None:
                self._submit(LANE_CHECK, file, *checking.request, fed)
            elif checking.faults and log.under_repair:
                again(found)
            else:
                done(found + self.tell(log, checking.faults))

        def fed(content: bytes) -> None:
            if log.rewrites != rewrites or log.deleted:
                again(found)
                return
            checking.feed(content)
            read()

        if checking.request is not None:
            read()
        else:  # Nothing of it is written. Not at once: there may be very many such segments.
            self._shared.submit(LANE_CHECK, (), lambda _: done(found))

    def tell(self, log: Log, faults: list[Fault]) -> list[Span]:
        """These entries are not what was written. Those spans of it that are news."""
        known = log.spans
        new = []
        for fault in faults:
            span = Span(fault.before, fault.last)
            if not log.mark_faulty(fault):
                continue
            self._shared.faulted(log, fault)
            if not any(_covers(other, span) for other in known):
                new.append(span)
        for span in new:
            self._shared.listener.damaged(log.partition, span)
        return new


def _belong(log: Log, first: int, frames: list[Frame]) -> bool:
    """Whether intact frames are those of this place: a block may have been written where another should be,
    and the right offset in the wrong epoch is what was here before the log was cut.
    """
    return not frames or (
        frames[0].header.offset <= first
        and all(frame.header.epoch == log.epoch_at(frame.header.offset) for frame in frames)
    )


def _covers(known: Span, span: Span) -> bool:
    return known.before.offset <= span.before.offset and span.last.offset <= known.last.offset


def _holds(content: bytes, partition: Partition, checksum: int) -> bool:
    try:
        return parse(content, 0, partition)[0].checksum == checksum
    except DamagedFrame:
        return False


def fault_of(item: Item) -> Fault:
    """An entry that went straight to its segment and is not there."""
    frame, segment, position, _, _ = item
    end = position + frame.size
    return Fault(
        frame.prev, frame.prev_checksum, segment, position, frame.header.id, frame.checksum, segment, end
    )


def waiting_item(log: Log, offset: int) -> Item | None:
    """The entry that holds `offset`, if it waits for its segment to be flushed."""
    found = _waiting_at(log, offset)
    return None if found is None else found[0][found[1]]


def _waiting_at(log: Log, offset: int) -> tuple[list[Item], int] | None:
    for items in (log.writing, log.lazy):
        if items and items[0][0].header.offset <= offset <= items[-1][0].header.last:
            low, high = 0, len(items)
            while high - low > 1:
                middle = (low + high) // 2
                if items[middle][0].header.offset <= offset:
                    low = middle
                else:
                    high = middle
            return (items, low) if offset <= items[low][0].header.last else None
    return None


def _end_of_waiting(log: Log, offset: int, bytes_max: int) -> int:
    """Where those end that went straight to their segment, one behind the other, from that offset's on."""
    found = _waiting_at(log, offset)
    assert found is not None
    items, place = found
    frame, segment, start, _, _ = items[place]
    end = start + frame.size
    for behind in range(place + 1, len(items)):
        frame, own_segment, position, _, is_large = items[behind]
        if not is_large or (own_segment, position) != (segment, end) or end + frame.size - start > bytes_max:
            break
        end += frame.size
    return end


def waiting_frames(log: Log, first: int, last: int, bytes_max: int) -> list[Frame] | None:
    """Entries that only the journal holds yet, from `first` on; None if that one is in its segment."""
    frames: list[Frame] = []
    total = 0
    while first <= last:
        item = waiting_item(log, first)
        if item is None or item[4]:
            break
        total += item[0].header.size
        if frames and total > bytes_max:
            break
        frames.append(item[0])
        first = item[0].header.last + 1
    return frames or None


def _last_on_disk(log: Log, first: int) -> int:
    """The last offset that can be read in one go: up to damage, or to what is not in its segment yet."""
    ends = [fault.before.offset for fault in log.faulty if fault.before.offset >= first]
    waiting = log.writing or log.lazy
    if waiting and waiting[0][0].header.offset > first:
        ends.append(waiting[0][0].prev.offset)
    if log.tail_offsets and log.tail_offsets[0] > first:
        ends.append(log.tail_offsets[0] - 1)
    return min(ends, default=log.head.offset)


def scan_from(log: Log, segment: int, index: SparseIndex, offset: int) -> int:
    """The position from which a segment is read to find an offset.

    What was below base may never have been there, and nothing is read through what is known to be faulty.
    """
    position = index.find(offset)[1]
    if segment == log.start[0]:
        position = max(position, log.start[1])
    for fault in log.faulty:
        if fault.next_segment == segment and fault.last.offset < offset:
            position = max(position, fault.next_position)
    return position


def headers_now(
    disk: Disk, log: Log, first: int, upto: tuple[EntryId, int, int], bytes_max: int
) -> list[Header] | None:
    """Headers from the entry that holds `first` (or from as far back as is quick) up to a known entry.

    `upto` is that entry's id, and the segment and position where it ends. None if they cannot be read.
    Blocking: for opening a store.
    """
    last, segment, end = upto
    index = SparseIndex(bytes_max)
    if log.segments[-1].base == segment:
        index = log.index
    elif segment in log.rolled:
        index = log.rolled[segment]
    position = scan_from(log, segment, index, first)
    if end - position > bytes_max:
        position = scan_from(log, segment, index, last.offset)
    headers: list[Header] = []
    before: Frame | None = None
    while position < end:
        try:
            content = disk.read_now(log.file(segment), position, min(bytes_max, end - position))
        except DiskFailed:
            return None
        run = follow(
            content,
            position,
            position,
            log.partition,
            first=0,
            last=last.offset,
            bytes_max=1 << 62,
            heads=True,
        )
        if run.damaged or not run.frames or (before is not None and run.frames[0].prev != before.header.id):
            return None
        headers += [frame.header for frame in run.frames]
        before = run.frames[-1]
        position = run.position
    return headers if before is not None and before.header.id == last and position == end else None
