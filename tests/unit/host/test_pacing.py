"""Moving data at a rate: in turn, paid for when it is done, and changed or stopped at any time."""

from __future__ import annotations

from functools import partial

import pytest

from quorate.core import effects, events
from quorate.host.pacing import UNLIMITED, Pacer
from tests.unit.host.puppet import PARTITION, Stage, use_puppet


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def begun() -> list[str]:
    return []


def wait(pacer: Pacer, begun: list[str], *names: str, expected: int = 1000) -> None:
    for name in names:
        pacer.when_free(expected, partial(begun.append, name))


def test_without_a_rate_everybody_begins_at_once(clock: Clock, begun: list[str]) -> None:
    pacer = Pacer(clock)
    wait(pacer, begun, "a", "b")
    assert begun == ["a", "b"]
    assert pacer.deadline is None


def test_with_a_rate_each_begins_when_what_was_sent_before_is_paid_for(
    clock: Clock, begun: list[str]
) -> None:
    pacer = Pacer(clock)
    pacer.set_rate(500)
    wait(pacer, begun, "a", "b", "c")
    assert begun == ["a"]
    assert pacer.deadline == clock.now + 2
    clock.now += 1.9
    pacer.go_on()
    assert begun == ["a"]
    clock.now += 0.1
    pacer.go_on()
    assert begun == ["a", "b"]
    assert pacer.deadline == pytest.approx(clock.now + 2)


def test_what_came_counts_and_not_what_was_expected(clock: Clock, begun: list[str]) -> None:
    pacer = Pacer(clock)
    pacer.set_rate(500)
    wait(pacer, begun, "a", "b")
    pacer.spent(expected=1000, bytes_count=250)
    assert pacer.deadline == clock.now + 0.5


def test_time_in_which_nothing_moves_is_not_saved_up(clock: Clock, begun: list[str]) -> None:
    pacer = Pacer(clock)
    pacer.set_rate(500)
    clock.now += 1000
    wait(pacer, begun, "a", "b")
    assert begun == ["a"]


def test_another_rate_counts_from_then_on_and_none_lets_everybody_go(clock: Clock, begun: list[str]) -> None:
    pacer = Pacer(clock)
    pacer.set_rate(500)
    wait(pacer, begun, "a", "b", "c")
    clock.now += 1
    pacer.set_rate(100)
    assert pacer.deadline == clock.now + 5
    pacer.set_rate(UNLIMITED)
    assert begun == ["a", "b", "c"]
    assert pacer.deadline is None


def test_at_rate_zero_nothing_moves_until_there_is_another(clock: Clock, begun: list[str]) -> None:
    pacer = Pacer(clock)
    pacer.set_rate(0)
    wait(pacer, begun, "a")
    clock.now += 1000
    pacer.go_on()
    assert (begun, pacer.deadline) == ([], None)
    pacer.set_rate(1)
    assert begun == ["a"]


def test_a_moment_that_is_all_but_there_is_not_waited_for_for_ever(clock: Clock, begun: list[str]) -> None:
    """Clocks that stand still, and sums that are never exact."""
    pacer = Pacer(clock)
    pacer.set_rate(3)
    wait(pacer, begun, *map(str, range(10)), expected=1)
    while (due := pacer.deadline) is not None:
        before = len(begun)
        clock.now = due
        pacer.go_on()
        assert len(begun) > before
    assert len(begun) == 10


# ---- in a host ----


def read(token: int, *, paced: bool = True) -> effects.Read:
    return effects.Read(token, 0, 2, 1 << 20, paced)


def loaded(stage: Stage) -> list[int]:
    return [event.token for event in stage.puppet.of(events.Loaded)]


def test_a_host_holds_up_reads_for_newcomers_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    use_puppet(monkeypatch)
    stage = Stage()
    stage.add()
    stage.take(b"a", b"b", b"c")
    stage.settle()
    stage.host.pace(stage.now, 100)
    began = stage.now
    stage.do(lambda _: [read(1), read(2), read(3, paced=False)])
    assert loaded(stage) == [1, 3]
    size = sum(header.size for header in stage.puppet.of(events.Loaded)[0].headers)
    stage.settle()
    assert loaded(stage) == [1, 3, 2]
    assert stage.now - began == pytest.approx(size / 100, rel=0.05)


def test_at_rate_zero_a_host_reads_for_newcomers_when_it_gets_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_puppet(monkeypatch)
    stage = Stage()
    stage.add()
    stage.take(b"a", b"b", b"c")
    stage.settle()
    stage.host.pace(stage.now, 0)
    stage.do(lambda _: [read(1), read(2)])
    stage.settle()
    assert loaded(stage) == []
    stage.host.pace(stage.now, UNLIMITED)
    assert loaded(stage) == [1, 2]


def test_what_waits_for_a_replica_that_is_gone_is_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    use_puppet(monkeypatch)
    stage = Stage()
    stage.add()
    stage.take(b"a", b"b", b"c")
    stage.settle()
    stage.host.pace(stage.now, 0)
    puppet = stage.puppet
    stage.do(lambda _: [read(1)])
    stage.host.remove(stage.now, PARTITION)
    stage.host.pace(stage.now, UNLIMITED)
    assert puppet.of(events.Loaded) == []
