"""Getting damaged entries back from peers. The same for every protocol, and apart from leadership.

A faulty span names the entry before it and its own last entry. A log that holds both ids holds the very
entries that are missing (log matching), whoever leads and whatever is settled: so any intact copy will do,
a replica without a leader can be repaired too, and several damaged replicas repair each other. Only where
*every* other copy is damaged or gone is a person told.

Where the end of a span was never settled, perhaps no other log has it. Then a settled entry inside of the
span, which every log that leads has, is named by the leader, and the span is asked for up to there.
"""

from __future__ import annotations

import msgspec

from quorate.core.entry import NOWHERE, Header, Span
from quorate.core.log import LogView

REPAIR_ENTRIES_MAX = 256
REPAIR_BYTES_MAX = 1 << 20

DAMAGED = "damaged"
UNKNOWN = "unknown"
REMOVED = "removed"


class WantEntries(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="want"):
    """A replica with damage asks for the entries of a span. Not about leadership: any copy will do."""

    epoch: int
    span: Span
    generation: int = -1
    """How far the generation of compaction reaches that its log is of: what is put there has to fit."""


class HaveEntries(msgspec.Struct, frozen=True, gc=False, tag="have"):
    """The front of what was wanted; or why not: `damaged` here too, `unknown` here, or `removed`."""

    epoch: int
    span: Span
    headers: tuple[Header, ...] = ()
    why_not: str = ""


def why_not(log: LogView, span: Span, generation: int = -1) -> str:
    """Why this log cannot give the entries of `span` to one of that generation; empty if it can.

    Those of different ones have other bytes there. That passes: everybody gets to the newest by himself.
    """
    if generation != log.compacted and span.first_offset <= max(generation, log.compacted):
        return UNKNOWN
    if span.before.offset < log.base.offset:
        return REMOVED
    if any(
        own.before.offset < span.last.offset and span.before.offset < own.last.offset for own in log.faulty
    ):
        return DAMAGED
    return "" if log.holds(span.before) and log.holds(span.last) else UNKNOWN


class Repairing:
    """One replica's quest for its missing entries: one span at a time, one peer at a time."""

    __slots__ = ("_answers", "_asked", "_turn", "asked_at", "peers", "reported", "retry_s", "settled")

    def __init__(self, peers: tuple[int, ...], retry_s: float) -> None:
        self.peers = peers
        self._turn = 0
        self._answers: dict[int, str] = {}
        self._asked: Span | None = None
        """Why each peer could not help, and with what."""
        self.retry_s = retry_s
        self.asked_at: float | None = None
        self.reported: Span | None = None
        self.settled = NOWHERE
        """The last settled entry that a leader named inside of a faulty span."""

    def wanted(self, log: LogView) -> Span | None:
        """What is missing first, by names that others know."""
        if not log.faulty:
            return None
        span = log.faulty[0]
        if span.before.offset < self.settled.offset < span.last.offset:
            return Span(span.before, self.settled)
        return span

    def deadline(self, log: LogView) -> float | None:
        if not log.faulty or not self.peers:
            return None
        return 0.0 if self.asked_at is None else self.asked_at + self.retry_s

    def ask(self, now: float, log: LogView) -> tuple[int, Span] | None:
        """Whom to ask for what, if it is time to."""
        due = self.deadline(log)
        span = self.wanted(log)
        if span is None or due is None or now < due:
            return None
        self.asked_at = now
        peer = self.peers[self._turn % len(self.peers)]
        self._turn += 1
        return peer, span

    def answered(self, log: LogView, *, peer: int, span: Span, reason: str) -> bool:
        """A peer cannot help. True when now every peer has said so: nobody has it whole."""
        if span != self.wanted(log):
            return False
        if span != self._asked:
            self._asked = span
            self._answers.clear()
        self._answers[peer] = reason
        if any(self._answers.get(other) != DAMAGED for other in self.peers) or self.reported == span:
            return False
        self.reported = span
        return True

    def usable(self, log: LogView, span: Span, headers: tuple[Header, ...]) -> tuple[Header, ...]:
        """Those of the entries that fill the front of the first faulty span, if `span` still is that."""
        if span != self.wanted(log):
            return ()  # What was asked for then is perhaps not what stood there since.
        fitting = tuple(header for header in headers if header.last <= span.last.offset)
        if not fitting or fitting[0].offset != span.first_offset:
            return ()
        if fitting[-1].last == span.last.offset and fitting[-1].id != span.last:
            return ()
        self._answers.clear()
        self.asked_at = None
        return fitting
