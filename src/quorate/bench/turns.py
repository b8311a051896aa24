"""Sides of a comparison, measured in turns; and a stopwatch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

from quorate.bench.report import Say


def in_turns(
    sides: Mapping[str, Callable[[], float]], repetitions: int, say: Say = lambda _: None
) -> dict[str, list[float]]:
    """Every side once a repetition, in an order that is turned round each time."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for repetition in range(repetitions):
        order = list(sides) if repetition % 2 == 0 else list(sides)[::-1]
        for name in order:
            say(f"{name}, {repetition + 1} of {repetitions}")
            samples[name].append(sides[name]())
    return samples


def seconds(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began
