"""What became of the last transactions, by id: why a repetition is harmless, and what a client can ask later.

Remembered are the last so many transactions of the log, not of the clock and not of what happens to be settled: a
copy that applies an entry before those below it are settled must find the same as one that applies it afterwards.
So whoever looks counts back from the newest transaction in the log, wherever the settled ones end. A repetition is
not counted: it is as if it were not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from quorate.machine.table_types import ID_BYTES, Level, Outcome, Result

Known = tuple[bytes, int, str]
"""Of a transaction, in snapshots: id, offset, and why it was refused, if it was."""


class Remembered(msgspec.Struct, gc=False):
    """A transaction that was appended and is not settled."""

    id: bytes
    offset: int
    why: str = ""
    """It was refused; empty: it was done."""
    number: int = -1
    """Counted in the log; -1: not yet."""
    hides: Remembered | None = None
    """An older one of the same id, so old that it was forgotten behind this one."""


class Memory:
    __slots__ = ("_count", "_max", "_ring", "_settled", "_settled_count", "_unsettled")

    def __init__(self, remembered_max: int, settled: Iterable[Known] = ()) -> None:
        """`settled`: oldest first."""
        self._max = remembered_max
        self._settled: dict[bytes, int | Result] = {}
        """The offset of what was done, the result of what was refused."""
        self._ring = bytearray()
        """Ids of what is settled, one behind the other, in a ring once there are as many as are remembered: nothing
        that the garbage collector looks through."""
        self._unsettled: dict[bytes, Remembered] = {}
        self._settled_count = 0
        self._count = 0
        """Of all transactions, settled or not, that were ever counted here: the next number."""
        for id_, offset, why in settled:
            self.settle_at_once(id_, offset, why)

    def knows(self, id_: bytes) -> bool:
        """Whether it is remembered behind everything that was appended."""
        return (id_ in self._unsettled or id_ in self._settled) and self._find(id_) is not None

    def add(self, remembered: Remembered) -> None:
        """A transaction that is not known was appended."""
        unsettled = self._unsettled
        id_ = remembered.id
        remembered.number = self._count
        self._count += 1
        if id_ in unsettled:
            remembered.hides = unsettled[id_]
        unsettled[id_] = remembered

    def take_back(self, remembered: Remembered) -> None:
        """The newest one never was."""
        self._count -= 1
        assert remembered.number == self._count, "results are taken back newest first"
        assert self._unsettled[remembered.id] is remembered
        if remembered.hides is None:
            del self._unsettled[remembered.id]
        else:
            self._unsettled[remembered.id] = remembered.hides

    def settle(self, remembered: Remembered) -> None:
        """The oldest one that was added and is not settled stands."""
        id_ = remembered.id
        if self._unsettled[id_] is remembered:
            del self._unsettled[id_]
        self._keep(id_, remembered.offset, remembered.why)

    def settle_at_once(self, id_: bytes, offset: int, why: str) -> None:
        """A transaction that is not known was settled without having been appended before."""
        self._count += 1
        self._keep(id_, offset, why)

    def result(self, id_: bytes, level: Level) -> Result | None:
        if level == Level.LOCAL:
            return self._find(id_)
        kept = self._settled.get(id_)
        return Result(Outcome.DONE, kept) if isinstance(kept, int) else kept

    def settled(self) -> Iterator[Known]:
        """All that is remembered of what is settled now, oldest first; to be gone through at leisure."""
        return map(_known, list(self._settled), list(self._settled.values()))

    def _keep(self, id_: bytes, offset: int, why: str) -> None:
        ring = self._ring
        at = self._settled_count % self._max * ID_BYTES
        if at < len(ring):
            del self._settled[bytes(ring[at : at + ID_BYTES])]
        ring[at : at + ID_BYTES] = id_
        self._settled_count += 1
        self._settled[id_] = Result(Outcome.REFUSED, offset, why) if why else offset

    def _find(self, id_: bytes) -> Result | None:
        """What is remembered behind everything that was appended."""
        remembered = self._unsettled.get(id_)
        if remembered is not None:
            if remembered.number < self._count - self._max:
                return None
            if remembered.why:
                return Result(Outcome.REFUSED, remembered.offset, remembered.why)
            return Result(Outcome.DONE, remembered.offset)
        kept = self._settled.get(id_)
        if kept is None or self._is_hidden(kept):
            return None
        return Result(Outcome.DONE, kept) if isinstance(kept, int) else kept

    def _is_hidden(self, kept: int | Result) -> bool:
        """Whether so many unsettled ones have come behind it that it will be forgotten when they are settled."""
        first = self._count - self._max  # The number of the oldest that is remembered.
        if first <= self._settled_count - len(self._settled):
            return False
        if first >= self._settled_count:
            return True
        at = first % self._max * ID_BYTES
        return _offset(kept) < _offset(self._settled[bytes(self._ring[at : at + ID_BYTES])])


def _offset(kept: int | Result) -> int:
    return kept if isinstance(kept, int) else kept.offset


def _known(id_: bytes, kept: int | Result) -> Known:
    return (id_, kept, "") if isinstance(kept, int) else (id_, kept.offset, kept.why)
