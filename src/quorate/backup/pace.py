"""How fast: no faster than a person wants, and told while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

BURST_S = 0.2
"""So much may go at once: pauses that are shorter than a system's clock tells are not worth it."""
BIT_S = 0.05
TELL_EVERY_S = 2.0


class Throttle:
    """Says how long to pause after so many bytes. Time is an argument."""

    def __init__(self, rate: int | None, now: float) -> None:
        """None: as fast as it goes."""
        self._rate = rate
        self._free_at = now
        """When all that went so far would have gone, at that rate."""

    def pause_s(self, now: float, bytes_count: int) -> float:
        if self._rate is None:
            return 0.0
        self._free_at = max(self._free_at, now - BURST_S) + bytes_count / self._rate
        pause_s = self._free_at - now
        return pause_s if pause_s > 0 else 0.0


def in_bits(pause_s: float) -> Iterator[float]:
    """A pause in short ones: between them it is looked whether somebody wants this to stop."""
    while pause_s > 0:
        yield min(pause_s, BIT_S)
        pause_s -= BIT_S


class Progress:
    """Bytes and a share of the whole; `tell` gets a line now and then."""

    def __init__(self, what: str, tell: Callable[[str], None]) -> None:
        self._what = what
        self._tell = tell
        self._began = self._told_at = monotonic()
        self.bytes_count = 0

    def went(self, bytes_count: int, *, done: float, whole: float) -> None:
        self.bytes_count += bytes_count
        now = monotonic()
        if now - self._told_at >= TELL_EVERY_S:
            self._told_at = now
            share = f"{100 * done / whole:.0f} %, " if whole else ""
            rate = self.bytes_count / (now - self._began)
            self._tell(f"{self._what}: {share}{size_text(self.bytes_count)}, {size_text(rate)}/s")


def size_text(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
