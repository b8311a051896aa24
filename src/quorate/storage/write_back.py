"""From the journal to the segments, and from one generation of the journal to the next.

Durable entries wait in memory until there are enough of them for large writes; a *pass* writes and flushes
them in their segments. When a journal file is nearly full, everything worth knowing is written to the other
one as a checkpoint, together with the few entries that no pass has taken yet. Nothing of the old generation
is needed from then on, and nothing of it was overwritten before that (rule 2).
"""

from __future__ import annotations

from quorate.core.entry import Partition
from quorate.storage.disk import (
    Allocate,
    Buffer,
    DiskFull,
    Flush,
    FlushDirectory,
    Operation,
    Truncate,
    Unlink,
    Write,
)
from quorate.storage.index import SparseIndex
from quorate.storage.journal import Journal, Round
from quorate.storage.log import Log
from quorate.storage.records import (
    CHECKPOINT,
    COPY,
    ENTRY,
    LARGE,
    MARKS,
    META,
    OPEN,
    RECORD_HEADER_BYTES,
    Checkpoint,
    Item,
    Meta,
    encode_body,
    item_bytes,
    pack_copy,
    pack_entry,
    pack_marks,
    pack_record,
)
from quorate.storage.rounds import DISK_FULL, Rounds, mark_of
from quorate.storage.segment import Footer, encode_footer
from quorate.storage.shared import LANE_JOURNAL, LANE_MARKS, LANE_SEGMENTS, Shared

LETTERS = ("a", "b")


class WriteBack:
    __slots__ = (
        "_cut_waits",
        "_mirroring",
        "_passed",
        "_passing",
        "_retry_at",
        "_rounds",
        "_shared",
        "_switch_wanted",
        "_switching",
        "checkpoint_bytes",
        "mirror_at",
        "mirrored",
        "sizes",
    )

    def __init__(self, shared: Shared, rounds: Rounds) -> None:
        self._shared = shared
        self._rounds = rounds
        self._passing = False
        self._mirroring = False
        self._switch_wanted = 0
        """Bytes that the next round needs; 0 while there is room enough."""
        self._switching = False
        self._passed = False
        """A pass was made for the sake of the coming change of generation."""
        self._cut_waits = False
        self._retry_at: float | None = None
        self.mirror_at: float | None = None
        self.mirrored = 0
        """The last round that the second place speaks of."""
        self.checkpoint_bytes = 0
        """What a new generation starts with, beside entries that it carries over."""
        self.sizes: dict[str, int] = {}
        """How large the journal's files are, by name; absent ones must be made."""
        rounds.completed = self._round_completed
        rounds.make_room = self._make_room

    # --- what calls for it ---

    def deadline(self) -> float | None:
        dues = [due for due in (self.mirror_at, self._retry_at) if due is not None]
        return min(dues) if dues else None

    def tick(self, now: float) -> None:
        if self.mirror_at is not None and now >= self.mirror_at:
            self._mirror()
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self._start_pass()
            self.housekeep()

    def _round_completed(self, cut: bool) -> None:
        if cut and self._passing and not self._cut_waits:
            # The pass may still be writing what was cut: nothing may go over it before that is done.
            self._cut_waits = True
            self._rounds.hold()
        if self._shared.full and self._retry_at is None and not self._passing:
            self._retry_at = self._shared.now + self._shared.settings.retry_s  # Rule 7: by itself.
        self._wake_mirror()
        self.housekeep()

    def _make_room(self, need: int) -> None:
        self._switch_wanted = max(self._switch_wanted, need)
        self.housekeep()

    def housekeep(self) -> None:
        """Start whatever is due and possible now; called after everything that completes."""
        shared = self._shared
        if shared.dead:
            return
        settings = shared.settings
        if shared.journal.nearly_full or shared.marks.nearly_full:
            self._switch_wanted = max(self._switch_wanted, 1)
        if shared.lazy_bytes > settings.write_back_bytes and not self._passing and not shared.full:
            self._start_pass()
        if not self._switch_wanted or self._passing or self._mirroring or self._rounds.busy:
            return
        if shared.lazy_bytes > settings.carry_bytes_max and not self._passed and not shared.full:
            self._passed = True
            self._start_pass()
        else:
            self._start_switch()

    # --- passes ---

    def hurry(self) -> None:
        """Somebody waits for entries to be in their segments."""
        if not self._shared.full:
            self._start_pass()

    def _start_pass(self) -> None:
        """Write and flush all waiting entries in their segments, and the footers of sealed ones."""
        shared = self._shared
        if self._passing:
            return
        operations: list[Operation] = []
        flushed: list[tuple[Log, int, int]] = []
        footers: list[tuple[Log, int, SparseIndex]] = []
        for log in shared.durable_logs():
            log.writing, log.lazy = log.lazy, []
            # A cut on its way may take these files away, and others of the same name may follow.
            since = log.changes if log.cuts == log.durable.cuts else -1
            for write, segment in _writes(log, log.writing):
                operations.append(write)
                flushed.append((log, segment, since))
            for operation, segment, index in _footers(log):
                operations += operation
                footers.append((log, segment, index))
                flushed.append((log, segment, since))
        if not operations:  # Everything went straight to its segment.
            shared.full = False
            self._written()
            return
        operations.append(Flush(tuple(dict.fromkeys(log.file(segment) for log, segment, _ in flushed))))
        # A name that is not flushed is lost with the power, and the file with it (rule 6).
        operations += [
            FlushDirectory(directory)
            for directory in dict.fromkeys(
                log.directory for log, segment, _ in flushed if segment not in log.named
            )
        ]
        self._passing = True
        shared.submit(LANE_SEGMENTS, operations, lambda error: self._pass_done(flushed, footers, error))

    def _pass_done(
        self,
        flushed: list[tuple[Log, int, int]],
        footers: list[tuple[Log, int, SparseIndex]],
        error: DiskFull | None,
    ) -> None:
        shared = self._shared
        self._passing = False
        shared.full = error is not None
        self._retry_at = shared.now + shared.settings.retry_s if error is not None else None
        if error is not None:
            for log in shared.durable_logs():
                log.lazy[:0] = log.writing
                log.writing = []
        else:
            self._written()
            for log, segment, changes in flushed:
                log.name(segment, changes)
            for log, segment, index in footers:
                if log.rolled.get(segment) is index:
                    del log.rolled[segment]
            shared.memory.shrink(shared.settings.tail_bytes)
        if self._cut_waits:
            self._cut_waits = False
            self._rounds.release()
        self.housekeep()
        self._rounds.pump()

    def _written(self) -> None:
        """What was being written is flushed in its segments."""
        for log in self._shared.durable_logs():
            if log.writing:
                self._shared.lazy_bytes -= sum(map(item_bytes, log.writing))
                log.writing = []

    # --- the second place ---

    def _wake_mirror(self) -> None:
        """Something has happened that the second place does not know: it will, soon."""
        rounds = self._rounds
        if self.mirror_at is None and (rounds.unmirrored or rounds.unmirrored_copies):
            self.mirror_at = self._shared.now + self._shared.settings.mark_delay_s

    def _mirror(self) -> None:
        """Say in the second place what is flushed in the first."""
        shared, rounds = self._shared, self._rounds
        self.mirror_at = None
        if self._mirroring or self._switching:
            return  # Either ends with another look at what is left to say.
        if not rounds.unmirrored and not rounds.unmirrored_copies:
            return
        upto = shared.journal.sequence
        sequence = shared.marks.sequence + 1
        marks = [mark_of(log) for log in rounds.unmirrored if not log.gone]
        buffers: list[Buffer] = [pack_record(MARKS, sequence, 0, pack_marks(self.mirrored, upto, marks))]
        buffers += [
            pack_record(COPY, sequence, ordinal, pack_copy(record))
            for ordinal, record in enumerate(rounds.unmirrored_copies, 1)
        ]
        if not shared.marks.fits(sum(map(len, buffers))):
            self._make_room(1)  # The checkpoint that comes then says all of this.
            return
        prepared = shared.marks.prepare(buffers, len(buffers))
        rounds.unmirrored = {}
        rounds.unmirrored_copies = []
        self._mirroring = True
        operations = (prepared.write, Flush((prepared.write.file,)))
        shared.submit(LANE_MARKS, operations, lambda error: self._mirror_done(prepared, upto, error))

    def _mirror_done(self, prepared: Round, upto: int, error: DiskFull | None) -> None:
        shared = self._shared
        if error is not None:
            shared.die(f"the marks cannot be written: {error}")
            return
        self._mirroring = False
        self.mirrored = upto
        shared.marks.written(prepared)
        self._wake_mirror()
        self.housekeep()
        self._rounds.pump()

    # --- generations ---

    def _start_switch(self) -> None:
        shared, rounds = self._shared, self._rounds
        need, self._switch_wanted, self._passed = self._switch_wanted, 0, False
        rounds.busy = self._switching = True
        self.mirror_at = None
        letter = LETTERS[1 - LETTERS.index(shared.journal.letter)]
        operations, journal, marks, written = self.checkpoint(letter, shared.journal.sequence + 1, need)

        def done(error: DiskFull | None) -> None:
            rounds.busy = self._switching = False
            if error is not None:
                self._switch_failed(letter)
                return
            self.begin(journal, marks, written)
            rounds.generation_began()
            self.housekeep()
            rounds.pump()

        shared.submit(LANE_JOURNAL, operations, done)

    def _switch_failed(self, letter: str) -> None:
        """A larger file was needed, and there is no room for it: data must wait outside."""
        shared, rounds = self._shared, self._rounds
        for place in (shared.journal, shared.marks):
            self.sizes.pop(f"{place.name}.{letter}", None)
        shared.full = True
        self._wake_mirror()
        self._retry_at = shared.now + shared.settings.retry_s
        rounds.fail_waiting(rounds.waiting_entries(), DISK_FULL)
        rounds.pump()

    def checkpoint(
        self, letter: str, sequence: int, need: int
    ) -> tuple[list[Operation], Journal, Journal, tuple[Round, Round]]:
        """What makes a new generation in both places, with room for `need` more bytes."""
        shared, settings = self._shared, self._shared.settings
        logs = shared.durable_logs()
        bodies = [encode_body(checkpoint_of(log)) for log in logs]
        bodies += [encode_body(checkpoint_of(log, deleted=True)) for log in shared.deleting.values()]
        partitions: tuple[Partition, ...] = (*(log.partition for log in logs), *shared.deleting)
        carried = [item for log in logs for item in log.lazy]
        known = sum(RECORD_HEADER_BYTES + len(body) for body in bodies) + 64 + 32 * len(partitions)
        self.checkpoint_bytes = known
        whole = known + sum(map(item_bytes, carried)) + need + 2 * settings.align_bytes
        # A checkpoint takes a small part of a file; only if it does not, the files must grow.
        journal_bytes = _grown(settings.journal_bytes, max(whole, 4 * known))
        marks_bytes = _grown(settings.marks_bytes, 4 * known)
        meta = Meta(shared.journal.generation + 1, journal_bytes, marks_bytes, partitions)
        buffers: list[Buffer] = [pack_record(META, sequence, 0, encode_body(meta))]
        buffers += [pack_record(CHECKPOINT, sequence, at, body) for at, body in enumerate(bodies, 1)]
        operations: list[Operation] = []
        places = []
        rounds = []
        for old, size in ((shared.journal, journal_bytes), (shared.marks, marks_bytes)):
            place = Journal(old.name, settings.align_bytes)
            place.begin(letter, meta.generation, sequence, size)
            count = len(bodies) + 1
            content = list(buffers)
            if place.name == shared.journal.name:
                for at, item in enumerate(carried, count):
                    pack_entry(content, LARGE if item[4] else ENTRY, sequence, at, item)
                count += len(carried)
            if self.sizes.get(place.file) != size:
                operations.append(Allocate(place.file, size))
                self.sizes[place.file] = size
            rounds.append(place.prepare(content, count))
            places.append(place)
        allocated = bool(operations)
        operations += [prepared.write for prepared in rounds]
        operations.append(Flush(tuple(place.file for place in places)))
        if allocated:
            operations.append(FlushDirectory(""))
        return operations, places[0], places[1], (rounds[0], rounds[1])

    def begin(self, journal: Journal, marks: Journal, written: tuple[Round, Round]) -> None:
        """The generation is flushed in both places: from now on it is the one."""
        shared = self._shared
        journal.written(written[0])
        marks.written(written[1])
        shared.journal = journal
        shared.marks = marks
        self.mirrored = journal.sequence

    # --- files that nobody needs ---

    def unlink(self, log: Log, segments: list[int], *, hold: bool) -> None:
        """Remove segments that no longer belong to a log. `hold`: their names may be used again soon."""
        if not segments:
            return
        operations: list[Operation] = [Unlink(log.file(segment)) for segment in segments]
        if log.directory_made:
            operations.append(FlushDirectory(log.directory))
        if hold:
            self._rounds.hold()

        def done(_: DiskFull | None) -> None:
            if hold:
                self._rounds.release()

        self._shared.submit(LANE_SEGMENTS, operations, done)


def checkpoint_of(log: Log, *, deleted: bool = False) -> Checkpoint:
    state, state_number, state_damaged = log.durable_state
    view = log.durable
    index: SparseIndex | None = None
    if view.segments and log.cuts == view.cuts:  # Else its points may be of entries that are not durable.
        last = view.segments[-1].base
        # The log may be ahead of what is durable, and have gone on to another segment.
        index = log.index if log.segments and log.segments[-1].base == last else log.rolled.get(last)
    return Checkpoint(
        log.partition,
        view,
        log.flushed(),
        state,
        state_number,
        state_damaged,
        log.commit,
        tuple(point for point in index.few_points() if point[1] < view.end) if index is not None else (),
        deleted,
    )


def _writes(log: Log, items: list[Item]) -> list[tuple[Write, int]]:
    """Few large writes for many small entries; those that went straight to their segment are there."""
    writes: list[tuple[Write, int]] = []
    buffers: list[Buffer] = []
    start = end = 0
    current = -1
    for frame, segment, position, _, large in items:
        if large:
            continue
        if segment != current or position != end:
            if buffers:
                writes.append((Write(log.file(current), start, (b"".join(buffers),)), current))
            buffers = []
            current, start, end = segment, position, position
        buffers.append(frame.head)
        buffers.append(frame.payload)
        end += len(frame.head) + frame.header.size
    if buffers:
        writes.append((Write(log.file(current), start, (b"".join(buffers),)), current))
    return writes


def _footers(log: Log) -> list[tuple[list[Operation], int, SparseIndex]]:
    """Footers of segments that are sealed for good and have none yet."""
    view = log.durable
    if not log.rolled or log.cuts != view.cuts:  # A cut on its way may open a sealed segment again.
        return []
    made = []
    for segment, following in zip(view.segments, view.segments[1:], strict=False):
        index = log.rolled.get(segment.base)
        if index is None or segment.size == OPEN:
            continue
        epochs = tuple(start for start in view.epochs if segment.base <= start[1] <= following.before.offset)
        controls = tuple(
            header for header in view.controls if segment.base <= header.offset <= following.before.offset
        )
        footer = encode_footer(
            Footer(
                log.partition,
                segment.before,
                segment.before_checksum,
                following.before,
                following.before_checksum,
                segment.size,
                index.points(),
                epochs,
                controls,
            )
        )
        file = log.file(segment.base)
        operations: list[Operation] = [
            Write(file, segment.size, (footer,)),
            Truncate(file, segment.size + len(footer)),
        ]
        made.append((operations, segment.base, index))
    return made


def _grown(size: int, need: int) -> int:
    """`size`, doubled until it holds `need`."""
    while size < need:
        size *= 2
    return size
