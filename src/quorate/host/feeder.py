"""Feeding machines: settled entries in order; and where a machine changes on append, what lies above them.

In the steady state everything is still in the store's memory, or in the very step that appends it. A machine that
is behind (after a restart, or behind a repair) is fed from the disk, one bounded read at a time: first what is
settled, then, where it can take that back, what is not (TT-22). New appends wait behind that by themselves: whoever
reads goes on to the log's end.

A read takes its time, and unsettled entries can be cut meanwhile, and others appended under the same offsets. So
nothing that was read is given to a machine unless the log of now holds (epoch, offset) of it: within an epoch those
name one entry only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorate.core.entry import EntryId, Kind
from quorate.host.replicas import Hosted
from quorate.machine import CannotApply
from quorate.storage.frame import Frame
from quorate.storage.store import Store

FEED_BYTES_MAX = 1 << 20
UNDO_OFFSETS_MAX = 1 << 16
"""A machine that can take back gets no further ahead of what is settled: where damage keeps that back, it waits,
and is fed from the log later. Far more than a leader lets wait for its quorum."""
LONG_AGO = float("-inf")
"""Instead of the time: what was applied is looked at, not who has waited too long."""


class Feeder:
    """Gives every hosted machine what it is to have."""

    def __init__(
        self,
        store: Store,
        settled: Callable[[Hosted], None],
        cannot: Callable[[Hosted, int, str], None],
    ) -> None:
        """`settled` is called when a machine that was behind has caught up by something, `cannot` when an entry,
        at that offset, could not be applied."""
        self._store = store
        self._settled = settled
        self._cannot = cannot

    def feed(self, hosted: Hosted) -> None:
        """Give what can be given now; where it must be read first, go on after that."""
        while hosted.is_open and not hosted.feeding:
            wanted = _wanted(hosted)
            if wanted is None:
                return
            first, last = wanted
            frames = self._store.frames(hosted.partition, first, last, FEED_BYTES_MAX)
            if frames is None:
                hosted.feeding = True
                self._store.read(hosted.partition, first, last, FEED_BYTES_MAX, self._when_read(hosted))
                return
            if not self._give(hosted, frames):
                return
            hosted.answer_readers(LONG_AGO)

    def _when_read(self, hosted: Hosted) -> Callable[[list[Frame]], None]:
        asked = _situation(hosted)

        def done(frames: list[Frame]) -> None:
            hosted.feeding = False
            if hosted.gone:
                return
            log = hosted.replica.log
            # What was cut meanwhile ends it; and of what was removed or compacted nobody knows what was void.
            known = [
                frame for frame in frames if frame.header.offset > log.floor and log.holds(frame.header.id)
            ]
            given = hosted.is_open and self._give(hosted, known)
            if given or _situation(hosted) != asked:
                hosted.answer_readers(LONG_AGO)
                self.feed(hosted)
                self._settled(hosted)

        return done

    def _give(self, hosted: Hosted, frames: list[Frame]) -> bool:
        """Settle or append these, as far as they are next. Whether any was."""
        progress = False
        for frame in frames:
            header = frame.header
            try:
                if header.last <= hosted.commit and header.offset == hosted.applied.offset + 1:
                    if not _is_decided(hosted):
                        break
                    _settle(hosted, frame)
                elif _can_append(hosted) and header.offset == hosted.appended.offset + 1:
                    assert hosted.undo is not None
                    hosted.undo.append(header, frame.payload)
                    hosted.appended = header.id
                elif hosted.appended.offset < header.offset:
                    break
                else:
                    continue  # It is appended, and not settled yet.
            except CannotApply as error:
                self._halt(hosted, header.offset, str(error))
                break
            progress = True
        return progress

    def append(self, hosted: Hosted, frames: list[Frame]) -> None:
        """The log goes on with these. A machine that is behind gets them when it has caught up."""
        is_next = frames and frames[0].header.offset == hosted.appended.offset + 1
        if is_next and hosted.is_open:
            assert frames[0].prev == hosted.appended, "a machine is at a place of its log"
            self._give(hosted, frames)

    def cut(self, hosted: Hosted, to: EntryId) -> None:
        """The log ends at `to` now.

        Where that cannot be read, it may be what stood there before another cut, which failed: what the machine has
        there may be something else.
        """
        if hosted.undo is None:
            return
        log = hosted.replica.log
        span = log.span_at(to.offset) if log.faulty else None
        hosted.take_back(to if span is None else span.before)

    def _halt(self, hosted: Hosted, offset: int, reason: str) -> None:
        hosted.halted = reason
        self._cannot(hosted, offset, reason)

    def resume(self, hosted: Hosted) -> None:
        """Somebody has looked at why the machine was stuck: let it try again."""
        hosted.halted = None
        self.feed(hosted)


def _situation(hosted: Hosted) -> tuple[Any, ...]:
    """Where this is the same as before, the same read finds nothing else."""
    log = hosted.replica.log
    return hosted.applied, hosted.appended, hosted.commit, log.base, log.head, log.faulty


def _wanted(hosted: Hosted) -> tuple[int, int] | None:
    """(first, last) offset of what the machine is to have next, if that can be read."""
    log = hosted.replica.log
    first, last = hosted.applied.offset + 1, hosted.commit
    if first > last:
        first, last = hosted.appended.offset + 1, log.head.offset
        if first > last or not _can_append(hosted):
            return None
    elif not _is_decided(hosted):
        return None
    if first <= log.floor or (log.faulty and log.span_at(first) is not None):
        return None  # A snapshot or a repair will bring it.
    return first, last


def _can_append(hosted: Hosted) -> bool:
    return hosted.undo is not None and hosted.appended.offset - hosted.applied.offset < UNDO_OFFSETS_MAX


def _is_decided(hosted: Hosted) -> bool:
    """Whether it is known what of the settled entries is void: a Rollback may be among those that are damaged."""
    if not hosted.voids:
        return True
    faulty = hosted.replica.log.faulty
    return not faulty or faulty[0].before.offset >= hosted.commit


def _settle(hosted: Hosted, frame: Frame) -> None:
    header = frame.header
    is_void = hosted.voids and header.kind == Kind.RECORDS and hosted.replica.log.is_void(header.offset)
    if not is_void:
        hosted.machine.settle(header, frame.checksum, frame.payload)
        hosted.stands = header.last
    elif hosted.undo is not None and hosted.appended.offset >= header.offset:
        at = hosted.appended.offset
        if hosted.replica.log.decided(at) != at:
            # It has what is void, and not the Rollback that takes it back: it was on its way there.
            hosted.take_back(hosted.applied)
    hosted.tally.settle(header, frame.checksum, frame.payload, is_void=is_void)
    hosted.applied, hosted.applied_checksum = header.id, frame.checksum
    if hosted.appended.offset < header.last:
        hosted.appended = header.id
    if header.control is not None:
        hosted.standing = hosted.standing.after(header.control)
