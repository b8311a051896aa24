"""Nodes only obey: fenced, follower, leader."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core import coordinated, effects, events
from quorate.core.coordinated.messages import (
    AddEntryRequest,
    AddEntryResponse,
    AddFollowerRequest,
    AddFollowerResponse,
    BecomeLeaderRequest,
    BecomeLeaderResponse,
    FenceRequest,
    FenceResponse,
    TruncateRequest,
    TruncateResponse,
)
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import NOWHERE, Header, Kind, NoOp
from quorate.core.events import ReadLevel
from quorate.core.reading import StillRequest, StillResponse
from tests.unit.core.coordinated_kit import (
    N1,
    N2,
    N3,
    OPERATOR,
    THREE,
    Bench,
    Town,
    at,
    crown,
    flushed,
    following,
    lead,
    leader,
    of_kind,
    orders,
    propose,
    sent,
)
from tests.unit.core.kit import entries


def noop(epoch: int, offset: int, node: int = 1) -> Header:
    return Header(epoch, offset, kind=Kind.CONTROL, control=NoOp(node))


# ---- fenced ----


@pytest.mark.behaviour("OX-1")
def test_a_node_knows_nobody_and_waits_to_be_told() -> None:
    bench = Bench(N1, "1-0", epoch=1)
    assert bench.replica.role.name == "fenced"
    assert bench.replica.peers == ()
    assert bench.replica.deadline() is None
    assert coordinated.Config.__struct_fields__ == ("me", "tuning")


@pytest.mark.behaviour("OX-1")
def test_a_follower_does_not_miss_its_leader() -> None:
    bench = following()
    assert bench.replica.deadline() is None
    assert bench.tell(events.Suspected(1)) == []
    assert bench.replica.role.name == "follower"


@pytest.mark.behaviour("OX-7")
def test_a_fenced_node_answers_with_its_head_once_the_epoch_is_flushed() -> None:
    bench = Bench(N2, "1-0 1-1", epoch=1)
    ordered = bench.receive(OPERATOR, FenceRequest(2, THREE))
    assert [type(effect) for effect in ordered] == [effects.SaveState]
    (answer,) = sent(bench.persist(), OPERATOR)
    assert answer == FenceResponse(2, at("1-1"), bench.replica.token)


@pytest.mark.behaviour("OX-7")
def test_the_head_it_answers_with_is_flushed() -> None:
    bench = following("1-0")
    bench.receive(N1, AddEntryRequest(1, at("1-0"), -1, entries("1-1")))
    assert sent(bench.receive(OPERATOR, FenceRequest(2, THREE)), OPERATOR) == []
    assert sent(bench.persist(), OPERATOR)[-1].head == at("1-1")


@pytest.mark.behaviour("OX-7")
def test_a_fenced_follower_takes_nothing_more_from_the_leader_of_before() -> None:
    bench = following("1-0")
    bench.fence(2)
    ordered = bench.receive(N1, AddEntryRequest(1, at("1-0"), 0, entries("1-1")))
    assert orders(ordered) == []
    assert sent(ordered) == [AddEntryResponse(2, False, -1, -1, -1, at("1-0"))], "it says which epoch it is"
    assert bench.log() == "1-0"


@pytest.mark.behaviour("OX-7")
def test_a_fenced_leader_leads_no_more_and_whoever_waits_hears_unknown() -> None:
    bench = leader()
    propose(bench)
    ordered = bench.receive(OPERATOR, FenceRequest(3, THREE))
    assert Reply(1, Outcome.UNKNOWN) in ordered
    assert bench.replica.role.name == "fenced"
    assert propose(bench, 2) == [Reply(2, Outcome.NOT_LEADER)]
    bench.persist()
    commit = bench.replica.commit
    flushed(bench, N2, 2, epoch=2)
    assert bench.replica.commit == commit


@pytest.mark.behaviour("OX-7")
def test_an_operator_of_the_past_is_told_which_epoch_it_is() -> None:
    bench = Bench(N2, "1-0", epoch=5)
    (answer,) = sent(bench.receive(OPERATOR, FenceRequest(4, THREE)), OPERATOR)
    assert answer.epoch == 5
    assert bench.replica.epoch == 5


def test_a_leader_hears_of_its_end_from_whoever_was_fenced() -> None:
    bench = leader()
    bench.receive(N2, AddEntryResponse(3, False, -1, -1, -1, at("2-1")))
    assert (bench.replica.role.name, bench.replica.epoch) == ("fenced", 3)


# ---- becoming leader ----


@pytest.mark.behaviour("OX-11", "OX-18", "D12")
def test_a_new_leader_answers_opens_its_epoch_and_attaches_or_truncates() -> None:
    bench = Bench(N1, "1-0 2-1 2-2", epoch=2)
    ordered = crown(bench, 3, n2="2-1", n3="1-5")
    assert orders(ordered) == [effects.Append(2, (noop(3, 3),))]
    assert sent(ordered, OPERATOR) == [BecomeLeaderResponse(3, leads=True)]
    behind = AddEntryRequest(3, at("2-1"), -1, (*entries("2-2"), noop(3, 3)))
    assert sent(ordered, N2) == [behind], "its head is in our log: the cursor attaches at once"
    assert sent(ordered, N3) == [TruncateRequest(3, at("1-5"), at("1-0"))]


@pytest.mark.behaviour("OX-15")
def test_below_the_leaders_epoch_the_target_is_the_highest_at_or_below_that_epoch() -> None:
    bench = Bench(N1, "1-0 1-1 2-2 4-3", epoch=4)
    ordered = crown(bench, 5, n2="3-7", n3="1-9")
    assert sent(ordered, N2) == [TruncateRequest(5, at("3-7"), at("2-2"))]
    assert sent(ordered, N3) == [TruncateRequest(5, at("1-9"), at("1-1"))]


@pytest.mark.behaviour("OX-15")
def test_a_shorter_follower_of_an_earlier_epoch_is_asked_too() -> None:
    """Its head may not be in our log, however short it is."""
    bench = Bench(N1, "2-0 2-1", epoch=2)
    ordered = crown(bench, 3, n2="1-0")
    assert sent(ordered, N2) == [TruncateRequest(3, at("1-0"), NOWHERE)]


@pytest.mark.behaviour("OX-16", "OX-13")
def test_a_late_responder_above_the_leader_is_cut_to_the_leaders_head() -> None:
    bench = Bench(N1, "1-0 1-1", epoch=1)
    crown(bench, 2, n2="1-1")
    ordered = bench.receive(OPERATOR, AddFollowerRequest(2, N3, at("1-5")))
    assert sent(ordered, N3) == [TruncateRequest(2, at("1-5"), at("1-1"))]
    assert sent(ordered, OPERATOR) == [AddFollowerResponse(2, N3)]


@pytest.mark.behaviour("OX-13", "OX-18")
def test_a_late_responder_that_agrees_is_attached_and_only_once() -> None:
    bench = Bench(N1, "1-0 1-1", epoch=1)
    crown(bench, 2, n2="1-1")
    request = AddFollowerRequest(2, N3, at("1-1"))
    assert sent(bench.receive(OPERATOR, request), N3) == [AddEntryRequest(2, at("1-1"), -1, (noop(2, 2),))]
    ordered = bench.receive(OPERATOR, request)
    assert sent(ordered, N3) == []
    assert sent(ordered, OPERATOR) == [AddFollowerResponse(2, N3)]


def test_who_was_fenced_anew_since_it_was_chosen_does_not_lead() -> None:
    """It restarted in between, and may have lost what it had not flushed."""
    token = Bench(N1, "1-0 1-1", epoch=1).fence(2).token
    again = Bench(N1, "1-0", epoch=2)
    again.replica.token = token + 1
    ordered = again.receive(OPERATOR, BecomeLeaderRequest(2, token, THREE, ()))
    assert sent(ordered, OPERATOR) == [BecomeLeaderResponse(2, leads=False)]
    assert again.replica.role.name == "fenced"


def test_being_told_to_lead_twice_is_answered_twice_and_changes_nothing() -> None:
    bench = leader()
    request = bench.replica.crown
    ordered = bench.receive(OPERATOR, request)
    assert ordered == [effects.Send(OPERATOR.node, BecomeLeaderResponse(2, leads=True))]


# ---- truncation ----


@pytest.mark.behaviour("OX-14")
def test_a_follower_truncates_and_answers_with_its_head_once_that_is_flushed() -> None:
    bench = Bench(N2, "1-0 1-1 1-2", epoch=1)
    bench.fence(2)
    ordered = bench.receive(N1, TruncateRequest(2, at("1-2"), at("1-0")))
    assert of_kind(ordered, effects.Cut) == [effects.Cut(2, at("1-0"))]
    assert sent(ordered) == []
    assert sent(bench.persist(), N1) == [TruncateResponse(2, at("1-0"), -1)]
    assert bench.replica.role.name == "follower"


@pytest.mark.behaviour("OX-14")
def test_a_truncation_that_comes_late_cuts_nothing() -> None:
    bench = Bench(N2, "1-0 1-1", epoch=1)
    bench.fence(2)
    request = TruncateRequest(2, at("1-1"), at("1-0"))
    bench.receive(N1, request)
    bench.persist()
    bench.receive(N1, AddEntryRequest(2, at("1-0"), -1, entries("2-1 2-2")))
    bench.persist()
    ordered = bench.receive(N1, request)
    assert orders(ordered) == []
    assert bench.log() == "1-0 2-1 2-2"


@pytest.mark.behaviour("OX-14", "D1")
def test_the_cursor_starts_at_the_returned_head_if_that_agrees() -> None:
    bench = Bench(N1, "1-0 2-1 2-2", epoch=2)
    crown(bench, 3, n2="1-5")
    bench.persist()
    ordered = bench.receive(N2, TruncateResponse(3, at("1-0"), -1))
    assert sent(ordered, N2) == [AddEntryRequest(3, at("1-0"), -1, (*entries("2-1 2-2"), noop(3, 3)))]


@pytest.mark.behaviour("D1", "OX-15")
def test_truncation_is_repeated_until_leader_and_follower_agree() -> None:
    """A = 1-0, B = 2-0; A has led e3 and has 3-1. B leads e4: once "at or below 3" leaves A with its own 1-0."""
    bench = Bench(N2, "2-0", epoch=3)
    ordered = crown(bench, 4, n1="3-1")
    assert sent(ordered, N1) == [TruncateRequest(4, at("3-1"), at("2-0"))]
    ordered = bench.receive(N1, TruncateResponse(4, at("1-0"), -1))
    assert sent(ordered, N1) == [TruncateRequest(4, at("1-0"), NOWHERE)]
    ordered = bench.receive(N1, TruncateResponse(4, NOWHERE, -1))
    assert sent(ordered, N1) == [AddEntryRequest(4, NOWHERE, -1, (*entries("2-0"), noop(4, 1, node=2)))]


@pytest.mark.behaviour("D1")
def test_the_trace_of_d1_ends_with_equal_logs() -> None:
    town = Town("1-0 3-1", "2-0", "", epoch=3)
    town.down = {1}
    town.start()
    town.wake()
    town.down = set()
    town.wake()
    assert town.logs() == ["2-0 4-1"] * 3


# ---- following ----


@pytest.mark.behaviour("OX-23")
def test_a_follower_acknowledges_what_is_flushed() -> None:
    bench = following("1-0")
    ordered = bench.receive(N1, AddEntryRequest(1, at("1-0"), 0, entries("1-1")))
    assert sent(ordered) == []
    assert sent(bench.persist(), N1) == [AddEntryResponse(1, True, 1, 1, 0, at("1-1"))]


def test_a_gap_is_never_acknowledged_not_even_on_an_empty_log() -> None:
    """Oxia #1239."""
    bench = Bench(N2)
    bench.fence(1)
    ordered = bench.receive(N1, AddEntryRequest(1, at("1-4"), 4, entries("1-5")))
    assert orders(ordered) == []
    assert sent(ordered + bench.persist(), N1) == [AddEntryResponse(1, False, 4, -1, -1, NOWHERE)]
    assert bench.replica.commit == -1


@pytest.mark.behaviour("D2")
def test_a_follower_takes_its_leaders_new_epoch_on_and_acknowledges_in_that() -> None:
    bench = following("1-0", epoch=1)
    ordered = bench.receive(N1, AddEntryRequest(2, at("1-0"), 0, (noop(2, 1),)))
    assert sent(ordered) == []
    assert sent(bench.persist(), N1) == [AddEntryResponse(2, True, 1, 1, 0, at("2-1"))]
    assert bench.replica.role.name == "follower"


@pytest.mark.behaviour("OX-25")
def test_nothing_is_applied_above_the_commit_and_everything_up_to_it_is() -> None:
    bench = following("1-0")
    bench.receive(N1, AddEntryRequest(1, at("1-0"), 0, entries("1-1 1-2")))
    assert of_kind(bench.persist(), effects.Commit) == [], "1-1 and 1-2 are here, and not settled"
    assert bench.replica.published == 0
    ordered = bench.receive(N1, AddEntryRequest(1, at("1-2"), 2))
    assert of_kind(ordered, effects.Commit) == [effects.Commit(2)]


# ---- leading ----


@pytest.mark.behaviour("OX-22")
def test_a_cursor_knows_what_was_pushed_and_what_is_confirmed() -> None:
    bench = leader()
    propose(bench)
    propose(bench, 2)
    cursor = lead(bench).cursors[2]
    assert (cursor.next - 1, cursor.matched) == (3, 1)
    flushed(bench, N2, 2)
    assert (cursor.next - 1, cursor.matched) == (3, 2)


@pytest.mark.behaviour("OX-23")
def test_an_entry_is_settled_when_a_majority_has_it_with_all_before_it() -> None:
    bench = leader()
    propose(bench)
    bench.persist()
    assert bench.replica.commit == 1
    ordered = flushed(bench, N3, 2)
    assert Reply(1, Outcome.SETTLED, 2, 2) in ordered
    assert effects.Commit(2) in ordered


@pytest.mark.behaviour("OX-23", "OX-24")
def test_entries_of_earlier_epochs_are_settled_only_with_one_of_the_own() -> None:
    bench = Bench(N1, "1-0 1-1", epoch=1)
    crown(bench, 2, n2="1-1", n3="1-1")
    flushed(bench, N2, 1)
    flushed(bench, N3, 1)
    assert bench.replica.commit == -1, "on all three, and not settled by counting"
    flushed(bench, N2, 2)
    bench.persist()
    assert bench.replica.commit == 2


@pytest.mark.behaviour("OX-10", "OX-23")
def test_the_heads_of_the_follower_map_alone_settle_nothing() -> None:
    bench = Bench(N1, "1-0", epoch=1)
    crown(bench, 2, n2="1-0", n3="1-0")
    bench.persist()
    assert bench.replica.commit == -1


@pytest.mark.behaviour("D2")
def test_an_acknowledgement_of_an_earlier_epoch_counts_for_nothing() -> None:
    bench = leader(epoch=3)
    propose(bench)
    bench.persist()
    flushed(bench, N2, 2, epoch=2)
    assert bench.replica.commit == 1


def test_another_incarnation_of_a_member_counts_for_nothing() -> None:
    bench = leader()
    propose(bench)
    bench.persist()
    flushed(bench, msgspec.structs.replace(N2, incarnation=9), 2)
    assert bench.replica.commit == 1


def test_an_idle_group_falls_silent() -> None:
    town = Town("", "", "")
    town.start()
    town.wake()
    assert all(bench.replica.deadline() is None for bench in town.nodes.values())


# ---- reads ----


def test_a_linearizable_read_asks_a_majority_after_it_began() -> None:
    bench = leader()
    ordered = bench.tell(events.ReadAsked(9, ReadLevel.LINEARIZABLE))
    (asked,) = sent(ordered, N2)
    assert isinstance(asked, StillRequest)
    ordered = bench.receive(N2, StillResponse(2, asked.round))
    assert ordered == [Reply(9, Outcome.SETTLED, 1, 2, leader=1)]


def test_a_new_leader_answers_no_read_before_something_of_its_own_epoch_is_settled() -> None:
    """Oxia #621: until then it does not know what is settled."""
    bench = Bench(N1, "1-0", epoch=1)
    crown(bench, 2, n2="1-0", n3="1-0")
    bench.persist()
    ordered = bench.tell(events.ReadAsked(9, ReadLevel.LINEARIZABLE))
    for asked in sent(ordered, N2):
        ordered += bench.receive(N2, StillResponse(2, asked.round))
    assert of_kind(ordered, Reply) == []
    ordered = flushed(bench, N2, 1)
    for asked in sent(ordered, N3):
        if type(asked) is StillRequest:
            ordered += bench.receive(N3, StillResponse(2, asked.round))
    assert Reply(9, Outcome.SETTLED, 1, 2, leader=1) in ordered


def test_who_was_fenced_does_not_say_that_it_still_follows() -> None:
    bench = following("1-0")
    bench.fence(2)
    (answer,) = sent(bench.receive(N1, StillRequest(1, 1)), N1)
    assert (type(answer), answer.epoch) == (AddEntryResponse, 2)
