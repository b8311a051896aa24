"""A replica's log as its protocol sees it. Never touches the disk.

It holds the entry id just below the first kept entry, the head, the epoch index, the control index, the
faulty spans and a bounded window of the newest headers. It changes at the moment an order is given, so it
says what the log *will be*; `ordering.py` knows how much of it is durable.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from quorate.core.entry import NOWHERE, STICKY_CONTROLS, Barrier, EntryId, Header, Rollback, Span, in_force
from quorate.core.epochs import EpochIndex
from quorate.core.events import Recovered

HEADERS_MAX = 2048
"""Headers kept in memory per log; older ones are asked for with `Read`."""


class LogView:
    __slots__ = ("_lasts", "base", "compacted", "controls", "epochs", "faulty", "head", "window")

    def __init__(self, recovered: Recovered) -> None:
        self.base = recovered.base
        self.head = recovered.head
        self.compacted = recovered.compacted
        """How far the generation of compaction reaches that this log is of; -1: entries are as they came."""
        self.epochs = EpochIndex(recovered.base, recovered.epochs)
        self.controls = list(recovered.controls)
        self.faulty: tuple[Span, ...] = recovered.faulty
        self.window = list(recovered.headers)
        self._lasts = [header.last for header in self.window]
        assert not self.window or self.window[-1].last == self.head.offset
        assert self.head.offset >= self.base.offset

    def __str__(self) -> str:
        if self.head.offset == self.base.offset:
            return f"empty after {self.base}" if self.base != NOWHERE else "empty"
        faulty = "".join(f" faulty {span.first_offset}..{span.last.offset}" for span in self.faulty)
        return f"{self.base.offset + 1}..{self.head.offset}{faulty}"

    # --- questions ---

    @property
    def floor(self) -> int:
        """Entries at or below are not here, or are not what they were: only a snapshot stands for them."""
        return max(self.base.offset, self.compacted)

    def span_at(self, offset: int) -> Span | None:
        """The faulty span that covers `offset`."""
        for span in self.faulty:
            if span.before.offset < offset <= span.last.offset:
                return span
        return None

    def epoch_at(self, offset: int) -> int:
        """The epoch at `offset`, which is between base and head; 0 where it cannot be known."""
        assert self.base.offset <= offset <= self.head.offset
        if self.faulty:
            span = self.span_at(offset)
            if span is not None:
                return span.last.epoch if offset == span.last.offset else 0
        return self.epochs.at(offset)

    def position(self, offset: int) -> EntryId:
        """(epoch, offset) of a known position of this log."""
        if offset == self.head.offset:
            return self.head
        epoch = self.epoch_at(offset)
        assert epoch or offset == self.base.offset, "a faulty position has no name"
        return EntryId(epoch, offset)

    def holds(self, position: EntryId) -> bool:
        """Whether this log agrees with any log that has `position`, up to there (OR-1).

        Below base everything is settled, and a settled position is the same in every log.
        """
        if position.offset <= self.base.offset:
            return position.offset < self.base.offset or position.epoch == self.base.epoch
        return position.offset <= self.head.offset and self.epoch_at(position.offset) == position.epoch

    def intact_below(self) -> int:
        """The last offset below the first faulty one; the head where nothing is faulty."""
        return self.faulty[0].before.offset if self.faulty else self.head.offset

    def boundary_at_or_below(self, offset: int) -> EntryId | None:
        """The last entry of the window that ends at or below `offset`."""
        place = bisect_left(self._lasts, offset + 1)
        return self.window[place - 1].id if place else None

    def newest(self, kind: type) -> Header | None:
        """The newest control of that kind that is known here, settled or not."""
        for header in reversed(self.controls):
            if type(header.control) is kind:
                return header
        return None

    def barriers(self) -> list[tuple[Header, int]]:
        """Where protocols end in this log, and with which turns; oldest first."""
        return [(header, header.control.at) for header in self.controls if type(header.control) is Barrier]

    def decided(self, offset: int) -> int:
        """The last position at or below `offset` that is not between a Rollback and what it takes back: up to
        there, what is settled is known to be valid or void (`confirm`; in every other log, `offset` itself)."""
        for header in reversed(self.controls):
            if header.offset <= offset:
                break
            control = header.control
            if type(control) is Rollback and control.first <= offset:
                offset = control.first - 1
        return offset

    def is_void(self, offset: int) -> bool:
        """Whether the records at this settled offset were rolled back."""
        return self.decided(offset) != offset

    def headers_from(self, first: int, *, bytes_max: int, count_max: int) -> tuple[Header, ...] | None:
        """Contiguous headers from the entry that holds `first`; None if it is not in the window."""
        window = self.window
        if not window or first < window[0].offset:
            return None
        place = bisect_left(self._lasts, first)
        chosen = window[place : place + count_max]
        total = 0
        for index, header in enumerate(chosen):
            total += header.size
            if total > bytes_max and index:  # One entry always goes, however large it is.
                return tuple(chosen[:index])
        return tuple(chosen)

    # --- changes, each at the moment of its order ---

    def append(self, headers: tuple[Header, ...]) -> None:
        for header in headers:
            assert header.offset == self.head.offset + 1
            assert header.epoch >= self.head.epoch
            self.epochs.append(header.epoch, header.offset)
            self.window.append(header)
            self._lasts.append(header.last)
            if header.control is not None:
                self.controls.append(header)
            self.head = header.id
        if len(self.window) > 2 * HEADERS_MAX:
            del self.window[:-HEADERS_MAX]
            del self._lasts[:-HEADERS_MAX]

    def cut(self, to: EntryId) -> None:
        """Forget every entry above `to`, faulty ones included."""
        assert self.base.offset <= to.offset <= self.head.offset
        span = self.span_at(to.offset) if self.faulty else None
        assert span is None or span.last == to, "nobody knows where an entry ends that cannot be read"
        self.faulty = tuple(span for span in self.faulty if span.last.offset <= to.offset)
        assert self.epoch_at(to.offset) == to.epoch
        while self.window and self.window[-1].last > to.offset:
            self.window.pop()
            self._lasts.pop()
        while self.controls and self.controls[-1].last > to.offset:
            self.controls.pop()
        self.epochs.cut(to.offset)
        self.head = to

    def cut_down(self, to: EntryId) -> dict[str, Any]:
        """What a log like this one, cut there, is recovered as; this one stays as it is."""
        kept = [header for header in self.window if header.last <= to.offset]
        return {
            "base": self.base,
            "head": to,
            "epochs": tuple(start for start in self.epochs.starts() if start[1] <= to.offset),
            "headers": tuple(kept),
            "controls": tuple(header for header in self.controls if header.last <= to.offset),
            "faulty": tuple(span for span in self.faulty if span.last.offset <= to.offset),
            "compacted": self.compacted,
        }

    def settle(self, offset: int) -> None:
        """Controls that are settled have done their work, but for those that stay in force."""
        if self.controls and self.controls[0].last <= offset:
            self.controls = in_force(self.controls, settled=offset)

    def remove_prefix(self, to: EntryId) -> None:
        """Forget entries up to `to`, which a snapshot covers."""
        assert self.base.offset <= to.offset <= self.head.offset
        assert self.epoch_at(to.offset) in (to.epoch, 0)
        self.epochs.remove_prefix(to)
        self.base = to
        self.controls = [
            header
            for header in self.controls
            if type(header.control) is not Rollback or header.offset > to.offset
        ]
        self.faulty = tuple(
            Span(to, span.last) if span.before.offset < to.offset else span
            for span in self.faulty
            if span.last.offset > to.offset
        )
        place = bisect_left(self._lasts, to.offset + 1)
        del self.window[:place]
        del self._lasts[:place]

    def reach_back(self, to: EntryId, *, compacted: int = -1) -> None:
        """The log is to start further below: what lies between is missing here, and is as good as damaged. It will
        be of the generation that reaches to `compacted`."""
        assert to.offset < self.base.offset
        epochs = EpochIndex(to, self.epochs.starts())
        epochs.insert(self.base.epoch, self.base.offset)
        self.faulty = (Span(to, self.base), *self.faulty)
        self.epochs, self.base, self.compacted = epochs, to, compacted

    def compact(self, upto: int, *, rewritten: int) -> None:
        """The log is of that generation. What was damaged and is in new files now is whole."""
        self.compacted = max(self.compacted, upto)
        self.faulty = tuple(
            Span(self.position(rewritten), span.last) if span.before.offset < rewritten else span
            for span in self.faulty
            if span.last.offset > rewritten
        )

    def restart_after(self, last: EntryId) -> None:
        """An installed snapshot replaces everything: the log starts empty behind it."""
        self.base = self.head = last
        self.epochs = EpochIndex(last)
        self.window, self._lasts, self.controls, self.faulty = [], [], [], ()
        self.compacted = -1

    def mark_faulty(self, span: Span) -> None:
        """Bytes of this stretch turned out to be unreadable. Overlapping spans become one."""
        before, last = span.before, span.last
        kept = []
        for other in self.faulty:
            if other.last.offset <= before.offset or other.before.offset >= last.offset:
                kept.append(other)
                continue
            before = min(before, other.before, key=lambda entry: entry.offset)
            last = max(last, other.last, key=lambda entry: entry.offset)
        before = max(before, self.base, key=lambda entry: entry.offset)
        last = min(last, self.head, key=lambda entry: entry.offset)
        if last.offset <= before.offset or before.offset >= self.head.offset:
            return  # Already cut, or covered by a snapshot.
        kept.append(Span(before, last))
        self.faulty = tuple(sorted(kept, key=lambda other: other.before.offset))
        # Headers inside the span stay true (they were verified when they were read), but must not be sent.
        place = bisect_left(self._lasts, last.offset + 1)
        del self.window[:place]
        del self._lasts[:place]

    def fall_back(self, before: EntryId, head: EntryId) -> None:
        """What was to be cut behind `before` is still there, up to `head`, and cannot be read."""
        self.cut(before)
        self.head = head
        self.faulty = (*self.faulty, Span(before, head))

    def repaired(self, headers: tuple[Header, ...]) -> None:
        """Faulty entries are whole again, from the front of their span."""
        for header in headers:
            span = self.span_at(header.offset)
            if span is None:
                continue
            if header.offset != span.first_offset or header.last > span.last.offset:
                continue  # The span moved meanwhile; what is still faulty will be asked for again.
            rest = () if header.last == span.last.offset else (Span(header.id, span.last),)
            self.faulty = tuple(
                sorted(
                    [other for other in self.faulty if other is not span] + list(rest),
                    key=lambda other: other.before.offset,
                )
            )
            self.epochs.insert(header.epoch, header.offset)
            if header.control is not None and isinstance(header.control, STICKY_CONTROLS):
                self.controls.append(header)
                self.controls.sort(key=lambda control: control.offset)
