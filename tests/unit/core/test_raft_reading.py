"""Reads that see everything that was settled before they began; leases; reads at an offset."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core import effects, events
from quorate.core.effects import Outcome, Reply
from quorate.core.events import ReadLevel
from quorate.core.raft.leader import Leader
from quorate.core.raft.messages import AppendEntries, AppendResponse, StillRequest, StillResponse, VoteRequest
from tests.unit.core.kit import (
    FIVE,
    N1,
    N2,
    N3,
    N4,
    N5,
    TUNING,
    Bench,
    Member,
    at,
    catch_up,
    change,
    depose,
    entries,
    flushed,
    following,
    leader,
    lease,
    new_leader,
    of_kind,
    propose,
    read,
    replies,
    rest,
    sent,
    still,
)

LEASE_S = 1.0 * 0.9 / 1.1
"""What the leader's own clock may show: an election time-out, less what clocks may drift apart."""


def reading(bench: Bench) -> Leader:
    assert isinstance(bench.replica.role, Leader)
    return bench.replica.role


def answered(request: int = 1, offset: int = 1) -> list[Reply]:
    return [Reply(request, Outcome.SETTLED, offset, 2, 1)]


# ---- rounds ----


def test_a_read_is_answered_when_a_majority_still_follows() -> None:
    bench = leader(voters=FIVE)
    ordered = read(bench)
    assert sent(ordered) == [StillRequest(2, 1)] * 4
    assert replies(ordered) == []
    still(bench, N2, 1)
    assert replies(still(bench, N2, 1)) == [], "the same again"
    assert replies(still(bench, N3, 1)) == answered()
    assert replies(still(bench, N4, 1)) == []


def test_only_voters_are_asked_and_only_they_count() -> None:
    bench = leader(learners=(N4,))
    assert sent(read(bench), N4) == []
    assert replies(still(bench, N4, 1)) == []
    assert replies(still(bench, Member(2, 9), 1)) == [], "another life of a voter"
    assert replies(still(bench, N3, 1)) == answered()


def test_reads_that_come_while_a_round_is_open_share_the_next() -> None:
    bench = leader()
    read(bench, 1)
    assert sent(read(bench, 2)) == []
    assert sent(read(bench, 3)) == []
    ordered = still(bench, N2, 1)
    assert replies(ordered) == answered(1)
    assert sent(ordered, N3) == [StillRequest(2, 2)]
    assert replies(still(bench, N3, 1)) == [], "an answer to the round before theirs"
    assert replies(still(bench, N3, 2)) == answered(2) + answered(3)


def test_a_read_sees_what_was_settled_when_it_began_or_more() -> None:
    bench = leader()
    propose(bench, 5)
    read(bench)
    bench.persist()
    flushed(bench, N2, 2)
    assert replies(still(bench, N2, 1)) == answered(offset=2)


def test_a_read_waits_until_what_is_settled_is_flushed_here() -> None:
    bench = leader()
    propose(bench, 5)
    flushed(bench, N2, 2)
    flushed(bench, N3, 2)
    assert (bench.replica.commit, bench.replica.published) == (2, 1)
    read(bench)
    assert replies(still(bench, N2, 1)) == []
    assert replies(bench.persist()) == answered(offset=2)


@pytest.mark.behaviour("YB-19")
@pytest.mark.parametrize("level", [ReadLevel.LINEARIZABLE, ReadLevel.LEASE])
def test_a_new_leader_answers_nothing_before_it_has_settled_something_itself(level: ReadLevel) -> None:
    """etcd #7331: what is settled is in its log, and it does not know yet that it is."""
    bench = new_leader("1-0 1-1")
    assert read(bench, level=level) == []
    still(bench, N2, 1)
    flushed(bench, N2, 1)
    ordered = flushed(bench, N2, 2)
    assert replies(ordered) == []
    assert sent(ordered, N2)[0] == StillRequest(2, 1)
    assert replies(still(bench, N2, 1)) == answered(offset=2)


def test_a_round_whose_answers_are_lost_is_asked_again_with_every_heartbeat() -> None:
    bench = leader()
    read(bench)
    assert StillRequest(2, 1) in sent(bench.wake(), N2)
    assert StillRequest(2, 1) in sent(bench.wake(), N2)
    assert replies(still(bench, N2, 1)) == answered()


def test_whoever_waits_when_leadership_ends_is_sent_elsewhere_once() -> None:
    bench = leader()
    read(bench, 1)
    read(bench, 2)
    ordered = depose(bench, 9)
    assert replies(ordered) == [Reply(1, Outcome.NOT_LEADER), Reply(2, Outcome.NOT_LEADER)]
    early = new_leader("1-0")
    read(early, 3)
    ordered = depose(early, 9)
    assert replies(ordered) == [Reply(3, Outcome.NOT_LEADER)]


def test_a_group_of_one_asks_nobody() -> None:
    bench = Bench(N1, voters=(N1,))
    bench.wake()
    bench.persist()
    bench.persist()
    assert replies(read(bench)) == [Reply(1, Outcome.SETTLED, 0, 1, 1)]


def test_a_leader_at_rest_wakes_for_a_read() -> None:
    bench = leader()
    rest(bench)
    assert sent(read(bench), N2) == [StillRequest(2, 1)]
    assert bench.replica.deadline() is not None


def test_a_read_at_rest_wakes_the_leader_whose_round_was_lost() -> None:
    """The lease was to be kept, nobody has answered, and the group fell silent: the round is open for ever."""
    bench = leader()
    lease(bench, 1)
    still(bench, N2, 1)
    bench.wake()
    head = bench.replica.log.head.offset
    for member in (N2, N3):
        bench.receive(member, AppendResponse(2, True, head, head, head, quiet=True))
    bench.wake()
    assert bench.replica.deadline() is None
    assert replies(read(bench, 2)) == []
    assert bench.replica.deadline() is not None
    ordered = bench.wake()
    asked = [message for message in sent(ordered, N2) if isinstance(message, StillRequest)]
    assert len(asked) == 1
    ordered = still(bench, N2, asked[0].round)
    (again,) = [message for message in sent(ordered, N2) if isinstance(message, StillRequest)]
    assert replies(still(bench, N2, again.round)) == answered(2)


@pytest.mark.behaviour("YB-12")
def test_a_round_ends_where_the_leader_alone_counts_by_now() -> None:
    bench = leader()
    read(bench)
    change(bench, N1)
    catch_up(bench, N2)
    catch_up(bench, N2)
    bench.persist()
    assert bench.replica.voting_peers == ()
    assert replies(bench.wake())[0].outcome is Outcome.SETTLED


@pytest.mark.behaviour("YB-12")
def test_while_a_change_is_joint_both_ensembles_must_still_follow() -> None:
    bench = leader()
    change(bench, N1, N4, N5)
    catch_up(bench, N4, N5, N2)
    assert bench.replica.membership.is_joint
    assert {send.to for send in of_kind(read(bench), effects.Send)} == {2, 3, 4, 5}
    still(bench, N4, 1)
    assert replies(still(bench, N5, 1)) == []
    assert replies(still(bench, N3, 1)) == answered(offset=2)


# ---- leases ----


def test_a_lease_saves_the_round_for_as_long_as_everybody_keeps_its_promise() -> None:
    bench = leader()
    began = bench.now
    ordered = lease(bench, 1)
    assert sent(ordered, N2) == [StillRequest(2, 1)], "nobody has promised anything yet"
    bench.now += 0.3
    assert replies(still(bench, N2, 1)) == answered(1)
    bench.now = began + LEASE_S - 0.01
    assert lease(bench, 2) == answered(2)
    bench.now = began + LEASE_S + 0.01
    ordered = lease(bench, 3)
    assert replies(ordered) == [], "counted from when the round began, not from when it was answered"
    assert sent(ordered, N2) == [StillRequest(2, 2)]


def test_a_lease_ends_before_the_promise_by_as_much_as_clocks_may_drift() -> None:
    for drift in (0.0, 0.1, 0.3):
        bench = leader(tuning=msgspec.structs.replace(TUNING, clock_drift_max=drift))
        lease(bench)
        still(bench, N2, 1)
        fast, slow = 1 + drift, 1 - drift
        lease_lasts = (reading(bench).reading.lease_until - bench.now) / slow
        assert lease_lasts <= TUNING.election_timeout_s / fast + 1e-9


def test_a_lease_is_no_longer_than_the_shortest_promise_of_those_it_rests_on() -> None:
    """Nodes may be configured with different time-outs."""
    bench = leader()
    lease(bench)
    still(bench, N2, 1, promised_s=0.5)
    assert reading(bench).reading.lease_until - bench.now < 0.5


def test_a_lease_that_is_used_is_kept_and_one_that_is_not_ends() -> None:
    bench = leader()
    lease(bench)
    still(bench, N2, 1)
    assert StillRequest(2, 2) in sent(bench.wake(), N2)
    still(bench, N2, 2)
    for _ in range(40):
        for member in (N2, N3):
            flushed(bench, member, 1)
        ordered = bench.wake()
        still(bench, N2, reading(bench).reading._round)
    assert not any(isinstance(message, StillRequest) for message in sent(ordered))


def test_linearizable_reads_ask_even_within_a_lease() -> None:
    bench = leader()
    lease(bench)
    still(bench, N2, 1)
    assert sent(read(bench, 2), N2) == [StillRequest(2, 2)]


def test_a_paused_leader_looks_at_its_clock_again() -> None:
    bench = leader()
    lease(bench)
    still(bench, N2, 1)
    bench.now += 100
    assert replies(lease(bench, 2)) == []


def test_following_is_promised_before_it_is_said() -> None:
    bench = Bench(N2, "1-0", epoch=1)
    bench.miss_leader()
    ordered = bench.receive(N1, StillRequest(2, 7))
    assert sent(ordered) == [], "the epoch is not saved yet"
    assert sent(bench.persist()) == [StillResponse(2, 7, 1.0)]
    assert bench.receive(N3, VoteRequest(3, at("1-0"))) == []
    assert bench.replica.leader == 1


def test_a_leader_of_the_past_is_not_followed() -> None:
    bench = Bench(N2, "1-0", epoch=5)
    (answer,) = sent(bench.receive(N1, StillRequest(4, 7)))
    assert (type(answer), answer.epoch) == (AppendResponse, 5)
    assert bench.replica.leader == 0


# ---- at an offset ----


def at_offset(bench: Bench, offset: int, request: int = 1) -> list[effects.Effect]:
    return bench.tell(events.ReadAsked(request, ReadLevel.AT_OFFSET, offset))


def test_any_replica_answers_at_an_offset_that_it_has() -> None:
    bench = following()
    assert at_offset(bench, 0) == [Reply(1, Outcome.SETTLED, 0, 1, 1)]
    assert at_offset(bench, -1) == [Reply(1, Outcome.SETTLED, 0, 1, 1)]
    learner = Bench(N4, "1-0", learners=(N4,), commit=0)
    assert at_offset(learner, 0)[0].outcome is Outcome.SETTLED  # type: ignore[union-attr]


def test_a_read_at_an_offset_waits_until_that_is_settled_and_flushed_here() -> None:
    bench = following()
    at_offset(bench, 2)
    bench.receive(N1, AppendEntries(1, at("1-0"), 1, entries("1-1 1-2")))
    assert replies(bench.persist()) == [], "flushed, and 2 not settled"
    assert replies(bench.receive(N1, AppendEntries(1, at("1-2"), 2))) == [Reply(1, Outcome.SETTLED, 2, 1, 1)]


def test_a_read_at_an_offset_that_never_comes_is_given_up_also_at_rest() -> None:
    bench = following()
    bench.receive(N1, AppendEntries(1, at("1-0"), 0, quiet=True))
    assert bench.replica.deadline() is None
    at_offset(bench, 9)
    assert bench.replica.deadline() == bench.now + TUNING.read_wait_s
    (reply,) = replies(bench.wake())
    assert (reply.outcome, reply.leader) == (Outcome.TIMED_OUT, 1)
    assert "offset 9" in reply.why
    assert bench.replica.deadline() is None


def test_a_read_at_an_offset_outlives_roles() -> None:
    bench = following()
    at_offset(bench, 1)
    bench.stand()
    bench.persist()
    bench.receive(N3, AppendEntries(2, at("1-0"), 1, entries("2-1")))
    assert replies(bench.persist()) == [Reply(1, Outcome.SETTLED, 1, 2, 3)]


def test_whoever_does_not_lead_says_who_does() -> None:
    bench = following()
    assert read(bench) == [Reply(1, Outcome.NOT_LEADER, leader=1)]
    assert lease(bench) == [Reply(1, Outcome.NOT_LEADER, leader=1)]
    bench.wake()
    assert replies(read(bench))[0].leader == 0
