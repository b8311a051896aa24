"""`_voting`: who stands, who says AYE or NAY, and how a nomination ends (TT-12 to TT-19, D6, D7)."""

from __future__ import annotations

import pytest

from quorate.core import commands, confirm, effects, events
from quorate.core.confirm.messages import AppendEntries, AppendResponse, GoneRequest, GoneResponse, Row, Says
from quorate.core.confirm.voting import Voting
from quorate.core.effects import Outcome
from quorate.core.entry import Header, Kind, Membership, Promote, Quorums
from tests.unit.core.confirm_kit import (
    MANUAL,
    TUNING,
    Bench,
    appended,
    aye,
    flushed,
    following,
    leader,
    let_time_pass,
    nay,
    new_leader,
    nominate,
    outcomes,
    propose,
    reasons,
    reports,
)
from tests.unit.core.kit import FIVE, N1, N2, N3, N4, N5, NOWHERE, Span, at, of_kind, orders, sent

# ---- the table ----


@pytest.mark.behaviour("TT-13")
def test_at_first_nobody_leads_by_voting() -> None:
    bench = Bench(N1)
    assert bench.replica.voting.newest.leader == 0
    assert str(Row()) == "e0 nobody stands, leader n0, former n0"


@pytest.mark.behaviour("TT-13", "TT-14", "D7")
def test_a_row_is_written_on_a_read_only_node_saved_and_sent_to_all() -> None:
    bench = following("1-0P")
    ordered = nominate(bench, N3, 2, at("1-0"))
    row = Row(2, 3, True, 1, 0, 1)
    assert orders(ordered)[-1] == effects.SaveState(3, confirm.SavedState(2, N3, NOWHERE, row))
    assert sent(ordered) == [], "not before it is saved"
    ordered = bench.persist()
    says = Says(2, row, at("1-0"), commit=0)
    assert sent(ordered, N1) == sent(ordered, N3) == [says], "not to the nominee alone"


@pytest.mark.behaviour("TT-13", "D7")
def test_a_row_survives_a_restart() -> None:
    row = Row(4, 3, True, 3, 1, 4)
    bench = Bench(N2, "1-0P", state=confirm.SavedState(4, N3, NOWHERE, row))
    assert bench.replica.row == row
    assert bench.replica.voting.newest.leader == 3


@pytest.mark.behaviour("TT-14")
def test_every_replica_keeps_the_newest_row_of_each() -> None:
    voting = Voting()
    voting.take(2, Row(3, 2, True, leader=1, since=1))
    voting.take(2, Row(2, 1, True, leader=1, since=1))
    assert voting.rows[2].epoch == 3, "the other one was late"
    voting.take(3, Row(3, 2, True, leader=2, former=1, since=3))
    assert (voting.newest.leader, voting.newest.former) == (2, 1)
    voting.take(2, Row(3, 0, leader=0, former=2, since=3))
    assert (voting.newest.leader, voting.newest.former) == (0, 2), "it has given that up"


@pytest.mark.behaviour("TT-14")
def test_rows_of_others_arrive_in_the_view_of_an_asynchronous_replica_too() -> None:
    bench = following("1-0P", me=N4, learners=(N4,))
    bench.receive(N1, Says(1, Row(1, 1, True, 1, 0, 1), at("1-0")))
    assert bench.replica.voting.newest.leader == 1


@pytest.mark.behaviour("TT-13")
def test_who_leads_is_known_after_a_restart_to_whoever_heard_of_it() -> None:
    bench = following("1-0P", commit=-1)
    ordered = bench.receive(N1, Says(1, Row(1, 1, True, 1, 3, 1), at("1-0")))
    saved = of_kind(ordered, effects.SaveState)[-1].state
    assert saved.row == Row(0, 0, False, 1, 3, 1), "its own row: it has not voted"
    restarted = Bench(N2, "1-0P", state=saved)
    assert restarted.replica.voting.newest.leader == 1
    assert bench.receive(N1, Says(1, Row(1, 1, True, 1, 3, 1), at("1-0"))) == [], "no news"


@pytest.mark.behaviour("TT-13", "D6")
def test_whoever_did_not_hear_of_a_leader_reads_it_in_the_log_once_promote_is_settled() -> None:
    bench = following("1-0P", commit=-1)
    assert bench.replica.voting.newest.leader == 0
    bench.receive(N1, AppendEntries(1, at("1-0"), 0))
    newest = bench.replica.voting.newest
    assert (newest.leader, newest.former, newest.since) == (1, 0, 1)


@pytest.mark.behaviour("TT-13", "TT-21")
def test_a_promote_that_is_settled_late_does_not_undo_a_demotion() -> None:
    bench = following("1-0P", commit=-1)
    bench.receive(N1, Says(1, Row(1, 0, False, 0, 1, 1), at("1-0")))
    bench.receive(N1, AppendEntries(1, at("1-0"), 0))
    assert (bench.replica.voting.newest.leader, bench.replica.voting.newest.former) == (0, 1)


# ---- who stands ----


@pytest.mark.behaviour("TT-12", "TT-15", "D6")
def test_whoever_is_promoted_takes_the_next_epoch_and_says_where_its_log_ends() -> None:
    bench = following("1-0P 1-1s", commit=0)
    ordered = bench.command(commands.Promote(7))
    assert orders(ordered) == [
        effects.SaveState(2, confirm.SavedState(2, N2, NOWHERE, Row(leader=1, since=1))),
    ]
    assert sent(ordered) == []
    ordered = bench.persist()
    row = Row(2, 2, True, 1, 0, 1)
    assert orders(ordered) == [effects.SaveState(3, confirm.SavedState(2, N2, NOWHERE, row))]
    nomination = Says(2, row, at("1-1"), stands=True, ordered=True, commit=0)
    ordered = bench.persist()
    assert sent(ordered, N1) == sent(ordered, N3) == [nomination]


@pytest.mark.behaviour("TT-12")
def test_the_automatic_election_uses_the_same_rows() -> None:
    bench = Bench(N1, "1-0P", epoch=1)
    ordered = bench.stand()
    assert sent(ordered, N2) == [Says(2, Row(2, 1, True), at("1-0"), stands=True, commit=-1)]


@pytest.mark.behaviour("TT-12")
def test_where_nothing_is_automatic_nobody_stands_unasked() -> None:
    bench = following("1-0P", tuning=MANUAL)
    ordered = let_time_pass(bench, 20.0)
    assert {type(message) for message in sent(ordered)} == {AppendResponse}, "it looks for its leader"
    assert sent(ordered) == sent(ordered, N1)
    assert bench.replica.role.name == "follower"
    assert bench.replica.leader == 0
    bench.promote()
    assert bench.replica.role.name == "candidate"


@pytest.mark.behaviour("TT-12")
def test_where_nothing_is_automatic_a_vote_in_vain_is_not_repeated() -> None:
    bench = Bench(N1, "1-0P", epoch=1, tuning=MANUAL)
    bench.promote()
    let_time_pass(bench, 20.0)
    assert bench.replica.role.name == "follower"
    assert bench.replica.epoch == 2


@pytest.mark.behaviour("TT-12")
def test_a_promotion_of_whoever_leads_is_answered_at_once() -> None:
    bench = new_leader()
    assert outcomes(bench.command(commands.Promote(7))) == [(7, Outcome.BUSY)], "its PROMOTE is not settled"
    bench = leader()
    assert outcomes(bench.command(commands.Promote(7))) == [(7, Outcome.SETTLED)]
    assert bench.replica.epoch == 1


@pytest.mark.behaviour("TT-12")
def test_a_second_promotion_waits_for_the_first() -> None:
    bench = Bench(N1, "1-0P", epoch=1)
    bench.promote(7)
    ordered = bench.command(commands.Promote(8))
    assert outcomes(ordered) == [(8, Outcome.BUSY)]
    assert reasons(ordered) == ["it is being promoted already"]


@pytest.mark.behaviour("TT-12", "TT-34")
def test_an_asynchronous_replica_is_not_promoted() -> None:
    bench = following("1-0P", me=N4, learners=(N4,))
    ordered = bench.command(commands.Promote(7))
    assert outcomes(ordered) == [(7, Outcome.REFUSED)]
    assert reasons(ordered) == ["this replica is asynchronous: {n1,n2,n3} learners {n4}"]


@pytest.mark.behaviour("TT-12")
@pytest.mark.parametrize("is_settled", [False, True])
def test_a_replica_that_leaves_is_promoted_until_that_is_settled(is_settled: bool) -> None:
    """Perhaps only those who go know of it, and the others can elect nobody without them."""
    bench = following("1-0P", tuning=MANUAL)
    without = Header(1, 1, kind=Kind.CONTROL, control=Membership((N1, N3)))
    bench.receive(N1, AppendEntries(1, at("1-0"), 1 if is_settled else 0, (without,)))
    bench.persist()
    assert bench.replica.me == N2
    assert not bench.replica.is_voter
    ordered = bench.command(commands.Promote(7))
    assert outcomes(ordered) == ([(7, Outcome.REFUSED)] if is_settled else [])
    assert bench.replica.role.name == ("follower" if is_settled else "candidate")


@pytest.mark.behaviour("TT-12")
def test_a_replica_with_damage_is_not_promoted() -> None:
    bench = following("1-0P 1-1s")
    bench.tell(events.Damaged(Span(at("1-0"), at("1-1"))))
    assert outcomes(bench.command(commands.Promote(7))) == [(7, Outcome.REFUSED)]


# ---- votes ----


@pytest.mark.behaviour("TT-16", "D6")
@pytest.mark.parametrize(
    ("theirs", "said"), [("2-9", False), ("3-2", False), ("3-3", True), ("3-4", True), ("4-0", True)]
)
def test_heads_are_compared_as_entry_ids(theirs: str, said: bool) -> None:
    bench = Bench(N2, "1-0P 1-1s 3-2P 3-3s", epoch=4)
    bench.miss_leader()
    nominate(bench, N1, 5, at(theirs))
    says = sent(bench.persist(), N1)[-1]
    assert says.row == Row(5, 1, said)
    assert says.last == at("3-3")


@pytest.mark.behaviour("TT-16", "D6")
def test_nobody_says_aye_to_two_nominees_of_an_epoch() -> None:
    bench = following("1-0P")
    nominate(bench, N1, 2, at("1-0"))
    assert sent(bench.persist(), N1)[-1].row.aye
    ordered = nominate(bench, N3, 2, at("1-5"))
    assert sent(ordered) == [Says(2, Row(2, 3), at("1-0"))], "NAY, to the nominee alone"
    assert sent(nominate(bench, N1, 2, at("1-0")), N1)[-1].row.aye, "the same again"


@pytest.mark.behaviour("TT-12", "TT-18")
@pytest.mark.parametrize("former", ["follower", "leader"])
def test_orders_in_vain_do_not_keep_whoever_has_more_from_standing(former: str) -> None:
    bench = leader() if former == "leader" else following("1-0P 1-1s 1-2s")
    for _ in range(20):
        bench.miss_leader()
        nominate(bench, N3, bench.replica.epoch + 1, NOWHERE)
        bench.persist()
        assert bench.replica.vote is None, "it said NAY"
        let_time_pass(bench, 0.2)
        if bench.replica.role.name == "prospect":
            return
    raise AssertionError("each order has it wait for its turn anew")


@pytest.mark.behaviour("D6")
def test_one_aye_an_epoch_also_after_a_restart() -> None:
    bench = Bench(N2, "1-0P", state=confirm.SavedState(2, N1, NOWHERE, Row(2, 1, True)))
    bench.miss_leader()
    assert not sent(nominate(bench, N3, 2, at("1-9")))[0].row.aye
    assert sent(nominate(bench, N1, 2, at("1-0")), N1)[0].row.aye


@pytest.mark.behaviour("D6")
def test_a_nominee_of_an_old_epoch_hears_which_one_it_is() -> None:
    bench = following("4-0P")
    assert sent(nominate(bench, N3, 3, at("3-9"))) == [Says(4, Row(4, 3), at("4-0"))]


@pytest.mark.behaviour("TT-12")
def test_an_unasked_nominee_does_not_depose_a_leader_that_is_heard_and_an_ordered_one_does() -> None:
    bench = following("1-0P")
    assert nominate(bench, N3, 2, at("1-0"), ordered=False) == []
    assert bench.replica.epoch == 1
    nominate(bench, N3, 2, at("1-0"), ordered=True)
    assert bench.replica.vote == N3


@pytest.mark.behaviour("TT-17")
def test_ayes_of_a_quorum_make_a_leader_and_one_that_is_repeated_is_one() -> None:
    bench = Bench(N1, "1-0P", voters=FIVE, epoch=1)
    bench.promote()
    for _ in range(2):
        bench.receive(N2, aye(bench))
        assert bench.replica.role.name == "candidate"
    bench.receive(N3, aye(bench))
    assert bench.replica.role.name == "leader"


@pytest.mark.behaviour("TT-16", "TT-34")
def test_ayes_of_asynchronous_replicas_do_not_count() -> None:
    bench = Bench(N1, "1-0P", learners=(N4, N5), epoch=1)
    bench.promote()
    bench.receive(N4, aye(bench))
    bench.receive(N5, aye(bench))
    assert bench.replica.role.name == "candidate"


@pytest.mark.behaviour("TT-16")
def test_an_aye_to_somebody_else_is_no_aye() -> None:
    bench = Bench(N1, "1-0P", epoch=1)
    bench.promote()
    bench.receive(N2, Says(2, Row(2, 3, True), at("1-0")))
    assert bench.replica.role.name == "candidate"


# ---- how a nomination ends ----


@pytest.mark.behaviour("TT-18")
def test_a_nay_of_whoever_has_more_removes_the_nomination() -> None:
    bench = Bench(N1, "1-0P", epoch=1)
    bench.promote(7)
    ordered = bench.receive(N2, nay(bench, at("1-3")))
    assert outcomes(ordered) == [(7, Outcome.REFUSED)]
    assert reasons(ordered) == ["node 2 said NAY: it has entries that this one lacks"]
    assert bench.replica.role.name == "follower"
    assert bench.replica.row == Row(2)
    assert sent(bench.persist(), N3) == [Says(2, Row(2), at("1-0"), commit=-1)], (
        "everybody hears that it is withdrawn"
    )
    bench.receive(N2, aye(bench))
    bench.receive(N3, aye(bench))
    assert bench.replica.role.name == "follower", "AYEs that come late find no nominee"


@pytest.mark.behaviour("TT-18", "D6")
def test_nays_of_those_who_could_not_lead_better_end_nothing() -> None:
    bench = Bench(N1, "1-0P", learners=(N4,), epoch=1)
    bench.promote()
    bench.receive(N2, nay(bench, at("1-0")))  # Its AYE went to somebody else.
    bench.receive(N2, nay(bench, at("1-9"), faulty=True))
    bench.receive(N4, nay(bench, at("1-9")))  # An asynchronous replica.
    assert bench.replica.role.name == "candidate"
    bench.receive(N3, aye(bench))
    assert bench.replica.role.name == "leader"


@pytest.mark.behaviour("TT-8", "TT-18")
def test_a_replica_that_could_not_apply_an_entry_says_that_it_is_no_better() -> None:
    bench = following("1-0P 1-1s")
    bench.tell(events.ApplyFailed(1, "no such table"))
    nominate(bench, N3, 2, at("1-0"))
    said = sent(bench.persist(), N3)[-1]
    assert not said.row.aye
    assert said.faulty


@pytest.mark.behaviour("TT-18", "TT-19")
def test_the_time_out_removes_the_nomination_and_reports_who_was_there() -> None:
    bench = Bench(N1, "1-0P", voters=FIVE, epoch=1)
    bench.promote(7)
    bench.receive(N2, aye(bench))
    ordered = bench.wake()
    why = "incomplete quorum: only nodes [1, 2] said AYE, of {n1,n2,n3,n4,n5}"
    assert outcomes(ordered) == [(7, Outcome.TIMED_OUT)]
    assert reasons(ordered) == reports(ordered) == [why]
    assert bench.replica.role.name == "follower"
    assert bench.replica.row == Row(2)


@pytest.mark.behaviour("TT-18", "TT-19")
@pytest.mark.parametrize("tuning", [MANUAL, TUNING], ids=["by order", "automatic"])
def test_one_that_was_elected_and_finds_no_quorum_to_begin_with_gives_it_up(tuning: confirm.Tuning) -> None:
    """Nobody knows yet that it leads, and it would lead whenever a quorum came back, with no way to call it off."""
    bench = Bench(N1, "1-0P", epoch=1, tuning=tuning)
    bench.promote(7)
    bench.elect(N2)
    bench.persist()
    ordered = let_time_pass(bench, 30.0)
    assert outcomes(ordered) == [(7, Outcome.UNKNOWN)], "its PROMOTE is in the log, and may be settled yet"
    assert bench.replica.role.name != "leader"
    if tuning is MANUAL:
        assert reasons(ordered) == ["incomplete quorum: too few replicas follow"]
        assert bench.replica.role.name == "follower", "nobody stands unasked"


@pytest.mark.behaviour("TT-19")
def test_an_automatic_election_reports_an_incomplete_quorum_and_asks_again() -> None:
    bench = Bench(N1, "1-0P", epoch=1)
    bench.stand()
    assert len(reports(bench.wake())) == 1
    assert bench.replica.role.name == "prospect"


@pytest.mark.behaviour("TT-18")
def test_a_nominee_that_hears_of_a_later_epoch_does_not_know_what_became_of_it() -> None:
    bench = Bench(N1, "1-0P", epoch=1)
    bench.promote(7)
    ordered = bench.receive(N3, AppendEntries(5, NOWHERE, -1))
    assert outcomes(ordered) == [(7, Outcome.UNKNOWN)]


@pytest.mark.behaviour("D6")
def test_two_nominees_of_an_epoch_one_leads() -> None:
    """N1 and N2 stand in epoch 2; N3 says AYE to the first that it hears."""
    one, two, three = (Bench(member, "1-0P", epoch=1) for member in (N1, N2, N3))
    nominations = [sent(bench.promote(), N3)[-1] for bench in (one, two)]
    three.miss_leader()
    three.receive(N1, nominations[0])
    said = sent(three.persist(), N1)[-1]
    refused = sent(three.receive(N2, nominations[1]), N2)[-1]
    one.receive(N3, said)
    two.receive(N3, refused)
    assert [bench.replica.role.name for bench in (one, two)] == ["leader", "candidate"]


# ---- leadership ----


@pytest.mark.behaviour("TT-17", "TT-20", "D6")
def test_a_new_leader_first_appends_promote_and_takes_no_writes_before_it_is_settled() -> None:
    bench = Bench(N1, "1-0P2 1-1s", state=confirm.SavedState(1, N2, NOWHERE, Row(1, 2, True, 2, 0, 1)))
    bench.promote(7)
    ordered = bench.elect(N2)
    assert appended(ordered) == "2-2P"
    assert bench.replica.log.window[-1].control == Promote(leader=1, former=2)
    assert outcomes(ordered) == []
    ordered = propose(bench, 1)
    assert outcomes(ordered) == [(1, Outcome.BUSY)]
    assert reasons(ordered) == ["what former leaders left is not settled yet"]
    bench.persist()
    flushed(bench, N3, 1)
    ordered = flushed(bench, N3, 2)
    assert outcomes(ordered) == [(7, Outcome.SETTLED)]
    assert outcomes(propose(bench, 2)) == []


@pytest.mark.behaviour("TT-17", "TT-13")
def test_read_write_begins_with_current_and_former_set() -> None:
    bench = new_leader("1-0P2", state=confirm.SavedState(1, N2, NOWHERE, Row(1, 2, True, 2, 0, 1)))
    assert bench.replica.voting.newest.leader == 2, "still: it has been elected, and leads nobody yet"
    flushed(bench, N2, 0)
    flushed(bench, N2, 1)
    row = Row(2, 1, True, 1, 2, 2)
    assert bench.replica.row == row
    ordered = bench.persist()
    assert sent(ordered, N3)[-1].row == row
    assert bench.replica.led == 2


@pytest.mark.behaviour("D6", "TT-20")
def test_what_former_leaders_left_is_settled_by_promote_and_not_by_counting() -> None:
    """Raft's figure 8: 2-1 is on a quorum, and can still be overwritten by whoever has 3-1."""
    bench = new_leader("1-0P 2-1s", voters=FIVE, epoch=3)
    for follower in (N2, N3, N4):
        assert outcomes(flushed(bench, follower, 1)) == []
    assert bench.replica.commit == -1
    flushed(bench, N2, 2)
    assert appended(flushed(bench, N3, 2)) == "4-3C1"
    assert bench.replica.commit == 2


@pytest.mark.behaviour("TT-17", "TT-40")
def test_a_promote_quorum_of_its_own_size_is_waited_for() -> None:
    bench = Bench(N1, "1-0P", voters=FIVE, quorums=Quorums(2, 4), epoch=1)
    bench.promote()
    for voter in (N2, N3):
        bench.receive(voter, aye(bench))
    assert bench.replica.role.name == "candidate"
    bench.receive(N4, aye(bench))
    assert bench.replica.role.name == "leader"
    bench.persist()
    flushed(bench, N2, 0)
    flushed(bench, N2, 1)
    assert bench.replica.commit == 1, "two of five settle it"


@pytest.mark.behaviour("TT-12")
def test_others_are_asked_whether_they_miss_the_leader_before_anybody_stands_by_itself() -> None:
    bench = following("1-0P")
    ordered = bench.wake()
    assert sent(ordered, N3) == [GoneRequest(1, at("1-0"), bench.replica.times_asked)]
    assert bench.replica.epoch == 1
    bench.receive(N3, GoneResponse(1, bench.replica.times_asked, True))
    assert bench.replica.role.name == "candidate"


@pytest.mark.behaviour("TT-12")
def test_a_leader_that_is_deposed_by_an_ordered_nominee_stands_down() -> None:
    bench = leader()
    propose(bench, 1)
    ordered = nominate(bench, N2, 2, at("1-1"))
    assert outcomes(ordered) == [(1, Outcome.UNKNOWN)]
    bench.persist()
    assert bench.replica.role.name == "follower"
    assert bench.replica.vote == N2


def test_a_late_answer_of_a_follower_changes_nothing_for_a_nominee() -> None:
    bench = Bench(N1, "1-0P", epoch=1)
    bench.promote()
    assert bench.receive(N2, AppendResponse(2, True, 0, 0, 0)) == []
    assert bench.replica.role.name == "candidate"
