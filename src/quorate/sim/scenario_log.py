"""Logs as scenarios write them: `1-0 1-1* 2-2..4 ?5 3-6`, and `1-0 ... 1-9` for a long row.

`2-2..4` is one entry of epoch 2 that covers the offsets 2 to 4, `1-1*` a control entry (a leader's no-op,
say), `?5` a damaged stretch, `after 1-4` the place where a log begins whose start was removed. In files that
count `offsets from 1` every offset is written one higher than it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quorate.core.entry import EntryId, Header, Kind
from quorate.core.log import LogView
from quorate.sim.scenario_words import Mistake, Word

EMPTY = "empty"
ENTRIES_MAX = 10_000
ROW_MIN = 4

_ENTRY = re.compile(r"(\d+)-(\d+)(?:\.\.(\d+))?(\*?)")
_DAMAGED = re.compile(r"\?(\d+)(?:\.\.(\d+))?")


class Item(NamedTuple):
    """One thing in a written log. Epoch 0: a damaged stretch."""

    epoch: int
    first: int
    last: int
    control: bool = False
    removed: bool = False
    """Not an entry: the log begins behind it."""

    @property
    def damaged(self) -> bool:
        return self.epoch == 0

    def admits(self, found: Item) -> bool:
        """Whether `found` is what is written here; a `*` may be left out."""
        return found._replace(control=found.control and self.control) == self


def read_entries(words: Sequence[Word], origin: int) -> tuple[Item, ...]:
    """What a row of words says; raises Mistake."""
    texts = [word.text for word in words]
    if texts == [EMPTY]:
        return ()
    items: list[Item] = []
    if texts[0] == "after" and len(texts) > 1:
        items.append(_read(texts[1], origin)._replace(removed=True))
        texts = texts[2:]
    row = False
    for text in texts:
        if text == "...":
            row = True
            continue
        item = _read(text, origin)
        if row:
            items += _between(items, item)
        row = False
        items.append(item)
        if len(items) > ENTRIES_MAX:
            raise Mistake(f"a log of more than {ENTRIES_MAX} entries is too long for a scenario")
    if row:
        raise Mistake("`...` stands between two entries: 1-0 ... 1-9")
    return tuple(items)


def _read(text: str, origin: int) -> Item:
    if found := _ENTRY.fullmatch(text):
        epoch, first = int(found[1]), int(found[2]) - origin
        last = int(found[3]) - origin if found[3] else first
        if epoch == 0:
            raise Mistake(f"{text}: epochs of entries begin with 1")
        if first < 0:
            raise Mistake(f"{text}: this file counts offsets from {origin}")
        if last < first:
            raise Mistake(f"{text}: an entry ends where it begins, or later")
        return Item(epoch, first, last, control=bool(found[4]))
    if found := _DAMAGED.fullmatch(text):
        first = int(found[1]) - origin
        return Item(0, first, int(found[2]) - origin if found[2] else first)
    raise Mistake(
        f"`{text}` is no entry; write `3-0` (epoch 3, offset 0), `3-0..2` (one entry of three offsets), "
        f"`3-0*` (a control entry), `1-0 ... 1-9` (a row), or `{EMPTY}`"
    )


def _between(items: list[Item], end: Item) -> list[Item]:
    if not items or items[-1].epoch != end.epoch or end.first <= items[-1].last:
        raise Mistake("`...` stands between two entries of one epoch, the second one behind the first")
    return [Item(end.epoch, offset, offset) for offset in range(items[-1].last + 1, end.first)]


def check_given(items: tuple[Item, ...]) -> None:
    """Whether a log could be like this; raises Mistake."""
    next_offset, epoch = 0, 0
    for item in items:
        if item.damaged or item.removed:
            raise Mistake("a given log is whole and starts at the first offset; damage it later")
        if item.first != next_offset:
            raise Mistake(f"the entries of a log follow each other: {item.epoch}-{item.first} does not")
        if item.epoch < epoch:
            raise Mistake("epochs never fall along a log")
        next_offset, epoch = item.last + 1, item.epoch


def log_items(log: LogView, known: Mapping[tuple[int, int], Header], upto: int | None = None) -> list[Item]:
    """What a replica's log is, as far as `upto`. `known`: every entry ever, by epoch and offset covered."""
    items = []
    if log.base.offset >= 0:
        items.append(Item(log.base.epoch, log.base.offset, log.base.offset, removed=True))
    offset = log.base.offset + 1
    end = log.head.offset if upto is None else min(upto, log.head.offset)
    while offset <= end:
        span = log.span_at(offset)
        if span is not None:
            items.append(Item(0, offset, span.last.offset))
        else:
            header = known[log.epoch_at(offset), offset]
            items.append(Item(header.epoch, header.offset, header.last, control=header.kind == Kind.CONTROL))
        offset = items[-1].last + 1
    return items


def admits(wanted: Sequence[Item], found: Sequence[Item]) -> bool:
    return len(wanted) == len(found) and all(map(Item.admits, wanted, found))


def write_items(items: Sequence[Item], origin: int) -> str:
    """As it would be written in a scenario, long rows as `1-0 ... 1-9`."""
    words = []
    at = 0
    while at < len(items):
        end = at
        while end + 1 < len(items) and _goes_on(items[end], items[end + 1]):
            end += 1
        if end - at >= ROW_MIN:
            words += [_write(items[at], origin), "...", _write(items[end], origin)]
        else:
            words += [_write(item, origin) for item in items[at : end + 1]]
        at = end + 1
    return " ".join(words) or EMPTY


def _goes_on(item: Item, following: Item) -> bool:
    """Whether both belong to one row of plain entries of one offset each."""
    return item == Item(item.epoch, item.first, item.first) and following == item._replace(
        first=item.first + 1, last=item.first + 1
    )


def _write(item: Item, origin: int) -> str:
    tail = f"..{item.last + origin}" if item.last > item.first else ""
    if item.damaged:
        return f"?{item.first + origin}{tail}"
    star = "*" if item.control else ""
    return f"{'after ' if item.removed else ''}{item.epoch}-{item.first + origin}{tail}{star}"


def write_position(position: EntryId, origin: int) -> str:
    return f"{position.epoch}-{position.offset + origin}" if position.offset >= 0 else "nothing"


def write_headers(headers: Sequence[Header], origin: int) -> str:
    items = [
        Item(header.epoch, header.offset, header.last, control=header.kind == Kind.CONTROL)
        for header in headers
    ]
    return write_items(items, origin)
