"""How long this machine stood still: told beside what was measured meanwhile, which counts all the same."""

from __future__ import annotations

import threading
from time import perf_counter
from types import TracebackType
from typing import Self

LOOK_EVERY_S = 0.02


class Pauses:
    """Use it in a `with`: a thread that sleeps for a moment, again and again, and notes how long that took."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._last = perf_counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="pauses", daemon=True)

    def __enter__(self) -> Self:
        self._last = perf_counter()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            now = perf_counter()
            self._longest_s = max(self._longest_s, now - self._last - LOOK_EVERY_S)
            self._last = now

    def longest_s(self) -> float:
        """Beyond what it meant to sleep; one that goes on counts."""
        return max(self._longest_s, perf_counter() - self._last - LOOK_EVERY_S)
