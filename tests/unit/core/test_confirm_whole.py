"""What worlds found in `confirm`: proposals that are not torn apart, and words that are not said any more."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.core import commands, effects, events
from quorate.core.confirm.messages import AppendEntries, AppendResponse, GoneRequest, Says
from quorate.core.effects import Outcome
from quorate.core.entry import EntryId, Header, Membership, Quorums
from tests.unit.core.confirm_kit import (
    SYNC,
    Bench,
    flushed,
    following,
    leader,
    nominate,
    outcomes,
    propose,
    send,
)
from tests.unit.core.kit import N1, N2, N3, N4, THREE, of_kind


@pytest.mark.behaviour("TT-10", "TT-38")
def test_a_rollback_leaves_a_proposal_whole_of_which_something_is_settled() -> None:
    bench = leader()
    entries = tuple(Header(0, 0, size=10, flags=SYNC) for _ in range(3))
    bench.tell(events.Proposed(1, entries))
    propose(bench, 2)
    bench.persist()
    flushed(bench, N2, 2)
    assert bench.replica.commit == 2, "offsets 1 and 2 of the first, not 3"
    bench.command(commands.RollBack(9))
    assert bench.kinds() == "1-0P 1-1s 1-2s 1-3s 1-4s 1-5C2 1-6R4"
    bench.persist()
    assert outcomes(flushed(bench, N2, 6)) == [
        (1, Outcome.SETTLED),
        (2, Outcome.ROLLED_BACK),
        (9, Outcome.SETTLED),
    ]


@pytest.mark.behaviour("TT-10")
def test_a_rollback_takes_nothing_back_where_all_of_it_is_settled_in_part() -> None:
    bench = leader()
    bench.tell(events.Proposed(1, (Header(0, 0, size=10, flags=SYNC), Header(0, 0, size=10, flags=SYNC))))
    bench.persist()
    flushed(bench, N2, 1)
    assert outcomes(bench.command(commands.RollBack(9))) == [(9, Outcome.SETTLED)]
    assert "R" not in bench.kinds()


@pytest.mark.behaviour("D9")
def test_a_vote_that_waits_for_the_disk_is_not_said_by_one_that_was_cut_loose() -> None:
    bench = following("1-0P 1-1s", commit=0)
    bench.miss_leader()
    nominate(bench, N3, 2, EntryId(1, 1))
    bench.command(commands.CutLoose(5))
    ordered = bench.persist()
    assert [send.message for send in of_kind(ordered, effects.Send) if type(send.message) is Says] == []
    assert outcomes(ordered) == [(5, Outcome.SETTLED)]


@pytest.mark.behaviour("D9")
def test_an_acknowledgement_that_waits_for_the_disk_is_not_said_by_one_that_was_cut_loose() -> None:
    bench = following("1-0P", commit=0)
    bench.receive(N3, AppendEntries(2, EntryId(1, 0), 0))  # Its new epoch is not saved yet.
    send(bench, EntryId(1, 0), "2-1s", sender=N3)
    bench.command(commands.CutLoose(5))
    said = [order.message for order in of_kind(bench.persist(), effects.Send)]
    assert [message for message in said if type(message) is AppendResponse and not message.loose] == []


@pytest.mark.behaviour("D9")
def test_who_is_to_join_again_and_hears_nobody_lets_a_leader_at_rest_speak() -> None:
    bench = following("1-0P", commit=0)
    bench.command(commands.CutLoose(5))
    bench.persist()
    ordered = bench.command(commands.JoinAgain(6))
    assert outcomes(ordered) == [(6, Outcome.REFUSED)]
    asked = of_kind(ordered, effects.Send)
    assert [order.to for order in asked if type(order.message) is GoneRequest] == [1, 3]
    bench.receive(N1, AppendEntries(1, EntryId(1, 0), 0))
    bench.command(commands.JoinAgain(7))
    assert outcomes(bench.persist()) == [(7, Outcome.SETTLED)]


# ---- back from where a change of quorums hangs ----


def joint(**more: Any) -> Bench:
    """Everybody is to have what is settled, and not everybody is there."""
    bench = leader(voters=THREE, **more)
    bench.command(commands.ChangeMembership(8, THREE, quorums=Quorums(3, 2)))
    bench.persist()
    flushed(bench, N2, bench.replica.log.head.offset)
    assert bench.replica.membership.is_joint
    return bench


@pytest.mark.behaviour("TT-11", "TT-40")
def test_majorities_that_nobody_named_can_be_named_to_go_back_to_them() -> None:
    bench = joint()
    ordered = bench.command(commands.ChangeMembership(9, THREE, quorums=Quorums(2, 2)))
    assert outcomes(ordered) == [(8, Outcome.REFUSED)], "another one was ordered in its place"
    assert bench.replica.membership == Membership(THREE)
    bench.persist()
    assert outcomes(flushed(bench, N2, bench.replica.log.head.offset)) == [(9, Outcome.SETTLED)]


@pytest.mark.behaviour("TT-40")
def test_who_names_no_quorums_does_not_go_back_on_those_that_are_wanted() -> None:
    bench = joint()
    assert outcomes(bench.command(commands.ChangeMembership(9, THREE))) == []
    assert bench.replica.membership.quorums == Quorums(3, 2)


@pytest.mark.behaviour("TT-11", "TT-40")
def test_the_former_ensemble_is_ordered_again_with_the_quorums_that_it_had() -> None:
    bench = leader(voters=THREE)
    bench.command(commands.ChangeMembership(8, (N1, N2), quorums=Quorums(2, 2)))
    bench.persist()
    flushed(bench, N2, bench.replica.log.head.offset)
    assert bench.replica.membership.outgoing == THREE
    bench.command(commands.ChangeMembership(9, THREE))
    assert bench.replica.membership == Membership(THREE)


@pytest.mark.behaviour("TT-16")
def test_an_aye_reaches_a_nominee_that_this_log_does_not_know_yet() -> None:
    """It came in by a change that this voter has not heard of, and cannot without a leader (seed 238)."""
    bench = following("1-0P")
    bench.miss_leader()
    assert N4.node not in bench.replica.peers
    nominate(bench, N4, 2, EntryId(1, 7))
    ordered = bench.persist()
    said = [effect for effect in of_kind(ordered, effects.Send) if effect.to == N4.node]
    assert [effect.message.row.aye for effect in said] == [True]
