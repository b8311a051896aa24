"""The keys of one table in order, in chunks, so that no insertion moves more than one of them.

Keys are put in order late. Whoever changes rows notes which keys came or went, in any order; before somebody reads,
and whenever many are noted, the noted ones are looked at one by one: is it wanted, is it there? So the hot path of
writing costs next to nothing, and no reader ever pays for more than `NOTED_MAX` keys.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

CHUNK_MAX = 1024
"""Keys; a chunk that grows beyond is split in two."""
NOTED_MAX = 512
"""Keys that may wait to be put in order."""

Key = Any
"""Of a table: one value, or a tuple of several. Keys of one table compare."""


class SortedKeys:
    __slots__ = ("_chunks", "_lasts")

    def __init__(self, ordered: Iterable[Key] = ()) -> None:
        keys = list(ordered)
        half = CHUNK_MAX // 2
        self._chunks: list[list[Key]] = [keys[at : at + half] for at in range(0, len(keys), half)]
        self._lasts: list[Key] = [chunk[-1] for chunk in self._chunks]
        """The greatest key of each chunk."""

    def __iter__(self) -> Iterator[Key]:
        for chunk in self._chunks:
            yield from chunk

    def reconcile(self, noted: Iterable[Key], is_wanted: Callable[[Key], bool]) -> None:
        """Let each of the noted keys be here if, and only if, it is wanted."""
        for key in sorted(noted):
            if is_wanted(key):
                self._add(key)
            else:
                self._discard(key)

    def between(self, first: Key | None, last: Key | None) -> Iterator[Key]:
        """From `first` to `last`, both included. A shorter tuple stands for all keys that begin with it."""
        number, at = self._find(first) if first is not None else (0, 0)
        for chunk in islice(self._chunks, number, None):
            end = len(chunk) if last is None else _end_of(chunk, last)
            yield from islice(chunk, at, end)
            if end < len(chunk):
                return
            at = 0

    def behind(self, key: Key | None, count: int) -> list[Key]:
        """Up to so many keys above that one; None: the first ones. None at all: that was the last."""
        if key is None:
            return self._chunks[0][:count] if self._chunks else []
        number = bisect_right(self._lasts, key)
        if number == len(self._chunks):
            return []
        chunk = self._chunks[number]
        at = bisect_right(chunk, key)
        return chunk[at : at + count]

    def _find(self, key: Key) -> tuple[int, int]:
        """Which chunk, and where in it, the first key is that is not below."""
        number = bisect_left(self._lasts, key)
        if number == len(self._chunks):
            return number, 0
        return number, bisect_left(self._chunks[number], key)

    def _add(self, key: Key) -> None:
        chunks, lasts = self._chunks, self._lasts
        if not chunks:
            chunks.append([key])
            lasts.append(key)
            return
        number = bisect_left(lasts, key)
        if number == len(chunks):
            number -= 1
            chunks[number].append(key)
            lasts[number] = key
        else:
            chunk = chunks[number]
            at = bisect_left(chunk, key)
            if chunk[at] == key:
                return
            chunk.insert(at, key)
        chunk = chunks[number]
        if len(chunk) > CHUNK_MAX:
            half = CHUNK_MAX // 2
            chunks[number : number + 1] = [chunk[:half], chunk[half:]]
            lasts.insert(number, chunk[half - 1])

    def _discard(self, key: Key) -> None:
        chunks, lasts = self._chunks, self._lasts
        number, at = self._find(key)
        if number == len(chunks) or chunks[number][at] != key:
            return
        chunk = chunks[number]
        del chunk[at]
        if not chunk:
            del chunks[number], lasts[number]
        elif at == len(chunk):
            lasts[number] = chunk[-1]


def _end_of(chunk: list[Key], last: Key) -> int:
    if type(last) is tuple:
        columns = len(last)
        return bisect_right(chunk, last, key=lambda key: key[:columns])
    return bisect_right(chunk, last)
