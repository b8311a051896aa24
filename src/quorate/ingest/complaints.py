"""What strangers do wrong, told sparingly: they can do it as often as they like, and differently each time."""

from __future__ import annotations

import time
from collections.abc import Callable

AGAIN_S = 10.0


class Complaints:
    """One line at most in so many seconds, whatever it says; how often it was is counted elsewhere."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._again_at = 0.0

    def say(self, line: str) -> None:
        now = time.monotonic()
        if now >= self._again_at:
            self._again_at = now + AGAIN_S
            self._log(line)
