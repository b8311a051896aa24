"""Is every byte of a segment what was written? If not: which entries cannot be read?

A frame is intact if its header matches its checksum, names this partition, this offset and its predecessor's id
and checksum, and its payload matches the header. Behind damage the next frame that stands in a chain of
its own is searched; it names its predecessor, and so the damage has two ends (see `core.entry.Span`). A chain that
does not reach the segment's known end may be a block that lies in the wrong place, and is damage, too.

This is also what the scrubber spends its time in, so the loop makes no objects for frames that are fine.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from quorate.batch import BATCH_MIN, HEAD_BYTES, LEADER_EPOCH_MASK, LENGTH_EXCLUDES, MAGIC
from quorate.core.entry import FORMAT_VERSION, EntryId
from quorate.storage.disk import Disk, DiskFailed
from quorate.storage.frame import (
    ANY_MAGIC,
    FRAME_HEAD_BYTES,
    FRAME_MAGIC,
    FRAME_PAYLOAD_MAX,
    PART_MAGIC,
    DamagedFrame,
    Frame,
    parse,
    parse_head,
)
from quorate.storage.log import Log
from quorate.storage.records import Fault

_HEAD = struct.Struct(">4sBBH20sQqIIIQqII")
_BATCH_HEAD = struct.Struct(">qiibI")
_CHECKED_BYTES = FRAME_HEAD_BYTES - 4
assert _HEAD.size == FRAME_HEAD_BYTES


class SegmentCheck:
    """Reads one segment from its start: `request` says what to read next, `feed` takes it."""

    def __init__(self, log: Log, place: int, block_bytes: int) -> None:
        segment = log.segments[place]
        flushed = log.flushed()
        self._partition = log.partition
        self._block = block_bytes
        self._segment = segment.base
        self._end = 0
        self._last = segment.before, segment.before_checksum
        self._next = segment.base, 0
        if log.cuts != log.durable.cuts:
            pass  # Half of what is in memory is not on the disk yet: the next check will see it.
        elif segment.base < flushed.segment:
            following = log.segments[place + 1]
            self._end = segment.size
            self._last = following.before, following.before_checksum
            self._next = following.base, 0
        elif segment.base == flushed.segment:
            self._end = flushed.position
            self._last = flushed.id, flushed.checksum
            self._next = flushed.segment, flushed.position
        self._before, self._checksum, self._position = segment.before, segment.before_checksum, 0
        if segment.base == log.start[0]:
            self._before, self._checksum, self._position = log.base, log.base_checksum, log.start[1]
        for fault in log.faulty:
            # Only what lies outside of a span that reaches across the seam of two segments is known enough.
            if fault.segment != segment.base == fault.next_segment:
                self._before, self._checksum, self._position = (
                    fault.last,
                    fault.last_checksum,
                    fault.next_position,
                )
            elif fault.segment == segment.base != fault.next_segment and self._end:
                self._end, self._last = fault.position, (fault.before, fault.before_checksum)
                self._next = fault.segment, fault.position
        self._searched = -1
        """Where the search for an intact frame has got to; -1 while all is well."""
        self._damage: tuple[EntryId, int, int, int] | None = None
        """The last intact entry before the first damage, its checksum, and where it ends."""
        self._resumed: tuple[EntryId, int, int, int] | None = None
        """The entry before the frame at which the last search ended, its checksum, and where that frame is."""
        self.faults: list[Fault] = []
        self.request: tuple[int, int] | None = None
        if self._position < self._end:
            self.request = self._position, min(block_bytes, self._end - self._position)

    def feed(self, content: bytes) -> None:
        """What was read at the place requested: less than requested where the file is too short."""
        assert self.request is not None
        at, length = self.request
        short = len(content) < length
        while True:
            need = (
                self._search(content, at, short) if self._searched >= 0 else self._follow(content, at, short)
            )
            if need is not None:
                break
        self.request = None
        if need:
            start = self._searched if self._searched >= 0 else self._position
            self.request = start, min(max(need, self._block), self._end - start)
        elif self._damage is not None:
            # Found again, and unbroken from there to the end that is known; or nothing was found any more.
            whole_from = self._resumed if self._searched < 0 else (*self._last, *self._next)
            assert whole_from is not None
            if whole_from[0].offset > self._damage[0].offset:
                self.faults.append(Fault(*self._damage, *whole_from))

    def _follow(self, content: bytes, at: int, short: bool) -> int | None:
        """Go on while frames are intact. Bytes needed from `_position` on; 0 at the end; None at damage."""
        view = memoryview(content)
        partition = self._partition
        position, before_epoch, before_offset = self._position, self._before.epoch, self._before.offset
        checksum = self._checksum
        end = self._end
        available = at + len(content)
        need: int | None = 0
        while position < end:
            start = position + FRAME_HEAD_BYTES
            if start > available:
                need = FRAME_HEAD_BYTES if start <= end else None
                break
            head = _HEAD.unpack_from(content, position - at)
            if head[0] == PART_MAGIC:
                # What is left of entries: its last checksum stands where a frame has its predecessor's offset.
                own = head[11] >> 32 & 0xFFFF_FFFF
                head = (FRAME_MAGIC, *head[1:11], head[6] - 1, *head[12:])
            else:
                own = head[13]
            size = head[8]
            # fmt: off
            if (
                head[0] != FRAME_MAGIC or head[4] != partition or head[6] != before_offset + 1
                or head[10] != before_epoch or head[11] != before_offset or head[12] != checksum
                or head[1] != FORMAT_VERSION or not BATCH_MIN <= size <= FRAME_PAYLOAD_MAX
                or start + size > end
                or crc32c(view[position - at : position - at + _CHECKED_BYTES]) != head[13]
            ):
                need = None
                break
            # fmt: on
            if start + size > available:
                need = FRAME_HEAD_BYTES + size
                break
            body = start - at
            if (
                _BATCH_HEAD.unpack_from(content, body)
                != (
                    head[6],
                    size - LENGTH_EXCLUDES,
                    head[5] & LEADER_EPOCH_MASK,
                    MAGIC,
                    head[9],
                )
                or crc32c(view[body + HEAD_BYTES : body + size]) != head[9]
            ):
                need = None
                break
            before_epoch, before_offset, checksum = head[5], head[6] + head[7] - 1, own
            position = start + size
        self._position = position
        self._before, self._checksum = EntryId(before_epoch, before_offset), checksum
        if need == 0 and (self._before, checksum) != self._last:
            need = None  # Intact frames, but not those that this segment is known to end with.
        if need is None or (need and short):
            if self._damage is None:
                self._damage = self._before, self._checksum, self._segment, position
            self._searched = position + 1
            return None
        return need

    def _search(self, content: bytes, at: int, short: bool) -> int | None:
        """Look for the next frame that can be trusted. As `_follow`, but None means that it was found."""
        while True:
            found = content.find(ANY_MAGIC, self._searched - at)
            if found < 0:
                # The magic may lie across the end of what was read.
                self._searched = max(self._searched, at + len(content) - len(ANY_MAGIC) + 1)
                return 0 if short or self._searched + FRAME_HEAD_BYTES > self._end else FRAME_HEAD_BYTES
            self._searched = at + found
            need = self._try(content, found, at, short)
            if need is None:
                return None
            if need:
                return need
            self._searched += 1

    def _try(self, content: bytes, found: int, at: int, short: bool) -> int | None:
        """Whether a frame is there that belongs: None if so, 0 if not, or bytes needed to tell."""
        available = len(content)
        if found + FRAME_HEAD_BYTES > available:
            return 0 if short or at + found + FRAME_HEAD_BYTES > self._end else FRAME_HEAD_BYTES
        try:
            head = parse_head(content, found, self._partition)
        except DamagedFrame:
            return 0
        following = found + head.size
        assert self._damage is not None
        if head.prev.offset <= self._damage[0].offset or at + following > self._end:
            return 0
        is_last = at + following == self._end
        wanted = head.size if is_last else head.size + FRAME_HEAD_BYTES
        if found + wanted > available:
            return 0 if short or at + found + wanted > self._end else wanted
        try:
            frame, _ = parse(content, found, self._partition)
            fits = (
                (frame.header.id, frame.checksum) == self._last
                if is_last
                else _chained(content, frame, following)
            )
        except DamagedFrame:
            return 0
        if not fits:
            return 0
        self._resumed = frame.prev, frame.prev_checksum, self._segment, self._searched
        self._before, self._checksum, _, self._position = self._resumed
        self._searched = -1
        return None


def _chained(content: bytes, frame: Frame, following: int) -> bool:
    successor = parse_head(content, following)
    return successor.prev == frame.header.id and successor.prev_checksum == frame.checksum


def check_now(disk: Disk, log: Log, place: int, block_bytes: int) -> list[Fault]:
    """Check one segment at once, blocking: for opening a store."""
    checking = SegmentCheck(log, place, block_bytes)
    file = log.file(log.segments[place].base)
    while checking.request is not None:
        try:
            content = disk.read_now(file, *checking.request)
        except DiskFailed:
            content = b""
        checking.feed(content)
    return checking.faults
