"""Which generation of the journal to believe when a store is opened, and which files to write the next one to.

A generation is *finished* if anything was written behind its checkpoint: that happens only after the checkpoint
was flushed in both places. An unfinished one says nothing that the one before it does not say too. It is believed
if its checkpoint round is there to the last record, and the one before it otherwise. But it may not be on the disk
at all (after a failed flush reads still see it, rule 5), so the next generation is written over it, and not over
the one before it, which alone is certain to be there.
"""

from __future__ import annotations

import msgspec

from quorate.storage.disk import Disk, DiskFailed
from quorate.storage.errors import DamagedStore
from quorate.storage.journal import Scan, scan, search
from quorate.storage.records import CHECKPOINT, META, Checkpoint, DamagedRecord, Meta, decode_body

LETTERS = ("a", "b")


class Generation(msgspec.Struct):
    """A generation with a whole checkpoint, and all that can be read behind it."""

    letter: str
    spare: str
    """The letter of the files that the next generation goes to."""
    number: int
    first: int
    """The sequence of its checkpoint round."""
    checkpoints: list[Checkpoint]
    journal: Scan
    marks: Scan
    newest: int
    """The highest number of any generation that left a trace."""
    last: int
    """The highest sequence that left a trace."""
    cut_short: bool
    """The journal's file is shorter than it was, and rounds may have been lost with its end."""


class Half:
    """The files of one letter: a journal and its second place."""

    def __init__(self, disk: Disk, letter: str) -> None:
        self.letter = letter
        self._contents = {name: _read(disk, f"{name}.{letter}") for name in ("journal", "marks")}
        self.journal = scan(self._contents["journal"]) or Scan(len(self._contents["journal"]), 0, 0, {}, {})
        self.marks = scan(self._contents["marks"]) or Scan(len(self._contents["marks"]), 0, 0, {}, {})
        self.number = max(self.journal.generation, self.marks.generation)
        self.meta: Meta | None = None
        self.first = 0
        self._find_meta()
        if self.first:
            # A place whose beginning is damaged looks like one of an older generation.
            if self.journal.generation != self.number:
                self.journal = search(self._contents["journal"], self.number, self.first)
            if self.marks.generation != self.number:
                self.marks = search(self._contents["marks"], self.number, self.first)
            # One whose beginning is damaged is searched as a whole, and older generations lie in it, too.
            self.journal.forget_before(self.first)
            self.marks.forget_before(self.first)
        self._contents = {}
        self.checkpoints, self.missing = self._find_checkpoints()

    def _find_meta(self) -> None:
        for place in (self.journal, self.marks):
            if place.generation != self.number:
                continue
            for record in place.records.values():
                if record.type == META:
                    try:
                        meta = decode_body(META, record.body)
                    except DamagedRecord:
                        continue
                    if meta.generation == self.number:
                        self.meta, self.first = meta, record.sequence
                        return

    def _find_checkpoints(self) -> tuple[list[Checkpoint], list[bytes]]:
        """Those of all partitions, from whichever place has them intact; and the ids of those that are lost."""
        if self.meta is None:
            return [], []
        found: dict[bytes, Checkpoint] = {}
        for place in (self.journal, self.marks):
            for record in place.records.values():
                if record.type == CHECKPOINT and record.sequence == self.first:
                    try:
                        checkpoint = decode_body(CHECKPOINT, record.body)
                    except DamagedRecord:
                        continue
                    found.setdefault(checkpoint.partition, checkpoint)
        partitions = self.meta.partitions
        return (
            [found[partition] for partition in partitions if partition in found],
            [partition for partition in partitions if partition not in found],
        )

    @property
    def whole(self) -> bool:
        return self.meta is not None and not self.missing

    @property
    def complete(self) -> bool:
        """Its checkpoint round is all there, with the entries that it carries over."""
        return self.whole and self.journal.complete(self.first)

    @property
    def finished(self) -> bool:
        return self.first > 0 and max(self.journal.last, self.marks.last) > self.first

    @property
    def cut_short(self) -> bool:
        return self.meta is not None and self.journal.cut_short(self.meta.journal_bytes)


def choose(disk: Disk) -> Generation:
    """The generation to go on from; raises DamagedStore if none can be believed."""
    halves = sorted((Half(disk, letter) for letter in LETTERS), key=lambda half: -half.number)
    newest, older = halves
    if newest.finished or newest.complete:
        chosen = newest
    else:
        chosen = older if older.whole else newest
    if not chosen.whole:
        lost = ", ".join(partition.hex() for partition in newest.missing[:3]) or "the start of the generation"
        raise DamagedStore(
            f"journal.{newest.letter} and its second copy, marks.{newest.letter}, are both damaged: {lost} "
            "cannot be read. Restore the directory from a backup, or wipe it and let the node join anew"
        )
    return Generation(
        chosen.letter,
        newest.letter if not newest.finished and older.whole else older.letter,
        chosen.number,
        chosen.first,
        chosen.checkpoints,
        chosen.journal,
        chosen.marks,
        newest=newest.number,
        last=max(max(half.journal.last, half.marks.last) for half in halves),
        cut_short=newest.cut_short or chosen.cut_short,
    )


def _read(disk: Disk, file: str) -> bytes:
    size = disk.size_now(file)
    if size is None:
        return b""
    try:
        return disk.read_now(file, 0, size)
    except DiskFailed:
        return b""
