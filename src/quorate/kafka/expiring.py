"""Requests that wait, until it is too long: one timer for all of them.

A request that is answered in half a millisecond should not cost a timer of its own. Clients mostly ask for the same
time, so those that asked for one wait in the order of their ends, and only the first of each has to be looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Protocol

SLACK_S = 0.01
"""How much later than asked for a request may be told, so that several are told at once."""


class Waiting(Protocol):
    """Told, in a turn of the node, that its time is over."""

    def expire(self) -> None: ...


class Expiring:
    """All requests of a node that wait for so long at most."""

    def __init__(self, in_turn: Callable[[Callable[[], None]], None]) -> None:
        self._in_turn = in_turn
        self._waiting: dict[int, dict[Waiting, float]] = {}
        """By how many milliseconds they asked for; each until when, the earliest first."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf

    def begin(self, waiting: Waiting, timeout_ms: int) -> None:
        due = monotonic() + timeout_ms / 1000
        alike = self._waiting.get(timeout_ms)
        if alike is None:
            alike = self._waiting[timeout_ms] = {}
        alike[waiting] = due
        if due < self._due:
            self._wake_at(due)

    def end(self, waiting: Waiting, timeout_ms: int) -> None:
        """It waits no longer. The timer stays: it finds the next one, or nobody."""
        alike = self._waiting.get(timeout_ms)
        if alike is not None:
            alike.pop(waiting, None)
            if not alike:
                del self._waiting[timeout_ms]

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()

    def _wake_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        delay_s = max(0.0, due - monotonic()) + SLACK_S
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._woke)

    def _woke(self) -> None:
        self._timer, self._due = None, inf
        self._in_turn(self._expire)
        due = min((next(iter(alike.values())) for alike in self._waiting.values()), default=inf)
        if due < self._due:
            self._wake_at(due)

    def _expire(self) -> None:
        now = monotonic()
        over = []
        for timeout_ms, alike in self._waiting.items():
            for waiting, due in alike.items():
                if due > now:
                    break
                over.append((waiting, timeout_ms))
        for waiting, timeout_ms in over:
            self.end(waiting, timeout_ms)
            waiting.expire()
