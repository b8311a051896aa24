"""Moving data at a rate: in turn, paid for when it is done, and changed or stopped at any time."""

from __future__ import annotations

from functools import partial

import pytest

from quorate.core import effects, events, raft
from quorate.core.entry import Member, Partition, Span
from quorate.core.fetching import ChunkResponse
from quorate.core.repairing import HaveEntries, WantEntries
from quorate.host import HostSettings, Parcel
from quorate.host.pacing import UNLIMITED, WAITING_PER_COPY_MAX, Errand, Pacer, What
from quorate.storage.settings import TINY
from tests.unit.host.puppet import PARTITION, Stage, use_puppet
from tests.unit.host.test_host import PARTITIONS, Trio


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


def errand(name: str, what: What = What.ENTRIES) -> Errand:
    return Errand(Partition(name.encode()), 2, what)


def wait(pacer: Pacer, begun: list[str], *names: str, expected: int = 1000) -> None:
    for name in names:
        pacer.when_free(
            errand(name),
            expected,
            partial(begun.append, name),
            forgotten=partial(begun.append, f"not {name}"),
        )


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


def test_who_asks_again_has_the_same_turn_and_only_one(clock: Clock, begun: list[str]) -> None:
    """Every new leader reads anew, and nobody begins while the rate is 0: what waits does not pile up."""
    pacer = Pacer(clock)
    pacer.set_rate(0)
    wait(pacer, begun, "a", "b")
    for time in range(100):
        for what in What:
            begin = partial(begun.append, f"a {what} {time}")
            pacer.when_free(errand("a", what), 1000, begin, forgotten=partial(begun.append, "never"))
    assert pacer.waiting_count == WAITING_PER_COPY_MAX + 1
    pacer.set_rate(UNLIMITED)
    assert begun == ["a entries 99", "b", "a repair 99", "a snapshot 99"]


def test_what_waits_for_a_partition_that_is_held_no_more_is_forgotten(clock: Clock, begun: list[str]) -> None:
    pacer = Pacer(clock)
    pacer.set_rate(0)
    wait(pacer, begun, "a", "b")
    pacer.forget(errand("a").partition)
    pacer.set_rate(UNLIMITED)
    assert begun == ["b"]


def test_what_waits_for_a_copy_that_is_made_no_more_is_forgotten_and_said_so(
    clock: Clock, begun: list[str]
) -> None:
    """Its move was called off, or goes elsewhere now."""
    pacer = Pacer(clock)
    pacer.set_rate(0)
    wait(pacer, begun, "a", "b")
    pacer.keep(errand("a").partition, {2, 3})
    assert (begun, pacer.waiting_count) == ([], 2)
    pacer.keep(errand("a").partition, {1, 3})
    assert (begun, pacer.waiting_count) == (["not a"], 1)
    assert not pacer.waits(errand("a").partition)
    assert pacer.waits(errand("b").partition)


# ---- in a host ----


def test_a_read_for_a_copy_that_is_made_no_more_brings_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ordered it must not wait for ever: the same node may be wanted again."""
    use_puppet(monkeypatch)
    stage = Stage()
    stage.add()
    stage.take(b"a", b"b", b"c")
    stage.settle()
    stage.host.pace(stage.now, 0)
    stage.do(lambda _: [read(1), read(2)])
    stage.host.pacer.keep(PARTITION, {1, 2, 12})
    assert [(event.token, event.headers) for event in stage.puppet.of(events.Loaded)] == [(1, ())]
    assert stage.host.pacer.waiting_count == 1


def read(token: int, *, paced: bool = True) -> effects.Read:
    return effects.Read(token, 0, 2, 1 << 20, paced_for=10 + token if paced else 0)


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
    assert stage.host.pacer.waiting_count == 0
    stage.host.pace(stage.now, UNLIMITED)
    assert puppet.of(events.Loaded) == []


def test_at_rate_zero_a_piece_of_a_snapshot_goes_to_a_copy_that_counts_and_to_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is in the log: a group's home that was away for a moment comes back, too."""
    use_puppet(monkeypatch)
    stage = Stage()
    stage.add()
    stage.take(b"a", b"b", b"c")
    stage.settle()
    stage.commit(2)
    stage.order(lambda _: effects.TakeSnapshot())
    stage.settle()
    snapshot = stage.puppet.snapshot
    assert snapshot is not None
    piece = ChunkResponse(1, snapshot, 0, snapshot.size)
    stage.host.pace(stage.now, 0)
    stage.do(lambda _: [effects.Send(2, piece), effects.Send(3, piece, paced=True)])
    stage.settle()
    assert [len(parcel.chunk) for parcel in stage.sent] == [snapshot.size]
    stage.do(lambda _: [effects.Send(3, piece, paced=True), effects.Send(3, piece)])
    stage.settle()
    assert len(stage.sent) == 2, "it has come to count, and what waits for it is not in its way"
    assert stage.host.pacer.waiting_count == 1, "what is said again waits once"
    stage.host.pacer.keep(PARTITION, {1, 2})
    assert stage.host.pacer.waiting_count == 0
    stage.do(lambda _: [effects.Send(3, piece, paced=True)])
    assert stage.host.pacer.waiting_count == 1, "it is wanted again, and may wait again"
    stage.host.pace(stage.now, UNLIMITED)
    stage.settle()
    assert len(stage.sent) == 3


def test_at_rate_zero_damage_of_a_copy_that_counts_is_mended_and_a_newcomer_waits() -> None:
    """In hosts as they are: three replicas of one log, one of them damaged, and somebody who is no voter."""
    settings = HostSettings(store=TINY, raft=raft.Tuning(paced=True))
    trio = Trio(settings=settings)
    partition = PARTITIONS[0]
    trio.run(lambda: trio.leader(partition) is not None)
    leader = trio.leader(partition)
    assert leader is not None
    for host in trio.hosts.values():
        host.pace(trio.now, 0)
    for value in (b"a", b"b", b"c"):
        trio.propose(leader, partition, value)
    damaged, asked = (node for node in trio.hosts if node != leader)
    trio.run(lambda: all(host.hosted[partition].commit == 3 for host in trio.hosts.values()))
    log = trio.hosts[asked].hosted[partition].replica.log
    span = Span(log.position(0), log.position(2))
    for sender, is_held_up in ((Member(damaged, 1), False), (Member(damaged, 2), True)):
        told_count = len(trio.told)
        lost = Parcel(partition, sender, WantEntries(1, span))
        trio.hosts[asked].receive(trio.now, lost)
        trio.settle()
        is_mended = any(type(parcel.message) is HaveEntries for parcel in trio.told[told_count:])
        assert is_mended is not is_held_up
    assert trio.hosts[asked].pacer.waiting_count == 1
