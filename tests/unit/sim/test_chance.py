"""Chance: one seed, many streams, the same everywhere."""

from __future__ import annotations

from quorate.sim.chance import stream


def test_streams_are_the_same_in_every_process() -> None:
    # Written down once: Python's own hash would give another number in every process.
    assert stream(7, "link", 1, 2).getrandbits(64) == 0xA86E77095CB9230F


def test_streams_of_different_concerns_differ() -> None:
    drawn = {stream(7, name).getrandbits(64) for name in ("link", "disk", "client", "faults")}
    assert len(drawn) == 4
    assert stream(8, "link").getrandbits(64) not in drawn
