"""What a benchmark found: figures with their spread, claims that they bear out or not, and the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import msgspec

Say = Callable[[str], None]
"""Tells whoever waits what is being done now."""


class Figure(msgspec.Struct, frozen=True):
    """One measured quantity: the median of its samples, and the least and most of them."""

    name: str
    unit: str
    median: float
    min: float
    max: float
    samples: int


class Claim(msgspec.Struct, frozen=True):
    """A figure and its bound; it holds if the median does."""

    name: str
    unit: str
    median: float
    min: float
    max: float
    samples: int
    wanted: str
    """The bound as a person reads it: `≥ 0.85`."""
    held: bool


class Share(msgspec.Struct, frozen=True):
    """A part of some whole, where the time went."""

    name: str
    percent: float


class Report(msgspec.Struct, frozen=True):
    bench: str
    title: str
    command: str
    """Repeats the measurement."""
    machine: dict[str, str]
    figures: tuple[Figure, ...]
    claims: tuple[Claim, ...]
    shares: tuple[Share, ...] = ()
    notes: tuple[str, ...] = ()
    """How it was measured, and what limits it."""

    @property
    def held(self) -> bool:
        return all(claim.held for claim in self.claims)


def figure(name: str, unit: str, samples: Sequence[float]) -> Figure:
    assert samples
    return Figure(name, unit, median(samples), min(samples), max(samples), len(samples))


def at_least(bound: float, name: str, unit: str, samples: Sequence[float]) -> Claim:
    return _claim(f"≥ {bound:,g}", median(samples) >= bound, name, unit, samples)


def at_most(bound: float, name: str, unit: str, samples: Sequence[float]) -> Claim:
    return _claim(f"≤ {bound:,g}", median(samples) <= bound, name, unit, samples)


def within(percent: float, name: str, samples: Sequence[float]) -> Claim:
    """Two things cost the same: their ratio is 1, give or take."""
    held = abs(median(samples) - 1) * 100 <= percent
    return _claim(f"1 ± {percent:g} %", held, name, "", samples)


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Pairwise, each pair measured side by side."""
    return [one / other for one, other in zip(above, below, strict=True)]


def _claim(wanted: str, held: bool, name: str, unit: str, samples: Sequence[float]) -> Claim:
    assert samples
    return Claim(name, unit, median(samples), min(samples), max(samples), len(samples), wanted, held)
