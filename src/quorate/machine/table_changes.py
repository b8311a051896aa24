"""The last changes of a group's rows, for whoever follows them: which row, what it was, what it is.

The log says what was wanted; what came of it (which rows an update met, what an upsert did) is known where it is
applied. So each copy keeps the settled changes of the last entries, as many as fit, in memory. They are no state: a
copy that began with a snapshot knows none from before it, and whoever asks hears from where on they are kept. From
an offset that is kept on, all copies say the same.

With them a table can also be read as it was (`past`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from quorate.batch import NO_TIMESTAMP, Buffer
from quorate.machine.table_keys import Key
from quorate.machine.table_rows import Changed, Rows

CHANGES_BYTES_MAX = 64 << 20
"""Of one group; but the changes of the newest entry are always kept."""
CHANGE_BYTES = 160
"""What a change costs beside its rows."""
LOOKED_MAX = 20_000
"""Changes that are looked at for one page: a few milliseconds."""
TIMESTAMP_AT, TIMESTAMP_END = 27, 35
"""Of a batch's first record."""


class Change(msgspec.Struct, gc=False):
    offset: int
    timestamp: int
    """When its transaction was taken, in milliseconds since 1970; -1: nobody has said."""
    table: str
    key: Key | None
    """None: the table itself was made or dropped."""
    before: bytes | None
    """Rows as they are kept; None: there was none."""
    after: bytes | None


class Page(NamedTuple):
    changes: list[Change]
    resume: tuple[int, int] | None
    """Where the next page begins: at this offset, behind so many changes of it that were looked at. None: all is
    seen."""


class Gone(Exception):
    """It is not kept any more, or never was here."""

    def __init__(self, first: int) -> None:
        super().__init__(f"changes are kept from offset {first} on")
        self.first = first


class Changes:
    __slots__ = ("_bytes", "_kept", "_max", "first")

    def __init__(self, bytes_max: int, first: int = 0) -> None:
        self._kept: deque[Change] = deque()
        self._bytes = 0
        self._max = bytes_max
        self.first = first
        """From this offset on everything that was settled is here."""

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, offset: int, payload: Buffer, changes: Sequence[Changed]) -> None:
        """What the entry there has changed, in order, now that it is settled."""
        timestamp = NO_TIMESTAMP
        if len(payload) >= TIMESTAMP_END:
            timestamp = int.from_bytes(payload[TIMESTAMP_AT:TIMESTAMP_END], "big", signed=True)
        kept = self._kept
        if len(changes) > 1:
            changes = _net(changes)
        for box, key, before, after in changes:
            if type(box) is Rows:
                kept.append(Change(offset, timestamp, box.table.name, key, before, after))
                size = CHANGE_BYTES
                if before is not None:
                    size += len(before)
                if after is not None:
                    size += len(after)
                self._bytes += size
            elif isinstance(before, Rows) or isinstance(after, Rows):
                kept.append(Change(offset, timestamp, key, None, before and b"", after and b""))
                self._bytes += CHANGE_BYTES
        if self._bytes > self._max:
            self._make_room(offset)

    def _make_room(self, newest: int) -> None:
        """Entries go whole, oldest first."""
        kept = self._kept
        while self._bytes > self._max and kept[0].offset < newest:
            oldest = kept[0].offset
            while kept and kept[0].offset == oldest:
                self._bytes -= _size(kept.popleft())
            self.first = oldest + 1

    def page(self, table: str, *, first: int, last: int, skip: int, limit: int, bytes_max: int) -> Page:
        """Changes of that table, from the entry at `first` to that at `last`; raises Gone."""
        if first < self.first:
            raise Gone(self.first)
        kept = self._kept
        at = self._index(first) + skip
        found: list[Change] = []
        left_bytes = bytes_max
        for index in range(at, len(kept)):
            change = kept[index]
            if change.offset > last:
                break
            is_wanted = change.table == table
            full = is_wanted and found and (len(found) >= limit or left_bytes < _size(change))
            if full or index - at >= LOOKED_MAX:
                return Page(found, (change.offset, index - self._index(change.offset)))
            if is_wanted:
                found.append(change)
                left_bytes -= _size(change)
        return Page(found, None)

    def past(self, table: str, at: int) -> dict[Key, bytes | None]:
        """Of every row that has changed behind the offset `at`: what it was then. Raises Gone."""
        if at + 1 < self.first:
            raise Gone(self.first)
        was: dict[Key, bytes | None] = {}
        for change in reversed(self._kept):
            if change.offset <= at:
                break
            if change.table == table:
                if change.key is None:
                    raise Gone(change.offset)
                was[change.key] = change.before
        return was

    def _index(self, offset: int) -> int:
        """Of the first change at that offset or behind it."""
        low, high = 0, len(self._kept)
        while low < high:
            middle = (low + high) // 2
            if self._kept[middle].offset < offset:
                low = middle + 1
            else:
                high = middle
        return low


def _size(change: Change) -> int:
    return CHANGE_BYTES + len(change.before or b"") + len(change.after or b"")


def _net(changes: Sequence[Changed]) -> list[Changed]:
    """One change for each row: what it was before the transaction, what it is behind it.

    A table that was dropped and made anew in between is another one: its rows have changes of their own.
    """
    net: dict[tuple[int, Key], Changed] = {}
    for box, key, before, after in changes:
        which = id(box), key
        if which in net and type(box) is Rows:
            net[which] = (box, key, net[which][2], after)
        elif type(box) is Rows:
            net[which] = (box, key, before, after)
        else:
            net[len(net), None] = (box, key, before, after)
    return [each for each in net.values() if each[2] is not each[3]]
