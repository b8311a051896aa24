"""A node's own clock: it may run fast or slow, and jump."""

from __future__ import annotations


class Clock:
    """Between changes, local time is a straight line over the world's time."""

    __slots__ = ("_local", "_rate", "_world")

    def __init__(self, start: float = 0.0) -> None:
        self._world = 0.0
        self._local = start
        self._rate = 1.0

    def local(self, now: float) -> float:
        return self._local + (now - self._world) * self._rate

    def world(self, local: float) -> float:
        """When the clock will show `local`, if nothing happens to it."""
        return self._world + (local - self._local) / self._rate

    def change(self, now: float, *, rate: float | None = None, jump: float = 0.0) -> None:
        self._local = self.local(now) + jump
        self._world = now
        if rate is not None:
            self._rate = rate
