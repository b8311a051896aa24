"""What became of the last transactions, by id: why a repetition is harmless, and what a client can ask later.

Remembered are the last so many transactions of the log, not of the clock and not of what happens to be settled: a
copy that applies an entry before those below it are settled must find the same as one that applies it afterwards.
So whoever looks counts back from the newest transaction in the log, wherever the settled ones end. A repetition is
not counted: it is as if it were not there.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from quorate.tables import ID_BYTES, Level, Outcome, Result

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
    """Two rings hold ids and offsets of what is settled, once there are as many as are remembered.

    They are flat memory, copied at once, and nothing that the garbage collector looks through.
    """

    __slots__ = (
        "_count",
        "_ids",
        "_max",
        "_offsets",
        "_refused",
        "_settled",
        "_settled_count",
        "_unsettled",
    )

    def __init__(self, remembered_max: int, settled: Iterable[Known] = ()) -> None:
        """`settled`: oldest first."""
        self._max = remembered_max
        self._settled: dict[bytes, int] = {}
        """Offsets."""
        self._refused: dict[bytes, str] = {}
        """Why, of those among the settled ones that were refused."""
        self._ids = bytearray()
        self._offsets = array("q")
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
        offset = self._settled.get(id_)
        return None if offset is None else _result(offset, self._refused.get(id_, ""))

    def settled(self) -> Iterator[Known]:
        """All that is remembered of what is settled now, oldest first; to be gone through at leisure."""
        return _in_order(
            self._settled_count % self._max, bytes(self._ids), self._offsets[:], dict(self._refused)
        )

    def _keep(self, id_: bytes, offset: int, why: str) -> None:
        slot = self._settled_count % self._max
        at = slot * ID_BYTES
        ids = self._ids
        if at < len(ids):
            oldest = bytes(ids[at : at + ID_BYTES])
            del self._settled[oldest]
            if self._refused:
                self._refused.pop(oldest, None)
            self._offsets[slot] = offset
        else:
            self._offsets.append(offset)
        ids[at : at + ID_BYTES] = id_
        self._settled_count += 1
        self._settled[id_] = offset
        if why:
            self._refused[id_] = why

    def _find(self, id_: bytes) -> Result | None:
        """What is remembered behind everything that was appended."""
        remembered = self._unsettled.get(id_)
        if remembered is not None:
            if remembered.number < self._count - self._max:
                return None
            return _result(remembered.offset, remembered.why)
        offset = self._settled.get(id_)
        if offset is None or self._is_hidden(offset):
            return None
        return _result(offset, self._refused.get(id_, ""))

    def _is_hidden(self, offset: int) -> bool:
        """Whether so many unsettled ones have come behind it that it will be forgotten when they are settled."""
        first = self._count - self._max  # The number of the oldest that is remembered.
        if first <= self._settled_count - len(self._settled):
            return False
        return first >= self._settled_count or offset < self._offsets[first % self._max]


def _result(offset: int, why: str) -> Result:
    return Result(Outcome.REFUSED if why else Outcome.DONE, offset, why)


def _in_order(oldest: int, ids: bytes, offsets: array[int], refused: dict[bytes, str]) -> Iterator[Known]:
    for slot in chain(range(oldest, len(offsets)), range(min(oldest, len(offsets)))):
        id_ = ids[slot * ID_BYTES : (slot + 1) * ID_BYTES]
        yield id_, offsets[slot], refused.get(id_, "")
