"""Who counts: joint consensus, step by step (YB-12, YB-13)."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core import effects, events
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Header, Kind, Membership, Standing, Wanted
from quorate.core.raft.messages import (
    AppendEntries,
    AppendResponse,
    GoneRequest,
    HaveEntries,
    SnapshotChunk,
    TakeOver,
    VoteRequest,
    VoteResponse,
)
from tests.unit.core.kit import (
    FIVE,
    N1,
    N2,
    N3,
    N4,
    N5,
    NOWHERE,
    THREE,
    TUNING,
    Bench,
    EntryId,
    Member,
    Snapshot,
    Span,
    answer_gone,
    at,
    catch_up,
    change,
    depose,
    entries,
    flushed,
    leader,
    new_leader,
    of_kind,
    propose,
    replies,
    rest,
    sent,
)


def counts(bench: Bench) -> bool:
    return bench.replica.is_voter


def membership(epoch: int, offset: int, control: Membership) -> Header:
    return Header(epoch, offset, kind=Kind.CONTROL, control=control)


def joint_to(*ensemble: Member, joiners: tuple[Member, ...]) -> Bench:
    """N1 leads; a change from N1, N2, N3 is joint, and nobody else has that entry yet."""
    bench = leader()
    change(bench, *ensemble)
    catch_up(bench, *joiners)
    catch_up(bench, N2)
    assert bench.replica.membership.is_joint
    bench.persist()
    return bench


# ---- the three steps ----


@pytest.mark.behaviour("YB-12")
def test_newcomers_learn_first_and_what_is_wanted_stands_in_the_log() -> None:
    bench = leader()
    ordered = change(bench, *FIVE)
    learning = Membership(THREE, (N4, N5), wanted=Wanted(FIVE))
    assert effects.Append(3, (membership(2, 2, learning),)) in ordered
    assert bench.replica.membership == learning
    assert bench.replica.peers == (2, 3, 4, 5)
    assert bench.replica.voting_peers == (2, 3)
    assert [type(message) for message in sent(ordered, N4)] == [AppendEntries], "it is searched for at once"
    assert replies(ordered) == []


@pytest.mark.behaviour("YB-12", "YB-13")
def test_a_change_goes_through_both_ensembles_to_the_new_one() -> None:
    bench = leader()
    change(bench, N3, N4, N5, learners=(N2,))
    catch_up(bench, N4)
    assert not bench.replica.membership.is_joint, "N5 has not caught up"
    catch_up(bench, N5)
    assert not bench.replica.membership.is_joint, "it is not settled that they learn"
    catch_up(bench, N2)
    wanted = Wanted((N3, N4, N5), (N2,))
    assert bench.replica.membership == Membership((N3, N4, N5), outgoing=THREE, wanted=wanted)

    catch_up(bench, N4, N5)
    assert bench.replica.commit == 2, "both of the new ensemble, one of the old"
    catch_up(bench, N2)
    assert bench.replica.membership == Membership((N3, N4, N5), (N2,))
    assert bench.replica.commit == 3

    assert replies(catch_up(bench, N4)) == []
    ordered = catch_up(bench, N5)
    assert replies(ordered) == [Reply(7, Outcome.SETTLED, offset=4, epoch=2)]
    assert bench.replica.membership_at == bench.replica.commit == 4


@pytest.mark.behaviour("YB-12")
def test_while_joint_a_majority_of_both_settles_and_elects() -> None:
    bench = joint_to(N1, N4, N5, joiners=(N4, N5))
    flushed(bench, N4, 3)
    flushed(bench, N5, 3)
    assert bench.replica.commit == 2, "all of the new ensemble, and one of the old"
    flushed(bench, N3, 3)
    assert bench.replica.commit == 3
    joint = membership(1, 1, Membership((N1, N4, N5), outgoing=THREE, wanted=Wanted((N1, N4, N5))))
    candidate = Bench(N1, "1-0", epoch=1)
    candidate.miss_leader()
    candidate.receive(N2, AppendEntries(1, at("1-0"), 0, (joint,)))
    candidate.persist()
    assert sorted(send.to for send in of_kind(candidate.wake(), effects.Send)) == [2, 3, 4, 5]
    for voter in (N4, N5):
        answer_gone(candidate, voter)
    assert candidate.replica.role.name == "prospect"
    answer_gone(candidate, N2)
    assert candidate.replica.role.name == "candidate"
    candidate.persist()
    candidate.receive(N2, VoteResponse(2, True))
    candidate.receive(N3, VoteResponse(2, True))
    assert candidate.replica.role.name == "candidate", "all of the old one, and one of the new"
    candidate.receive(N4, VoteResponse(2, True))
    assert candidate.replica.role.name == "leader"


@pytest.mark.behaviour("YB-13")
def test_only_learners_come_and_go_in_one_step() -> None:
    bench = leader()
    change(bench, *THREE, learners=(N4,))
    assert bench.replica.membership == Membership(THREE, (N4,))
    assert replies(catch_up(bench, N2)) == [Reply(7, Outcome.SETTLED, offset=2, epoch=2)]
    change(bench, *THREE, request=8)
    assert bench.replica.membership == Membership(THREE)
    assert replies(catch_up(bench, N2)) == [Reply(8, Outcome.SETTLED, offset=3, epoch=2)]
    assert sent(propose(bench), N4) == [], "who is out gets nothing more"


@pytest.mark.behaviour("YB-13")
def test_an_ensemble_can_shrink_to_one_and_grow_again() -> None:
    bench = leader()
    change(bench, N1)
    catch_up(bench, N2)
    catch_up(bench, N2)
    bench.persist()
    assert bench.replica.membership == Membership((N1,))
    assert bench.replica.commit == bench.replica.membership_at == 4
    propose(bench)
    assert effects.Commit(5) in bench.persist()
    change(bench, N1, N2, request=8)
    bench.persist()
    catch_up(bench, N2)
    assert bench.replica.membership.is_joint
    catch_up(bench, N2)
    assert replies(catch_up(bench, N2)) == [Reply(8, Outcome.SETTLED, offset=8, epoch=2)]


@pytest.mark.behaviour("YB-12")
def test_a_learner_that_is_promoted_need_not_begin_anew() -> None:
    bench = leader(learners=(N4,))
    change(bench, N1, N2, N3, N4)
    catch_up(bench, N2, N4)
    assert bench.replica.membership.is_joint
    catch_up(bench, N2, N4)
    catch_up(bench, N2, N4)
    assert bench.replica.membership == Membership((N1, N2, N3, N4))


@pytest.mark.behaviour("YB-12")
@pytest.mark.parametrize(("behind", "joins"), [(0, True), (1, True), (2, False)])
def test_near_enough_is_near_enough(behind: int, joins: bool) -> None:
    bench = leader(tuning=msgspec.structs.replace(TUNING, catch_up_max=1))
    change(bench, N1, N2, N3, N4)
    propose(bench, 1)
    propose(bench, 2)
    bench.persist()
    flushed(bench, N2, 4)
    bench.receive(N4, AppendResponse(2, True, 4 - behind, 4 - behind, -1))
    # The search ends where they agree: it streams from there.
    bench.receive(N4, AppendResponse(2, True, 4, 4 - behind, -1))
    assert bench.replica.membership.is_joint is joins


def test_a_learner_that_had_everything_and_is_gone_does_not_come_to_count() -> None:
    """What it confirmed before the change says nothing about whether it is there."""
    bench = leader(learners=(N4,))
    change(bench, N1, N2, N3, N4)
    bench.persist()
    flushed(bench, N2, 2)
    flushed(bench, N3, 2)
    assert bench.replica.commit == 2
    assert not bench.replica.membership.is_joint
    flushed(bench, N4, 2)
    assert bench.replica.membership.is_joint


# ---- commands ----


@pytest.mark.behaviour("YB-12")
def test_what_is_already_so_is_answered_at_once() -> None:
    bench = leader()
    assert replies(change(bench, N1, N2, N3)) == [Reply(7, Outcome.SETTLED, offset=0, epoch=2)]
    assert bench.replica.log.head == at("2-1")


@pytest.mark.behaviour("YB-12", "YB-19")
def test_a_leader_that_has_settled_nothing_of_its_own_changes_nothing() -> None:
    """Raft's one-by-one change had this bug in 2015: it may go by a membership that nobody else will ever see."""
    bench = new_leader("1-0")
    (reply,) = replies(change(bench, N1, N2, N3, N4))
    assert reply.outcome is Outcome.BUSY
    assert bench.replica.membership == Membership(THREE)


@pytest.mark.behaviour("YB-12")
@pytest.mark.parametrize(
    ("ensemble", "learners", "why"),
    [((), (), "at least one"), ((N1, Member(1, 2)), (), "once"), ((N1, N2), (N2,), "once")],
)
def test_what_nobody_could_want_is_refused(
    ensemble: tuple[Member, ...], learners: tuple[Member, ...], why: str
) -> None:
    bench = leader()
    (reply,) = replies(change(bench, *ensemble, learners=learners))
    assert reply.outcome is Outcome.REFUSED
    assert why in reply.why
    assert bench.replica.log.head == at("2-1")


@pytest.mark.behaviour("YB-12")
def test_while_joint_another_change_is_refused_and_the_same_waits_with_it() -> None:
    bench = joint_to(N1, N2, N4, joiners=(N4,))
    (reply,) = replies(change(bench, N1, N2, N5, request=8))
    assert reply.outcome is Outcome.REFUSED
    assert "joint" in reply.why
    assert replies(change(bench, N1, N2, N4, request=9)) == []
    assert replies(change(bench, N1, N2, N4, learners=(N3,), request=10))[0].outcome is Outcome.REFUSED
    catch_up(bench, N2, N4)
    answers = replies(catch_up(bench, N2, N4))
    assert [(reply.request, reply.outcome) for reply in answers] == [
        (7, Outcome.SETTLED),
        (9, Outcome.SETTLED),
    ]


@pytest.mark.behaviour("YB-12")
def test_back_to_where_it_came_from_is_taken_while_joint() -> None:
    bench = joint_to(N1, N4, N5, joiners=(N4, N5))
    ordered = change(bench, N1, N2, N3, request=8)
    assert [(reply.request, reply.outcome) for reply in replies(ordered)] == [(7, Outcome.REFUSED)]
    assert bench.replica.membership == Membership(THREE)
    assert [reply.request for reply in replies(catch_up(bench, N2))] == [8]
    assert bench.replica.commit == 4, "two of three have it, though the joint entry was never settled by both"


@pytest.mark.behaviour("YB-12")
def test_a_change_that_still_learns_is_replaced_by_a_newer_one() -> None:
    bench = leader()
    change(bench, N1, N2, N4)
    catch_up(bench, N2)
    (reply,) = replies(change(bench, N1, N2, N5, request=8))
    assert (reply.request, reply.outcome) == (7, Outcome.REFUSED)
    assert bench.replica.membership == Membership(THREE, (N4, N5), wanted=Wanted((N1, N2, N5)))
    catch_up(bench, N5)
    catch_up(bench, N2)
    assert bench.replica.membership.ensemble == (N1, N2, N5), "the hung one is not waited for"


@pytest.mark.behaviour("YB-12")
def test_a_change_that_still_learns_is_given_up_by_ordering_what_is() -> None:
    bench = leader()
    change(bench, N1, N2, N4)
    assert [reply.request for reply in replies(change(bench, N1, N2, N3, request=8))] == [7]
    assert bench.replica.membership == Membership(THREE)
    assert [reply.request for reply in replies(catch_up(bench, N2))] == [8]


@pytest.mark.behaviour("YB-12")
def test_who_waits_when_leadership_ends_hears_unknown_once() -> None:
    bench = leader()
    change(bench, N1, N2, N4)
    ordered = depose(bench, 9)
    assert replies(ordered) == [Reply(7, Outcome.UNKNOWN)]


def test_only_the_leader_takes_commands() -> None:
    bench = Bench(N2, "1-0", epoch=1)
    bench.receive(N1, AppendEntries(1, at("1-0"), -1))
    assert change(bench, N1, N2) == [Reply(7, Outcome.NOT_LEADER, leader=1)]
    bench.wake()
    assert replies(change(bench, N1, N2))[0].outcome is Outcome.NOT_LEADER


def test_a_leader_at_rest_wakes_for_a_change_and_does_not_rest_while_it_is_open() -> None:
    bench = leader()
    rest(bench)
    change(bench, N1, N2, N3, N4)
    assert bench.replica.deadline() is not None
    catch_up(bench, N2, N3)
    for _ in range(5):
        head = bench.replica.log.head.offset
        for member in (N2, N3):
            bench.receive(member, AppendResponse(2, True, head, head, head, quiet=True))
        bench.wake()
    assert bench.replica.deadline() is not None


# ---- a leader that goes ----


@pytest.mark.behaviour("YB-12")
def test_a_leader_that_is_left_out_does_not_count_itself_and_hands_over_when_that_is_settled() -> None:
    bench = joint_to(N2, N3, N4, joiners=(N4,))
    catch_up(bench, N2)
    assert bench.replica.commit == 2, "one of the new ensemble"
    catch_up(bench, N4)
    assert bench.replica.membership == Membership((N2, N3, N4))
    assert (bench.replica.is_voter, bench.replica.role.name) == (False, "leader")
    bench.persist()
    assert replies(flushed(bench, N4, 4)) == []
    ordered = flushed(bench, N2, 4)
    assert [reply.outcome for reply in replies(ordered)] == [Outcome.SETTLED]
    assert TakeOver(2) in sent(ordered, N4)
    assert bench.replica.role.name == "follower"
    bench.wake()
    assert bench.replica.deadline() is None, "it has nothing to do any more"


@pytest.mark.behaviour("YB-12")
def test_whoever_is_left_out_by_what_may_never_be_settled_can_still_stand() -> None:
    """Perhaps only those who go have the entry (Raft thesis §4.2.2)."""
    bench = Bench(N1, "1-0", epoch=1)
    bench.miss_leader()
    out = membership(1, 1, Membership((N2, N3)))
    bench.receive(N2, AppendEntries(1, at("1-0"), 0, (out,)))
    bench.persist()
    assert (bench.replica.is_voter, bench.replica.is_leaving) == (False, True)
    bench.wake()
    assert bench.replica.role.name == "prospect"
    answer_gone(bench, N2)
    assert bench.replica.role.name == "prospect", "it does not count itself"
    answer_gone(bench, N3)
    assert bench.replica.role.name == "candidate"


@pytest.mark.behaviour("YB-12")
def test_whoever_knows_that_it_is_out_stays_out() -> None:
    bench = Bench(N1, "1-0", epoch=1)
    bench.miss_leader()
    out = membership(1, 1, Membership((N2, N3)))
    bench.receive(N2, AppendEntries(1, at("1-0"), 1, (out,)))
    bench.persist()
    bench.wake()
    assert bench.replica.role.name == "follower"
    assert bench.replica.deadline() is None


# ---- followers who come and go ----


@pytest.mark.behaviour("YB-12")
def test_who_left_hears_that_it_is_settled_and_then_nothing() -> None:
    bench = joint_to(N1, N2, N4, joiners=(N4,))
    catch_up(bench, N3)
    catch_up(bench, N2, N4)
    assert bench.replica.membership == Membership((N1, N2, N4))
    flushed(bench, N3, 4)
    ordered = catch_up(bench, N2)
    assert sent(ordered, N3)[-1].commit == 4
    assert sent(propose(bench), N3) == []
    assert bench.receive(N3, AppendResponse(2, True, 4, 4, 4)) == []


@pytest.mark.behaviour("YB-12")
def test_headers_that_were_read_for_somebody_who_left_are_dropped() -> None:
    bench = leader("1-0 1-1 1-2 1-3", learners=(N4,))
    log = bench.replica.log
    del log.window[:3]
    del log._lasts[:3]
    bench.receive(N4, AppendResponse(2, False, 4, -1, -1, theirs=at("1-0")))
    ordered = bench.receive(N4, AppendResponse(2, True, 0, 0, -1))
    (read,) = of_kind(ordered, effects.Read)
    change(bench, *THREE)
    catch_up(bench, N2)
    assert bench.tell(events.Loaded(read.token, entries("1-1 1-2"))) == []


@pytest.mark.behaviour("YB-12")
def test_a_wiped_node_takes_its_own_place_as_another_incarnation() -> None:
    """Both lives stand in the joint membership, and only the new one acknowledges."""
    wiped = Member(3, 2)
    bench = leader()
    change(bench, N1, N2, wiped)
    assert bench.replica.membership == Membership(THREE, (wiped,), wanted=Wanted((N1, N2, wiped)))
    assert bench.replica.peers == (2, 3)
    bench.persist()
    flushed(bench, N2, 2)
    flushed(bench, N3, 2)
    assert not bench.replica.membership.is_joint, "the life that is over has caught up; the new one has not"
    bench.receive(wiped, AppendResponse(2, False, 2, -1, -1, theirs=NOWHERE))
    bench.receive(wiped, AppendResponse(2, True, -1, -1, -1))
    catch_up(bench, wiped)
    assert bench.replica.membership == Membership(
        (N1, N2, wiped), outgoing=THREE, wanted=Wanted((N1, N2, wiped))
    )
    bench.persist()
    flushed(bench, wiped, 3)
    assert bench.replica.commit == 2, (
        "two of the new ensemble, one of the old: its former life does not count"
    )
    flushed(bench, N2, 3)
    assert bench.replica.commit == 3


@pytest.mark.behaviour("YB-12", "YB-5")
def test_an_outsider_does_nothing_until_somebody_adds_it() -> None:
    bench = Bench(N4)
    assert not counts(bench)
    assert bench.wake() == []
    assert bench.replica.deadline() is None
    bench.receive(N1, AppendEntries(1, NOWHERE, -1, entries("1-0")))
    bench.receive(
        N1, AppendEntries(1, at("1-0"), 0, (membership(1, 1, Membership((N1, N2, N3, N4), outgoing=THREE)),))
    )
    assert counts(bench)
    bench.persist()
    bench.wake()
    assert bench.replica.role.name == "prospect"


@pytest.mark.behaviour("YB-12", "YB-5")
def test_an_outsider_that_is_asked_votes_since_whoever_asks_may_know_more() -> None:
    bench = Bench(N4)
    assert sent(bench.receive(N1, GoneRequest(0, at("1-5"), 3)))[0].gone
    bench.receive(N1, VoteRequest(3, at("1-5")))
    assert sent(bench.persist()) == [VoteResponse(3, True)]


# ---- cut, recovered, snapshots ----


@pytest.mark.behaviour("YB-12", "OR-4")
def test_a_membership_is_taken_back_with_its_entry() -> None:
    bench = Bench(N2, "1-0", epoch=1)
    bench.miss_leader()
    bench.receive(N1, AppendEntries(1, at("1-0"), 0, (membership(1, 1, Membership(FIVE, outgoing=THREE)),)))
    assert list(bench.replica.peers) == [1, 3, 4, 5]
    bench.receive(N3, AppendEntries(2, at("1-0"), 0, entries("2-1")))
    assert bench.replica.membership == Membership(THREE)
    assert list(bench.replica.peers) == [1, 3]


@pytest.mark.behaviour("YB-12")
def test_a_full_disk_takes_back_a_settled_membership_only_to_the_one_before() -> None:
    """The newest is settled, and not flushed here: what stood before it must not be forgotten yet."""
    first, second = Membership((N1, N2)), Membership((N1, N2, N4))
    bench = Bench(N2, "1-0", epoch=1)
    bench.miss_leader()
    bench.receive(N1, AppendEntries(1, at("1-0"), 1, (membership(1, 1, first),)))
    bench.persist()
    bench.receive(N1, AppendEntries(1, at("1-1"), 2, (membership(1, 2, second),)))
    assert (bench.replica.commit, bench.replica.membership) == (2, second)
    bench.tell(events.Failed(bench.replica.ordering.issued, "disk full"))
    assert bench.replica.log.head == at("1-1")
    assert bench.replica.membership == first


@pytest.mark.behaviour("YB-12")
def test_who_counts_is_found_in_the_log_after_a_restart() -> None:
    control = membership(1, 0, Membership((N1, N2, N4)))
    recovered = events.Recovered(NOWHERE, at("1-0"), ((1, 0),), (control,), (control,))
    bench = Bench(N4)
    bench.replica._effects.clear()
    bench.replica.step(0.0, events.Started(recovered))
    assert bench.replica.is_voter
    assert bench.replica.membership_at == 0


@pytest.mark.behaviour("YB-12")
def test_one_that_learns_from_a_mended_entry_that_it_counts_waits_for_a_leader() -> None:
    """Otherwise it would be at rest without one, and nobody else may be able to lead without its log."""
    joined = membership(1, 0, Membership((N1, N2, N4)))
    bench = Bench(N4, "1-0 1-1", epoch=1, faulty=(Span(NOWHERE, at("1-0")),))
    bench.replica.log.window.clear()
    bench.wake()
    while bench.replica.role.deadline is not None:
        bench.wake()
    assert not counts(bench)
    bench.receive(N1, HaveEntries(1, Span(NOWHERE, at("1-0")), (joined,)))
    bench.persist()
    assert counts(bench)
    bench.wake()
    assert bench.replica.role.name == "prospect"


@pytest.mark.behaviour("YB-12")
def test_who_counts_travels_with_a_snapshot() -> None:
    standing = Standing(Membership((N1, N2, N4)), ceiling=17)
    snapshot = Snapshot(at("3-9"), 1, 10, standing)
    bench = Bench(N4)
    bench.receive(N1, SnapshotChunk(3, snapshot, 0, 10))
    assert not counts(bench), "not before it is in the log's place"
    bench.persist()
    assert counts(bench)
    assert bench.replica.membership == standing.membership
    assert bench.replica.ceiling == 17


@pytest.mark.behaviour("YB-12")
def test_a_newer_membership_in_the_log_outlives_an_older_snapshot() -> None:
    snapshot = Snapshot(EntryId(1, 1), 1, 10, Standing(Membership((N1, N2))))
    newer = membership(1, 2, Membership((N1, N2, N3)))
    bench = Bench(N2, "1-0 1-1", epoch=1)
    bench.miss_leader()
    bench.receive(N1, AppendEntries(1, at("1-1"), 1, (newer,)))
    bench.persist()
    bench.tell(events.SnapshotTaken(snapshot))
    assert bench.replica.log.base == at("1-1")
    assert bench.replica.membership == newer.control


# ---- the next leader ----


@pytest.mark.behaviour("YB-12", "YB-19")
@pytest.mark.parametrize("joint", [False, True])
def test_a_new_leader_goes_on_with_what_it_finds_once_its_own_entry_is_settled(joint: bool) -> None:
    wanted = Wanted((N1, N2, N4))
    found = (
        Membership(wanted.ensemble, outgoing=THREE, wanted=wanted)
        if joint
        else Membership(THREE, (N4,), wanted=wanted)
    )
    bench = Bench(N1, "1-0", epoch=1)
    bench.miss_leader()
    bench.receive(N3, AppendEntries(1, at("1-0"), 0, (membership(1, 1, found),)))
    bench.persist()
    bench.elect()
    assert bench.replica.membership == found
    for member in (N2, N3, N4):
        bench.receive(member, AppendResponse(2, True, 1, 1, -1))
    bench.persist()
    assert bench.replica.membership == found, "nothing of epoch 2 is settled"
    flushed(bench, N4, 2)
    flushed(bench, N2, 2)
    if joint:
        assert bench.replica.membership == Membership(wanted.ensemble)
    else:
        assert bench.replica.membership == Membership(wanted.ensemble, outgoing=THREE, wanted=wanted)


def test_a_membership_says_itself_in_a_line() -> None:
    assert str(Membership((N1, N2), (N3,))) == "{n1,n2} learners {n3}"
    assert str(Membership((N1, N2), outgoing=(N1,))) == "{n1}+{n1,n2}"
    assert str(Membership((N1,), (N2,), wanted=Wanted((N1, N2)))) == "{n1} learners {n2} to be {n1,n2}"
