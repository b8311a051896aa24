"""What a replica has ordered of its disk, and how much of that is durable.

An io is named by its number; what it was is (leader epoch, entry id), because one entry id can be cut and
appended again and again (OR-18). A completion whose entry was cut since counts for nothing, not even for
an entry that was appended again under the same id (OR-20): a cut lowers every append still on its way.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from quorate.core.entry import EntryId


class Append:
    """An append on its way to the disk. `last` falls when a cut overtakes it."""

    __slots__ = ("epoch", "io", "last")

    def __init__(self, io: int, epoch: int, last: EntryId) -> None:
        self.io = io
        self.epoch = epoch
        self.last = last


class Ordering:
    __slots__ = ("_appends", "_held", "durable", "issued", "persisted")

    def __init__(self, durable: EntryId) -> None:
        self.durable = durable
        """The last entry of the log that is flushed with everything below it."""
        self.issued = 0
        self.persisted = 0
        self._appends: deque[Append] = deque()
        self._held: deque[tuple[int, Any]] = deque()

    def issue(self) -> int:
        """The number of the next disk order."""
        self.issued += 1
        return self.issued

    @property
    def idle(self) -> bool:
        return self.persisted == self.issued

    def appended(self, io: int, epoch: int, last: EntryId) -> None:
        self._appends.append(Append(io, epoch, last))

    def cut(self, to: EntryId) -> None:
        if self.durable.offset > to.offset:
            self.durable = to
        for append in self._appends:
            if append.last.offset > to.offset:
                append.last = to

    def restarted_after(self, last: EntryId) -> None:
        """A durable snapshot took the log's place."""
        self._appends.clear()
        self.durable = last

    def hold(self, io: int, effect: Any) -> None:
        """Let `effect` out when order `io` is durable."""
        assert io > self.persisted
        assert not self._held or self._held[-1][0] <= io
        self._held.append((io, effect))

    def forget_held(self) -> None:
        """What waits to be said is not true any more."""
        self._held.clear()

    def complete(self, io: int) -> list[Any]:
        """Everything up to `io` is flushed: what may be said now?"""
        assert self.persisted <= io <= self.issued
        self.persisted = io
        while self._appends and self._appends[0].io <= io:
            last = self._appends.popleft().last
            if last.offset > self.durable.offset:
                self.durable = last
        released = []
        while self._held and self._held[0][0] <= io:
            released.append(self._held.popleft()[1])
        return released

    def fail(self, io: int) -> None:
        """Order `io` and all later ones were refused; what waited for them is never said."""
        assert io > self.persisted
        self.persisted = self.issued
        self._appends.clear()
        self._held.clear()
