"""Clocks of made-up nodes."""

from __future__ import annotations

from quorate.sim.clock import Clock


def test_clock_shows_the_worlds_time_until_something_happens_to_it() -> None:
    clock = Clock()
    assert clock.local(3.0) == 3.0
    assert clock.world(3.0) == 3.0


def test_fast_clock_reaches_its_deadlines_early() -> None:
    clock = Clock()
    clock.change(10.0, rate=2.0)
    assert clock.local(11.0) == 12.0
    assert clock.world(12.0) == 11.0


def test_jump_moves_the_clock_and_keeps_its_rate() -> None:
    clock = Clock()
    clock.change(10.0, rate=0.5)
    clock.change(12.0, jump=-3.0)
    assert clock.local(12.0) == 8.0
    assert clock.local(14.0) == 9.0
