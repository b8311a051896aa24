"""What a person orders: demote, read-only, cut loose, join again, other quorums; what old versions are spared."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.core import commands, confirm, effects, events
from quorate.core.confirm.config import TOO_NEW
from quorate.core.confirm.messages import AppendEntries, AppendResponse, GoneRequest, Row, Says
from quorate.core.effects import Effect, Outcome
from quorate.core.entry import Member, Membership, Quorums, Wanted
from tests.unit.core.confirm_kit import (
    MANUAL,
    TUNING,
    Bench,
    appended,
    aye,
    committed,
    flushed,
    following,
    leader,
    let_time_pass,
    nay,
    nominate,
    outcomes,
    propose,
    reasons,
    reports,
    send,
)
from tests.unit.core.kit import FIVE, N1, N2, N3, N4, N5, NOWHERE, THREE, at, of_kind, orders, sent

OLD = confirm.Tuning(election_timeout_s=1.0, heartbeat_s=0.1, keep_behind=0, feature_level=1)


def change(bench: Bench, *ensemble: Member, request: int = 9, **more: Any) -> list[Effect]:
    return bench.command(commands.ChangeMembership(request, ensemble, **more))


def catch_up(bench: Bench, *members: Member) -> list[Effect]:
    """They have everything, flushed, and so has the leader."""
    ordered = bench.persist()
    for member in members:
        ordered += flushed(bench, member, bench.replica.log.head.offset)
    return ordered


# ---- alone ----


@pytest.mark.behaviour("TT-9", "TT-24")
def test_orders_to_a_leader_that_leads_on_alone_are_answered() -> None:
    bench = leader(tuning=MANUAL)
    propose(bench, 1)
    bench.command(commands.Demote(2))
    bench.command(commands.RollBack(3))
    ordered = let_time_pass(bench, 30.0)
    why = "incomplete quorum: too few replicas follow"
    assert [
        (reply.request, reply.outcome, reply.why) for reply in ordered if isinstance(reply, effects.Reply)
    ] == [
        (2, Outcome.TIMED_OUT, why),
        (3, Outcome.UNKNOWN, why),
    ]
    assert bench.leading.rolls_back, "it may be settled yet"


@pytest.mark.behaviour("TT-9", "TT-24")
def test_a_leader_that_leads_on_alone_keeps_no_reader_waiting_for_ever() -> None:
    """Nobody stands unasked, so it leads until it is told otherwise; whether it does, it cannot know."""
    bench = leader(tuning=MANUAL)
    bench.tell(events.ReadAsked(5, events.ReadLevel.LINEARIZABLE))
    ordered = let_time_pass(bench, MANUAL.read_wait_s + 1.0)
    assert bench.replica.role.name == "leader"
    assert outcomes(ordered) == [(5, Outcome.TIMED_OUT)]


# ---- demote ----


@pytest.mark.behaviour("TT-21")
def test_demote_takes_no_more_writes_and_waits_for_an_empty_limbo() -> None:
    bench = leader()
    propose(bench, 1)
    bench.persist()
    assert outcomes(bench.command(commands.Demote(9))) == []
    ordered = propose(bench, 2)
    assert outcomes(ordered) == [(2, Outcome.BUSY)]
    assert reasons(ordered) == ["the leader is being demoted"]
    assert outcomes(flushed(bench, N2, 1)) == [(1, Outcome.SETTLED)]
    assert bench.replica.role.name == "leader", "its CONFIRM is not on a quorum yet"
    bench.persist()
    assert outcomes(flushed(bench, N2, 2)) == []
    assert bench.replica.role.name == "leader", "node 3 would lack it, and nobody sends it anything then"
    assert outcomes(flushed(bench, N3, 2)) == [(9, Outcome.SETTLED)]
    assert bench.replica.role.name == "follower"


@pytest.mark.behaviour("TT-21")
def test_demote_waits_an_election_at_most_for_whoever_is_behind() -> None:
    bench = leader()
    propose(bench, 1)
    bench.command(commands.Demote(9))
    ordered = catch_up(bench, N2) + catch_up(bench, N2)
    assert (9, Outcome.SETTLED) not in outcomes(ordered)
    before = bench.now
    while bench.replica.role.name == "leader" and bench.now < before + 3 * TUNING.election_timeout_s:
        ordered += bench.wake()
        ordered += flushed(bench, N2, bench.replica.log.head.offset)
    assert (9, Outcome.SETTLED) in outcomes(ordered)
    assert bench.now - before <= TUNING.election_timeout_s + 2 * TUNING.heartbeat_s


@pytest.mark.behaviour("TT-21")
def test_demote_does_not_wait_for_whoever_is_silent() -> None:
    bench = leader()
    long_enough = bench.now + 2 * TUNING.election_timeout_s
    while bench.now < long_enough:
        propose(bench, 1)
        catch_up(bench, N2)
        bench.wake()
    bench.command(commands.Demote(9))
    catch_up(bench, N2)
    assert bench.replica.role.name == "follower"


@pytest.mark.behaviour("TT-21", "TT-32")
def test_demote_does_not_wait_for_whoever_was_cut_loose() -> None:
    bench = leader()
    bench.receive(N3, AppendResponse(bench.replica.epoch, True, 0, 0, 0, loose=True))
    propose(bench, 1)
    bench.command(commands.Demote(9))
    catch_up(bench, N2)
    catch_up(bench, N2)
    assert bench.replica.role.name == "follower"


@pytest.mark.behaviour("TT-21", "TT-13")
def test_demote_makes_the_leader_the_former_and_nobody_the_current() -> None:
    bench = leader()
    assert bench.replica.voting.newest.leader == 1
    ordered = bench.command(commands.Demote(9))
    row = Row(1, 0, False, 0, 1, 1)
    assert orders(ordered)[0] == effects.SaveState(
        bench.replica.ordering.issued, confirm.SavedState(1, N1, NOWHERE, row, 1)
    )
    assert sent(bench.persist(), N2) == [Says(1, row, at("1-0"), commit=0)]
    assert bench.replica.voting.newest.leader == 0
    assert bench.replica.voting.newest.former == 1


@pytest.mark.behaviour("TT-21")
def test_whoever_is_at_rest_hears_that_its_leader_was_demoted() -> None:
    bench = following("1-0P")
    bench.receive(N1, AppendEntries(1, at("1-0"), 0, quiet=True))
    assert bench.replica.deadline() is None
    bench.receive(N1, Says(1, Row(1, 0, False, 0, 1, 1), at("1-0")))
    assert bench.replica.deadline() is not None
    assert bench.replica.leader == 0
    assert nominate(bench, N3, 2, at("1-0"), ordered=False) != [], "and owes nobody its vote"


@pytest.mark.behaviour("TT-21", "TT-12")
def test_where_nothing_is_automatic_nobody_leads_after_a_demotion() -> None:
    bench = leader(tuning=MANUAL)
    bench.command(commands.Demote(9))
    bench.persist()
    let_time_pass(bench, 50.0)
    assert bench.replica.role.name == "follower"
    assert bench.replica.epoch == 1


@pytest.mark.behaviour("TT-12")
def test_where_nothing_is_automatic_one_that_something_late_has_woken_lets_its_leader_speak() -> None:
    bench = following("1-0P", tuning=MANUAL)
    quiet = AppendEntries(1, at("1-0"), 0, quiet=True)
    bench.receive(N1, quiet)
    assert bench.replica.deadline() is None
    bench.receive(N1, AppendEntries(1, at("1-0"), 0))
    for _ in range(2):  # The first may be lost.
        [answer] = sent(bench.wake(), N1)
        assert isinstance(answer, AppendResponse)
        assert not answer.quiet, "a leader at rest is woken by that"
        assert bench.replica.leader == 0
    bench.receive(N1, quiet)
    assert bench.replica.deadline() is None
    assert bench.replica.leader == 1


@pytest.mark.behaviour("TT-21")
def test_a_demoted_leader_leaves_others_time_to_stand() -> None:
    bench = leader()
    bench.command(commands.Demote(9))
    deadline = bench.replica.deadline()
    assert deadline is not None
    assert deadline >= bench.now + 3.0


@pytest.mark.behaviour("TT-21")
def test_only_a_leader_is_demoted_made_read_only_or_rolled_back() -> None:
    bench = following("1-0P")
    for order in (commands.Demote(9), commands.SetReadOnly(9, True), commands.RollBack(9)):
        assert bench.command(order) == [effects.Reply(9, Outcome.NOT_LEADER, leader=1)]


# ---- read-only ----


@pytest.mark.behaviour("TT-24")
def test_read_only_is_set_and_lifted_by_order() -> None:
    bench = leader()
    assert outcomes(bench.command(commands.SetReadOnly(8, True))) == [(8, Outcome.SETTLED)]
    assert reasons(propose(bench, 1)) == ["this group was set read-only"]
    assert outcomes(bench.command(commands.SetReadOnly(9, False))) == [(9, Outcome.SETTLED)]
    assert outcomes(propose(bench, 2)) == []


@pytest.mark.behaviour("TT-24")
def test_nothing_is_rolled_back_for_want_of_a_quorum_alone() -> None:
    bench = leader(tuning=MANUAL)
    propose(bench, 1)
    bench.persist()
    ordered = let_time_pass(bench, 100.0)
    assert outcomes(ordered) == []
    assert bench.kinds() == "1-0P 1-1s"
    assert outcomes(flushed(bench, N2, 1)) == [(1, Outcome.SETTLED)], "its quorum comes late, and counts"


# ---- cut loose, join again ----


def loose_replica() -> tuple[Bench, list[Effect]]:
    """N2 has 1-1 settled and 1-2, 1-3 not; its leader is gone for good."""
    bench = following("1-0P 1-1s 1-2s 1-3s", commit=1)
    return bench, bench.command(commands.CutLoose(9))


@pytest.mark.behaviour("TT-32", "D9")
def test_cutting_loose_takes_back_what_is_not_known_to_be_settled_and_snapshots() -> None:
    bench, ordered = loose_replica()
    assert of_kind(ordered, effects.Cut) == [effects.Cut(3, at("1-1"))]
    assert len(of_kind(ordered, effects.TakeSnapshot)) == 1
    assert outcomes(ordered) == []
    saved = of_kind(ordered, effects.SaveState)[-1].state
    assert saved.loose
    assert saved.owed == at("1-3"), "it may have promised that"
    assert outcomes(bench.persist()) == [(9, Outcome.SETTLED)], "once it is durable"


@pytest.mark.behaviour("D9")
def test_a_loose_replica_neither_votes_nor_says_whether_it_misses_the_leader_nor_stands() -> None:
    bench, _ = loose_replica()
    bench.persist()
    bench.miss_leader()
    assert bench.receive(N3, GoneRequest(1, at("1-9"), 5)) == []
    nominate(bench, N3, 2, at("1-9"))
    said = sent(bench.persist(), N3)[-1]
    assert not said.row.aye
    assert said.faulty, "nobody need give way to it"
    assert sent(let_time_pass(bench, 20.0)) == []
    assert reasons(bench.command(commands.Promote(5))) == [
        "this replica does not count until it is joined again"
    ]


@pytest.mark.behaviour("D9")
def test_a_loose_replica_stays_loose_over_a_restart() -> None:
    _, ordered = loose_replica()
    saved = of_kind(ordered, effects.SaveState)[-1].state
    restarted = Bench(N2, "1-0P 1-1s", state=saved)
    assert not restarted.replica.counts
    assert "loose" in restarted.replica.describe()


@pytest.mark.behaviour("TT-33", "D9")
def test_what_was_rolled_back_returns_with_the_leader_and_does_not_count() -> None:
    bench, _ = loose_replica()
    bench.persist()
    send(bench, at("1-1"), "1-2s 1-3s", commit=1)
    answer = sent(bench.persist(), N1)[-1]
    assert bench.kinds() == "1-0P 1-1s 1-2s 1-3s"
    assert answer == AppendResponse(1, True, 3, 3, 1, loose=True)


@pytest.mark.behaviour("D9")
def test_a_leader_counts_whoever_was_joined_again_by_what_it_has_now() -> None:
    bench = leader()
    propose(bench, 1)
    propose(bench, 2)
    bench.persist()
    assert outcomes(flushed(bench, N2, 2, loose=True)) == []
    assert outcomes(flushed(bench, N2, 1, loose=True)) == []
    assert outcomes(flushed(bench, N2, 1)) == [(1, Outcome.SETTLED)], "no news, but that it counts"
    assert outcomes(flushed(bench, N2, 2)) == [(2, Outcome.SETTLED)]


@pytest.mark.behaviour("D9")
def test_a_leader_does_not_count_a_loose_follower_not_even_by_what_it_had_before() -> None:
    bench = leader(voters=FIVE)
    propose(bench, 1)
    bench.persist()
    flushed(bench, N2, 1)
    flushed(bench, N2, 1, loose=True)
    assert outcomes(flushed(bench, N3, 1)) == [], "one and two, and three have it, but two gave it up once"
    assert outcomes(flushed(bench, N4, 1)) == [(1, Outcome.SETTLED)]


@pytest.mark.behaviour("D9")
def test_joined_again_it_counts_and_votes_once_it_has_what_it_owed() -> None:
    bench, _ = loose_replica()
    bench.persist()
    ordered = bench.command(commands.JoinAgain(10))
    assert outcomes(ordered) == [(10, Outcome.REFUSED)]
    assert reasons(ordered) == ["no leader is heard: there is nothing to join"]
    send(bench, at("1-1"), "1-2s", commit=1)
    bench.persist()
    bench.command(commands.JoinAgain(11))
    assert outcomes(bench.persist()) == [(11, Outcome.SETTLED)]
    assert bench.replica.counts
    nominate(bench, N3, 2, at("1-2"))
    assert not sent(bench.persist(), N3)[-1].row.aye, "it still owes 1-3"
    nominate(bench, N1, 3, at("1-3"))
    assert sent(bench.persist(), N1)[-1].row.aye


@pytest.mark.behaviour("D9")
def test_a_leader_does_not_stop_writes_to_hand_over_to_one_that_is_loose() -> None:
    """However much its node is wanted as a leader: it would not stand."""
    bench = leader()
    flushed(bench, N3, bench.replica.log.head.offset, loose=True, priority=5)
    bench.wake()
    assert bench.leading.handing_over.heir == 0
    flushed(bench, N3, bench.replica.log.head.offset, priority=5)
    bench.wake()
    assert bench.leading.handing_over.heir == 3


@pytest.mark.behaviour("TT-32")
def test_a_leader_is_demoted_instead_of_cut_loose() -> None:
    ordered = leader().command(commands.CutLoose(9))
    assert reasons(ordered) == ["a leader is demoted instead"]


@pytest.mark.behaviour("TT-32")
def test_cutting_loose_what_has_nothing_undecided_cuts_nothing() -> None:
    bench = following("1-0P 1-1s", commit=1)
    ordered = bench.command(commands.CutLoose(9))
    assert of_kind(ordered, effects.Cut) == []
    assert len(of_kind(ordered, effects.TakeSnapshot)) == 1
    assert outcomes(bench.persist()) == [(9, Outcome.SETTLED)]


# ---- an entry that cannot be applied ----


@pytest.mark.behaviour("TT-8")
def test_a_replica_that_cannot_apply_reports_and_does_not_count_until_somebody_says_so() -> None:
    bench = following("1-0P 1-1s")
    ordered = bench.tell(events.ApplyFailed(1, "no such table"))
    assert reports(ordered) == [
        "offset 1 could not be applied here: no such table; look at it, then join it again"
    ]
    send(bench, at("1-1"), "1-2s")
    assert sent(bench.persist(), N1)[-1].loose
    assert not bench.replica.can_lead()
    bench.command(commands.JoinAgain(9))
    assert outcomes(bench.persist()) == [(9, Outcome.SETTLED)]
    send(bench, at("1-2"), "1-3s")
    assert not sent(bench.persist(), N1)[-1].loose


@pytest.mark.behaviour("TT-8")
def test_a_leader_that_cannot_apply_leads_no_more() -> None:
    bench = leader()
    propose(bench, 1)
    ordered = bench.tell(events.ApplyFailed(1, "no such table"))
    assert outcomes(ordered) == [(1, Outcome.UNKNOWN)]
    assert bench.replica.role.name == "follower"


# ---- who counts, and how many ----


@pytest.mark.behaviour("TT-40", "D10")
@pytest.mark.parametrize(
    ("quorums", "why"),
    [
        (Quorums(1, 2), "their sum must exceed 3"),
        (Quorums(3, 1), "could elect two leaders at once: it must be 2 or more"),
        (Quorums(4, 2), "each is between 1 and 3"),
    ],
)
def test_sizes_that_could_lose_something_are_refused(quorums: Quorums, why: str) -> None:
    bench = leader()
    ordered = change(bench, *THREE, quorums=quorums)
    assert outcomes(ordered) == [(9, Outcome.REFUSED)]
    assert why in reasons(ordered)[0]
    assert appended(ordered) == ""


@pytest.mark.behaviour("D10")
def test_nobody_is_born_with_sizes_that_could_lose_something() -> None:
    with pytest.raises(AssertionError):
        Bench(N1, quorums=Quorums(1, 2))


@pytest.mark.behaviour("TT-40", "D10")
def test_sizes_are_changed_jointly() -> None:
    bench = leader()
    change(bench, *THREE, quorums=Quorums(3, 2))
    catch_up(bench, N2)
    joint = Membership(THREE, (), THREE, Wanted(THREE, quorums=Quorums(3, 2)), quorums=Quorums(3, 2))
    assert bench.replica.membership == joint
    assert outcomes(catch_up(bench, N2)) == [], "two of three were enough, and are no more"
    assert bench.replica.membership == joint
    flushed(bench, N3, bench.replica.log.head.offset)
    assert bench.replica.membership == Membership(THREE, quorums=Quorums(3, 2))
    ordered = catch_up(bench, N2, N3)
    assert outcomes(ordered) == [(9, Outcome.SETTLED)]


@pytest.mark.behaviour("TT-40", "D10")
def test_while_a_change_of_sizes_is_joint_a_leader_needs_the_larger_quorum_of_both() -> None:
    bench = leader(voters=FIVE, quorums=Quorums(2, 4))
    change(bench, *FIVE, quorums=Quorums(4, 3))
    catch_up(bench, N2)
    assert bench.replica.membership.is_joint
    assert not bench.replica.can_elect({N1, N2, N3})
    assert bench.replica.can_elect({N1, N2, N3, N4})
    assert not bench.replica.has_quorum({N1, N2, N3})
    assert bench.replica.has_quorum({N1, N2, N3, N5})


@pytest.mark.behaviour("TT-40")
def test_a_change_that_names_no_sizes_keeps_them() -> None:
    bench = leader(learners=(N4,), quorums=Quorums(3, 2))
    change(bench, *THREE)
    assert bench.replica.membership.quorums == Quorums(3, 2)
    assert bench.replica.membership.learners == ()


@pytest.mark.behaviour("TT-40", "D10")
def test_sizes_that_do_not_fit_the_new_ensemble_have_to_be_named_anew() -> None:
    bench = leader(quorums=Quorums(3, 2))
    ordered = change(bench, N1, N2)
    assert outcomes(ordered) == [(9, Outcome.REFUSED)]
    assert "each is between 1 and 2" in reasons(ordered)[0]
    assert outcomes(change(bench, N1, N2, request=10, quorums=Quorums(2, 2))) == []


@pytest.mark.behaviour("TT-40", "TT-34")
def test_replicas_are_switched_between_synchronous_and_asynchronous() -> None:
    bench = leader()
    change(bench, N1, N2, learners=(N3,))
    for _ in range(3):
        catch_up(bench, N2, N3)
    assert str(bench.replica.membership) == "{n1,n2} learners {n3}"
    propose(bench, 1)
    assert outcomes(catch_up(bench, N3)) == []
    assert outcomes(catch_up(bench, N2)) == [(1, Outcome.SETTLED)]
    change(bench, *THREE, request=10)
    for _ in range(4):
        catch_up(bench, N2, N3)
    assert str(bench.replica.membership) == "{n1,n2,n3}"
    propose(bench, 2)
    assert outcomes(catch_up(bench, N3)) == [(2, Outcome.SETTLED)]


# ---- nodes of the first version ----


@pytest.mark.behaviour("TT-41")
@pytest.mark.parametrize(
    "order",
    [
        commands.CutLoose(9),
        commands.Promote(9, roll_back=True),
        commands.ChangeMembership(9, THREE, quorums=Quorums(3, 2)),
    ],
)
def test_what_an_old_node_would_not_understand_is_not_done(order: commands.Command) -> None:
    ordered = following("1-0P", tuning=OLD).command(order)
    assert outcomes(ordered) == [(9, Outcome.REFUSED)]
    assert reasons(ordered) == [TOO_NEW]


@pytest.mark.behaviour("TT-41")
def test_with_an_old_node_around_a_replica_that_does_not_count_is_not_heard() -> None:
    bench = following("1-0P 1-1s", tuning=OLD)
    bench.tell(events.ApplyFailed(1, "no such table"))
    send(bench, at("1-1"), "1-2s")
    assert sent(bench.persist()) == [], "an old leader would count it"


@pytest.mark.behaviour("TT-41")
def test_an_old_nodes_voters_are_believed_as_far_as_they_speak() -> None:
    bench = Bench(N1, "1-0P", epoch=1, tuning=OLD)
    nomination = sent(bench.promote(), N2)[-1]
    assert nomination.commit is None, "what it knows to be settled came later"
    bench.receive(N2, nay(bench, at("1-0")))
    bench.receive(N3, aye(bench))
    assert bench.replica.role.name == "leader"


@pytest.mark.behaviour("TT-41", "D8")
def test_a_forced_rollback_waits_until_every_voter_says_what_is_settled() -> None:
    """The level is raised node by node: a voter that has not heard of it yet may know more to be settled."""
    bench = Bench(N1, "1-0P2 1-1s 1-2s", epoch=1)
    bench.promote(7, roll_back=True)
    ordered = bench.receive(N2, aye(bench, commit=None))
    assert outcomes(ordered) == [(7, Outcome.REFUSED)]
    assert reasons(ordered) == [TOO_NEW]
    assert bench.kinds() == "1-0P2 1-1s 1-2s"
    assert bench.replica.role.name == "follower"


@pytest.mark.behaviour("TT-41")
def test_whoever_forces_nothing_is_elected_by_voters_that_do_not_say_what_is_settled() -> None:
    bench = Bench(N1, "1-0P2 1-1s", epoch=1)
    bench.promote(7)
    bench.receive(N2, aye(bench, commit=None))
    assert bench.replica.role.name == "leader"


def test_a_write_that_a_demoted_leader_still_gets_is_not_taken() -> None:
    bench = leader(tuning=TUNING)
    bench.command(commands.Demote(9))
    assert outcomes(propose(bench, 1)) == [(1, Outcome.NOT_LEADER)]
    assert committed(bench.persist()) == []
