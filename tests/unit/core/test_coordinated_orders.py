"""What whoever orders something of an operator hears: never that it is done, or not done, where that is not so."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.core import events
from quorate.core.coordinated.answering import Given, judge
from quorate.core.coordinated.messages import (
    AddEntryResponse,
    PrepareReconfigurationRequest,
    PrepareReconfigurationResponse,
)
from quorate.core.coordinated.orders import CallOff, MoveLeader, Reconfigure
from quorate.core.effects import Outcome
from quorate.core.events import ReadLevel
from tests.unit.core.coordinated_kit import (
    N1,
    N2,
    N3,
    N4,
    OPERATOR,
    TUNING,
    Desk,
    Kind,
    Phase,
    Reconfiguration,
    contract,
    electing,
    expand,
    flushed,
    leader,
    propose,
    replies,
    sent,
    steady,
    swap,
)

REMOVE = Reconfigure(7, Kind.CONTRACT, old=N3)
MOVE, OFF = MoveLeader(8), CallOff(9)


def silent_desk(order: Any, shard: Any = None) -> Desk:
    """Its store has got the order's write, and never says so, or anything else, until it is asked anew."""
    desk = Desk(shard or steady(1))
    desk.start()
    desk.answers = False
    desk.tell(events.Commanded(order))
    return desk


def answers_after_silence(desk: Desk) -> list[Any]:
    ordered: list[Any] = []
    while len(desk.open) < 2:
        ordered += desk.wake()
    desk.answers = True
    return replies(ordered + desk.answer())


@pytest.mark.parametrize("order", [REMOVE, MOVE])
def test_a_write_that_nobody_answered_may_land_later_and_is_unknown_until_then(order: Any) -> None:
    desk = silent_desk(order)
    late = desk.open[0]
    while desk.open[-1] is late:
        assert replies(desk.wake()) == []
    desk.open = desk.open[1:]
    desk.answers = True
    (reply,) = replies(desk.answer())
    assert reply.outcome is Outcome.UNKNOWN
    desk.do(late)
    assert desk.shard == late.shard, "it has landed yet"


def test_a_write_that_landed_unheard_is_gone_on_with() -> None:
    desk = silent_desk(REMOVE)
    assert answers_after_silence(desk) == []
    assert desk.shard == steady(2, change=contract(N3))


def test_who_is_overtaken_in_the_middle_waits_for_what_the_other_makes_of_it() -> None:
    desk = silent_desk(REMOVE)
    assert answers_after_silence(desk) == [], "it is under way"
    desk.wake_until_sent(N1, PrepareReconfigurationRequest)
    desk.answers = False
    desk.receive(N1, PrepareReconfigurationResponse(2, prepared=True))
    assert desk.open, "the next phase is being written"
    desk.store.version, desk.store.shard = 4, steady(2, (N1, N2))
    (reply,) = replies(desk.answer())
    assert reply.outcome is Outcome.SETTLED


@pytest.mark.parametrize("order", [REMOVE, MOVE])
def test_who_was_overtaken_by_another_operator_hears_at_once_that_nothing_was_done(order: Any) -> None:
    desk = silent_desk(order)
    desk.store.version, desk.store.shard = 2, steady(2, change=expand(N4))
    (reply,) = replies(desk.answer())
    assert (reply.outcome, reply.why) == (Outcome.TIMED_OUT, "it was dropped; nothing has changed")


def test_calling_off_what_another_operator_has_ended_meanwhile_is_too_late() -> None:
    desk = Desk(steady(2, change=contract(N3)))
    desk.start()
    desk.answers = False
    desk.tell(events.Commanded(OFF))
    desk.open.clear()
    desk.store.version, desk.store.shard = 2, steady(2, (N1, N2))
    desk.answers = True
    ordered: list[Any] = []
    while not replies(ordered):
        ordered += desk.wake()
    (reply,) = replies(ordered)
    assert (reply.outcome, reply.why) == (Outcome.TIMED_OUT, "too late: it is done")


LESS = (N1, N2)
SAME, LATER = steady(1), steady(2)


@pytest.mark.parametrize(
    ("order", "before", "begun", "now", "seen", "outcome"),
    [
        # a leader is moved when another leads, or an election has found nobody else
        (MOVE, SAME, False, steady(2, leader=N2), False, Outcome.SETTLED),
        (MOVE, SAME, True, electing(2), True, None),
        (MOVE, SAME, True, LATER, True, Outcome.SETTLED),
        (MOVE, SAME, False, LATER, True, Outcome.UNKNOWN),  # somebody's reconfiguration, perhaps
        (MOVE, SAME, False, SAME, True, Outcome.TIMED_OUT),
        # what is called off is not there, and was not done
        (OFF, steady(2, change=contract(N3)), True, LATER, True, Outcome.SETTLED),
        (OFF, steady(2, change=contract(N3)), False, LATER, True, Outcome.SETTLED),
        (OFF, steady(2, change=contract(N3)), False, LATER, False, Outcome.UNKNOWN),
        (OFF, steady(2, change=contract(N3)), True, LATER, False, Outcome.SETTLED),
        (OFF, steady(2, change=contract(N3)), False, steady(2, LESS), True, Outcome.TIMED_OUT),
        (OFF, steady(2, change=contract(N3)), True, steady(2, change=contract(N3, Phase.ABORT)), True, None),
        (OFF, steady(2, change=contract(N3)), False, steady(2, change=contract(N3)), True, Outcome.TIMED_OUT),
        (OFF, steady(2, change=contract(N3)), True, steady(4, change=contract(N3)), True, Outcome.SETTLED),
        (
            OFF,
            steady(2, change=contract(N3)),
            False,
            steady(2, change=contract(N3, Phase.COMMIT)),
            True,
            Outcome.TIMED_OUT,
        ),
        # a change is done, under way, or dropped
        (REMOVE, SAME, True, steady(2, LESS), False, Outcome.SETTLED),
        (REMOVE, SAME, False, steady(2, change=contract(N3)), True, None),
        (REMOVE, SAME, True, LATER, True, Outcome.TIMED_OUT),
        (REMOVE, SAME, True, LATER, False, Outcome.UNKNOWN),  # done and undone, perhaps
        (REMOVE, SAME, True, steady(3, change=swap(N3, N4)), True, Outcome.TIMED_OUT),
    ],
)
def test_judgement(
    order: Any, before: Any, begun: bool, now: Any, seen: bool, outcome: Outcome | None
) -> None:
    verdict = judge(Given(order, before, begun), now, has_seen_all=seen)
    assert (verdict.outcome if verdict is not None else None) is outcome


# ---- a contraction that cannot be done yet ----


def prepared(epoch: int = 3, change: Reconfiguration | None = None) -> list[Any]:
    """What a leader says to a contraction of N3 that it has heard of before. Offset 2 is settled by N1 and N3."""
    bench = leader()
    propose(bench)
    bench.persist()
    flushed(bench, N3, 2)
    assert bench.replica.commit == 2
    request = PrepareReconfigurationRequest(epoch, change or contract(N3))
    bench.receive(OPERATOR, request)
    bench.persist()
    waiting = sent(bench.receive(OPERATOR, request) + bench.persist(), OPERATOR)
    bench.receive(N2, _acknowledges(bench, 2))
    return [*waiting, *sent(bench.receive(OPERATOR, request) + bench.persist(), OPERATOR)]


def _acknowledges(bench: Any, offset: int) -> Any:
    return AddEntryResponse(bench.replica.epoch, True, offset, offset, 0, bench.replica.log.head)


def test_a_contraction_is_prepared_only_when_those_who_stay_have_all_that_is_settled() -> None:
    assert prepared() == [
        PrepareReconfigurationResponse(3, prepared=True, ready=False),
        PrepareReconfigurationResponse(3, prepared=True),
    ]


def test_what_was_in_commit_before_an_election_is_neither_called_off_nor_dropped() -> None:
    again = Reconfiguration(Kind.CONTRACT, Phase.PREPARE, N3, again=True)
    desk = Desk(steady(3, change=again))
    desk.start()
    (reply,) = replies(desk.tell(events.Commanded(OFF)))
    assert reply.outcome is Outcome.REFUSED
    desk.tell(events.Suspected(1))
    wanted = Reconfiguration(Kind.CONTRACT, Phase.WANTED, N3, again=True)
    assert desk.shard == electing(4, change=wanted)


# ---- reads ----


def test_reads_wait_as_long_in_an_adopted_epoch_as_in_any() -> None:
    bench = leader()
    flushed(bench, N2, 1)
    bench.now = TUNING.read_wait_s + 5.0
    bench.receive(OPERATOR, PrepareReconfigurationRequest(3, contract(N3)))
    bench.persist()
    asked = bench.now
    answers = replies(bench.tell(events.ReadAsked(1, ReadLevel.LINEARIZABLE)))
    while not answers and bench.now < asked + 3 * TUNING.read_wait_s:
        answers += replies(bench.wake())
    assert bench.now - asked >= TUNING.read_wait_s
    assert [reply.outcome for reply in answers] == [Outcome.TIMED_OUT]
