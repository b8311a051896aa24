"""What became of the last transactions, by id: why a repetition is harmless, and what a client can ask later.

Remembered are the last so many transactions of the log, not of the clock and not of what happens to be settled: a
copy that applies an entry before those below it are settled must find the same as one that applies it afterwards.
So every transaction that is remembered takes a number, and whoever looks counts back from the newest number in the
log, wherever the settled ones end. A repetition takes no number: it is as if it were not there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from quorate.machine.table_types import Level, Outcome, Result


class Remembered(msgspec.Struct, frozen=True, gc=False):
    id: bytes
    number: int
    offset: int
    why: str | None
    """None: it was done."""


class Memory:
    __slots__ = ("_max", "_numbers", "_order", "_settled", "_unsettled")

    def __init__(self, remembered_max: int, settled: Iterable[tuple[bytes, int, str | None]] = ()) -> None:
        """`settled`: id, offset and why of each, oldest first."""
        self._max = remembered_max
        self._order = deque(
            Remembered(id_, number, offset, why) for number, (id_, offset, why) in enumerate(settled)
        )
        self._settled = {remembered.id: remembered for remembered in self._order}
        self._unsettled: dict[bytes, Remembered] = {}
        self._numbers = len(self._order)
        """Given out so far, less those that were taken back."""

    def find(self, id_: bytes) -> Remembered | None:
        """What is known of it behind everything that was appended."""
        found = self._unsettled.get(id_) or self._settled.get(id_)
        if found is None or found.number < self._numbers - self._max:
            return None
        return found

    def add(self, id_: bytes, offset: int, why: str | None) -> tuple[Remembered, Remembered | None]:
        """A transaction that was appended. To be taken back with both: itself, and which one it hides."""
        remembered = Remembered(id_, self._numbers, offset, why)
        hidden = self._unsettled.get(id_)
        self._unsettled[id_] = remembered
        self._numbers += 1
        return remembered, hidden

    def take_back(self, remembered: Remembered, hidden: Remembered | None) -> None:
        """The newest one never was."""
        self._numbers -= 1
        assert remembered.number == self._numbers, "results are taken back newest first"
        assert self._unsettled[remembered.id] is remembered
        if hidden is None:
            del self._unsettled[remembered.id]
        else:
            self._unsettled[remembered.id] = hidden

    def settle(self, remembered: Remembered) -> None:
        """The oldest one that was added and is not settled stands."""
        id_ = remembered.id
        if self._unsettled[id_] is remembered:
            del self._unsettled[id_]
        order = self._order
        if len(order) >= self._max:
            del self._settled[order.popleft().id]
        order.append(remembered)
        self._settled[id_] = remembered

    def result(self, id_: bytes, level: Level) -> Result | None:
        remembered = self._settled.get(id_) if level == Level.COMMITTED else self.find(id_)
        if remembered is None:
            return None
        if remembered.why is None:
            return Result(Outcome.DONE, remembered.offset)
        return Result(Outcome.REFUSED, remembered.offset, remembered.why)

    def settled(self) -> list[Remembered]:
        """All that is remembered of what is settled, oldest first."""
        return list(self._order)
