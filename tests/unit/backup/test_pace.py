"""Pauses that keep to a rate."""

from __future__ import annotations

import pytest

from quorate.backup.pace import BIT_S, BURST_S, Throttle, in_bits, size_text


def test_a_throttle_keeps_to_its_rate() -> None:
    throttle, now, sent = Throttle(1000, 0.0), 0.0, 0
    for _ in range(100):
        now += throttle.pause_s(now, 50)
        sent += 50
        assert sent <= 1000 * (now + BURST_S) + 50
    assert now == pytest.approx(5.0, abs=2 * BURST_S)


def test_a_throttle_saves_up_a_moment_and_no_more() -> None:
    throttle = Throttle(1000, 0.0)
    assert throttle.pause_s(100.0, 100) == 0.0
    assert throttle.pause_s(100.0, 1100) == pytest.approx(1.0)


def test_without_a_rate_nothing_waits() -> None:
    assert Throttle(None, 0.0).pause_s(0.0, 1 << 40) == 0.0


def test_a_pause_is_taken_in_bits() -> None:
    bits = list(in_bits(3.5 * BIT_S))
    assert len(bits) == 4
    assert sum(bits) == pytest.approx(3.5 * BIT_S)
    assert list(in_bits(0.0)) == []


def test_sizes_are_told_in_three_figures() -> None:
    assert [size_text(size) for size in (0, 1023, 1536, 64 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "64.0 MiB",
        "3.0 TiB",
    ]
