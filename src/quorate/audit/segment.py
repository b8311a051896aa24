"""Every entry of a stretch of a segment, verified: what a log says of itself before copies are compared.

A stretch starts behind a known entry and ends with a known one; what lies between must chain from the one to the
other. Where it does not, the next frame that stands in a chain of its own is searched, and the damage in between
has a first and a last offset and a reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

import msgspec
import numpy as np
from crc32c import crc32c
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from quorate.batch import (
    BATCH_MIN,
    CONTROL,
    HEAD_BYTES,
    LEADER_EPOCH_MASK,
    LENGTH_EXCLUDES,
    MAGIC,
    TRANSACTIONAL,
    BadBatch,
)
from quorate.core.entry import FORMAT_VERSION, EntryId, Kind, Partition
from quorate.machine.markers import Marker, marker_of
from quorate.storage.disk import Buffer, Disk, DiskFailed
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

Numbers = NDArray[np.int64]

_SIZE = Struct(">I")
_SIZE_AT = 48
_CHECKED_BYTES = FRAME_HEAD_BYTES - 4
_OPENING = np.dtype(
    [
        ("magic", ">u4"),
        ("version", "u1"),
        ("kind", "u1"),
        ("flags", ">u2"),
        ("partition", "u1", (20,)),
        ("epoch", ">u8"),
        ("offset", ">i8"),
        ("count", ">u4"),
        ("size", ">u4"),
        ("crc", ">u4"),
        ("prev_epoch", ">u8"),
        ("prev_offset", ">i8"),
        ("prev_checksum", ">u4"),
        ("checksum", ">u4"),
        ("batch_offset", ">i8"),
        ("batch_length", ">i4"),
        ("batch_epoch", ">i4"),
        ("batch_magic", "i1"),
        ("batch_crc", ">u4"),
        ("attributes", ">i2"),
        ("last_delta", ">i4"),
        ("times", ">i8", (2,)),
        ("producer", ">i8"),
        ("producer_epoch", ">i2"),
        ("sequence", ">i4"),
        ("records_count", ">i4"),
    ]
)
"""A frame's header and that of its batch, as they lie on the disk."""
assert _OPENING.itemsize == FRAME_HEAD_BYTES + BATCH_MIN
assert _OPENING.fields is not None
assert _OPENING.fields["size"][1] == _SIZE_AT


class Entries(NamedTuple):
    """Intact entries in the order of the log: a column for each thing that is known of them."""

    offset: Numbers
    last: Numbers
    epoch: Numbers
    checksum: Numbers
    kind: Numbers
    producer: Numbers
    producer_epoch: Numbers
    sequence: Numbers
    markers: list[tuple[int, Marker]]
    """With their offsets."""

    def __len__(self) -> int:
        return len(self.offset)


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
    """Reads a stretch from its start to its end; `entries` gives what is intact, `damage` collects the rest."""

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

    def entries(self) -> Iterator[Entries]:
        while not self._is_through():
            found, need = self._follow()
            if found is not None:
                yield found
            if not self._is_through() and (need is None or (need and not self._load(need))):
                self._pass_over()
        reached, known = self._before, self._stretch.last
        if not self._is_at_last() and not (self.damage and self.damage[-1].last >= known.offset):
            said = f"its entries end with {reached}, and {known} was flushed"
            self.damage.append(Damage("chain", reached.offset + 1, known.offset, said))

    def _is_through(self) -> bool:
        """Where entries are missing, the last one lies ahead of its place: what is behind it is none of the log."""
        return self._position >= self._stretch.end or self._is_at_last()

    def _is_at_last(self) -> bool:
        return (self._before, self._checksum) == (self._stretch.last, self._stretch.last_checksum)

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

    def _follow(self) -> tuple[Entries | None, int | None]:
        """Entries while they are intact; then bytes needed from the position on, 0 at the end, None at damage."""
        content, base = self._content, self._at
        starts, need = self._starts()
        if len(starts) < 2:
            return None, need
        windows = sliding_window_view(np.frombuffer(content, np.uint8), _OPENING.itemsize)
        heads = windows[starts[:-1]].view(_OPENING).reshape(-1)
        epoch, offset = heads["epoch"].astype(np.int64), heads["offset"].astype(np.int64)
        last = offset + heads["count"] - 1
        # Of what compaction left, the last of its checksums stands where a frame has its predecessor's offset.
        is_part = heads["magic"] == int.from_bytes(PART_MAGIC, "big")
        prev_offset = heads["prev_offset"].astype(np.int64)
        checksum = np.where(is_part, prev_offset >> 32 & 0xFFFF_FFFF, heads["checksum"].astype(np.int64))
        view = memoryview(content)
        intact = _is_whole(heads, is_part, self._partition)
        intact &= heads["checksum"] == [crc32c(view[at : at + _CHECKED_BYTES]) for at in starts[:-1]]
        at_records = FRAME_HEAD_BYTES + HEAD_BYTES
        intact &= heads["crc"] == [crc32c(view[at + at_records : end]) for at, end in pairwise(starts)]
        before = _shifted(self._before.offset, last)
        intact &= (offset == before + 1) & (is_part | (prev_offset == before))
        before = _shifted(self._before.epoch, epoch)
        intact &= (heads["prev_epoch"] == before) & (epoch >= before)
        intact &= heads["prev_checksum"] == _shifted(self._checksum, checksum)
        count = len(heads) if intact.all() else int(intact.argmin())
        self._position = base + starts[count]
        if count < len(heads):
            need = None
        if not count:
            return None, need
        self._before = EntryId(int(epoch[count - 1]), int(last[count - 1]))
        self._checksum = int(checksum[count - 1])
        ends = CONTROL | TRANSACTIONAL
        markers = [
            (int(offset[at]), marker)
            for at in np.flatnonzero(heads["attributes"][:count] & ends == ends).tolist()
            if (marker := marker_in(view[starts[at] + FRAME_HEAD_BYTES : starts[at + 1]])) is not None
        ]
        named = ("kind", "producer", "producer_epoch", "sequence")
        others = {name: heads[name][:count].astype(np.int64) for name in named}
        whole = (offset[:count], last[:count], epoch[:count], checksum[:count])
        return Entries(*whole, **others, markers=markers), need

    def _starts(self) -> tuple[list[int], int | None]:
        """Where frames begin in what was read, by the lengths that they say, and where the last ends; then what is
        needed from there on."""
        content, available = self._content, len(self._content)
        position, end = self._position - self._at, self._stretch.end - self._at
        starts = [position]
        while position < end:
            body = position + FRAME_HEAD_BYTES
            if body > available:
                return starts, FRAME_HEAD_BYTES if body <= end else None
            (size,) = _SIZE.unpack_from(content, position + _SIZE_AT)
            position = body + size
            if not BATCH_MIN <= size <= FRAME_PAYLOAD_MAX or position > end:
                return starts, None
            if position > available:
                return starts, FRAME_HEAD_BYTES + size
            starts.append(position)
        return starts, 0

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


def _is_whole(heads: NDArray[np.void], is_part: NDArray[np.bool_], partition: Partition) -> NDArray[np.bool_]:
    """Whether each says what a frame of this partition can say, and its batch the same."""
    is_own = heads["attributes"] & (CONTROL | TRANSACTIONAL) == CONTROL
    found: NDArray[np.bool_] = (
        (is_part | (heads["magic"] == int.from_bytes(FRAME_MAGIC, "big")))
        & (heads["version"] == FORMAT_VERSION)
        & (heads["kind"] == np.where(is_own, int(Kind.CONTROL), int(Kind.RECORDS)))
        & (heads["partition"] == np.frombuffer(partition, np.uint8)).all(axis=1)
        & (heads["count"] > 0)
        & (heads["batch_offset"] == heads["offset"])
        & (heads["batch_length"] == heads["size"].astype(np.int64) - LENGTH_EXCLUDES)
        & (heads["batch_epoch"] == (heads["epoch"] & np.uint64(LEADER_EPOCH_MASK)).astype(np.int64))
        & (heads["batch_magic"] == MAGIC)
        & (heads["batch_crc"] == heads["crc"])
        & (heads["last_delta"].astype(np.int64) + 1 == heads["count"])
    )
    return found


def marker_in(payload: Buffer) -> Marker | None:
    """The end of a transaction; None: it is none."""
    try:
        return marker_of(payload)
    except BadBatch:
        return None


def _shifted(first: int, numbers: Numbers) -> Numbers:
    """What stands before each of them."""
    return np.concatenate((np.array([first], np.int64), numbers[:-1]))


def _is_of_an_older_epoch(content: bytes) -> bool:
    """An intact header whose epochs go back: no damage of a disk looks like that."""
    head = np.frombuffer(content, _OPENING, count=1)[0] if len(content) >= _OPENING.itemsize else None
    if head is None or content[: len(FRAME_MAGIC)] != FRAME_MAGIC:
        return False
    return bool(crc32c(content[:_CHECKED_BYTES]) == head["checksum"] and head["prev_epoch"] > head["epoch"])
