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
    __slots__ = ("_synchronous", "_waiting")

    def __init__(self, unsettled: Iterable[Header]) -> None:
        """`unsettled`: what former leaders left. Nobody here waits for it, but it needs its CONFIRM."""
        self._waiting: deque[Waiting] = deque()
        self._synchronous = deque(
            header.last
            for header in unsettled
            if header.kind == Kind.RECORDS and header.flags & Flag.SYNCHRONOUS
        )
        """The ends of synchronous entries that are not settled."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: int, headers: tuple[Header, ...]) -> None:
        ends = [header.last for header in headers if header.flags & Flag.SYNCHRONOUS]
        self._synchronous.extend(ends)
        self._waiting.append(Waiting(headers[0].offset, headers[-1].last, request, bool(ends)))

    def flushed(self, upto: int) -> list[Waiting]:
        """The leader's disk has everything up to there: the asynchronous ones that may be answered."""
        first_synchronous = self._synchronous[0] if self._synchronous else None
        answered = []
        while self._waiting and not self._waiting[0].synchronous and self._waiting[0].last <= upto:
            if first_synchronous is not None and self._waiting[0].last > first_synchronous:
                break  # Queued behind it (TT-37).
            answered.append(self._waiting.popleft())
        return answered

    def settled(self, upto: int) -> tuple[list[Waiting], bool]:
        """Everything up to there is settled: who waited for it, and whether a synchronous one is among it."""
        answered = []
        while self._waiting and self._waiting[0].last <= upto:
            answered.append(self._waiting.popleft())
        synchronous = bool(self._synchronous) and self._synchronous[0] <= upto
        while self._synchronous and self._synchronous[0] <= upto:
            self._synchronous.popleft()
        return answered, synchronous

    def drain(self) -> list[Waiting]:
        """Leadership has ended."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting
