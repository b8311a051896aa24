"""Opening a store: what is on the disk, what of it can be proven, and a new generation to go on with.

The decisions of rule 2 are made here. A round is *torn*, and dropped without a word, only if nothing says that it
was ever flushed: no later round, no single record of one, no mark in the second place. Everything else that
cannot be read is damage: its entries are faulty spans, and what cannot be told at all is not trusted.
"""

from __future__ import annotations

import msgspec

from quorate.core.entry import EntryId, Header, Partition, Snapshot, Span
from quorate.storage.check import check_now
from quorate.storage.disk import (
    Allocate,
    DiskFailed,
    DiskFull,
    Flush,
    FlushDirectory,
    Operation,
    Unlink,
    Write,
)
from quorate.storage.errors import DamagedStore, ForeignDirectory
from quorate.storage.frame import FRAME_HEAD_BYTES, DamagedFrame, Frame, parse, parse_head
from quorate.storage.generations import Generation, choose
from quorate.storage.log import NO_SEGMENT, Log, item_in_place
from quorate.storage.reading import headers_now
from quorate.storage.records import (
    BASE,
    COPY,
    CUT,
    DELETE,
    ENTRY,
    LARGE,
    MARKS,
    DamagedRecord,
    Fault,
    Item,
    Mark,
    Record,
    decode_body,
    pack_marks,
    pack_record,
    unpack_copy,
    unpack_entry,
    unpack_marks,
)
from quorate.storage.replay import Replay, Replayed
from quorate.storage.segment import PARTITIONS, directory_of, generation_named, segment_base, segment_file
from quorate.storage.shared import Shared
from quorate.storage.snapshots import Snapshots
from quorate.storage.write_back import LETTERS, WriteBack

UNBORN = "unborn"
"""There from before anything else is made until the first generation is flushed: a birth that can be repeated."""
FILES = tuple(f"{place}.{letter}" for place in ("journal", "marks") for letter in LETTERS)
HARMLESS = ("lost+found",)


class RecoveredLog(msgspec.Struct, frozen=True, gc=False):
    """What was found of one log. See `core.events.Recovered`."""

    base: EntryId
    head: EntryId
    epochs: tuple[tuple[int, int], ...] = ()
    headers: tuple[Header, ...] = ()
    controls: tuple[Header, ...] = ()
    commit: int = -1
    faulty: tuple[Span, ...] = ()
    state: bytes | None = None
    state_damaged: bool = False
    snapshot: Snapshot | None = None
    base_checksum: int = 0
    compacted: int = -1


class Recovery:
    def __init__(self, shared: Shared, write_back: WriteBack, snapshots: Snapshots) -> None:
        self._shared = shared
        self._disk = shared.disk
        self._write_back = write_back
        self._snapshots = snapshots
        self._replay = Replay(shared)
        self._damaged = False
        """Something that should be readable is not."""
        self._rewrites: list[Operation] = []
        """Bytes that reads see but that may not be on the disk: written and flushed once more (rule 5)."""
        self._removals: list[Operation] = []
        """Files that nothing speaks of any more. The record that says so may not be on the disk, either: they go
        when the new generation is."""
        self.recovered: dict[Partition, RecoveredLog] = {}
        self.strangers: frozenset[str] = frozenset()
        self.deleted: list[Partition] = []

    def run(self) -> None:
        names = [name for name in self._disk.list_now("") if name not in HARMLESS]
        ours = [name for name in names if name in (*FILES, UNBORN, PARTITIONS)]
        if names and not ours:
            raise ForeignDirectory(
                f"the directory holds {', '.join(names[:3])} and no store: choose an empty directory"
            )
        if not names or (UNBORN in names and PARTITIONS not in names):
            self._give_birth()
            return
        for file in FILES:
            size = self._disk.size_now(file)
            if size is not None:
                self._write_back.sizes[file] = size
        generation = self.replay()
        directories = {log.directory: log for log in self._shared.logs.values()}
        for replayed in self._replay.logs.values():
            self._examine(replayed)
        known = {*directories, *(log.directory for log in self._shared.deleting.values())}
        found = {f"{PARTITIONS}/{name}" for name in self._disk.list_now(PARTITIONS)}
        # What was deleted leaves an empty directory behind.
        self.strangers = frozenset(name for name in found - known if self._disk.list_now(name))
        self._go_on(generation)

    def replay(self) -> Generation:
        """What the journal says of every log. Writes nothing, and looks at no segment but for a torn round."""
        generation = choose(self._disk)
        self._replay_all(generation)
        return generation

    def found(self, partition: Partition) -> list[Fault]:
        """Spans of a log that the journal has lost, beside those that were known before."""
        return self._replay.logs[partition].found

    # --- generations ---

    def _give_birth(self) -> None:
        self._disk.run_now(
            (Write(UNBORN, 0, (b"a store is being made here\n",)), Flush((UNBORN,)), FlushDirectory(""))
        )
        self._new_generation(LETTERS[0], 1)
        settings = self._shared.settings
        spare = f"journal.{LETTERS[1]}", f"marks.{LETTERS[1]}"
        for file, size in zip(spare, (settings.journal_bytes, settings.marks_bytes), strict=True):
            self._disk.run_now((Allocate(file, size), Flush((file,))))
            self._write_back.sizes[file] = size
        self._disk.run_now((FlushDirectory(""), Unlink(UNBORN), FlushDirectory("")))

    def _go_on(self, generation: Generation) -> None:
        """A new generation at every opening: nothing is ever appended behind something torn or damaged."""
        if self._rewrites:
            files = tuple(dict.fromkeys(write.file for write in self._rewrites if isinstance(write, Write)))
            directories = dict.fromkeys(file.rpartition("/")[0] for file in files)
            self._disk.run_now((*self._rewrites, Flush(files), *map(FlushDirectory, directories)))
        shared = self._shared
        shared.journal.generation = shared.marks.generation = generation.newest
        letter = generation.spare
        # Above everything that was ever written or spoken of, readable or not.
        spoken_of = max((upto for _, upto, _ in _facts(generation)), default=0)
        self._new_generation(letter, max(generation.last, spoken_of) + 2)
        self._disk.run_now(self._removals)
        for place, size in ((shared.journal, shared.journal.size), (shared.marks, shared.marks.size)):
            file = f"{place.name}.{LETTERS[1 - LETTERS.index(letter)]}"
            if self._write_back.sizes.get(file) != size:
                self._spare(file, size)

    def _spare(self, file: str, size: int) -> None:
        """The other file of a place is missing or too short. It is needed later: make it while we can."""
        try:
            self._disk.run_now((Allocate(file, size), Flush((file,)), FlushDirectory("")))
            self._write_back.sizes[file] = size
        except DiskFull:
            self._write_back.sizes.pop(file, None)

    def _new_generation(self, letter: str, sequence: int) -> None:
        """Make it, and finish it: what was read may not have been durable (after a failed flush reads still
        see what was dropped), and from now on somebody acts on it."""
        operations, journal, marks, written = self._write_back.checkpoint(letter, sequence, 0)
        self._disk.run_now(operations)
        self._write_back.begin(journal, marks, written)
        flushed = pack_marks(journal.sequence - 1, journal.sequence, [])
        mark = marks.prepare([pack_record(MARKS, marks.sequence + 1, 0, flushed)], 1)
        self._disk.run_now((mark.write, Flush((mark.write.file,))))
        marks.written(mark)

    # --- replaying ---

    def _replay_all(self, generation: Generation) -> None:
        replay = self._replay
        for checkpoint in generation.checkpoints:
            replay.start(checkpoint)
        records = dict(generation.journal.records)
        facts = _facts(generation)
        for copy in _copies(generation):
            records.setdefault((copy.sequence, copy.ordinal), copy)
        first = generation.first
        for key in sorted(key for key in records if key[0] == first):
            if records[key].type in (ENTRY, LARGE):
                self._try(replay.carried, records[key])
        replay.started()
        flushed_upto = max([generation.journal.last - 1, *(upto for _, upto, _ in facts)])
        last = generation.journal.last
        if last > max(flushed_upto, first) and not self._whole(generation, records, last):
            records = {key: record for key, record in records.items() if key[0] != last}
            last -= 1
        unexplained = _unexplained(generation, records, facts, flushed_upto)
        self._apply(records, facts, first)
        self._damaged |= bool(unexplained) or generation.cut_short
        self._settle(max(unexplained, default=0), generation.cut_short)

    def _try(self, apply: object, record: Record) -> None:
        try:
            apply(record)  # type: ignore[operator]
        except DamagedRecord:
            self._damaged = True

    def _apply(
        self, records: dict[tuple[int, int], Record], facts: list[tuple[int, int, list[Mark]]], first: int
    ) -> None:
        """Orders in their order, and after each round what marks say about it."""
        marks = sorted(facts, key=lambda fact: fact[1])
        place = 0
        for key in sorted(key for key in records if key[0] > first):
            while place < len(marks) and marks[place][1] < key[0]:
                self._attest(marks[place])
                place += 1
            if records[key].type not in (MARKS, COPY):
                self._try(self._replay.apply, records[key])
        for fact in marks[place:]:
            self._attest(fact)

    def _attest(self, fact: tuple[int, int, list[Mark]]) -> None:
        _, upto, marks = fact
        for mark in marks:
            if mark.partition not in self._replay.deleted:
                self._replay.attest(mark, upto)

    def _whole(self, generation: Generation, records: dict[tuple[int, int], Record], sequence: int) -> bool:
        """Whether all of a round is there, what it put straight into segments included."""
        count = generation.journal.counts.get(sequence)
        if count is None or any((sequence, ordinal) not in records for ordinal in range(count)):
            return False
        rewrites: list[Operation] = []
        try:
            for frame, segment, position in straight_to_segments(
                [records[sequence, ordinal] for ordinal in range(count)]
            ):
                file = segment_file(directory_of(frame.partition), segment)
                content = self._disk.read_now(file, position, frame.size)
                if parse(content, 0, frame.partition)[0].checksum != frame.checksum:
                    return False
                rewrites.append(Write(file, position, (content,)))
        except (DamagedRecord, DamagedFrame, DiskFailed):
            return False
        self._rewrites += rewrites
        return True

    def _settle(self, unexplained: int, cut_short: bool) -> None:
        """Logs as they are; and which of their states may not be the newest."""
        shared = self._shared
        for partition, replayed in self._replay.logs.items():
            log = replayed.log
            if replayed.state_needed > log.state_number or replayed.attested < unexplained or cut_short:
                log.state_damaged = True
            log.durable = log.view()
            log.durable_state = (log.state, log.state_number, log.state_damaged)
            log.repairs_open = 0  # Those that the journal tells of are flushed.
            shared.logs[partition] = log
            self._damaged |= bool(replayed.found)
        shared.deleting.update(self._replay.deleted)
        self.deleted = list(self._replay.deleted)
        for log in self._replay.deleted.values():
            log.deleted = log.gone = True

    # --- each log's files ---

    def _examine(self, replayed: Replayed) -> None:
        log = replayed.log
        names = self._disk.list_now(log.directory)
        log.directory_made = bool(names)
        for fault in log.faulty:
            self._fill(log, fault)
        self._check_sizes(log)
        headers = self._headers(log)
        log.durable = log.view()
        self._shared.lazy_bytes += log.lazy_bytes
        self._snapshots.load_now(log, names)
        if not self._damaged:
            self._remove_stale(log, names)
        controls = {
            header.offset: header for header in (*log.controls, *headers) if header.control is not None
        }
        self.recovered[log.partition] = RecoveredLog(
            log.base,
            log.head,
            log.epochs,
            tuple(headers),
            tuple(controls[offset] for offset in sorted(controls)),
            min(log.commit, log.head.offset),
            log.spans,
        )

    def _fill(self, log: Log, fault: Fault) -> None:
        """What the journal lost may be in the segment; but only the whole span proves that it is the right one."""
        before = log.view()
        writes: list[Operation] = []
        filled: list[Item] = []
        missing: Fault | None = fault
        while missing is not None:
            found = self._first_of(log, missing)
            if found is None:
                log.become(before)
                return
            frame, segment, position = found
            writes.append(Write(log.file(segment), position, (frame.head, frame.payload)))
            filled.append(item_in_place(frame, segment, position, log.cuts))
            missing = next((other for other in log.faulty if other.last == fault.last), None)
        try:
            self._disk.run_now(writes)
        except DiskFull:
            log.become(before)
            return
        self._rewrites += writes
        for item in filled:
            log.whole_again(item)

    def _first_of(self, log: Log, fault: Fault) -> tuple[Frame, int, int] | None:
        """The first entry of a span, from where it may be, and its place; stale ones do not fit."""
        offset = fault.before.offset + 1
        places = [(fault.segment, fault.position), (offset, 0)]
        if any(segment.base == offset for segment in log.segments):
            places.reverse()
        for place in places:
            frame = self._frame_at(log, *place)
            fitting = log.repair(frame) if frame is not None else None
            if frame is not None and fitting is not None:
                return frame, *fitting
        return None

    def _frame_at(self, log: Log, segment: int, position: int) -> Frame | None:
        try:
            file = log.file(segment)
            head = parse_head(self._disk.read_now(file, position, FRAME_HEAD_BYTES), 0, log.partition)
            return parse(self._disk.read_now(file, position, head.size), 0, log.partition)[0]
        except (DamagedFrame, DiskFailed):
            return None

    def _check_sizes(self, log: Log) -> None:
        """A segment that is missing or too short is damaged; what is inside of the others, readers find out."""
        flushed = log.flushed()
        sizes: dict[int, int] = {}
        for place, segment in enumerate(log.segments):
            sizes[segment.base] = size = self._disk.size_now(log.file(segment.base)) or 0
            if segment.base > flushed.segment:
                continue
            needed = segment.size if segment.base < flushed.segment else flushed.position
            if size < needed:
                self._mark_faulty(log, check_now(self._disk, log, place, self._shared.settings.read_bytes))
        for frame, base, position, _, large in log.lazy:
            end = position + frame.size
            if large and sizes.get(base, 0) < end:
                last = frame.header.id
                fault = Fault(
                    frame.prev, frame.prev_checksum, base, position, last, frame.checksum, base, end
                )
                self._mark_faulty(log, [fault])

    def _mark_faulty(self, log: Log, faults: list[Fault]) -> None:
        for fault in faults:
            log.mark_faulty(fault)
            self._damaged = True

    def _headers(self, log: Log) -> list[Header]:
        """The newest headers, without a gap up to the head: those that the journal holds, and some before."""
        settings = self._shared.settings
        headers: list[Header] = []
        expected = log.head, log.checksum
        segment = log.segments[-1].base if log.segments else NO_SEGMENT
        end = log.end
        faulty = {fault.last for fault in log.faulty}
        for frame, own_segment, position, _, _ in reversed(log.lazy):
            if (frame.header.id, frame.checksum) != expected or expected[0] in faulty:
                break
            headers.append(frame.header)
            expected = frame.prev, frame.prev_checksum
            segment, end = own_segment, position
        headers.reverse()
        if (
            len(headers) < settings.headers_max
            and end
            and expected[0].offset > log.base.offset
            and expected[0] not in faulty
        ):
            older = headers_now(self._disk, log, log.commit, (expected[0], segment, end), settings.read_bytes)
            if older is None:
                place = next(at for at, found in enumerate(log.segments) if found.base == segment)
                self._mark_faulty(log, check_now(self._disk, log, place, settings.read_bytes))
            else:
                headers[:0] = [header for header in older if header.offset > _readable_from(log, expected[0])]
        if any(fault.last == log.head for fault in log.faulty):
            return []
        return headers[-settings.headers_max :]

    def _remove_stale(self, log: Log, names: list[str]) -> None:
        """Segments that were cut or removed, and that a crash has kept from being unlinked.

        What compaction made and nobody uses yet stays: it may be all that is left of what is damaged by now.
        """
        known = {log.file(segment.base) for segment in log.segments}
        for name in names:
            file = f"{log.directory}/{name}"
            if file not in known and (segment_base(name) is not None or _is_outdated(log, name)):
                self._removals.append(Unlink(file))


def _is_outdated(log: Log, name: str) -> bool:
    """Whether it is of a generation that is behind."""
    generation = generation_named(name)
    return generation is not None and generation <= log.compacted_upto


def straight_to_segments(records: list[Record]) -> list[tuple[Frame, int, int]]:
    """Entries that a round put straight into segments, and that were still there at its end."""
    left: dict[tuple[Partition, int], tuple[Frame, int, int]] = {}
    for record in records:
        if record.type == LARGE:
            frame, segment, position, _ = unpack_entry(record)
            left[frame.partition, frame.header.offset] = frame, segment, position
        elif record.type in (CUT, BASE, DELETE) and left:
            change = decode_body(record.type, record.body)
            low, high = -1, -1
            if record.type == CUT:
                high = change.to.offset
            elif record.type == BASE:
                low, high = change.view.base.offset, change.view.head.offset
            for partition, offset in list(left):
                if partition == change.partition and not low < offset <= high:
                    del left[partition, offset]
    return list(left.values())


def _readable_from(log: Log, upto: EntryId) -> int:
    """The offset above which everything up to an entry can be given out."""
    below = [fault.last.offset for fault in log.faulty if fault.last.offset <= upto.offset]
    return max([log.base.offset, *below])


def _facts(generation: Generation) -> list[tuple[int, int, list[Mark]]]:
    """(after, upto, marks): what both places say was flushed."""
    facts = []
    for scan in (generation.journal, generation.marks):
        for record in scan.records.values():
            if record.type == MARKS:
                try:
                    facts.append(unpack_marks(record.body))
                except DamagedRecord:
                    continue
    return facts


def _copies(generation: Generation) -> list[Record]:
    copies = []
    for scan in (generation.journal, generation.marks):
        for record in scan.records.values():
            if record.type == COPY:
                try:
                    copies.append(unpack_copy(record.body))
                except DamagedRecord:
                    continue
    return copies


def _unexplained(
    generation: Generation,
    records: dict[tuple[int, int], Record],
    facts: list[tuple[int, int, list[Mark]]],
    flushed_upto: int,
) -> list[int]:
    """Flushed rounds that are not whole, and that no mark covers: nobody knows whom they were about."""
    missing = []
    for sequence in range(generation.first + 1, flushed_upto + 1):
        count = generation.journal.counts.get(sequence)
        if count is not None and all((sequence, ordinal) in records for ordinal in range(count)):
            continue
        if not any(after < sequence <= upto for after, upto, _ in facts):
            missing.append(sequence)
    return missing


__all__ = ["DamagedStore", "RecoveredLog", "Recovery"]
