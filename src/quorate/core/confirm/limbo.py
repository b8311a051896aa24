"""The limbo: transactions that wait for their quorum, in order (TT-5, TT-36 to TT-38).

A synchronous one is answered when it is settled: on a quorum, or rolled back. An asynchronous one is answered when
it is flushed on the leader, and may be lost yet; but not before every synchronous one ahead of it is settled, for
if that is rolled back, so is everything behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from quorate.core.entry import Flag, Header, Kind


class Waiting(msgspec.Struct, gc=False):
    """Somebody waits for the entries `first … last`."""

    first: int
    last: int
    request: int
    synchronous: bool


class Limbo:
    __slots__ = ("_synchronous", "_unsettled", "_waiting")

    def __init__(self, unsettled: Iterable[Header]) -> None:
        """`unsettled`: what former leaders left. Nobody here waits for it, but it needs its CONFIRM."""
        self._waiting: deque[Waiting] = deque()
        self._unsettled: deque[int] = deque()
        """The ends of all entries in it, also of those that were answered when they were flushed."""
        self._synchronous: deque[int] = deque()
        """The ends of the synchronous ones among them."""
        self._enter(header for header in unsettled if header.kind == Kind.RECORDS)

    def __len__(self) -> int:
        """How many entries are not settled: that is bounded, whoever waits for them or does not."""
        return len(self._unsettled)

    def _enter(self, headers: Iterable[Header]) -> bool:
        """Whether a synchronous one is among them."""
        before = len(self._synchronous)
        for header in headers:
            self._unsettled.append(header.last)
            if header.flags & Flag.SYNCHRONOUS:
                self._synchronous.append(header.last)
        return len(self._synchronous) > before

    def add(self, request: int, headers: tuple[Header, ...]) -> None:
        synchronous = self._enter(headers)
        self._waiting.append(Waiting(headers[0].offset, headers[-1].last, request, synchronous))

    def flushed(self, upto: int) -> list[Waiting]:
        """The leader's disk has everything up to there: the asynchronous ones that may be answered."""
        first_synchronous = self._synchronous[0] if self._synchronous else None
        answered = []
        while self._waiting and not self._waiting[0].synchronous and self._waiting[0].last <= upto:
            if first_synchronous is not None and self._waiting[0].last > first_synchronous:
                break  # Queued behind it (TT-37).
            answered.append(self._waiting.popleft())
        return answered

    def settled(self, upto: int) -> tuple[list[Waiting], list[int]]:
        """Everything up to there is settled: who waited for it, and the ends of the synchronous ones among it."""
        answered = []
        while self._waiting and self._waiting[0].last <= upto:
            answered.append(self._waiting.popleft())
        _take(self._unsettled, upto)
        return answered, _take(self._synchronous, upto)

    def begun(self, settled: int) -> int:
        """Up to where the proposal goes that is settled in part: it is one to whoever waits for it, and cannot be
        taken back any more."""
        oldest = self._waiting[0] if self._waiting else None
        return oldest.last if oldest is not None and oldest.first <= settled else settled

    def drain(self) -> list[Waiting]:
        """Leadership has ended."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting


def _take(ends: deque[int], upto: int) -> list[int]:
    taken = []
    while ends and ends[0] <= upto:
        taken.append(ends.popleft())
    return taken
