"""What whoever orders something of an operator hears: never that it is done, or not done, where that is not so."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.core import events, metadata
from quorate.core.coordinated.answering import judge
from quorate.core.coordinated.messages import (
    AddEntryResponse,
    BecomeLeaderRequest,
    PrepareReconfigurationRequest,
    PrepareReconfigurationResponse,
)
from quorate.core.coordinated.orders import CallOff, MoveLeader, Reconfigure
from quorate.core.effects import Outcome
from quorate.core.events import ReadLevel
from quorate.core.overseeing import Given
from tests.unit.core.coordinated_kit import (
    N1,
    N2,
    N3,
    N4,
    OPERATOR,
    OPERATOR_TUNING,
    TUNING,
    Desk,
    Kind,
    Phase,
    Reconfiguration,
    Town,
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


@pytest.mark.parametrize(
    ("order", "before", "versions", "stored", "outcome"),
    [
        (REMOVE, steady(1), 1, steady(2, change=expand(N4)), Outcome.TIMED_OUT),
        (REMOVE, steady(1), 1, steady(2, change=contract(N3)), None),
        (REMOVE, steady(1), 3, steady(2, (N1, N2)), Outcome.SETTLED),
        (MOVE, steady(1), 1, steady(2, change=expand(N4)), Outcome.UNKNOWN),
        (MOVE, steady(1), 2, steady(2, leader=N2), Outcome.SETTLED),
        (OFF, steady(2, change=contract(N3)), 1, steady(2, change=contract(N3, Phase.ABORT)), None),
    ],
)
def test_who_is_refused_by_the_store_hears_what_the_other_operator_has_made_of_it(
    order: Any, before: Any, versions: int, stored: Any, outcome: Outcome | None
) -> None:
    desk = silent_desk(order, before)
    desk.store.version, desk.store.shard = 1 + versions, stored
    answers = replies(desk.answer())
    assert [reply.outcome for reply in answers] == ([outcome] if outcome is not None else [])


def test_no_order_is_taken_before_the_store_has_been_read_after_its_silence() -> None:
    desk = silent_desk(MOVE)
    lost = desk.open.pop()
    desk.answers = True
    desk.tell(metadata.StoreSilent(lost.token))
    (reply,) = replies(desk.order(Kind.EXPAND, new=N4))
    assert (reply.outcome, reply.why) == (Outcome.REFUSED, "the metadata store has not answered yet")


def test_an_operator_does_not_wait_for_itself() -> None:
    """Whether its own write landed it finds out by reading; that nobody else is at it, it knows."""
    desk = silent_desk(REMOVE)
    desk.store.do(desk.open.pop())
    desk.answers = True
    desk.wake_until_sent(N1, PrepareReconfigurationRequest)
    assert desk.now <= 2 * OPERATOR_TUNING.patience_s


def test_a_leader_that_is_moved_is_avoided_also_if_the_first_one_chosen_does_not_answer() -> None:
    desk = Desk(steady(1))
    desk.start()
    desk.tell(events.Commanded(MOVE))
    desk.fenced(N2, "1-1")
    desk.fenced(N3, "1-0")
    while desk.shard == electing(2):
        desk.wake()
    assert desk.shard == electing(3)
    ordered = desk.fenced(N1, "1-1") + desk.fenced(N3, "1-0")
    assert sent(ordered, N1) == []


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
        (OFF, steady(2, change=contract(N3)), True, steady(4, LESS), False, Outcome.SETTLED),  # ordered anew
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


def test_unless_a_leader_has_adopted_an_epoch_for_it_since() -> None:
    """It has settled something with all of them by then, and with that whatever fewer had settled."""
    desk = Desk(steady(3, change=Reconfiguration(Kind.CONTRACT, Phase.PREPARE, N3, again=True)))
    desk.start()
    desk.receive(N1, PrepareReconfigurationResponse(3, prepared=True, ready=False))
    desk.tell(events.Commanded(OFF))
    assert desk.shard == steady(3, change=contract(N3, Phase.ABORT))


@pytest.mark.parametrize("was_in_commit", [True, False])
def test_a_contraction_that_waits_in_vain_is_called_off_and_writes_go_on(was_in_commit: bool) -> None:
    """N2 is gone for good, and N3 was to go: N1 and N3 are a majority, and N1 alone is not."""
    town = Town("", "", "")
    town.start()
    town.wake(3.0)
    if was_in_commit:
        town.desk.order(Kind.CONTRACT, old=N3)
        while town.desk.shard != steady(2, change=contract(N3, Phase.COMMIT)):
            town.deliver()
        town.post.clear()
        town.down = {2}
        town.desk.tell(events.Suspected(1))
    else:
        town.down = {2}
        propose(town.leader())
        town.settle()
        town.desk.order(Kind.CONTRACT, old=N3)
    town.settle()
    for _ in range(15):
        town.wake(2.0)
    assert town.desk.shard is not None
    assert town.desk.shard.reconfiguration is None
    before = town.leader().replica.commit
    propose(town.leader(), 2)
    town.settle()
    assert town.leader().replica.commit > before


def test_only_an_ensemble_that_may_have_been_in_force_can_have_settled_what_is_damaged() -> None:
    """N2 is to go, and that was never begun: what N1 lost above N2's head needed both."""
    desk = Desk(electing(2, (N1, N2), change=Reconfiguration(Kind.CONTRACT, Phase.WANTED, N2)))
    desk.start()
    assert desk.shard is not None
    while desk.shard.epoch < 3:
        desk.wake()
    desk.fenced(N1, "1-9", faulty=True)
    desk.fenced(N2, "1-8")
    assert desk.wake_until_sent(N2, BecomeLeaderRequest).epoch == 3


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
