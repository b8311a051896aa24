"""Who leads: votes, epochs, and what must be durable before anything is said."""

from __future__ import annotations

import pytest

from quorate.core import effects, events, raft
from quorate.core.entry import Kind, NoOp
from quorate.core.raft.messages import (
    AppendEntries,
    AppendResponse,
    VoteRequest,
    VoteResponse,
)
from tests.unit.core.kit import (
    FIVE,
    N1,
    N2,
    N3,
    N4,
    NOWHERE,
    Bench,
    Header,
    Member,
    Span,
    answer_gone,
    at,
    entries,
    orders,
    sent,
)


@pytest.mark.behaviour("YB-4", "YB-7")
def test_a_candidate_takes_the_next_epoch_and_asks_only_when_its_own_vote_is_flushed() -> None:
    bench = Bench(N1, "1-0", epoch=4)
    ordered = bench.stand()
    assert ordered == [effects.SaveState(1, raft.SavedState(5, N1))]
    ordered = bench.persist()
    assert sent(ordered, N2) == [VoteRequest(5, at("1-0"))]
    assert sent(ordered, N3) == [VoteRequest(5, at("1-0"))]


@pytest.mark.behaviour("YB-3")
def test_a_candidate_leads_with_a_majority_and_not_before() -> None:
    bench = Bench(N1, "1-0", voters=FIVE)
    bench.stand()
    bench.persist()
    bench.receive(N2, VoteResponse(2, True))
    assert bench.replica.role.name == "candidate"
    bench.receive(N2, VoteResponse(2, True))
    assert bench.replica.role.name == "candidate", "a repeated vote is one vote"
    bench.receive(N3, VoteResponse(2, True))
    assert bench.replica.role.name == "leader"


def test_a_refused_vote_that_shows_a_vote_for_somebody_else_is_not_a_vote() -> None:
    bench = Bench(N1, "1-0")
    bench.stand()
    bench.persist()
    bench.receive(N2, VoteResponse(2, False))
    bench.receive(N3, VoteResponse(2, False))
    assert bench.replica.role.name == "candidate"


@pytest.mark.behaviour("YB-17", "YB-19")
def test_a_new_leader_first_appends_an_entry_of_its_own_epoch() -> None:
    bench = Bench(N1, "1-0")
    ordered = bench.elect()
    noop = Header(2, 1, kind=Kind.CONTROL, control=NoOp(1))
    assert orders(ordered) == [effects.Append(2, (noop,))]
    assert sent(ordered, N2) == [AppendEntries(2, at("1-0"), -1, search=True)]


@pytest.mark.behaviour("YB-7", "YB-11")
def test_a_vote_is_answered_only_when_it_is_durable() -> None:
    bench = Bench(N2, "1-0", epoch=1)
    bench.miss_leader()
    ordered = bench.receive(N1, VoteRequest(2, at("1-0")))
    assert sent(ordered) == []
    assert orders(ordered)[-1] == effects.SaveState(2, raft.SavedState(2, N1))
    assert sent(bench.tell(events.Persisted(1))) == [], "the epoch is durable, the vote is not"
    assert sent(bench.persist()) == [VoteResponse(2, True)]


@pytest.mark.behaviour("YB-11")
def test_one_vote_an_epoch_also_after_a_restart() -> None:
    bench = Bench(N2, "1-0", epoch=2, vote=N1)
    bench.miss_leader()
    assert sent(bench.receive(N3, VoteRequest(2, at("1-9")))) == [VoteResponse(2, False)]
    assert sent(bench.receive(N1, VoteRequest(2, at("1-0")))) == [VoteResponse(2, True)], "the same again"


@pytest.mark.behaviour("OR-6")
@pytest.mark.parametrize(
    ("theirs", "granted"), [("2-4", False), ("3-2", False), ("3-3", True), ("3-4", True), ("4-0", True)]
)
def test_the_greatest_last_entry_wins(theirs: str, granted: bool) -> None:
    bench = Bench(N2, "1-0 1-1 3-2 3-3", epoch=4)
    bench.miss_leader()
    bench.receive(N1, VoteRequest(5, at(theirs)))
    assert sent(bench.persist()) == [VoteResponse(5, granted)]


@pytest.mark.behaviour("OR-21")
def test_a_shorter_log_may_lead_and_overwrite_a_higher_entry_that_no_majority_has() -> None:
    """N2 (last 1-1) wins with N3 and N4, and N1's 3-0 goes."""
    n2 = Bench(N2, "1-0 1-1", voters=FIVE, epoch=3)
    n2.stand()
    n2.persist()
    n2.receive(N3, VoteResponse(4, True))
    n2.receive(N4, VoteResponse(4, True))
    assert n2.replica.role.name == "leader"
    n1 = Bench(N1, "3-0", voters=FIVE, epoch=3)
    ordered = n1.receive(N2, AppendEntries(4, NOWHERE, -1, entries("1-0 1-1")))
    assert effects.Cut(2, NOWHERE) in ordered
    assert n1.log() == "1-0 1-1"


@pytest.mark.behaviour("YB-18")
def test_a_leader_that_sees_a_higher_epoch_steps_down_and_adopts_it() -> None:
    bench = Bench(N1)
    bench.elect()
    ordered = bench.receive(N2, AppendResponse(7, False, -1, -1, -1, theirs=NOWHERE))
    assert (bench.replica.role.name, bench.replica.epoch, bench.replica.vote) == ("follower", 7, None)
    assert effects.SaveState(3, raft.SavedState(7, None)) in ordered


@pytest.mark.behaviour("YB-10", "YB-18")
def test_a_leader_of_the_past_is_told_the_epoch() -> None:
    bench = Bench(N2, "1-0", epoch=5)
    ordered = bench.receive(N1, AppendEntries(4, at("1-0"), 0))
    assert sent(ordered) == [AppendResponse(5, False, -1, -1, -1, theirs=NOWHERE)]
    assert bench.replica.leader == 0


@pytest.mark.behaviour("YB-7")
def test_the_epoch_is_zero_at_first_and_never_below_an_entry_of_the_log() -> None:
    assert Bench(N1).replica.epoch == 0
    assert Bench(N1, "3-0", epoch=2, vote=N2).replica.epoch == 3
    assert Bench(N1, "3-0", epoch=2, vote=N2).replica.vote is None, "that vote was of another epoch"


@pytest.mark.behaviour("YB-5")
def test_a_learner_neither_stands_nor_is_asked() -> None:
    bench = Bench(N4, "1-0", learners=(N4,))
    bench.wake()
    assert bench.replica.role.name == "follower"
    assert bench.replica.deadline() is None
    candidate = Bench(N1, "1-0", learners=(N4,))
    assert sent(candidate.wake(), N4) == []
    answer_gone(candidate, N2)
    ordered = candidate.persist()
    assert len(sent(ordered, N2)) == 1
    assert sent(ordered, N4) == []


@pytest.mark.behaviour("YB-5", "YB-12")
def test_one_that_was_just_promoted_votes_though_it_does_not_know_it_yet() -> None:
    """Who is asked counts by the log of the candidate, which may be ahead of its own (Raft thesis §4.1)."""
    bench = Bench(N4, "1-0", learners=(N4,))
    bench.miss_leader()
    bench.receive(N1, VoteRequest(9, at("1-1")))
    assert sent(bench.persist()) == [VoteResponse(9, True)]


def test_another_incarnation_of_a_voter_is_not_a_voter() -> None:
    wiped = Member(1, 77)
    bench = Bench(wiped)
    bench.wake()
    assert bench.replica.role.name == "follower"
    candidate = Bench(N2)
    candidate.stand()
    candidate.persist()
    candidate.receive(wiped, VoteResponse(1, True))
    assert candidate.replica.role.name == "candidate", "it votes, and does not count"
    candidate.receive(N1, VoteResponse(1, True))
    assert candidate.replica.role.name == "leader"


def test_a_damaged_log_never_leads_and_votes_with_what_it_had() -> None:
    """Rule 3: its head is the mark's, whether or not it can be read."""
    bench = Bench(N1, "1-0 1-1 1-2", faulty=(Span(at("1-0"), at("1-2")),), epoch=1)
    bench.wake()
    assert bench.replica.role.name == "follower"
    bench.now += 1.0
    bench.receive(N2, VoteRequest(5, at("1-1")))
    assert sent(bench.persist())[-1] == VoteResponse(5, False, faulty=True)
    bench.receive(N3, VoteRequest(6, at("1-2")))
    assert sent(bench.persist())[-1] == VoteResponse(6, True, faulty=True)


def test_a_leader_that_finds_damage_stands_down() -> None:
    bench = Bench(N1, "1-0 1-1")
    bench.elect()
    bench.tell(events.Damaged(Span(NOWHERE, at("1-0"))))
    assert bench.replica.role.name == "follower"
    assert not bench.replica.can_lead()


def test_an_append_that_the_disk_refuses_ends_leadership_and_clients_hear_unknown() -> None:
    bench = Bench(N1, "1-0")
    bench.elect()
    bench.persist()
    bench.tell(events.Proposed(1, (Header(0, 0, size=10),)))
    io = bench.replica.ordering.issued
    ordered = bench.tell(events.Failed(io, "disk full"))
    assert effects.Reply(1, effects.Outcome.UNKNOWN) in ordered
    assert effects.Cut(io + 1, at("2-1")) in ordered
    assert bench.replica.role.name == "follower"
    assert bench.replica.log.head == at("2-1")


def test_a_group_of_one_leads_by_itself() -> None:
    bench = Bench(N1, voters=(N1,))
    bench.wake()
    bench.persist()
    assert bench.replica.role.name == "leader"
    bench.persist()
    assert bench.replica.commit == 0


def test_the_preferred_replica_of_a_new_group_stands_first() -> None:
    preferred, other = Bench(N2, preferred=2), Bench(N3, preferred=2)
    assert preferred.replica.deadline() == preferred.replica.config.tuning.heartbeat_s
    deadline = other.replica.deadline()
    assert deadline is not None
    assert deadline >= other.replica.config.tuning.election_timeout_s


def test_being_preferred_means_nothing_where_there_was_a_leader() -> None:
    deadline = Bench(N2, epoch=3, preferred=2).replica.deadline()
    assert deadline is not None
    assert deadline >= 1.0
