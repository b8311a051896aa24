"""The files of a generation, made from a log step by step: first keys are looked at, then what survives is written.

Each step reads a little of the log, as any reader does, so that damage is found and told as ever, and nobody has to
wait long for his turn. What was written is flushed, names included, before anybody is told that it is there.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from crc32c import crc32c

from quorate.batch import parse_batch_header
from quorate.core.entry import STICKY_CONTROLS, EntryId, Header, Kind
from quorate.core.generation import Generation
from quorate.storage.disk import Buffer, DiskFull, Flush, FlushDirectory, Operation, Unlink, Work, Write
from quorate.storage.frame import Frame, build_part
from quorate.storage.index import SparseIndex, newest_in
from quorate.storage.log import Log, without_payload
from quorate.storage.reading import Reader
from quorate.storage.records import Segment
from quorate.storage.segment import Footer, Made, encode_footer, segment_file
from quorate.storage.shared import Shared
from quorate.storage.surviving import Survivors, blank

LANE_COMPACTING = "compacting"
STEP_BYTES_MAX = 128 * 1024
"""How much of a log is looked at before others have their turn."""
RECORDS_AT_ONCE_MAX = 500
"""Looked into in the loop, some milliseconds; more of them by a thread."""
COMPRESSED_AT_ONCE_BYTES_MAX = 4 * 1024
"""Opened in the loop: what is in there may be a thousand times as large."""
WRITE_BYTES = 1024 * 1024
BRIDGE_OFFSETS_MAX = 1 << 30
"""A batch has 31 bits for how many offsets it covers."""


class Finished(msgspec.Struct, frozen=True):
    """Files that are flushed."""

    files: tuple[tuple[Segment, Made], ...]
    rest: Segment | None
    """What follows in the segment in which the generation ends, as it was."""
    last: EntryId
    """The last entry in them, and the checksum of its frame."""
    checksum: int


class File:
    """One file on its way: what is to be written of it next, and what its footer will say."""

    def __init__(self, log: Log, base: int, interval_bytes: int, generation: Generation | None) -> None:
        self._log = log
        self._generation = generation
        self.name = segment_file(log.directory, base, -1 if generation is None else generation.upto)
        self._base = base
        self._first: Frame | None = None
        self._last: Frame | None = None
        self._index = SparseIndex(interval_bytes)
        self._epochs: list[tuple[int, int]] = []
        self._controls: list[Header] = []
        self._crc = 0
        self._entries_count = 0
        self._records_count = 0
        self._size = 0
        self._written = 0
        self._buffers: list[Buffer] = []
        self._bridging: tuple[Frame, Frame, int] | None = None
        """A run of entries of which nothing is left: the first, the last, and how many."""

    def leave_out(self, frame: Frame) -> None:
        """Nothing is left of this one."""
        run = self._bridging
        if run is not None and (
            run[0].header.epoch != frame.header.epoch
            or frame.header.last - run[0].header.offset >= BRIDGE_OFFSETS_MAX
        ):
            self._bridge()
            run = None
        if run is None:
            self._bridging = frame, frame, frame.entries_count
        else:
            self._bridging = run[0], frame, run[2] + frame.entries_count

    def _bridge(self) -> None:
        if self._bridging is None:
            return
        first, last, count = self._bridging
        self._bridging = None
        payload = blank(first=first.header.offset, last=last.header.last, epoch=first.header.epoch)
        self._add(build_part(first, last, payload, entries_count=count))

    def add(self, frame: Frame) -> None:
        self._bridge()
        self._add(frame)

    def _add(self, frame: Frame) -> None:
        header = frame.header
        timestamp = newest_in(frame.payload)
        if self._size >= self._index.due:
            self._index.add(header.offset, self._size, timestamp)
        elif timestamp > self._index.times[-1]:
            self._index.times[-1] = timestamp
        if self._last is None or header.epoch > self._last.header.epoch:
            self._epochs.append((header.epoch, header.offset))
        if header.control is not None and isinstance(header.control, STICKY_CONTROLS):
            self._controls.append(header)
        if header.kind == Kind.RECORDS:
            self._records_count += parse_batch_header(frame.payload).record_count
        self._entries_count += frame.entries_count
        self._crc = crc32c(frame.payload, crc32c(frame.head, self._crc))
        self._first = self._first or without_payload(frame)
        self._last = without_payload(frame)
        self._buffers += (frame.head, frame.payload)
        self._size += frame.size

    def writes(self, *, at_least: int) -> list[Operation]:
        """What is to be written now, if it is so much."""
        if self._size - self._written < at_least or not self._buffers:
            return []
        operations: list[Operation] = [] if self._written else [Unlink(self.name)]
        operations.append(Write(self.name, self._written, tuple(self._buffers)))
        self._buffers, self._written = [], self._size
        return operations

    def end(self) -> tuple[Segment, Made, list[Operation]]:
        """That is all of it: the rest of what is to be written, footer included."""
        self._bridge()
        assert self._first is not None
        assert self._last is not None
        generation = self._generation
        upto, deleted_upto = (-1, -1) if generation is None else (generation.upto, generation.deleted_upto)
        made = Made(upto, deleted_upto, self._entries_count, self._records_count, self._crc)
        footer = Footer(
            self._log.partition,
            self._first.prev,
            self._first.prev_checksum,
            self._last.header.id,
            self._last.checksum,
            self._size,
            self._index.points(),
            tuple(self._epochs),
            tuple(self._controls),
            None if generation is None else made,
        )
        operations = self.writes(at_least=0)
        operations.append(Write(self.name, self._size, (encode_footer(footer),)))
        segment = Segment(self._base, self._first.prev, self._first.prev_checksum, self._size, upto)
        return segment, made, operations


class Building:
    """One generation of one log."""

    def __init__(
        self,
        shared: Shared,
        reader: Reader,
        log: Log,
        generation: Generation,
        survivors: Survivors,
        done: Callable[[Finished | None], None],
    ) -> None:
        self._shared = shared
        self._reader = reader
        self._log = log
        self._generation = generation
        self._survivors = survivors
        self._done = done
        self._step_bytes = min(shared.settings.read_bytes, STEP_BYTES_MAX)
        self._compacted_upto = log.compacted_upto
        self._files: list[tuple[Segment, Made]] = []
        self._rest: Segment | None = None
        self._last = generation.last, generation.checksum
        self._file: File | None = None

    def begin(self) -> None:
        """From the start."""
        first = max(self._compacted_upto, self._log.base.offset) + 1
        self._go_through(first, self._generation.upto, self._show, self._begin_file)

    def go_on_behind(self, files: list[tuple[Segment, Made]]) -> None:
        """These were made before: only what follows has to be copied."""
        self._files = files
        self._begin_rest()

    # --- one stretch of the log ---

    def _go_through(
        self, first: int, last: int, take: Callable[[Frame], None], then: Callable[[], None]
    ) -> None:
        """Let `take` have every entry between these offsets; `then` go on."""
        if first > last:
            then()
            return

        def got(frames: list[Frame]) -> None:
            if not frames or frames[0].header.offset != first or frames[-1].header.last > last:
                self._give_up()  # It cannot be read, or is not there any more.
                return
            if self._has_changed():
                self._give_up()
                return
            self._survivors.expect(frames)
            following = frames[-1].header.last + 1
            self._take(
                frames,
                take,
                lambda: self._write(lambda: self._go_through(following, last, take, then)),
            )

        self._reader.read(self._log, first, last, self._step_bytes, got)

    def _take(self, frames: list[Frame], take: Callable[[Frame], None], then: Callable[[], None]) -> None:
        def work() -> None:
            for frame in frames:
                take(frame)

        if _takes_long(frames):
            self._submit([Work(work)], then)
        else:
            work()
            then()

    def _has_changed(self) -> bool:
        log = self._log
        return log.deleted or log.base != self._generation.start or log.compacted_upto != self._compacted_upto

    def _write(self, then: Callable[[], None]) -> None:
        operations = self._file.writes(at_least=WRITE_BYTES) if self._file is not None else []
        if operations:
            self._submit(operations, then)
        else:
            then()

    def _submit(self, operations: list[Operation], then: Callable[[], None]) -> None:
        def done(error: DiskFull | None) -> None:
            if error is None:
                then()
            else:
                self._give_up()

        self._shared.submit(LANE_COMPACTING, operations, done)

    def _give_up(self) -> None:
        self._done(None)

    # --- keys, then files, then what follows ---

    def _show(self, frame: Frame) -> None:
        self._survivors.show(frame)

    def _begin_file(self) -> None:
        place, generation = len(self._files), self._generation
        if place == len(generation.ends):
            self._begin_rest()
            return
        first = (generation.ends[place - 1] if place else generation.start.offset) + 1
        self._file = File(self._log, first, self._shared.settings.index_bytes, generation)
        self._go_through(first, generation.ends[place], self._keep, self._end_file)

    def _keep(self, frame: Frame) -> None:
        assert self._file is not None
        left = self._survivors.left_of(frame)
        if left is None:
            self._file.leave_out(frame)
        elif left is frame.payload:
            self._file.add(frame)
        else:
            self._file.add(build_part(frame, frame, left, flags=frame.header.flags))
        self._last = frame.header.id, frame.checksum

    def _end_file(self) -> None:
        assert self._file is not None
        segment, made, operations = self._file.end()
        self._files.append((segment, made))
        self._submit([*operations, Flush((self._file.name,))], self._begin_file)

    def _begin_rest(self) -> None:
        self._file = None
        upto = self._generation.upto
        if self._last != (self._generation.last, self._generation.checksum):
            self._give_up()  # The log has other entries there.
            return
        place = self._log.segment_at(upto)
        end = self._log.segments[place + 1].before.offset
        if end == upto:
            self._finish()
            return
        self._file = File(self._log, upto + 1, self._shared.settings.index_bytes, None)
        self._go_through(upto + 1, end, self._copy, self._end_rest)

    def _copy(self, frame: Frame) -> None:
        assert self._file is not None
        self._file.add(frame)
        self._last = frame.header.id, frame.checksum

    def _end_rest(self) -> None:
        assert self._file is not None
        self._rest, _, operations = self._file.end()
        self._submit([*operations, Flush((self._file.name,))], self._finish)

    def _finish(self) -> None:
        finished = Finished(tuple(self._files), self._rest, *self._last)
        self._submit([FlushDirectory(self._log.directory)], lambda: self._done(finished))


def _takes_long(frames: list[Frame]) -> bool:
    """Whether others would have to wait while the records of these are looked into."""
    batches = [parse_batch_header(frame.payload) for frame in frames if frame.header.kind == Kind.RECORDS]
    return sum(batch.record_count for batch in batches) > RECORDS_AT_ONCE_MAX or any(
        batch.compression and batch.length > COMPRESSED_AT_ONCE_BYTES_MAX for batch in batches
    )
