"""Leadership goes to a chosen node: transfers, forced leadership, priorities (YB-15)."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core import effects, events
from quorate.core.commands import TransferLeadership
from quorate.core.effects import Outcome, Reply
from quorate.core.raft.handing_over import AGAIN_AFTER
from quorate.core.raft.messages import AppendEntries, AppendResponse, TakeOver, VoteRequest
from tests.unit.core.kit import (
    N1,
    N2,
    N3,
    N4,
    NOWHERE,
    THREE,
    TUNING,
    Bench,
    Member,
    Span,
    at,
    change,
    depose,
    flushed,
    following,
    keep_alive,
    leader,
    lease,
    of_kind,
    propose,
    replies,
    rest,
    sent,
    still,
)

UNWANTED = msgspec.structs.replace(TUNING, priority=0)


def transfer(bench: Bench, to: int, request: int = 7) -> list[effects.Effect]:
    return bench.tell(events.Commanded(TransferLeadership(request, to)))


def take_overs(ordered: list[effects.Effect]) -> list[int]:
    return [send.to for send in of_kind(ordered, effects.Send) if isinstance(send.message, TakeOver)]


# ---- the leader ----


@pytest.mark.behaviour("YB-15")
def test_an_heir_that_has_everything_is_told_at_once_and_everybody_hears_who_it_is() -> None:
    bench = leader()
    ordered = transfer(bench, 2)
    assert take_overs(ordered) == [2]
    assert [message.heir for message in sent(ordered, N3)] == [2]
    assert replies(ordered) == []


@pytest.mark.behaviour("YB-15")
def test_the_leader_takes_no_proposals_and_waits_until_the_heir_has_everything() -> None:
    bench = leader()
    propose(bench, 1)
    assert take_overs(transfer(bench, 2)) == []
    assert propose(bench, 2) == [
        Reply(2, Outcome.BUSY, leader=1, why="leadership is being handed over to node 2")
    ]
    bench.persist()
    assert take_overs(flushed(bench, N3, 2)) == [], (
        "what is settled is not enough: the heir itself must have it"
    )
    assert take_overs(flushed(bench, N2, 2)) == [2]


@pytest.mark.behaviour("YB-15")
def test_it_is_told_again_with_every_heartbeat_until_it_is_given_up() -> None:
    bench = leader()
    transfer(bench, 2)
    began = bench.now
    times = 0
    ordered: list[effects.Effect] = []
    while not replies(ordered):
        keep_alive(bench, N2, N3)
        ordered = bench.wake()
        times += len(take_overs(ordered))
    assert 5 <= times <= 10
    (reply,) = replies(ordered)
    assert (reply.request, reply.outcome, reply.leader) == (7, Outcome.TIMED_OUT, 1)
    assert bench.now - began == pytest.approx(TUNING.election_timeout_s, abs=TUNING.heartbeat_s)
    assert replies(propose(bench, 2)) == [], "it takes proposals again"
    assert sent(bench.wake(), N3)[-1].heir == 0, "and nobody is barred any more"


@pytest.mark.behaviour("YB-15")
def test_it_succeeds_when_the_heir_is_heard_to_lead() -> None:
    bench = leader()
    transfer(bench, 2)
    ordered = bench.receive(N2, VoteRequest(3, at("2-1"), handed_over=True))
    assert bench.replica.role.name == "follower"
    assert replies(ordered) == [], "it may lose yet"
    bench.persist()
    ordered = bench.receive(N2, AppendEntries(3, at("2-1"), 1))
    assert replies(ordered) == [Reply(7, Outcome.SETTLED, epoch=3, leader=2)]
    assert replies(bench.receive(N2, AppendEntries(3, at("2-1"), 1))) == []


@pytest.mark.behaviour("YB-15")
def test_it_fails_when_somebody_else_leads() -> None:
    bench = leader()
    transfer(bench, 2)
    depose(bench, 3, by=N3)
    (reply,) = replies(bench.receive(N3, AppendEntries(3, at("2-1"), 1)))
    assert (reply.request, reply.outcome, reply.leader) == (7, Outcome.TIMED_OUT, 3)
    assert "node 3 leads" in reply.why


@pytest.mark.behaviour("YB-15")
def test_it_fails_in_time_when_nobody_is_heard_to_lead() -> None:
    bench = leader()
    transfer(bench, 2)
    began = bench.now
    depose(bench, 3, by=N3)
    assert bench.replica.deadline() == began + TUNING.election_timeout_s
    (reply,) = replies(bench.wake())
    assert (reply.request, reply.outcome) == (7, Outcome.TIMED_OUT)
    assert "nobody" in reply.why


@pytest.mark.behaviour("YB-15")
def test_whoever_asked_hears_once_also_where_the_leader_itself_is_elected_again() -> None:
    bench = leader()
    transfer(bench, 2)
    depose(bench, 3, by=N3)
    bench.persist()
    ordered: list[effects.Effect] = []
    while not replies(ordered):
        ordered = bench.wake()
    assert [reply.outcome for reply in replies(ordered)] == [Outcome.TIMED_OUT]
    assert bench.replica.waiting.deadline is None


@pytest.mark.behaviour("YB-15")
@pytest.mark.parametrize(("to", "why"), [(4, "not in the ensemble"), (9, "not in the ensemble")])
def test_who_does_not_count_is_no_heir(to: int, why: str) -> None:
    bench = leader(learners=(N4,))
    (reply,) = replies(transfer(bench, to))
    assert reply.outcome is Outcome.REFUSED
    assert why in reply.why
    assert replies(propose(bench)) == []


@pytest.mark.behaviour("YB-15")
def test_to_the_leader_itself_is_done_already() -> None:
    bench = leader()
    assert transfer(bench, 1) == [Reply(7, Outcome.SETTLED, epoch=2, leader=1)]


@pytest.mark.behaviour("YB-15")
def test_one_at_a_time() -> None:
    bench = leader()
    transfer(bench, 2)
    (reply,) = replies(transfer(bench, 3, request=8))
    assert reply.outcome is Outcome.REFUSED
    assert "node 2" in reply.why


@pytest.mark.behaviour("YB-15")
def test_another_life_of_the_heir_never_takes_over() -> None:
    bench = leader()
    wiped = Member(2, 5)
    bench.receive(wiped, AppendResponse(2, False, 1, -1, -1, theirs=NOWHERE))
    transfer(bench, 2)
    bench.receive(wiped, AppendResponse(2, True, -1, -1, -1))
    assert take_overs(bench.receive(wiped, AppendResponse(2, True, 1, 1, 1))) == []


@pytest.mark.behaviour("YB-12", "YB-15")
def test_a_step_of_a_change_meanwhile_must_reach_the_heir_too() -> None:
    bench = leader()
    transfer(bench, 2)
    change(bench, *THREE, learners=(N4,), request=8)
    keep_alive(bench, N3)
    assert take_overs(bench.wake()) == []
    bench.persist()
    assert take_overs(flushed(bench, N2, 2)) == [2]


def test_a_leader_at_rest_wakes_for_it() -> None:
    bench = leader()
    rest(bench)
    transfer(bench, 2)
    assert bench.replica.deadline() is not None


def test_no_lease_once_the_heir_was_let_go() -> None:
    bench = leader()
    lease(bench)
    still(bench, N2, 1)
    assert replies(lease(bench, 2))
    transfer(bench, 2)
    assert replies(lease(bench, 3)) == []
    while bench.now < 3:
        keep_alive(bench, N2, N3)
        still(bench, N2, bench.replica.role.reading._round)
        bench.wake()
    assert replies(lease(bench, 4)) == [], "given up, and still"


def test_while_the_heir_is_behind_the_lease_goes_on() -> None:
    bench = leader()
    lease(bench)
    still(bench, N2, 1)
    propose(bench, 5)
    transfer(bench, 2)
    assert replies(lease(bench, 2))


# ---- the heir, and the others ----


@pytest.mark.behaviour("YB-15")
def test_the_heir_stands_at_once_and_says_why() -> None:
    bench = following()
    bench.receive(N1, TakeOver(1))
    assert (bench.replica.role.name, bench.replica.epoch) == ("candidate", 2)
    assert sent(bench.persist()) == [VoteRequest(2, at("1-0"), handed_over=True)] * 2


@pytest.mark.behaviour("YB-15", "YB-16")
def test_an_heir_that_fails_is_nobody_special_afterwards() -> None:
    bench = Bench(N2, "1-0", epoch=1)
    bench.miss_leader()
    bench.receive(N1, TakeOver(1))
    bench.persist()
    bench.stand()
    assert sent(bench.persist()) == [VoteRequest(3, at("1-0"))] * 2


@pytest.mark.behaviour("YB-15")
def test_whoever_cannot_lead_does_not_take_over() -> None:
    bench = Bench(N2, "1-0 1-1", epoch=1, faulty=(Span(NOWHERE, at("1-0")),))
    bench.miss_leader()
    bench.receive(N1, TakeOver(1))
    assert bench.replica.role.name == "follower"


@pytest.mark.behaviour("YB-15", "YB-10")
def test_a_leader_of_the_past_has_nothing_to_hand_over() -> None:
    bench = Bench(N2, "1-0", epoch=5)
    assert bench.receive(N1, TakeOver(4)) == []
    assert bench.replica.role.name == "follower"


@pytest.mark.behaviour("YB-15")
def test_the_others_wait_for_longer() -> None:
    for seed in range(30):
        barred, heir = Bench(N3, "1-0", epoch=1), Bench(N2, "1-0", epoch=1)
        for bench in (barred, heir):
            bench.replica.rng.seed(seed)
            bench.miss_leader()
            bench.receive(N1, AppendEntries(1, at("1-0"), 0, heir=2))
        waits = barred.replica.deadline(), heir.replica.deadline()
        assert waits[0] is not None
        assert waits[1] is not None
        assert 2.0 <= waits[0] - barred.now <= 3.0
        assert 1.0 <= waits[1] - heir.now <= 2.0


# ---- priorities ----


def wanted_more(bench: Bench, member: Member, priority: int = 5, offset: int = 1) -> list[effects.Effect]:
    return bench.receive(member, AppendResponse(2, True, offset, offset, 1, priority=priority))


@pytest.mark.behaviour("YB-15")
def test_a_leader_hands_over_to_a_current_follower_of_a_higher_priority() -> None:
    bench = leader()
    wanted_more(bench, N2, 3)
    wanted_more(bench, N3, 5)
    assert take_overs(bench.wake()) == [3]


@pytest.mark.behaviour("YB-15")
def test_not_to_one_that_is_behind_or_does_not_count() -> None:
    bench = leader(learners=(N4,))
    propose(bench, 5)
    bench.persist()
    flushed(bench, N2, 2)
    assert bench.replica.commit == 2
    wanted_more(bench, N3, 5)
    wanted_more(bench, N4, 9, offset=2)
    assert take_overs(bench.wake()) == []
    wanted_more(bench, N3, 5, offset=2)
    assert take_overs(bench.wake()) == [3]


@pytest.mark.behaviour("YB-15")
def test_in_vain_it_tries_again_only_after_a_while() -> None:
    bench = leader()
    tries = []
    while bench.now < 2 * AGAIN_AFTER:
        wanted_more(bench, N3)
        keep_alive(bench, N2)
        if take_overs(bench.wake()):
            tries.append(bench.now)
    assert tries[0] < 2.0
    again = [at for at in tries if at > tries[0] + 2]
    assert again[0] - tries[0] >= AGAIN_AFTER * TUNING.election_timeout_s - 0.2


@pytest.mark.behaviour("YB-15")
def test_a_command_goes_before_its_own_idea() -> None:
    bench = leader()
    wanted_more(bench, N3)
    bench.wake()
    assert take_overs(transfer(bench, 2)) == [2]


@pytest.mark.behaviour("YB-15")
def test_a_node_that_nobody_wants_to_lead_votes_like_everybody() -> None:
    bench = Bench(N2, "1-0", epoch=1, tuning=UNWANTED)
    bench.miss_leader()
    bench.receive(N3, VoteRequest(2, at("1-0")))
    assert sent(bench.persist())[0].granted
    bench.receive(N3, AppendEntries(2, at("1-0"), 0))
    assert sent(bench.receive(N3, AppendEntries(2, at("1-0"), 0)))[0].priority == 0
