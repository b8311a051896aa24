"""Rounds: what is written and flushed together, one behind the other in a preallocated file.

The same mechanism serves two places: the journal itself (`journal.a`, `journal.b`) and the second place that
vouches for it (`marks.a`, `marks.b`). Each has two files that are used in turn. A *generation* lives in one of
them; it starts with a checkpoint round that repeats everything worth knowing, so that what came before it
is not needed any more.

A round is a header (magic 4 · version 1 · starts 1 · padding 2 · generation 8 · sequence 8 · length 4 · span 4 ·
count 4 · body crc 4 · previous header's crc 4 · header crc 4) and a body of records. `span` is the distance
to the next round. Sequences rise by one within a generation, and never repeat in the life of a store.
"""

from __future__ import annotations

import struct

import msgspec
from crc32c import crc32c

from quorate.core.entry import FORMAT_VERSION
from quorate.storage.disk import Buffer, Write
from quorate.storage.records import Record, parse_all, salvage

ROUND_MAGIC = b"QrnD"
_ROUND = struct.Struct(">4sBB2xQQIIIII")
_CRC = struct.Struct(">I")
ROUND_HEADER_BYTES = _ROUND.size + _CRC.size


class Round(msgspec.Struct, frozen=True, gc=False):
    """A round that is ready to be written."""

    write: Write
    sequence: int
    span: int
    crc: int


class Journal:
    """The writing side of one place: where the next round goes."""

    __slots__ = (
        "_align",
        "_floor",
        "_previous",
        "file",
        "generation",
        "letter",
        "name",
        "nearly_full",
        "position",
        "sequence",
        "size",
    )

    def __init__(self, name: str, align_bytes: int) -> None:
        self.name = name
        self.letter = ""
        self.file = ""
        self.generation = 0
        self.sequence = 0
        """Of the last round that was written."""
        self.position = 0
        self.size = 0
        self._align = align_bytes
        self._previous = 0
        self._floor = 0
        """Where the checkpoint ends: no new generation can start with less."""
        self.nearly_full = False
        """Most of the room that the checkpoint left is used."""

    def begin(self, letter: str, generation: int, sequence: int, size: int) -> None:
        """A new generation: the next round, numbered `sequence`, is its checkpoint."""
        assert generation > self.generation
        assert sequence > self.sequence
        self.letter = letter
        self.file = f"{self.name}.{letter}"
        self.generation = generation
        self.sequence = sequence - 1
        self.position = 0
        self.size = size
        self._previous = 0

    def span_of(self, body_bytes: int) -> int:
        """The room that a round with such a body takes."""
        return -(-(ROUND_HEADER_BYTES + body_bytes) // self._align) * self._align

    def fits(self, body_bytes: int) -> bool:
        return self.position + self.span_of(body_bytes) <= self.size

    def prepare(self, buffers: list[Buffer], count: int) -> Round:
        """The next round. Nothing changes here until it is `written`."""
        body = b"".join(buffers)
        length = len(body)
        span = self.span_of(length)
        assert self.position + span <= self.size
        sequence = self.sequence + 1
        header = _ROUND.pack(
            ROUND_MAGIC,
            FORMAT_VERSION,
            self.position == 0,
            self.generation,
            sequence,
            length,
            span,
            count,
            crc32c(body),
            self._previous,
        )
        crc = crc32c(header)
        padding = bytes(span - ROUND_HEADER_BYTES - length)
        write = Write(self.file, self.position, (header + crc.to_bytes(4, "big"), body, padding))
        return Round(write, sequence, span, crc)

    def written(self, prepared: Round) -> None:
        assert prepared.sequence == self.sequence + 1
        self.sequence = prepared.sequence
        if not self.position:
            self._floor = prepared.span
        self.position += prepared.span
        self.nearly_full = self.size - self.position < (self.size - self._floor) // 4
        self._previous = prepared.crc


class Heading(msgspec.Struct, frozen=True, gc=False):
    """A round's header that is intact."""

    starts: bool
    """It is a checkpoint round: the first of its generation."""
    generation: int
    sequence: int
    length: int
    span: int
    count: int
    body_crc: int


class Scan(msgspec.Struct):
    """All that can be read of the generation that lives in a file."""

    size: int
    """The file's size, not the generation's."""
    generation: int
    first: int
    """The sequence of the checkpoint round; 0 if not even that is known."""
    records: dict[tuple[int, int], Record]
    counts: dict[int, int]
    """How many records a round has, where its header is intact."""
    position: int = 0
    """Where the next round would be."""

    @property
    def last(self) -> int:
        """The highest sequence that anything intact belongs to."""
        return max(max(self.counts, default=0), max((key[0] for key in self.records), default=0))

    def forget_before(self, first: int) -> None:
        """What belongs to rounds before `first` is of another generation."""
        for key in [key for key in self.records if key[0] < first]:
            del self.records[key]
        for sequence in [sequence for sequence in self.counts if sequence < first]:
            del self.counts[sequence]

    def complete(self, sequence: int) -> bool:
        count = self.counts.get(sequence)
        return count is not None and all((sequence, ordinal) in self.records for ordinal in range(count))

    def cut_short(self, full_size: int) -> bool:
        """The file is shorter than it was made, and ends where another round may have been."""
        return self.size < full_size and self.position + ROUND_HEADER_BYTES > self.size


def parse_heading(content: bytes, at: int) -> Heading | None:
    if len(content) - at < ROUND_HEADER_BYTES or content[at : at + 4] != ROUND_MAGIC:
        return None
    (crc,) = _CRC.unpack_from(content, at + _ROUND.size)
    if crc32c(memoryview(content)[at : at + _ROUND.size]) != crc:
        return None
    _, version, starts, generation, sequence, length, span, count, body_crc, _ = _ROUND.unpack_from(
        content, at
    )
    if version != FORMAT_VERSION or length + ROUND_HEADER_BYTES > span:
        return None
    return Heading(bool(starts), generation, sequence, length, span, count, body_crc)


def scan(content: bytes) -> Scan | None:
    """Read a file of which nothing is certain; None if no round is in it.

    Rounds are followed from the start. Where that ends, the rest of the file is searched for more of them:
    a later round, or a single record of one, proves that the earlier ones were flushed.
    """
    heading = parse_heading(content, 0)
    if heading is None or not heading.starts:
        heading = _newest_heading(content)
        if heading is None:
            return None
        found = Scan(len(content), heading.generation, heading.sequence if heading.starts else 0, {}, {})
        rounds_max = len(content) // ROUND_HEADER_BYTES
        _search(found, content, 0, after=max(0, heading.sequence - rounds_max))
        return found
    found = Scan(len(content), heading.generation, heading.sequence, {}, {})
    at = 0
    while (
        heading is not None
        and heading.generation == found.generation
        and heading.sequence == found.first + len(found.counts)
    ):
        _take(found, content, at, heading)
        at += heading.span
        heading = parse_heading(content, at)
    _search(found, content, at, after=found.first)
    return found


def search(content: bytes, generation: int, first: int) -> Scan:
    """What can be found of a generation that is known, from elsewhere, to live in this file."""
    found = Scan(len(content), generation, first, {}, {})
    _search(found, content, 0, after=first - 1)
    return found


def _take(found: Scan, content: bytes, at: int, heading: Heading) -> None:
    """A round whose header is intact: all of its records, or what is left of them."""
    start = at + ROUND_HEADER_BYTES
    end = min(at + heading.span, len(content))
    found.counts[heading.sequence] = heading.count
    found.position = max(found.position, at + heading.span)
    body = memoryview(content)[start : start + heading.length]
    records = parse_all(body) if crc32c(body) == heading.body_crc else None
    if records is not None:
        for record in records:
            found.records[record.sequence, record.ordinal] = record
    else:
        for record in salvage(content, start, end, after=heading.sequence - 1, upto=heading.sequence):
            found.records.setdefault((record.sequence, record.ordinal), record)


def _search(found: Scan, content: bytes, start: int, *, after: int) -> None:
    """Rounds and loose records of this generation, wherever they lie from `start` on."""
    upto = after + 1 + len(content) // ROUND_HEADER_BYTES
    at = content.find(ROUND_MAGIC, start)
    while at >= 0:
        heading = parse_heading(content, at)
        if (
            heading is not None
            and heading.generation == found.generation
            and after < heading.sequence <= upto
            and heading.sequence not in found.counts
        ):
            _take(found, content, at, heading)
        at = content.find(ROUND_MAGIC, at + 1)
    for record in salvage(content, start, len(content), after=after, upto=upto):
        found.records.setdefault((record.sequence, record.ordinal), record)


def _newest_heading(content: bytes) -> Heading | None:
    best = None
    at = content.find(ROUND_MAGIC)
    while at >= 0:
        heading = parse_heading(content, at)
        if heading is not None and (best is None or heading.generation > best.generation):
            best = heading
        at = content.find(ROUND_MAGIC, at + 1)
    return best
