"""What somebody found who tried to break `isr`."""

from __future__ import annotations

import pytest

from quorate.core import events
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import EntryId, Snapshot, Span
from quorate.core.fetching import ChunkResponse
from quorate.core.isr.messages import FetchRequest, FetchResponse, PartitionTold
from quorate.core.isr.orders import ElectUncleanly
from quorate.core.isr.state import Unclean
from tests.unit.core.isr_kit import CONTROLLER, CONTROLLER_TUNING, Desk, at_work, following, state
from tests.unit.core.kit import N1, N2, N3, at, sent


def test_a_snapshot_of_the_former_leader_is_no_agreement_with_one_that_a_person_has_let_lead() -> None:
    bench = following("1-0")
    snapshot = Snapshot(EntryId(1, 9), 1, 10)
    bench.answer(snapshot=snapshot)
    bench.receive(N1, ChunkResponse(1, snapshot, 0, 10))
    assert bench.replica.installing
    unclean = Unclean(2, N3, (N1, N2))
    bench.receive(CONTROLLER, PartitionTold(2, state(2, 2, N3, isr_now=(N3,), unclean=unclean)))
    ordered = bench.persist() + bench.persist() + bench.wake_now()
    asked = [message for message in sent(ordered, N3) if type(message) is FetchRequest]
    assert asked
    assert {request.flushed for request in asked} == {-1}


def test_damage_that_is_found_where_the_log_is_about_to_be_cut_is_not_forgotten() -> None:
    bench = following("1-0 1-1 1-2 1-3 1-4 1-5 1-6 1-7")
    bench.told(state(2, 2, N3))
    bench.answer(diverging=at("1-5"))
    assert bench.asked.prev == at("1-5")
    bench.tell(events.Damaged(Span(at("1-2"), at("1-6"))))
    asked = bench.asked
    bench.receive(N3, FetchResponse(2, asked.session, asked.number, at("1-5"), -1))
    bench.persist()
    assert bench.replica.log.faulty == (Span(at("1-2"), at("1-6")),)
    assert bench.replica.flushed_agreement() <= 2


def order(desk: Desk) -> Reply:
    (reply,) = (effect for effect in desk.order(ElectUncleanly(7, N3)) if type(effect) is Reply)
    return reply


@pytest.mark.parametrize("answers", [False, True])
def test_who_has_everything_is_called_before_a_person_may_let_another_lead(answers: bool) -> None:
    """Nobody has said that it is gone: the reports of one that is not in sync do not count."""
    desk = at_work(state(5, 2, N1, isr_now=(N1, N2), min_isr=1))
    for _ in range(120):
        desk.report(N3)
        desk.pass_time(1.0)
    assert order(desk).why == "this controller is asking who is there: try again in a moment"
    if answers:
        desk.heard(N2)
    desk.pass_time(CONTROLLER_TUNING.patience_s)
    reply = order(desk)
    if answers:
        assert reply.why == "node 2 has everything that is settled, and does not seem to be gone"
    else:
        assert reply.outcome is Outcome.SETTLED
        assert desk.stored.leader == N3


def test_a_damaged_one_is_not_elected_uncleanly() -> None:
    desk = at_work(state(5, 2, N1, isr_now=(N1, N2), min_isr=1))
    desk.heard(N3, leads=False, can_lead=False)
    desk.tell(events.Suspected(2))
    desk.tell(events.Suspected(1))
    reply = order(desk)
    assert reply.outcome is Outcome.REFUSED
    assert "damaged" in reply.why
