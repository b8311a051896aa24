"""Replicas that follow, or wait: what they are told, what they fetch, and where they cut."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quorate.core import effects, events, isr
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import NOWHERE, EntryId, Member, Snapshot, Span
from quorate.core.fetching import ChunkRequest, ChunkResponse
from quorate.core.isr.messages import (
    FetchRequest,
    FetchResponse,
    PartitionHeard,
    PartitionTold,
    ReportLeader,
)
from quorate.core.log import LogView
from quorate.core.reading import StillRequest, StillResponse
from quorate.core.repairing import WantEntries
from tests.unit.core.isr_kit import CONTROLLER, TUNING, Bench, following, pass_time, propose, state
from tests.unit.core.kit import N1, N2, N3, N4, at, entries, of_kind, orders, recovered, sent

# ---- being told ----


@pytest.mark.behaviour("LB-5")
def test_nothing_is_settled_at_first() -> None:
    bench = Bench(N2)
    assert (bench.replica.role.name, bench.replica.commit) == ("waiting", -1)
    assert bench.replica.deadline() is None, "it knows of nobody, and waits to be told"
    assert isr.Config.__struct_fields__ == ("me", "tuning")


@pytest.mark.behaviour("LB-13")
def test_who_is_told_of_a_leader_saves_that_then_answers_and_follows() -> None:
    bench = Bench(N2, "1-0")
    stored = state(4, 3)
    ordered = bench.receive(CONTROLLER, PartitionTold(3, stored))
    assert orders(ordered) == [effects.SaveState(1, isr.SavedState(3, NOWHERE, stored, (101,), lives=1))]
    assert sent(ordered) == [], "not before that is flushed"
    assert sent(bench.persist()) == [PartitionHeard(3, 4, leads=False)]
    (request,) = sent(bench.wake_now(), N1)
    assert (request.epoch, request.prev, request.flushed) == (3, at("1-0"), -1)


@pytest.mark.behaviour("LB-13")
def test_an_older_state_changes_nothing_and_is_answered_with_what_is_known() -> None:
    bench = following("1-0", epoch=3)
    ordered = bench.told(state(2, 2, N3))
    assert ordered == [effects.Send(101, PartitionHeard(3, 3, leads=False))]
    assert bench.replica.leader == 1


def test_what_another_replica_passes_on_is_believed_and_not_answered() -> None:
    bench = following("1-0", epoch=1)
    ordered = bench.told(state(2, 2, N3), N1, answer=False)
    assert (bench.replica.epoch, bench.replica.leader) == (2, 3)
    assert [type(message) for message in sent(ordered)] == [FetchRequest]
    assert bench.replica.controllers == (101,)


def test_what_waited_for_the_disk_is_not_said_in_another_epoch() -> None:
    """It would say that it knows less than it does by now."""
    bench = following("1-0")
    bench.receive(CONTROLLER, PartitionTold(2, state(2, 2, N3)))
    bench.receive(CONTROLLER, PartitionTold(3, state(3, 3, N1)))
    assert sent(bench.persist()) == [PartitionHeard(3, 3, leads=False)]


def test_whoever_asks_from_the_past_is_told_what_is_stored() -> None:
    bench = following("1-0", epoch=3)
    late = FetchRequest(2, 1, 1, at("1-0"), 0, 0)
    assert bench.receive(N3, late) == [effects.Send(3, PartitionTold(3, state(3, 3), answer=False))]


def test_who_does_not_hold_the_partition_any_more_waits() -> None:
    bench = following("1-0")
    bench.told(state(2, 1, replicas=(N1, N3)))
    assert (bench.replica.role.name, bench.replica.peers) == ("waiting", ())
    assert bench.replica.deadline() is None


@pytest.mark.behaviour("LB-16")
def test_a_wiped_replica_is_not_the_one_that_was_told_to_lead() -> None:
    bench = Bench(Member(1, 2))
    ordered = bench.told(state(4, 3, N1))
    assert bench.replica.role.name == "waiting"
    assert sent(ordered, CONTROLLER) == [PartitionHeard(3, 4, leads=False)]


# ---- leading, or not ----


@pytest.mark.behaviour("LB-16", "LB-18")
def test_who_is_told_to_lead_does_so_and_says_so_when_its_epoch_is_flushed() -> None:
    """Who forgets that it leads is told so again, and would give out the same ids for other entries."""
    bench = Bench(N2, "1-0 1-1")
    message = PartitionTold(2, state(2, 2, N2))
    ordered = bench.receive(CONTROLLER, message)
    assert [type(effect) for effect in ordered] == [effects.SaveState]
    assert bench.replica.role.name == "waiting"
    assert bench.receive(CONTROLLER, message) == [], "nor does it say that it will not"
    assert bench.replica.deadline() is None
    ordered = bench.persist()
    assert sent(ordered, CONTROLLER) == [PartitionHeard(2, 2, leads=True)]
    assert bench.log() == "1-0 1-1 2-2"


def test_one_that_is_damaged_before_its_epoch_is_flushed_does_not_lead() -> None:
    bench = Bench(N2, "1-0 1-1")
    bench.receive(CONTROLLER, PartitionTold(2, state(2, 2, N2)))
    bench.tell(events.Damaged(Span(NOWHERE, at("1-0"))))
    assert sent(bench.persist(), CONTROLLER) == [PartitionHeard(2, 2, leads=False, can_lead=False)]
    assert bench.replica.role.name == "waiting"


def test_a_leader_that_has_restarted_never_leads_in_that_epoch_again() -> None:
    """It may have given out entries that it has not flushed, and others have."""
    bench = Bench(N1, "1-0", epoch=1, told=state(1, 1))
    assert bench.replica.role.name == "waiting"
    assert sent(bench.wake_now(), CONTROLLER) == [PartitionHeard(1, 1, leads=False)]
    bench.told(state(1, 1))
    bench.told(state(2, 1, isr_now=(N1, N2)))
    assert bench.replica.role.name == "waiting"
    assert bench.log() == "1-0"
    bench.told(state(3, 2))
    assert bench.replica.role.name == "leader"


def test_it_says_so_again_until_it_hears_of_the_next_epoch() -> None:
    bench = Bench(N1, "1-0", epoch=1, told=state(1, 1))
    assert sent(bench.wake(), CONTROLLER) == [PartitionHeard(1, 1, leads=False)]
    bench.told(state(2, 2, N2))
    assert bench.replica.role.name == "follower"


def test_a_damaged_replica_does_not_lead_and_says_why_not() -> None:
    bench = Bench(N1, "1-0 1-1 1-2")
    bench.tell(events.Damaged(Span(at("1-0"), at("1-1"))))
    ordered = bench.told(state(2, 2))
    assert bench.replica.role.name == "waiting"
    assert PartitionHeard(2, 2, leads=False, can_lead=False) in sent(ordered, CONTROLLER)


def test_a_leader_with_damage_stands_down_and_says_so() -> None:
    bench = Bench(N1, "1-0 1-1")
    bench.told(state(2, 2))
    bench.tell(events.Damaged(Span(at("1-0"), at("1-1"))))
    assert bench.replica.role.name == "waiting"
    assert sent(bench.wake_now(), CONTROLLER) == [PartitionHeard(2, 2, leads=False, can_lead=False)]


def test_a_replica_that_has_restarted_follows_whom_it_followed() -> None:
    bench = Bench(N2, "1-0", epoch=1, told=state(1, 1))
    assert bench.replica.role.name == "follower"
    assert [type(message) for message in sent(bench.wake_now(), N1)] == [FetchRequest]


def test_what_is_asked_after_a_restart_is_newer_than_all_that_was_asked_before() -> None:
    """However late the network brings it: a leader would believe that it waits, and it would rest."""
    before = Bench(N2, "1-0")
    saved = of_kind(before.told(state(1, 1)), effects.SaveState)[-1].state
    after = isr.Replica(isr.Config(N2, TUNING), before.replica.rng)
    ordered = after.step(0.0, events.Started(recovered("1-0", state=saved)))
    assert [order.state.lives for order in of_kind(ordered, effects.SaveState)] == [2]
    assert of_kind(after.step(0.0, events.TimePassed()), effects.Send) == [], "not before that is flushed"
    (asked,) = sent(after.step(0.0, events.Persisted(1)))
    assert asked.session > before.asked.session


def test_a_replica_that_has_restarted_knows_what_it_was_told_last() -> None:
    """Whoever was taken in with the last change must know it: the controller believes that it does."""
    bench = Bench(N4, epoch=1, told=state(1, 1))
    stored = state(2, 1, replicas=(N1, N2, N3, N4), isr_now=(N1, N2, N3))
    saved = of_kind(bench.told(stored), effects.SaveState)[-1].state
    again = Bench(N4, epoch=saved.epoch, told=saved.told)
    assert again.replica.role.name == "follower"


def test_a_controller_that_is_new_is_remembered() -> None:
    bench = following("1-0")
    ordered = bench.told(state(1, 1), Member(102, 1))
    assert [order.state.controllers for order in of_kind(ordered, effects.SaveState)] == [(102, 101)]
    assert of_kind(bench.told(state(1, 1)), effects.SaveState) == []


def test_one_that_does_not_lead_says_who_does() -> None:
    assert propose(following("1-0")) == [Reply(1, Outcome.NOT_LEADER, leader=1)]


# ---- fetching ----


@pytest.mark.behaviour("LB-7", "LB-8")
def test_answers_bring_entries_and_what_is_settled() -> None:
    bench = following("1-0")
    ordered = bench.answer(entries("1-1 1-2"), commit=1)
    assert bench.log() == "1-0 1-1 1-2"
    assert bench.replica.commit == 1
    assert orders(ordered) == [effects.Append(2, entries("1-1 1-2")), effects.Commit(0)]
    assert effects.Commit(1) in bench.persist(), "machines and readers get what is flushed here"


@pytest.mark.behaviour("LB-9")
def test_a_request_names_what_is_wanted_next_and_only_the_flushed_is_acknowledged() -> None:
    bench = following("1-0")
    assert not sent(bench.answer(entries("1-1")), N1), "more comes by itself while it is flushed"
    (more,) = sent(bench.wake(), N1)
    assert (more.prev, more.flushed) == (at("1-1"), 0), "that takes long"
    (acknowledged,) = sent(bench.persist(), N1)
    assert (acknowledged.prev, acknowledged.flushed) == (at("1-1"), 1)


@pytest.mark.behaviour("LB-8", "LB-11")
def test_what_is_settled_is_never_above_the_own_log() -> None:
    bench = following("1-0")
    bench.answer(entries("1-1"), commit=9)
    assert bench.replica.commit == 1


@pytest.mark.behaviour("LB-8")
def test_what_is_settled_never_falls() -> None:
    bench = following("1-0 1-1")
    bench.answer(commit=1)
    bench.answer(entries("1-2"), commit=0)
    assert bench.replica.commit == 1


def test_what_was_settled_is_known_after_a_restart() -> None:
    assert Bench(N2, "1-0 1-1 1-2", epoch=1, told=state(1, 1), commit=1).replica.commit == 1


def test_nothing_is_acknowledged_that_was_not_compared_with_this_leader() -> None:
    bench = following("1-0 1-1")
    assert bench.asked.flushed == 1
    (request,) = sent(bench.told(state(2, 2, N3)), N3)
    assert request.flushed == -1


def test_an_answer_of_an_earlier_session_is_dropped_and_none_is_taken_twice() -> None:
    bench = following("1-0")
    asked = bench.asked
    response = FetchResponse(1, asked.session, asked.number, asked.prev, -1, entries("1-1"))
    assert bench.receive(N1, msgspec.structs.replace(response, session=asked.session - 1)) == []
    bench.receive(N1, response)
    assert bench.receive(N1, response) == []
    assert bench.log() == "1-0 1-1"


def test_an_answer_to_an_earlier_request_about_the_same_position_is_as_good() -> None:
    """A leader that has to read takes longer than a follower has patience."""
    bench = following("1-0")
    earlier = bench.asked
    bench.wake()
    assert bench.asked.number > earlier.number
    bench.receive(N1, FetchResponse(1, earlier.session, earlier.number, earlier.prev, -1, entries("1-1")))
    assert bench.log() == "1-0 1-1"


def test_rest_is_only_for_the_newest_request() -> None:
    bench = following("1-0")
    bench.answer(commit=0)
    earlier = bench.asked
    bench.wake()
    bench.receive(N1, FetchResponse(1, earlier.session, earlier.number, earlier.prev, 0, rest=True))
    assert bench.replica.deadline() is not None, (
        "the leader may know of another one, and not believe that it rests"
    )


def test_an_answer_of_somebody_else_is_dropped() -> None:
    bench = following("1-0")
    asked = bench.asked
    response = FetchResponse(1, asked.session, asked.number, asked.prev, 0, entries("1-1"))
    assert bench.receive(Member(1, 2), response) == [], "a wiped leader is not the leader"
    assert bench.receive(N3, response) == []


def test_a_request_without_an_answer_is_repeated_ever_less_often() -> None:
    bench = following("1-0", tuning=msgspec.structs.replace(TUNING, suspect_s=100.0))
    times = []
    for _ in range(5):
        ordered = bench.wake()
        assert [type(message) for message in sent(ordered, N1)] == [FetchRequest]
        times.append(round(bench.now, 6))
    assert times == [0.1, 0.3, 0.7, 1.5, 3.1]


def test_a_follower_that_has_everything_rests_until_there_is_something_new() -> None:
    bench = following("1-0")
    bench.answer(commit=0)
    bench.answer(commit=0, rest=True)
    assert bench.replica.deadline() is None
    asked = bench.asked
    bench.answer(entries("1-1"), commit=0)
    assert bench.replica.deadline() is not None
    bench.persist()
    assert bench.asked.number > asked.number


def test_one_that_has_not_flushed_does_not_rest() -> None:
    bench = following("1-0")
    bench.answer(entries("1-1"), commit=1)
    bench.answer(commit=1, rest=True)
    assert bench.replica.deadline() is not None


@pytest.mark.parametrize("what", ["suspected", "nudged", "confused"])
def test_whoever_rests_is_woken(what: str) -> None:
    """By its failure detector, or by a leader that wants to know whether it is still there."""
    bench = following("1-0")
    bench.answer(commit=0)
    bench.answer(commit=0, rest=True)
    if what == "suspected":
        ordered = bench.tell(events.Suspected(1))
    elif what == "nudged":
        ordered = bench.answer(commit=0)
    else:
        ordered = bench.receive(N1, FetchResponse(1, 0, 1, at("1-0"), 0))
    assert [type(message) for message in sent(ordered, N1)] == [FetchRequest]
    assert bench.replica.deadline() is not None


def test_a_leader_that_is_suspected_cannot_let_it_rest_with_what_it_said_before() -> None:
    """It has restarted, or is somebody else by now, and will never say anything again."""
    bench = following("1-0")
    bench.answer(commit=0)
    asked = bench.asked
    bench.tell(events.Suspected(1))
    bench.receive(N1, FetchResponse(1, asked.session, asked.number, asked.prev, 0, rest=True))
    assert bench.replica.deadline() is not None
    assert ReportLeader(1, 1) in sent(pass_time(bench, 2.1), CONTROLLER)


def test_a_full_disk_makes_it_ask_again_for_what_it_could_not_keep() -> None:
    bench = following("1-0")
    bench.answer(entries("1-1"))
    ordered = bench.tell(events.Failed(2, "full", at("1-0")))
    assert bench.log() == "1-0"
    assert sent(ordered + bench.wake_now()) == [], (
        "its state may have been refused with it, and is saved anew"
    )
    bench.persist()
    assert (bench.asked.prev, bench.asked.flushed) == (at("1-0"), 0)


# ---- where logs part ----


@pytest.mark.behaviour("LB-3")
def test_the_index_of_epochs_is_the_logs_own_and_is_rebuilt_from_it() -> None:
    bench = following("1-0 1-1", epoch=3)
    bench.answer(entries("2-2 3-3 3-4"))
    assert bench.replica.log.epochs.starts() == ((1, 0), (2, 2), (3, 3))
    again = LogView(recovered(bench.log()))
    assert again.epochs.starts() == bench.replica.log.epochs.starts()


@pytest.mark.behaviour("LB-22")
def test_after_a_restart_a_follower_asks_with_its_last_epoch_and_cuts_to_where_both_agree() -> None:
    bench = Bench(N2, "1-0 1-1 1-2", commit=0)
    bench.told(state(2, 2))
    assert bench.asked.prev == at("1-2")
    ordered = bench.answer(diverging=at("1-1"))
    assert orders(ordered) == [], "nothing is cut before both are known to agree"
    (request,) = sent(ordered, N1)
    assert request.prev == at("1-1")
    ordered = bench.answer(entries("2-2"), commit=1)
    assert of_kind(ordered, effects.Cut) == [effects.Cut(2, at("1-1"))]
    assert bench.log() == "1-0 1-1 2-2"
    assert bench.replica.commit == 1


@pytest.mark.behaviour("LB-24")
def test_truncation_is_by_epoch_so_that_what_is_settled_and_not_known_to_be_stays() -> None:
    """KIP-101, loss: the follower knows of nothing settled, and the leader has its whole log."""
    bench = Bench(N2, "1-0 1-1", commit=-1)
    bench.told(state(2, 2))
    bench.answer(entries("2-2"), commit=-1)
    assert bench.log() == "1-0 1-1 2-2"


@pytest.mark.behaviour("LB-24")
def test_truncation_is_by_epoch_so_that_what_differs_at_the_same_offset_goes() -> None:
    """KIP-101, divergence: as long as the leader's log, and another entry at its end."""
    bench = Bench(N2, "1-0 1-1", commit=-1)
    bench.told(state(3, 3))
    bench.answer(diverging=at("1-0"))
    bench.answer(entries("2-1 3-2"), commit=-1)
    assert bench.log() == "1-0 2-1 3-2"


@pytest.mark.behaviour("D1", "LB-22")
def test_the_search_goes_on_until_both_logs_agree() -> None:
    """A = 1-1, 3-2; B leads epoch 4 with 2-1. Below epoch 3, B's last is 2-1; A has 1-1 there, which B has not."""
    bench = Bench(N2, "1-0 1-1 3-2", commit=0)
    bench.told(state(4, 4))
    bench.answer(diverging=at("2-1"))
    assert bench.asked.prev == at("1-1"), "its own last position at or below"
    bench.answer(diverging=at("1-0"))
    assert bench.asked.prev == at("1-0")
    bench.answer(entries("2-1 4-2"))
    assert bench.log() == "1-0 2-1 4-2"


def test_a_search_inside_of_an_entry_cuts_only_where_an_entry_ends() -> None:
    bench = Bench(N2, "1-0 2-1..4", commit=0)
    bench.told(state(4, 4))
    bench.answer(diverging=at("2-2"))
    assert bench.asked.prev == at("2-2"), "in the middle of an entry that the leader cannot have"
    bench.answer(diverging=at("1-0"))
    bench.answer(entries("3-1 4-2"))
    assert bench.log() == "1-0 3-1 4-2"


def test_what_is_settled_is_not_cut_for_a_leader_that_a_person_has_let_lead() -> None:
    bench = Bench(N2, "1-0 1-1", commit=1)
    bench.told(state(2, 2))
    ordered = bench.answer(diverging=at("1-0"), settled=NOWHERE)
    (report,) = of_kind(ordered, effects.Report)
    assert "wipe" in report.what
    assert report.member == N2
    assert bench.log() == "1-0 1-1"
    assert bench.replica.deadline() is None


@pytest.mark.parametrize(
    "answer",
    [
        {"diverging": at("1-4")},
        {"diverging": at("0-9")},
        {"snapshot": Snapshot(at("2-4"), 1, 10)},
        {"snapshot": Snapshot(at("2-9"), 1, 10)},
    ],
)
def test_one_whose_snapshot_is_not_what_such_a_leader_has_says_so_and_asks_no_more(answer: Any) -> None:
    bench = Bench(N2, "", base=at("1-9"), snapshot=Snapshot(at("1-9"), 1, 10), commit=9)
    bench.told(state(3, 3))
    ordered = bench.answer(**answer)
    (report,) = of_kind(ordered, effects.Report)
    assert "wipe" in report.what
    assert sent(ordered) == []
    assert bench.replica.deadline() is None


def test_a_snapshot_that_was_not_needed_says_nothing_about_the_leader() -> None:
    """It was offered for damage that others have mended meanwhile."""
    bench = Bench(N2, "1-10", base=at("1-9"), snapshot=Snapshot(at("1-9"), 1, 10), commit=10)
    bench.told(state(3, 3))
    ordered = bench.answer(snapshot=Snapshot(at("1-4"), 1, 10))
    assert of_kind(ordered, effects.Report) == []
    assert [type(message) for message in sent(ordered, N1)] == [FetchRequest]


# ---- damage and snapshots ----


def test_damage_is_not_acknowledged_and_the_peers_are_asked_for_it() -> None:
    bench = following("1-0 1-1 1-2")
    bench.tell(events.Damaged(Span(at("1-0"), at("1-1"))))
    assert sent(bench.wake()) == [WantEntries(1, Span(at("1-0"), at("1-1")))]
    bench.wake()
    assert (bench.asked.flushed, bench.asked.faulty) == (0, Span(at("1-0"), at("1-1")))


def test_what_was_found_damaged_while_a_request_waited_for_the_disk_is_not_acknowledged() -> None:
    bench = following("1-0 1-1 1-2")
    bench.receive(CONTROLLER, PartitionTold(1, state(2, 1)))
    assert sent(bench.wake(), N1) == [], "until that is saved"
    bench.tell(events.Damaged(Span(at("1-0"), at("1-1"))))
    (request,) = sent(bench.persist(), N1)
    assert request.flushed == 0


def test_where_logs_part_inside_of_damage_what_goes_with_it_is_owed() -> None:
    bench = following("1-0 1-1 1-2 1-3", epoch=1)
    bench.tell(events.Damaged(Span(at("1-0"), at("1-2"))))
    bench.told(state(2, 2, N3))
    bench.answer(diverging=at("1-1"))
    assert bench.asked.prev == at("1-0")
    bench.answer(entries("1-1"))
    assert bench.log() == "1-1"
    assert bench.replica.owed == at("1-3")
    assert not bench.replica.can_lead(), "until its log is past what it may have promised"
    bench.persist()
    bench.answer(entries("2-2"))
    assert bench.replica.can_lead()


def test_settled_entries_inside_of_damage_are_asked_for_by_the_leaders_name() -> None:
    bench = following("1-0 1-1 1-2 1-3", epoch=1)
    bench.answer(commit=1)
    bench.tell(events.Damaged(Span(at("1-0"), at("1-3"))))
    bench.told(state(2, 2, N3))
    bench.answer(diverging=at("1-2"), settled=at("1-1"))
    assert bench.replica.repairing.wanted(bench.replica.log) == Span(at("1-0"), at("1-1"))


def test_who_needs_what_is_no_longer_there_fetches_the_leaders_snapshot() -> None:
    bench = following("1-0")
    snapshot = Snapshot(EntryId(1, 9), 1, 10)
    ordered = bench.answer(snapshot=snapshot)
    assert sent(ordered, N1) == [ChunkRequest(1, snapshot, 0)]
    bench.receive(N1, ChunkResponse(1, snapshot, 0, 10))
    assert bench.replica.installing
    ordered = bench.persist()
    (request,) = (message for message in sent(ordered, N1) if type(message) is FetchRequest)
    assert (request.prev, request.flushed, request.commit) == (EntryId(1, 9), 0, 9), "not compared yet"


def test_a_snapshot_ends_the_search_for_where_logs_part() -> None:
    bench = Bench(N2, "1-0 1-1 1-2")
    bench.told(state(2, 2))
    bench.answer(diverging=at("1-1"))
    snapshot = Snapshot(EntryId(2, 9), 1, 10)
    bench.answer(snapshot=snapshot)
    bench.receive(N1, ChunkResponse(2, snapshot, 0, 10))
    requests = [message for message in sent(bench.persist(), N1) if type(message) is FetchRequest]
    assert [request.prev for request in requests] == [EntryId(2, 9)]


def test_a_follower_without_a_readable_snapshot_says_what_it_needs() -> None:
    bench = Bench(N2, "", base=at("1-4"))
    bench.told(state(2, 2))
    assert bench.asked.wants_snapshot == 4


def test_a_leader_that_takes_a_snapshot_first_is_asked_again_later() -> None:
    bench = following("1-0")
    number = bench.asked.number
    assert sent(bench.answer(later=True)) == []
    bench.wake()
    assert bench.asked.number == number + 1


# ---- reads ----


def test_who_has_not_heard_of_a_later_epoch_confirms_and_who_has_does_not() -> None:
    bench = following("1-0", epoch=3)
    assert bench.receive(N1, StillRequest(3, 7)) == [effects.Send(1, StillResponse(3, 7))]
    stored = state(4, 4, N3)
    bench.receive(CONTROLLER, PartitionTold(4, stored))
    assert sent(bench.receive(N1, StillRequest(3, 8)) + bench.persist(), N1) == [
        PartitionTold(4, stored, answer=False)
    ]


def test_a_new_member_asks_its_leader_as_soon_as_it_is_told() -> None:
    bench = Bench(N4)
    ordered = bench.told(state(2, 1, replicas=(N1, N2, N3, N4), isr_now=(N1, N2, N3)))
    (request,) = sent(ordered, N1)
    assert request.prev == NOWHERE
