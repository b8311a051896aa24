"""Moving data waits its turn: what is read for copies that do not count yet goes out at a rate, over all replicas.

A read is begun only when what was sent before it is paid for, at so many bytes a second. So nothing is held in
memory while it waits, no message overtakes another, and heartbeats and whatever clients wait for are not
touched. How much a read will bring is not known before: what is expected is charged, and put right when it is
done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

UNLIMITED = -1


class Pacer:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._rate = UNLIMITED
        self._owed_bytes = 0.0
        self._at = 0.0
        """When that was owed."""
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self.moved_bytes = 0
        """What was read so far."""

    @property
    def deadline(self) -> float | None:
        """When somebody who waits can begin."""
        if not self._waiting or self._rate <= 0:
            return None
        return self._at + self._owed_bytes / self._rate

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def set_rate(self, rate: int) -> None:
        """In bytes a second; 0: nobody begins, below: everybody does."""
        self._pay()
        self._rate = rate
        self.go_on()

    def when_free(self, expected: int, begin: Callable[[], None]) -> None:
        """Call that now, or in turn, later; it is expected to bring so many bytes."""
        self._waiting.append((expected, begin))
        self.go_on()

    def spent(self, *, expected: int, bytes_count: int) -> None:
        """What was begun is done, and brought so many bytes instead of what was expected."""
        self.moved_bytes += bytes_count
        if self._rate > 0:
            self._pay()
            self._owed_bytes = max(0.0, self._owed_bytes + bytes_count - expected)

    def go_on(self) -> None:
        """Let those begin whose turn it is."""
        self._pay()
        while self._waiting and self._is_free:
            expected, begin = self._waiting.popleft()
            if self._rate > 0:
                self._owed_bytes += expected
            begin()

    @property
    def _is_free(self) -> bool:
        return self._rate < 0 or (self._rate > 0 and self._owed_bytes < 1)

    def _pay(self) -> None:
        now = self._now()
        if self._rate < 0:
            self._owed_bytes = 0.0
        elif self._rate > 0:
            self._owed_bytes = max(0.0, self._owed_bytes - (now - self._at) * self._rate)
        self._at = now
