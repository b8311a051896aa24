"""A leader of `isr` judges who is in sync: whoever lags is asked out, whoever has caught up is asked in."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core import events
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member
from quorate.core.isr.messages import AlterIsr, PartitionTold
from tests.unit.core.isr_kit import (
    CONTROLLER,
    TUNING,
    answered,
    fetch,
    lead,
    leader,
    new_leader,
    of_two,
    pass_time,
    propose,
    rest,
    state,
)
from tests.unit.core.kit import N1, N2, N3, N4, at, replies, sent

FOUR = (N1, N2, N3, N4)


# ---- who is in sync ----


def test_one_that_rests_and_does_not_answer_is_woken_with_eight_heartbeats_and_then_every_eighth() -> None:
    bench = leader("1-0", tuning=msgspec.structs.replace(TUNING, lag_s=1000.0))
    rest(bench)

    def woken_by(node: Member) -> list[int]:
        """Which of the next forty heartbeats."""
        return [beat for beat in range(1, 41) if sent(bench.wake(), node)]

    often = [1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 40]
    bench.tell(events.Suspected(3))
    assert woken_by(N3) == often
    bench.tell(events.Suspected(3))
    assert woken_by(N3) == often, "whoever is suspected anew is woken eagerly again"
    commit = bench.replica.commit
    fetch(bench, N3, commit=commit)
    assert answered(fetch(bench, N3, commit=commit), N3).rest
    propose(bench)
    assert woken_by(N3) == often, "and so is one that has asked meanwhile"


@pytest.mark.behaviour("LB-20")
def test_lag_is_judged_by_time_and_not_by_how_much_there_is() -> None:
    bench = leader("1-0")
    for request in range(300):
        propose(bench, request)
    fetch(bench, N2, at("2-1"))
    ordered = pass_time(bench, 0.9)
    assert AlterIsr not in map(type, sent(ordered, CONTROLLER))


@pytest.mark.behaviour("LB-20")
def test_one_that_keeps_up_with_what_there_was_when_it_asked_last_stays() -> None:
    """There is always something that it does not have yet."""
    bench = leader("1-0")
    ordered = []
    for request in range(30):
        behind = bench.replica.log.head
        for member in (N2, N3):
            ordered += fetch(bench, member, behind)
        propose(bench, request)
        bench.persist()
        for member in (N2, N3):
            ordered += fetch(bench, member, behind)
        ordered += pass_time(bench, 0.5)
    assert AlterIsr not in map(type, sent(ordered, CONTROLLER))


@pytest.mark.behaviour("LB-20")
def test_one_that_had_nothing_to_fetch_for_long_was_not_behind() -> None:
    bench = leader("1-0")
    rest(bench)
    bench.now += 100.0
    propose(bench)
    ordered = fetch(bench, N2, flushed=1, commit=1)
    assert AlterIsr not in map(type, sent(ordered + pass_time(bench, 0.9), CONTROLLER))


@pytest.mark.behaviour("LB-20")
def test_one_that_never_gets_there_leaves() -> None:
    bench = leader("1-0")
    ordered = []
    for request in range(4):
        propose(bench, request)
        bench.persist()
        fetch(bench, N2)
        ordered += fetch(bench, N3, at("2-1"))
        ordered += pass_time(bench, 0.5)
    assert AlterIsr(2, 2, (N1, N2)) in sent(ordered, CONTROLLER)


@pytest.mark.behaviour("LB-20")
def test_one_whose_snapshot_stays_unreadable_leaves() -> None:
    bench = leader("1-0")
    ordered = []
    for _ in range(15):
        ordered += fetch(bench, N2) + fetch(bench, N3, wants_snapshot=0) + pass_time(bench, 0.1)
    assert AlterIsr(2, 2, (N1, N2)) in sent(ordered, CONTROLLER)


@pytest.mark.behaviour("LB-20")
def test_a_request_is_repeated_until_there_is_another_state() -> None:
    bench = leader("1-0")
    propose(bench)
    bench.persist()
    fetch(bench, N2)
    request = AlterIsr(2, 2, (N1, N2))
    assert sent(pass_time(bench, 1.5), CONTROLLER).count(request) > 1
    bench.told(state(3, 2, isr_now=(N1, N2)))
    assert AlterIsr not in map(type, sent(pass_time(bench, 1.5), CONTROLLER))


@pytest.mark.behaviour("LB-23")
def test_who_has_caught_up_is_asked_in() -> None:
    bench = of_two()
    propose(bench)
    bench.persist()
    fetch(bench, N2)
    assert sent(fetch(bench, N3, at("2-1")), CONTROLLER) == []
    assert sent(fetch(bench, N3), CONTROLLER) == [AlterIsr(2, 2, (N1, N2, N3))]


@pytest.mark.behaviour("LB-23")
def test_one_comes_in_only_behind_the_first_entry_of_the_epoch() -> None:
    """What an earlier leader has settled, and this one does not know of, is below that."""
    bench = new_leader("1-0 1-1", state(2, 2, isr_now=(N1, N2)), commit=-1)
    assert sent(fetch(bench, N3, at("1-0")), CONTROLLER) == []
    assert sent(fetch(bench, N3), CONTROLLER) == [AlterIsr(2, 2, (N1, N2, N3))]


@pytest.mark.behaviour("LB-20", "LB-23")
def test_one_that_was_about_to_come_in_and_stops_is_not_waited_for_any_longer() -> None:
    bench = of_two()

    def write(request: int) -> list[Reply]:
        propose(bench, request)
        bench.persist()
        return replies(fetch(bench, N2))

    assert write(1) != []
    fetch(bench, N3, at("2-1"))
    assert write(2) != []
    ordered = fetch(bench, N3, at("2-2"))
    assert sent(ordered, CONTROLLER) == [], "it has what there was when it asked, and not yet what is settled"
    assert write(3) == []
    assert [reply.outcome for reply in replies(pass_time(bench, 2.0))] == [Outcome.SETTLED]


@pytest.mark.behaviour("LB-20")
def test_a_leader_that_stood_still_listens_before_it_judges() -> None:
    """What its followers said meanwhile is not heard yet."""
    bench = leader("1-0")
    propose(bench)
    bench.persist()
    bench.now += 10.0
    assert AlterIsr not in map(type, sent(bench.tell(events.TimePassed()) + fetch(bench, N3), CONTROLLER))
    assert sent(pass_time(bench, 0.2), CONTROLLER)[0] == AlterIsr(2, 2, (N1, N3))


@pytest.mark.behaviour("LB-20")
def test_a_leader_that_is_always_late_judges_all_the_same() -> None:
    bench = leader("1-0")
    propose(bench)
    bench.persist()
    asked = []
    for _ in range(10):
        bench.now += 3 * TUNING.heartbeat_s
        asked += sent(bench.tell(events.TimePassed()) + fetch(bench, N3), CONTROLLER)
    assert asked[0] == AlterIsr(2, 2, (N1, N3))


@pytest.mark.behaviour("LB-23")
def test_a_damaged_replica_does_not_come_in() -> None:
    assert sent(fetch(of_two(), N3, wants_snapshot=0), CONTROLLER) == []


def test_a_new_replica_gets_its_place_and_one_that_is_gone_loses_it() -> None:
    bench = leader("1-0")
    bench.told(state(3, 2, replicas=FOUR, isr_now=(N1, N2, N3)))
    assert sorted(lead(bench).followers) == [2, 3, 4]
    bench.told(state(4, 2, replicas=(N1, N4), isr_now=(N1,)))
    assert sorted(lead(bench).followers) == [4]
    assert sent(fetch(bench, N2)) == [PartitionTold(2, bench.replica.told, answer=False)]
