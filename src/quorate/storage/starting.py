"""Where a log starts, and where it may: its segments as whoever decides sees them, and a start that is moved.

A prefix goes as a whole number of files where it can. A start may also lie inside of what cannot be read, and below
an installed snapshot: what is missing then is a faulty span in a file of its own, and is repaired like any other.
"""

from __future__ import annotations

import msgspec

from quorate.core.entry import EntryId
from quorate.storage.log import Log
from quorate.storage.records import Fault, Segment, View


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """What one segment of a log holds, for whoever decides what may go."""

    segment: int
    last: EntryId
    checksum: int
    """Of the frame of `last`."""
    size: int
    newest: int | None
    """Its highest timestamp; None: its footer knows."""


def stretches(log: Log) -> list[Stretch]:
    """One for each segment."""
    found = []
    for place, segment in enumerate(log.segments):
        is_newest = place + 1 == len(log.segments)
        index = log.index if is_newest else log.rolled.get(segment.base)
        found.append(
            Stretch(
                segment.base,
                log.head if is_newest else log.segments[place + 1].before,
                log.checksum if is_newest else log.segments[place + 1].before_checksum,
                log.end if is_newest else segment.size,
                None if index is None else index.newest_time,
            )
        )
    return found


def roll_behind(log: Log, to: EntryId) -> None:
    """Where `to` ends the log, let the next entry go to another file, so that nothing holds this one."""
    if to == log.head and log.end:
        log.open_segment(to.offset + 1)
        log.end = 0


def can_start_inside(log: Log, to: EntryId) -> bool:
    """Whether all that lies behind `to` in its segment cannot be read, so that it can be in another file."""
    fault = log.fault_at(to.offset)
    if fault is None or fault.last == to:
        return False
    segment = log.segments[log.segment_at(to.offset + 1)].base
    return fault.next_segment > segment


def start_inside(log: Log, to: EntryId, checksum: int) -> list[int]:
    """Let the log start behind `to`, which cannot be read, in a file of its own. Segments that are gone."""
    fault = log.fault_at(to.offset)
    assert fault is not None
    place = log.segment_at(to.offset + 1)
    segment = to.offset + 1
    gone = [found.base for found in log.segments[: place + 1] if found.base != segment]
    compacted = log.compacted_upto if to.offset < log.compacted_upto else -1
    log.segments = (Segment(segment, to, checksum, 0, compacted), *log.segments[place + 1 :])
    log.compacted = {found.base: found.compacted for found in log.segments if found.compacted >= 0}
    rest = Fault(
        to,
        checksum,
        segment,
        0,
        fault.last,
        fault.last_checksum,
        fault.next_segment,
        fault.next_position,
    )
    log.faulty = tuple(
        rest if other is fault else other for other in log.faulty if other.last.offset > to.offset
    )
    log.start_behind(to, checksum, (segment, 0), gone)
    return gone


def reach_back(log: Log, to: EntryId, checksum: int, *, compacted: int = -1) -> None:
    """An empty log is to start further below: what lies between is missing, and is as good as damaged.

    It will be of the generation that reaches to `compacted`, as everybody's is.
    """
    assert log.base == log.head
    assert not log.segments
    last, last_checksum = log.head, log.checksum
    first, following = to.offset + 1, last.offset + 1
    fault = Fault(to, checksum, first, 0, last, last_checksum, following, 0)
    segments = (Segment(first, to, checksum, 0, compacted), Segment(following, last, last_checksum))
    epochs = ((last.epoch, last.offset),) if last.epoch > to.epoch else ()
    log.become(
        View(
            to,
            checksum,
            (first, 0),
            last,
            last_checksum,
            segments,
            0,
            epochs,
            log.controls,
            (fault,),
            log.cuts,
        )
    )
