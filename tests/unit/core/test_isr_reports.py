"""When a follower reports its leader, and what counts as hearing of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorate.core import events
from quorate.core.effects import Effect
from quorate.core.entry import EntryId, Member, Snapshot, Span
from quorate.core.fetching import ChunkResponse
from quorate.core.isr.messages import FetchRequest, ReportLeader
from quorate.core.reading import StillRequest
from quorate.core.repairing import REMOVED, HaveEntries
from tests.unit.core.isr_kit import CONTROLLER, Bench, following, pass_time, state
from tests.unit.core.kit import N1, N2, N3, at, sent


@pytest.mark.behaviour("LB-12")
def test_a_leader_that_is_silent_is_reported_with_both_epochs_again_and_again() -> None:
    bench = following("1-0", epoch=3)
    bench.told(state(5, 3))
    ordered = pass_time(bench, 0.9)
    assert ReportLeader not in map(type, sent(ordered, CONTROLLER))
    ordered = pass_time(bench, 1.2)
    assert ReportLeader(3, 5) in sent(ordered, CONTROLLER)
    assert ReportLeader(3, 5) in sent(pass_time(bench, 2.0), CONTROLLER)


@pytest.mark.behaviour("LB-12")
def test_a_leader_that_answers_is_not_reported() -> None:
    bench = following("1-0")
    ordered = []
    for _ in range(50):
        ordered += pass_time(bench, 0.5)
        ordered += bench.answer()
    assert ReportLeader not in map(type, sent(ordered))


@pytest.mark.behaviour("LB-12")
def test_a_leader_that_let_it_rest_is_not_reported_for_having_been_silent() -> None:
    bench = following("1-0 1-1 1-2")
    bench.answer(commit=2)
    bench.answer(commit=2, rest=True)
    assert bench.replica.role.deadline is None
    bench.now += 3600.0
    span = Span(at("1-0"), at("1-1"))
    bench.tell(events.Damaged(span))
    ordered = bench.receive(N3, HaveEntries(1, span, why_not=REMOVED)) + bench.wake()
    assert FetchRequest in map(type, sent(ordered, N1))
    assert ReportLeader not in map(type, sent(ordered, CONTROLLER))


def test_not_all_followers_report_at_the_same_moment() -> None:
    def when(member: Member) -> float:
        bench = following("1-0", me=member)
        while not sent(bench.wake(), CONTROLLER):
            pass
        return bench.now

    assert when(N2) != when(N3)


# ---- what counts as hearing of it ----

SNAPSHOT = Snapshot(EntryId(3, 9), 1, size=1000)
"""In a hundred pieces."""


def reports_while(bench: Bench, say: Callable[[int], list[Effect]]) -> list[ReportLeader]:
    """What it reports in five times the longest silence, in which something is said ever again."""
    ordered: list[Effect] = []
    for number in range(20):
        ordered += pass_time(bench, 0.5)
        ordered += say(number) + bench.persist()
    return [message for message in sent(ordered, CONTROLLER) if type(message) is ReportLeader]


def fetching_a_snapshot() -> Bench:
    bench = following("1-0", epoch=3)
    bench.answer(snapshot=SNAPSHOT)
    assert bench.replica.staging is not None
    return bench


def chunk(bench: Bench, *, epoch: int) -> list[Effect]:
    staging = bench.replica.staging
    assert staging is not None
    return bench.receive(N1, ChunkResponse(epoch, SNAPSHOT, staging.at, 10))


@pytest.mark.behaviour("LB-12")
def test_a_leader_whose_snapshot_comes_piece_by_piece_is_not_reported() -> None:
    bench = fetching_a_snapshot()
    assert reports_while(bench, lambda _: chunk(bench, epoch=3)) == []
    assert bench.replica.staging.at == 200, "it is still under way"


@pytest.mark.behaviour("LB-12")
def test_a_leader_that_asks_whether_it_is_still_followed_is_not_reported() -> None:
    bench = following("1-0", epoch=3)
    assert reports_while(bench, lambda number: bench.receive(N1, StillRequest(3, number))) == []


@pytest.mark.behaviour("LB-12")
def test_a_piece_of_another_epoch_does_not_show_that_the_leader_lives() -> None:
    """Whoever led in an earlier epoch still has its snapshot."""
    bench = fetching_a_snapshot()
    reports = reports_while(bench, lambda _: chunk(bench, epoch=2))
    assert len(reports) >= 5
    assert set(reports) == {ReportLeader(3, 3)}


@pytest.mark.behaviour("LB-12")
def test_a_question_of_another_epoch_does_not_show_that_the_leader_lives() -> None:
    """It is the next leader's: of that, this one was not told yet."""
    bench = following("1-0", epoch=3)
    reports = reports_while(bench, lambda number: bench.receive(N3, StillRequest(4, number)))
    assert len(reports) >= 5
    assert set(reports) == {ReportLeader(3, 3)}
