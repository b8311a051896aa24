"""What tasks of an audit bring: few rows for many entries, whatever their size, as Arrow batches.

    point     which entry a copy has at an offset at which all copies are compared
    entry     every entry, of partitions that must be looked at closely
    run       batches of one producer that follow each other: only where runs meet is anything left to be asked
    marker    how a transaction ends in a partition
    decision  how a home has decided one
    finding   what is wrong
    count     how many entries were read

An entry's checksum covers its payload's and that of the entry before it. So where two intact logs have the same
entry at one offset, they have the same entries below it: a few points say whether two logs are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quorate.audit.disk import ReadingDisk
from quorate.audit.findings import Finding
from quorate.audit.rebuild import Decision
from quorate.audit.replica import LogFacts
from quorate.audit.segment import Entries, Numbers, Scan, marker_in
from quorate.batch import parse_batch_header
from quorate.core.entry import Kind
from quorate.machine.markers import Marker
from quorate.machine.producers import SEQUENCES_COUNT
from quorate.storage.frame import Frame

BATCH_ROWS = 32_768
STRETCH_FINDINGS_MAX = 100
ROWS = (
    "what string, replica string, partition binary, offset long, last long, epoch long, checksum long, "
    "settled boolean, producer long, producer_epoch long, sequence long, sequence_end long, number long, "
    "commits boolean, count long, finding binary"
)
_SCHEMA = pa.schema(
    [
        ("what", pa.string()),
        ("replica", pa.string()),
        ("partition", pa.binary()),
        ("offset", pa.int64()),
        ("last", pa.int64()),
        ("epoch", pa.int64()),
        ("checksum", pa.int64()),
        ("settled", pa.bool_()),
        ("producer", pa.int64()),
        ("producer_epoch", pa.int64()),
        ("sequence", pa.int64()),
        ("sequence_end", pa.int64()),
        ("number", pa.int64()),
        ("commits", pa.bool_()),
        ("count", pa.int64()),
        ("finding", pa.binary()),
    ]
)

Batches = Iterator[pa.RecordBatch]
Carried = tuple[int, int, int, int, int, int, int, int]
"""Of an entry in a journal, what the columns of Entries are."""


class Work(msgspec.Struct, frozen=True):
    """For one task: a stretch of a log, entries that a journal holds, or what a home has decided."""

    store: str
    facts: LogFacts
    """With the one stretch that is meant, or none."""
    carried: list[Carried] = []
    markers: list[tuple[int, Marker]] = []
    """Of those entries, with their offsets."""
    decisions: list[Decision] = []


class How(msgspec.Struct, frozen=True):
    """What is asked of a partition."""

    points: tuple[int, ...]
    """Offsets at which its copies are compared: where one of them ends, or has settled."""
    closely: bool
    """Every entry is told. What compaction left is compared so: it may be cut otherwise in each copy."""


def carried_of(frames: Sequence[Frame]) -> tuple[list[Carried], list[tuple[int, Marker]]]:
    rows: list[Carried] = []
    markers: list[tuple[int, Marker]] = []
    for frame in frames:
        header, batch = frame.header, parse_batch_header(frame.payload)
        producer = batch.producer_id, batch.producer_epoch, batch.base_sequence
        rows.append((header.offset, header.last, header.epoch, frame.checksum, int(header.kind), *producer))
        if batch.is_control and header.kind == Kind.RECORDS:
            marker = marker_in(frame.payload)
            markers += [(header.offset, marker)] if marker is not None else []
    return rows, markers


def rows_of(work: Iterator[tuple[Work, How]]) -> Batches:
    """Of one task, in few batches: each costs Spark as much as some thousand rows."""
    gathered: list[pa.RecordBatch] = []
    rows_count = 0
    for todo, how in work:
        for batch in _rows_of(todo, how):
            gathered.append(batch)
            rows_count += batch.num_rows
            if rows_count >= BATCH_ROWS:
                yield pa.concat_batches(gathered)
                gathered, rows_count = [], 0
    if gathered:
        yield pa.concat_batches(gathered)


def _rows_of(work: Work, how: How) -> Batches:
    facts = work.facts
    if work.decisions:
        producer, number, commits = zip(*work.decisions, strict=True)
        yield _batch(facts, "decision", len(producer), producer=producer, number=number, commits=commits)
    if work.carried:
        one, two, three, four, five, six, seven, eight = np.array(work.carried, np.int64).T
        entries = Entries(one, two, three, four, five, six, seven, eight, work.markers)
        yield from _told(facts, how, entries)
    for stretch in facts.stretches:
        scan = Scan(ReadingDisk(Path(work.store)), facts.partition, stretch)
        for entries in scan.entries():
            yield from _told(facts, how, entries)
        found = [
            msgspec.msgpack.encode(
                Finding(facts.replica, facts.partition.hex(), each.kind, each.first, each.last, each.detail)
            )
            for each in scan.damage[:STRETCH_FINDINGS_MAX]
        ]
        if found:
            yield _batch(facts, "finding", len(found), finding=found)


def _told(facts: LogFacts, how: How, entries: Entries) -> Batches:
    yield _batch(facts, "count", 1, count=[len(entries)])
    settled = entries.last <= facts.commit
    if how.closely:
        yield _entries(facts, "entry", entries, np.arange(len(entries)), entries.offset, settled)
    else:
        points = np.array(how.points, np.int64)
        points = points[(points >= entries.offset[0]) & (points <= entries.last[-1])]
        # Each lies in the first entry that does not end before it.
        at = np.searchsorted(entries.last, points)
        inside = entries.offset[at] <= points
        if inside.any():
            yield _entries(facts, "point", entries, at[inside], points[inside], settled)
    if facts.purpose != "topic":
        return
    counts = settled & ~_void(facts, entries.offset)
    if not facts.is_compacted:  # Of what was compacted, sequences are missing as they should.
        yield from _runs(facts, entries, counts)
    ends = [(offset, marker) for offset, marker in entries.markers if _holds(entries, counts, offset)]
    if ends:
        yield _batch(
            facts,
            "marker",
            len(ends),
            offset=[offset for offset, _ in ends],
            producer=[marker.producer_id for _, marker in ends],
            number=[marker.number for _, marker in ends],
            commits=[marker.commit for _, marker in ends],
        )


def _entries(
    facts: LogFacts, what: str, entries: Entries, at: Numbers, offset: Numbers, settled: NDArray[np.bool_]
) -> pa.RecordBatch:
    return _batch(
        facts,
        what,
        len(at),
        offset=offset,
        last=entries.last[at],
        epoch=entries.epoch[at],
        checksum=entries.checksum[at],
        settled=settled[at],
    )


def _void(facts: LogFacts, offset: Numbers) -> NDArray[np.bool_]:
    void = np.zeros(len(offset), np.bool_)
    for first, upto in facts.voids:
        void |= (offset >= first) & (offset < upto)
    return void


def _holds(entries: Entries, counts: NDArray[np.bool_], offset: int) -> bool:
    return bool(counts[np.searchsorted(entries.offset, offset)])


def _runs(facts: LogFacts, entries: Entries, counts: NDArray[np.bool_]) -> Batches:
    """By producer, in the order of the log: a run ends where something does not follow what is before it."""
    numbered = (entries.kind == int(Kind.RECORDS)) & (entries.producer >= 0) & (entries.sequence >= 0)
    at = np.flatnonzero(numbered & counts)
    if not len(at):
        return
    at = at[np.argsort(entries.producer[at], kind="stable")]
    producer, epoch, sequence = entries.producer[at], entries.producer_epoch[at], entries.sequence[at]
    end = (sequence + entries.last[at] - entries.offset[at]) % SEQUENCES_COUNT
    begins = np.ones(len(at), np.bool_)
    begins[1:] = (
        (producer[1:] != producer[:-1])
        | (epoch[1:] != epoch[:-1])
        | (sequence[1:] != (end[:-1] + 1) % SEQUENCES_COUNT)
    )
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(at)) - 1
    yield _batch(
        facts,
        "run",
        len(first),
        offset=entries.offset[at][first],
        last=entries.last[at][first],
        producer=producer[first],
        producer_epoch=epoch[first],
        sequence=sequence[first],
        sequence_end=end[last],
    )


def _batch(facts: LogFacts, what: str, rows_count: int, /, **columns: Any) -> pa.RecordBatch:
    columns |= {
        "what": [what] * rows_count,
        "replica": [facts.replica] * rows_count,
        "partition": [bytes(facts.partition)] * rows_count,
    }
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(rows_count, field.type)
        for field in _SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
