"""What is cut and might be wanted by people: kept in a file beside the segments, and never read by us (TT-27).

A former leader's own entries, which its successor does not have, are written as they were, frame by frame, and
flushed before the cut is. Nobody takes the file for a segment: its name says what it is. A full disk loses the
copy, not the cut.
"""

from __future__ import annotations

from collections.abc import Callable

from quorate.core.entry import EntryId
from quorate.storage.disk import DiskFailed, DiskFull, Flush, FlushDirectory, Operation, Unlink, Write
from quorate.storage.frame import FRAME_HEAD_BYTES, DamagedFrame, Frame, parse, parse_head
from quorate.storage.log import Log
from quorate.storage.places import Place
from quorate.storage.reading import waiting_item
from quorate.storage.rounds import Rounds
from quorate.storage.shared import LANE_SNAPSHOTS, Shared

ASIDE_PREFIX = "aside-"
ASIDE_SUFFIX = ".log"
ASIDE_FILES_MAX = 8
"""Of one partition; those of the oldest epochs go first."""
ASIDE_BYTES_MAX = 256 << 20
"""Of one file: what a leader can have unsettled is far less."""

Note = Callable[[str], None]


def aside_file(log: Log, *, epoch: int, first: int) -> str:
    return f"{log.directory}/{ASIDE_PREFIX}{epoch}-{first}{ASIDE_SUFFIX}"


def aside_id(name: str) -> tuple[int, int] | None:
    """(epoch, first offset) of a file with this name; None if it is not of this kind."""
    middle = name.removeprefix(ASIDE_PREFIX).removesuffix(ASIDE_SUFFIX)
    epoch, dash, first = middle.partition("-")
    if name != f"{ASIDE_PREFIX}{middle}{ASIDE_SUFFIX}" or not (name.isascii() and dash):
        return None
    return (int(epoch), int(first)) if epoch.isdigit() and first.isdigit() else None


def set_aside(shared: Shared, rounds: Rounds, log: Log, to: EntryId, place: Place, note: Note) -> None:
    """Keep every entry above `to`, which ends at `place`. No round starts before that is done."""
    if not log.durable_state[1] or to.offset >= log.head.offset:
        return  # Its files would belong to nobody after a crash; or there is nothing to be kept.
    frames = _frames_now(shared, log, to, place)
    if not frames or frames[-1].header.id != log.head:
        last = frames[-1].header.last if frames else to.offset
        note(f"{log.directory}: offsets {last + 1} to {log.head.offset} are cut, and could not be set aside")
    if not frames:
        return
    file = aside_file(log, epoch=log.head.epoch, first=frames[0].header.offset)
    buffers = [buffer for frame in frames for buffer in (frame.head, frame.payload)]
    operations: list[Operation] = [Unlink(f"{log.directory}/{name}") for name in _too_many(shared, log, file)]
    operations += [
        Unlink(file),
        Write(file, 0, tuple(buffers)),
        Flush((file,)),
        FlushDirectory(log.directory),
    ]
    rounds.hold()

    def done(error: DiskFull | None) -> None:
        if error is not None:
            note(f"{file}: {error}; what it was to hold is cut without a copy")
            if not log.deleted:
                shared.submit(LANE_SNAPSHOTS, (Unlink(file),), lambda _: None)
        rounds.release()

    shared.submit(LANE_SNAPSHOTS, operations, done)


def _too_many(shared: Shared, log: Log, file: str) -> list[str]:
    """Those that must go so that one more can be kept."""
    names = [name for name in shared.disk.list_now(log.directory) if aside_id(name) is not None]
    others = [name for name in names if f"{log.directory}/{name}" != file]
    others.sort(key=lambda name: aside_id(name) or (0, 0))
    return others[: max(0, len(others) - ASIDE_FILES_MAX + 1)]


def _frames_now(shared: Shared, log: Log, to: EntryId, place: Place) -> list[Frame]:
    """The entries behind `to`, as far as they can be read: nearly always from memory, else from their segments.

    Reading blocks: this is rare, and the cut cannot wait.
    """
    found: list[Frame] = []
    bytes_left = ASIDE_BYTES_MAX
    _, segment, position = place
    before = to
    while before != log.head and bytes_left > 0:
        in_memory = log.frames(before.offset + 1, log.head.offset, bytes_left)
        if in_memory is not None:
            return found + in_memory
        seam = log.segments[log.segment_at(before.offset + 1)].base
        if seam != segment:
            segment, position = seam, 0
        frame = _frame_now(shared, log, before, segment, position)
        if frame is None or frame.prev != before:
            break
        found.append(frame)
        bytes_left -= frame.size
        before, position = frame.header.id, position + frame.size
    return found


def _frame_now(shared: Shared, log: Log, before: EntryId, segment: int, position: int) -> Frame | None:
    """The one behind `before`, from where it must be."""
    item = waiting_item(log, before.offset + 1)
    if item is not None and not item[4]:
        return item[0]
    file = log.file(segment)
    try:
        head = parse_head(shared.disk.read_now(file, position, FRAME_HEAD_BYTES), 0, log.partition)
        return parse(shared.disk.read_now(file, position, head.size), 0, log.partition)[0]
    except (DamagedFrame, DiskFailed):
        return None
