"""Every entry of a stretch of a segment, verified: what a log says of itself before copies are compared.

A stretch starts behind a known entry and ends with a known one; what lies between must chain from the one to the
other. Where it does not, the next frame that stands in a chain of its own is searched, and the damage in between
has a first and a last offset and a reason.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
from crc32c import crc32c

from quorate.batch import BATCH_MIN, HEAD_BYTES, LEADER_EPOCH_MASK, LENGTH_EXCLUDES, MAGIC
from quorate.core.entry import FORMAT_VERSION, EntryId, Partition
from quorate.storage.disk import Disk, DiskFailed
from quorate.storage.frame import (
    ANY_MAGIC,
    FRAME_HEAD_BYTES,
    FRAME_MAGIC,
    FRAME_PAYLOAD_MAX,
    PART_MAGIC,
    DamagedFrame,
    Frame,
    attach,
    parse,
    parse_head,
)

BLOCK_BYTES = 4 << 20
ROWS_MAX = 32_768

_HEAD = struct.Struct(">4sBBH20sQqIIIQqII")
_BATCH = struct.Struct(">qiibI22xqhi")  # up to its crc, then the producer's id, epoch and sequence
_CHECKED_BYTES = FRAME_HEAD_BYTES - 4
assert _HEAD.size == FRAME_HEAD_BYTES

Row = tuple[int, int, int, int, int, int, int, int]
"""Offset, last offset, epoch, checksum, kind, and the producer's id, epoch and first sequence."""


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """Frames of one file, from a position behind a known entry to the end of another."""

    file: str
    position: int
    before: EntryId
    before_checksum: int
    end: int
    last: EntryId
    last_checksum: int


class Damage(msgspec.Struct, frozen=True):
    kind: str
    first: int
    last: int
    detail: str


class Scan:
    """Reads a stretch from its start to its end; `rows` gives what is intact, `damage` collects the rest."""

    def __init__(self, disk: Disk, partition: Partition, stretch: Stretch) -> None:
        self._disk = disk
        self._partition = partition
        self._stretch = stretch
        self._content = b""
        self._at = stretch.position
        """Where `_content` begins in the file."""
        self._position = stretch.position
        self._before, self._checksum = stretch.before, stretch.before_checksum
        self.damage: list[Damage] = []

    def rows(self) -> Iterator[list[Row]]:
        end = self._stretch.end
        while self._position < end:
            rows, need = self._follow()
            if rows:
                yield rows
            if need is None or (need and not self._load(need)):
                self._pass_over()
        reached = self._before, self._checksum
        known = self._stretch.last, self._stretch.last_checksum
        if reached != known and not (self.damage and self.damage[-1].last >= known[0].offset):
            said = f"its entries end with {reached[0]}, and {known[0]} was flushed"
            self.damage.append(Damage("chain", reached[0].offset + 1, known[0].offset, said))

    def _load(self, need: int) -> bool:
        """Read on from the position; False if the file has not so many bytes."""
        left = self._stretch.end - self._position
        wanted = min(max(need, BLOCK_BYTES), left)
        try:
            self._content = self._disk.read_now(self._stretch.file, self._position, wanted)
        except DiskFailed:
            self._content = b""
        self._at = self._position
        return len(self._content) >= need

    def _follow(self) -> tuple[list[Row], int | None]:
        """Entries while they are intact; then bytes needed from the position on, 0 at the end, None at damage."""
        content, base, partition = self._content, self._at, self._partition
        view = memoryview(content)
        available = len(content)
        position, end = self._position - base, self._stretch.end - base
        before_epoch, before_offset, checksum = self._before.epoch, self._before.offset, self._checksum
        rows: list[Row] = []
        need: int | None = 0
        while position < end:
            body = position + FRAME_HEAD_BYTES
            if body > available:
                need = FRAME_HEAD_BYTES if body <= end else None
                break
            head = _HEAD.unpack_from(content, position)
            own = head[13]
            if head[0] == PART_MAGIC:
                # What compaction left: the last of its checksums stands where a frame has its predecessor's offset.
                own = head[11] >> 32 & 0xFFFF_FFFF
                head = (FRAME_MAGIC, *head[1:11], head[6] - 1, *head[12:])
            size = head[8]
            # fmt: off
            if (
                head[0] != FRAME_MAGIC or head[4] != partition or head[6] != before_offset + 1
                or head[10] != before_epoch or head[11] != before_offset or head[12] != checksum
                or head[5] < before_epoch or head[1] != FORMAT_VERSION
                or not BATCH_MIN <= size <= FRAME_PAYLOAD_MAX or body + size > end
                or crc32c(view[position : position + _CHECKED_BYTES]) != head[13]
            ):
                need = None
                break
            if body + size > available:
                need = FRAME_HEAD_BYTES + size
                break
            base_offset, length, epoch, magic, crc, producer, producer_epoch, sequence = _BATCH.unpack_from(
                content, body
            )
            if (
                base_offset != head[6] or length != size - LENGTH_EXCLUDES or magic != MAGIC or crc != head[9]
                or epoch != head[5] & LEADER_EPOCH_MASK or crc32c(view[body + HEAD_BYTES : body + size]) != crc
            ):
                need = None
                break
            # fmt: on
            before_epoch, before_offset, checksum = head[5], head[6] + head[7] - 1, own
            row = head[6], before_offset, before_epoch, checksum, head[2], producer, producer_epoch, sequence
            rows.append(row)
            position = body + size
            if len(rows) == ROWS_MAX:
                need = 0
                break
        self._position = base + position
        self._before, self._checksum = EntryId(before_epoch, before_offset), checksum
        return rows, need

    # --- damage ---

    def _pass_over(self) -> None:
        """Say what is wrong here, and go on where something can be trusted again."""
        kind, why = self._why()
        first, position = self._before.offset + 1, self._position
        found = self._search()
        if found is None:
            self._before, self._checksum = self._stretch.last, self._stretch.last_checksum
            self._position = self._stretch.end
        else:
            self._before, self._checksum = found.prev, found.prev_checksum
        last = self._before.offset
        if kind == "chain" and last >= first and found is not None and found.header.offset > first:
            kind = "gap" if self._position == position else kind
        detail = f"{self._stretch.file} at byte {position}: {why}"
        self.damage.append(Damage(kind, first, max(first, last), detail))

    def _why(self) -> tuple[str, str]:
        size = self._disk.size_now(self._stretch.file)
        if size is None:
            return "missing", "the file is not there"
        if not self._load(FRAME_HEAD_BYTES):
            return "short", f"the file has {size} bytes, and {self._stretch.end} were flushed"
        try:
            frame = parse_head(self._content, 0, self._partition)
        except DamagedFrame as damaged:
            if _is_of_an_older_epoch(self._content):
                return "epochs", "the epoch goes back"
            return "frame", damaged.why
        if frame.header.epoch < self._before.epoch:
            return "epochs", f"{frame.header.id} comes behind {self._before}"
        if (frame.prev, frame.prev_checksum) != (self._before, self._checksum):
            return "chain", f"{frame.header.id} follows {frame.prev}, and {self._before} stands before it"
        if not self._load(frame.size):
            return "short", f"the file has {size} bytes, and {self._stretch.end} were flushed"
        try:
            attach(frame, self._content[FRAME_HEAD_BYTES : frame.size])
        except DamagedFrame as damaged:
            return "payload", damaged.why
        return "chain", f"{frame.header.id} reaches beyond the end that is known"

    def _search(self) -> Frame | None:
        """The next intact frame from the position on that does not go back, and is followed by its successor."""
        searched = self._position
        while searched + FRAME_HEAD_BYTES <= self._stretch.end:
            self._position = searched
            if not self._load(FRAME_HEAD_BYTES):
                return None
            at = self._content.find(ANY_MAGIC)
            if at < 0:
                searched += max(len(self._content) - len(ANY_MAGIC) + 1, 1)
                continue
            searched += at
            frame = self._trusted(searched)
            if frame is not None:
                self._position = searched
                return frame
            searched += 1
        return None

    def _trusted(self, position: int) -> Frame | None:
        stretch = self._stretch
        try:
            content = self._disk.read_now(stretch.file, position, FRAME_HEAD_BYTES)
            head = parse_head(content, 0, self._partition)
            following = position + head.size
            if head.prev.offset < self._before.offset or following > stretch.end:
                return None
            if (head.prev, head.prev_checksum) == (self._before, self._checksum):
                return None  # It fits, and its payload does not: that is the damage.
            content = self._disk.read_now(stretch.file, position, head.size + FRAME_HEAD_BYTES)
            frame, _ = parse(content, 0, self._partition)
            if following == stretch.end:
                fits = (frame.header.id, frame.checksum) == (stretch.last, stretch.last_checksum)
                return frame if fits else None
            successor = parse_head(content, frame.size, self._partition)
        except (DamagedFrame, DiskFailed):
            return None
        chained = successor.prev == frame.header.id and successor.prev_checksum == frame.checksum
        return frame if chained else None


def _is_of_an_older_epoch(content: bytes) -> bool:
    """An intact header whose epochs go back: no damage of a disk looks like that."""
    head = _HEAD.unpack_from(content)
    is_intact = head[0] == FRAME_MAGIC and crc32c(content[:_CHECKED_BYTES]) == head[13]
    return bool(is_intact and head[10] > head[5])
