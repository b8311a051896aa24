"""The keys of one table in order, in chunks, so that no change moves more than some of them.

Keys are put in order late. Whoever changes rows notes which keys came or went, in any order; before somebody reads,
and whenever many are noted, the noted ones are looked at one by one: is it wanted, is it there? So the hot path of
writing costs next to nothing, and no reader ever pays for more than `NOTED_MAX` keys.

Chunks are tuples. Python's garbage collector forgets a tuple in which it has found nothing to collect, and looks
through a list again and again: with a million keys in lists, that would be the longest stop of all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

CHUNK_MAX = 256
"""Keys; a chunk that grows beyond is split in two."""
NOTED_MAX = 512
"""Keys that may wait to be put in order."""

Key = Any
"""Of a table: one value, or a tuple of several. Keys of one table compare."""


class SortedKeys:
    __slots__ = ("_chunks", "_lasts")

    def __init__(self, ordered: Iterable[Key] = ()) -> None:
        keys = tuple(ordered)
        half = CHUNK_MAX // 2
        self._chunks: list[tuple[Key, ...]] = [keys[at : at + half] for at in range(0, len(keys), half)]
        self._lasts: list[Key] = [chunk[-1] for chunk in self._chunks]
        """The greatest key of each chunk."""

    def __iter__(self) -> Iterator[Key]:
        for chunk in self._chunks:
            yield from chunk

    def reconcile(self, noted: Iterable[Key], is_wanted: Callable[[Key], bool]) -> None:
        """Let each of the noted keys be here if, and only if, it is wanted."""
        keys = sorted(noted)
        at = 0
        while at < len(keys):
            number = min(bisect_left(self._lasts, keys[at]), max(0, len(self._chunks) - 1))
            is_last = number >= len(self._chunks) - 1
            end = len(keys) if is_last else bisect_right(keys, self._lasts[number], at)
            self._reconcile_chunk(number, keys[at:end], is_wanted)
            at = end

    def _reconcile_chunk(self, number: int, keys: list[Key], is_wanted: Callable[[Key], bool]) -> None:
        """The same with keys that belong into one chunk, of which there may be none yet."""
        before = self._chunks[number] if self._chunks else ()
        chunk = list(before)
        for key in keys:
            at = bisect_left(chunk, key)
            is_here = at < len(chunk) and chunk[at] == key
            if is_wanted(key):
                if not is_here:
                    chunk.insert(at, key)
            elif is_here:
                del chunk[at]
        if len(chunk) == len(before) and tuple(chunk) == before:
            return
        half = CHUNK_MAX // 2
        size = half if len(chunk) > CHUNK_MAX else CHUNK_MAX
        made = [tuple(chunk[at : at + size]) for at in range(0, len(chunk), size)]
        self._chunks[number : number + 1] = made
        self._lasts[number : number + 1] = [part[-1] for part in made]

    def between(self, first: Key | None, last: Key | None) -> Iterator[Key]:
        """From `first` to `last`, both included. A shorter tuple stands for all keys that begin with it."""
        number, at = self._find(first) if first is not None else (0, 0)
        for chunk in islice(self._chunks, number, None):
            end = len(chunk) if last is None else _end_of(chunk, last)
            yield from islice(chunk, at, end)
            if end < len(chunk):
                return
            at = 0

    def behind(self, key: Key | None, count: int) -> tuple[Key, ...]:
        """The next so many keys above that one; None: the first ones."""
        chunks = self._chunks
        number = 0 if key is None else bisect_right(self._lasts, key)
        if number == len(chunks):
            return ()
        at = 0 if key is None else bisect_right(chunks[number], key)
        found = chunks[number][at : at + count]
        for chunk in islice(chunks, number + 1, None):
            if len(found) == count:
                break
            found += chunk[: count - len(found)]
        return found

    def _find(self, key: Key) -> tuple[int, int]:
        """Which chunk, and where in it, the first key is that is not below."""
        number = bisect_left(self._lasts, key)
        if number == len(self._chunks):
            return number, 0
        return number, bisect_left(self._chunks[number], key)


def _end_of(chunk: tuple[Key, ...], last: Key) -> int:
    if type(last) is tuple:
        columns = len(last)
        return bisect_right(chunk, last, key=lambda key: key[:columns])
    return bisect_right(chunk, last)
