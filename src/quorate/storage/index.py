"""Sparse index of one segment: where to start reading for an offset, one point per so many bytes.

Its size is bounded by the segment's, and only the last segment's index is in memory for as long as its log is
open; those of sealed segments are read from their footers when somebody reads there. It is never trusted:
frames say themselves which offset they hold.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right

from quorate.batch import NO_TIMESTAMP, Buffer

Point = tuple[int, int, int]
"""(first offset, position, highest timestamp from there to the next point)"""

UNKNOWN_TIME = 1 << 62
"""Instead of a timestamp: of an entry whose payload was not at hand, and which may be the newest of all."""

POINTS_KEPT_MAX = 16
"""Points of an unsealed segment that a checkpoint repeats: enough to find anything with a short scan."""


_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35


def newest_in(payload: Buffer) -> int:
    """The highest timestamp of a batch."""
    return int(_MAX_TIMESTAMP.unpack_from(payload, _MAX_TIMESTAMP_AT)[0]) if payload else UNKNOWN_TIME


class SparseIndex:
    __slots__ = ("_interval", "due", "offsets", "positions", "times")

    def __init__(self, interval_bytes: int, points: tuple[Point, ...] = ()) -> None:
        self._interval = interval_bytes
        self.offsets = array("q", [point[0] for point in points])
        self.positions = array("q", [point[1] for point in points])
        self.times = array("q", [point[2] for point in points])
        self.due = self.positions[-1] + interval_bytes if points else 0
        """The first entry at or behind this position becomes a point."""

    def add(self, offset: int, position: int, timestamp: int) -> None:
        assert position >= self.due
        assert not self.offsets or offset > self.offsets[-1]
        self.offsets.append(offset)
        self.positions.append(position)
        self.times.append(timestamp)
        self.due = position + self._interval

    def find(self, offset: int) -> tuple[int, int]:
        """(offset, position) of the last point at or below `offset`; the start if there is none."""
        place = bisect_right(self.offsets, offset) - 1
        return (self.offsets[place], self.positions[place]) if place >= 0 else (-1, 0)

    def cut(self, position: int) -> None:
        """Forget what lies at or behind `position`."""
        while self.positions and self.positions[-1] >= position:
            self.offsets.pop()
            self.positions.pop()
            self.times.pop()
        self.due = self.positions[-1] + self._interval if self.positions else 0

    @property
    def newest_time(self) -> int:
        return max(self.times, default=UNKNOWN_TIME)

    def points(self) -> tuple[Point, ...]:
        return tuple(zip(self.offsets, self.positions, self.times, strict=True))

    def few_points(self) -> tuple[Point, ...]:
        """A bounded choice: evenly spread, and always the newest."""
        count = len(self.offsets)
        if count <= POINTS_KEPT_MAX:
            return self.points()
        chosen = [place * (count - 1) // (POINTS_KEPT_MAX - 1) for place in range(POINTS_KEPT_MAX)]
        ends = [*chosen[1:], count]
        return tuple(
            (self.offsets[start], self.positions[start], max(self.times[start:end], default=NO_TIMESTAMP))
            for start, end in zip(chosen, ends, strict=True)
        )
