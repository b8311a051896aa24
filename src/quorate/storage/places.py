"""Where an entry ends: what must be known to cut a log there, or to let it start there."""

from __future__ import annotations

from quorate.core.entry import EntryId
from quorate.storage.disk import DiskFailed
from quorate.storage.frame import FRAME_HEAD_BYTES
from quorate.storage.index import SparseIndex
from quorate.storage.log import NO_SEGMENT, Log
from quorate.storage.reading import follow, scan_from, waiting_item
from quorate.storage.records import OPEN
from quorate.storage.segment import FOOTER_BYTES_MAX, DamagedFooter, parse_footer
from quorate.storage.shared import Shared

Place = tuple[int, int, int]
"""(checksum of the entry, segment and position where the one behind it goes)"""


def locate(shared: Shared, log: Log, to: EntryId) -> Place | None:
    """Where `to` ends. None if there is no such entry, or if it cannot be read.

    Cuts go to young entries, which are in memory; an old one is read from its segment, and that blocks.
    """
    if to == log.head:
        return log.checksum, log.segments[-1].base if log.segments else NO_SEGMENT, log.end
    if not log.base.offset <= to.offset < log.head.offset:
        return None
    if to == log.base:
        return log.base_checksum, *log.first_place()
    for fault in log.faulty:
        if to == fault.before:
            return fault.before_checksum, fault.segment, fault.position
        if to == fault.last:
            return fault.last_checksum, fault.next_segment, fault.next_position
        if fault.before.offset < to.offset < fault.last.offset:
            return None
    return _in_memory(log, to) or _at_a_seam(log, to) or _waiting(log, to) or _on_disk(shared, log, to)


def _in_memory(log: Log, to: EntryId) -> Place | None:
    """Count back from the end, frame by frame."""
    frames = log.tail_frames
    if not frames or to.offset < frames[0].prev.offset:
        return None
    place = len(log.segments) - 1
    position = log.end
    for frame in reversed(frames):
        if frame.header.last <= to.offset:
            break
        position -= frame.size
        if position == 0 and place > 0:
            place -= 1
            position = log.segments[place].size
        if frame.prev == to:
            return frame.prev_checksum, log.segments[place].base, position
    return None


def _at_a_seam(log: Log, to: EntryId) -> Place | None:
    for sealed, following in zip(log.segments, log.segments[1:], strict=False):
        if following.before == to:
            return following.before_checksum, sealed.base, sealed.size
    return None


def _waiting(log: Log, to: EntryId) -> Place | None:
    item = waiting_item(log, to.offset)
    if item is None or item[0].header.id != to:
        return None
    frame, segment, position, _, _ = item
    return frame.checksum, segment, position + FRAME_HEAD_BYTES + frame.header.size


def _on_disk(shared: Shared, log: Log, to: EntryId) -> Place | None:
    segment = log.segments[log.segment_at(to.offset)]
    file = log.file(segment.base)
    index: SparseIndex | None = log.index if segment.size == OPEN else log.rolled.get(segment.base)
    if index is None:
        try:
            content = shared.disk.read_now(file, segment.size, FOOTER_BYTES_MAX)
            index = SparseIndex(shared.settings.index_bytes, parse_footer(content, log.partition).index)
        except (DiskFailed, DamagedFooter):
            index = SparseIndex(shared.settings.index_bytes)
    position = scan_from(log, segment.base, index, to.offset)
    while True:
        try:
            content = shared.disk.read_now(file, position, shared.settings.read_bytes)
        except DiskFailed:
            return None
        run = follow(
            content,
            position,
            position,
            log.partition,
            first=to.offset,
            last=to.offset,
            bytes_max=0,
            heads=True,
        )
        if run.frames:
            frame = run.frames[0]
            return (frame.checksum, segment.base, run.position) if frame.header.id == to else None
        if run.damaged or run.position == position:
            return None
        position = run.position
