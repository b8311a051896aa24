"""The leader: whom it waits for, what it answers, whom it asks in and out."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core import effects, events
from quorate.core.effects import Commit, Outcome, Reply
from quorate.core.entry import EntryId, Member, Snapshot, Span
from quorate.core.isr.leader import AHEAD_COUNT_MAX
from quorate.core.isr.messages import AlterIsr, FetchRequest, PartitionTold
from quorate.core.reading import StillRequest, StillResponse
from tests.unit.core.isr_kit import (
    CONTROLLER,
    TUNING,
    Bench,
    answered,
    fetch,
    lead,
    leader,
    new_leader,
    noop,
    of_two,
    pass_time,
    propose,
    read,
    rest,
    state,
)
from tests.unit.core.kit import N1, N2, N3, N4, at, entries, of_kind, replies, sent

FOUR = (N1, N2, N3, N4)


# ---- what is settled ----


@pytest.mark.behaviour("LB-6", "LB-11")
def test_a_proposal_is_logged_and_not_settled() -> None:
    bench = leader("1-0")
    ordered = propose(bench)
    assert [effect.headers[0].id for effect in of_kind(ordered, effects.Append)] == [at("2-2")]
    assert of_kind(ordered + bench.persist(), Commit) == []
    assert bench.replica.commit == 1


@pytest.mark.behaviour("LB-10")
def test_settled_when_the_whole_isr_has_it_flushed() -> None:
    bench = leader("1-0")
    propose(bench)
    fetch(bench, N2)
    fetch(bench, N3)
    assert bench.replica.commit == 1, "the leader itself counts, too"
    ordered = bench.persist()
    assert Commit(2) in ordered
    assert replies(ordered) == [Reply(1, Outcome.SETTLED, 2, 2)]


@pytest.mark.behaviour("LB-9", "LB-10")
def test_one_that_has_not_flushed_it_is_waited_for() -> None:
    bench = leader("1-0")
    propose(bench)
    bench.persist()
    fetch(bench, N2)
    fetch(bench, N3, flushed=1)
    assert bench.replica.commit == 1
    fetch(bench, N3)
    assert bench.replica.commit == 2


@pytest.mark.behaviour("LB-10")
def test_only_the_isr_is_waited_for() -> None:
    assert of_two().replica.commit == 1


@pytest.mark.behaviour("LB-10")
def test_a_shrink_counts_once_it_is_agreed() -> None:
    bench = leader("1-0")
    propose(bench)
    bench.persist()
    fetch(bench, N2)
    asked = [m for m in sent(pass_time(bench, 1.5), CONTROLLER) if type(m) is AlterIsr]
    assert asked[0] == AlterIsr(2, 2, (N1, N2))
    assert lead(bench).maximal_isr == (N1, N2, N3)
    assert bench.replica.commit == 1
    ordered = bench.told(state(3, 2, isr_now=(N1, N2)))
    assert Commit(2) in ordered


@pytest.mark.behaviour("LB-10")
def test_an_expansion_counts_from_the_asking() -> None:
    bench = of_two()
    ordered = fetch(bench, N3)
    assert sent(ordered, CONTROLLER) == [AlterIsr(2, 2, (N1, N2, N3))]
    propose(bench)
    bench.persist()
    fetch(bench, N2)
    assert bench.replica.commit == 1, "whoever chooses the next leader may believe that n3 is in sync"
    fetch(bench, N3)
    assert bench.replica.commit == 2


@pytest.mark.behaviour("LB-10")
def test_what_was_asked_for_counts_no_more_once_a_newer_state_is_told() -> None:
    """A request is good for one epoch of the partition: there is another, so it was refused, or is in it."""
    bench = of_two()
    fetch(bench, N3)
    assert lead(bench).maximal_isr == (N1, N2, N3)
    bench.told(state(3, 2, replicas=(N1, N2), min_isr=2))
    assert lead(bench).maximal_isr == (N1, N2)


def test_an_entry_of_an_earlier_epoch_is_settled_by_counting() -> None:
    """Everybody who may lead next has it: unlike in raft, no other leader can undo it."""
    bench = new_leader("1-0 1-1")
    for member in (N2, N3):
        fetch(bench, member, at("1-1"))
    assert bench.replica.commit == 1


@pytest.mark.behaviour("LB-10")
def test_what_is_settled_never_falls_when_somebody_has_lost_something() -> None:
    bench = leader("1-0")
    fetch(bench, N3, flushed=0, faulty=Span(at("1-0"), at("2-1")))
    assert bench.replica.commit == 1


def test_a_lone_replica_settles_what_it_has_flushed() -> None:
    bench = Bench(N1)
    ordered = bench.told(state(1, 1, replicas=(N1,)))
    assert Commit(0) in ordered


@pytest.mark.behaviour("LB-16")
def test_a_wiped_replica_does_not_count_as_the_one_it_was() -> None:
    bench = new_leader("1-0")
    fetch(bench, N2)
    ordered = fetch(bench, Member(3, 2))
    assert bench.replica.commit == -1
    assert sent(ordered) == [PartitionTold(2, state(2, 2), answer=False)]


def test_an_acknowledgement_of_another_epoch_does_not_count() -> None:
    bench = new_leader("1-0")
    fetch(bench, N2)
    bench.receive(N3, FetchRequest(1, 1, 1, at("1-0"), 1, -1))
    assert bench.replica.commit == -1


def test_a_leader_that_hears_of_a_later_epoch_stands_down_and_whoever_waits_hears_unknown() -> None:
    bench = leader("1-0")
    propose(bench)
    ordered = bench.receive(N3, FetchRequest(3, 1, 1, at("1-0"), 0, -1))
    assert bench.replica.role.name == "waiting"
    assert Reply(1, Outcome.UNKNOWN) in ordered
    assert bench.replica.epoch == 2, "which epoch it is, only a state says"


# ---- the minimum ----


@pytest.mark.behaviour("LB-21")
def test_commits_go_on_with_fewer_in_sync_down_to_the_minimum() -> None:
    bench = of_two()
    propose(bench)
    bench.persist()
    fetch(bench, N2)
    assert bench.replica.commit == 2


@pytest.mark.behaviour("LB-21")
def test_below_the_minimum_nothing_is_taken_and_the_reason_is_said() -> None:
    bench = leader("1-0", state(2, 2, min_isr=2))
    bench.told(state(3, 2, isr_now=(N1,), elr=(N2,), min_isr=2))
    (reply,) = replies(propose(bench))
    assert (reply.outcome, reply.leader) == (Outcome.BUSY, 1)
    assert reply.why == "1 in sync, and 2 needed: try again later"
    assert bench.log() == "1-0 2-1"


@pytest.mark.behaviour("LB-21")
def test_below_the_minimum_nothing_is_settled_even_if_everybody_in_sync_has_it() -> None:
    """Whoever has just left may lead next, and does not have it."""
    bench = of_two()
    propose(bench)
    bench.persist()
    bench.told(state(3, 2, isr_now=(N1,), elr=(N2,), min_isr=2))
    assert bench.replica.commit == 1
    fetch(bench, N2)
    assert lead(bench).maximal_isr == (N1, N2)
    assert bench.replica.commit == 1, "who was asked in may never be"
    bench.told(state(4, 2, isr_now=(N1, N2), min_isr=2))
    assert bench.replica.commit == 2


@pytest.mark.behaviour("LB-21")
def test_below_the_minimum_what_is_settled_can_be_read() -> None:
    bench = leader("1-0", state(2, 2, min_isr=2))
    bench.told(state(3, 2, isr_now=(N1,), elr=(N2,), min_isr=2))
    ordered = bench.tell(events.ReadAsked(9, events.ReadLevel.AT_OFFSET, 1))
    assert replies(ordered) == [Reply(9, Outcome.SETTLED, 1, 2, leader=1)]


# ---- answers ----


@pytest.mark.behaviour("LB-7")
def test_an_answer_carries_entries_what_is_settled_and_the_leader_epoch() -> None:
    bench = leader("1-0")
    propose(bench)
    answer = answered(fetch(bench, N2, at("1-0")), N2)
    assert (answer.epoch, answer.prev, answer.commit) == (2, at("1-0"), 1)
    assert [header.id for header in answer.headers] == [at("2-1"), at("2-2")]


def test_an_answer_is_bounded() -> None:
    bench = leader("1-0", tuning=msgspec.structs.replace(TUNING, message_entries_max=1))
    propose(bench)
    assert answered(fetch(bench, N2, at("1-0")), N2).headers == (noop(2, 1),)


def test_older_requests_are_not_answered() -> None:
    bench = leader("1-0")
    assert answered(fetch(bench, N2, number=1 << 40), N2) is not None
    assert fetch(bench, N2, number=1 << 39) == []
    assert fetch(bench, N2, number=1 << 40) == []
    request = FetchRequest(2, session=1, number=1 << 41, prev=at("1-0"), flushed=-1, commit=-1)
    assert bench.receive(N2, request) == [], "nor those of an earlier session"


@pytest.mark.behaviour("LB-22")
@pytest.mark.parametrize(
    ("theirs", "end"), [("1-5", "1-1"), ("3-2", "2-2"), ("4-9", "4-3"), ("2-5", "2-2"), ("1-2", "1-1")]
)
def test_a_log_that_ends_otherwise_is_told_where_that_epoch_ends(theirs: str, end: str) -> None:
    bench = new_leader("1-0 1-1 2-2 4-3", state(5, 5))
    answer = answered(fetch(bench, N2, at(theirs), flushed=-1), N2)
    assert (answer.diverging, answer.headers) == (at(end), ())


@pytest.mark.behaviour("LB-22")
def test_it_is_told_which_of_its_entries_is_settled() -> None:
    bench = new_leader("1-0 1-1 2-2", state(5, 5))
    answer = answered(fetch(bench, N2, at("1-5"), flushed=-1, commit=1), N2)
    assert (answer.diverging, answer.settled) == (at("1-1"), at("1-1"))


def test_what_is_no_longer_in_the_log_is_answered_with_a_snapshot() -> None:
    snapshot = Snapshot(EntryId(1, 4), 1, 10)
    bench = new_leader("1-5", base=at("1-4"), snapshot=snapshot)
    assert answered(fetch(bench, N2, at("1-3"), flushed=-1), N2).snapshot == snapshot
    assert answered(fetch(bench, N3, EntryId(0, -1)), N3).snapshot == snapshot


def test_where_logs_part_below_what_is_kept_a_snapshot_takes_the_place() -> None:
    snapshot = Snapshot(EntryId(2, 4), 1, 10)
    bench = new_leader("2-5", state(3, 3), base=at("2-4"), snapshot=snapshot)
    assert answered(fetch(bench, N2, at("1-7"), flushed=-1), N2).snapshot == snapshot


def test_a_follower_whose_own_snapshot_is_damaged_gets_another_as_soon_as_there_is_one() -> None:
    bench = leader("1-0")
    ordered = fetch(bench, N2, wants_snapshot=1)
    assert answered(ordered, N2).later
    assert of_kind(ordered, effects.TakeSnapshot)
    bench.tell(events.SnapshotTaken(Snapshot(at("2-1"), 1, 10)))
    assert answered(fetch(bench, N2, wants_snapshot=1), N2).snapshot == Snapshot(at("2-1"), 1, 10)


def test_what_it_lost_and_nobody_keeps_any_more_it_gets_with_a_snapshot_that_covers_it() -> None:
    snapshot = Snapshot(EntryId(1, 4), 1, 10)
    bench = new_leader("1-5", base=at("1-4"), snapshot=snapshot, commit=5)
    ordered = fetch(bench, N2, at("1-5"), flushed=1, faulty=Span(at("1-1"), at("1-3")))
    assert answered(ordered, N2).snapshot == snapshot


def test_headers_that_are_no_longer_in_memory_are_read_first() -> None:
    found = entries("1-0 1-1 1-2")
    bench = Bench(N1, "1-0 1-1 1-2")
    bench.replica.log.window.clear()
    bench.replica.log._lasts.clear()
    bench.told(state(2, 2))
    ordered = fetch(bench, N2, at("1-0"), flushed=-1)
    (asked,) = of_kind(ordered, effects.Read)
    assert asked.first == 1
    assert of_kind(fetch(bench, N2, at("1-0"), flushed=-1), effects.Read) == [], "one at a time"
    answer = answered(bench.tell(events.Loaded(asked.token, found[1:])), N2)
    assert answer.headers == found[1:]


def test_what_comes_next_goes_ahead_of_the_request_for_it_a_few_messages_far() -> None:
    bench = leader("1-0")
    rest(bench)
    sent_ids = []
    for request in range(AHEAD_COUNT_MAX + 2):
        for message in sent(propose(bench, request + 1), N2):
            assert [header.offset for header in message.headers] == [message.prev.offset + 1]
            sent_ids += [header.id for header in message.headers]
    assert sent_ids == [at(f"2-{offset}") for offset in range(2, 2 + AHEAD_COUNT_MAX)]
    more = answered(fetch(bench, N2, at("2-3"), commit=1), N2)
    assert [header.id for header in more.headers] == [at("2-10"), at("2-11")]


def test_what_was_sent_ahead_and_lost_is_sent_again_when_it_is_asked_for_again() -> None:
    bench = leader("1-0")
    rest(bench)
    propose(bench)
    propose(bench, 2)
    assert not sent(fetch(bench, N2, at("2-2"), commit=1), N2), "the other may be on its way"
    again = answered(fetch(bench, N2, at("2-2"), commit=1), N2)
    assert (again.prev, [header.id for header in again.headers]) == (at("2-2"), [at("2-3")])


# ---- rest ----


def test_who_has_everything_and_knows_it_may_rest_and_then_so_may_the_leader() -> None:
    bench = leader("1-0")
    assert not answered(fetch(bench, N2, commit=0), N2).rest
    rest(bench)


def test_whoever_rests_is_told_what_is_new_until_it_asks_again() -> None:
    bench = leader("1-0")
    rest(bench)
    assert [header.id for header in answered(propose(bench), N2).headers] == [at("2-2")]
    assert [header.id for header in answered(bench.wake(), N2).headers] == [at("2-2")], "that was lost"
    fetch(bench, N2, flushed=1, commit=1)
    assert sent(bench.wake(), N2) == [], "it is awake, and asks by itself"


def test_who_waits_is_told_what_is_settled_with_the_next_entry_or_heartbeat() -> None:
    bench = leader("1-0")
    propose(bench)
    bench.persist()
    fetch(bench, N2, commit=1)
    assert not sent(fetch(bench, N3, commit=1), N2)
    assert answered(bench.wake(), N2).commit == 2
    fetch(bench, N2, commit=2)
    assert answered(propose(bench), N2).commit == 2


def test_who_only_says_that_it_has_what_it_was_sent_is_answered_when_it_asks_again() -> None:
    bench = leader("1-0")
    rest(bench)
    (entry,) = answered(propose(bench), N2).headers
    assert not sent(fetch(bench, N2, entry.id, commit=1), N2)
    assert not answered(fetch(bench, N2, entry.id, commit=1), N2).rest


@pytest.mark.behaviour("LB-20")
def test_one_that_rests_and_is_suspected_has_to_show_itself_or_leaves() -> None:
    bench = leader("1-0")
    rest(bench)
    bench.tell(events.Suspected(2))
    bench.tell(events.Suspected(3))
    ordered = bench.wake()
    assert not answered(ordered, N3).rest
    fetch(bench, N3, commit=1)
    ordered = pass_time(bench, 1.5)
    assert AlterIsr(2, 2, (N1, N3)) in sent(ordered, CONTROLLER)


# ---- reads ----


def test_a_read_waits_for_a_round_of_everybody_in_sync() -> None:
    bench = leader("1-0")
    ordered = read(bench)
    assert sent(ordered, N2) == sent(ordered, N3) == [StillRequest(2, 1)]
    assert replies(bench.receive(N2, StillResponse(2, 1))) == []
    assert replies(bench.receive(N3, StillResponse(2, 1))) == [Reply(1, Outcome.SETTLED, 1, 2, leader=1)]


def test_a_read_waits_until_the_first_entry_of_the_epoch_is_settled() -> None:
    """Before that, what was settled by the leader of before may be more than is known here."""
    bench = new_leader("1-0 1-1")
    assert sent(read(bench)) == []
    fetch(bench, N2, at("1-1"))
    assert sent(fetch(bench, N3, at("1-1")), N2) == [], "1-1 is settled, and says nothing about 2-2"
    fetch(bench, N2)
    assert StillRequest(2, 1) in sent(fetch(bench, N3), N2)


def test_below_the_minimum_a_read_asks_those_who_may_lead_instead_too() -> None:
    """A controller may have chosen the one that left: it would settle entries of which we know nothing."""
    bench = of_two()
    propose(bench)
    bench.persist()
    pass_time(bench, 1.5)
    bench.told(state(3, 2, isr_now=(N1,), elr=(N2,), min_isr=2))
    assert lead(bench).maximal_isr == (N1,)
    ordered = read(bench)
    assert replies(ordered) == []
    assert (sent(ordered, N2), sent(ordered, N3)) == ([StillRequest(2, 1)], [])
    assert [reply.outcome for reply in replies(bench.receive(N2, StillResponse(2, 1)))] == [Outcome.SETTLED]


def test_a_read_asks_those_who_were_asked_in_too() -> None:
    bench = of_two()
    fetch(bench, N3)
    assert sent(read(bench), N3) == [StillRequest(2, 1)]


def test_a_read_that_nobody_confirms_is_given_up_even_if_nothing_else_happens() -> None:
    bench = new_leader("1-0", state(2, 2, isr_now=(N1,), elr=(N2,), min_isr=2))
    pass_time(bench, 10.0)
    read(bench)
    assert replies(pass_time(bench, TUNING.read_wait_s)) == [], "it waits as long as any other"
    assert [reply.outcome for reply in replies(pass_time(bench, 10.0))] == [Outcome.TIMED_OUT]


# ---- a follower whose process has ended ----


@pytest.mark.behaviour("LB-20")
def test_a_follower_that_has_ended_is_asked_out_at_once() -> None:
    bench = leader("1-0")
    rest(bench)
    ordered = bench.tell(events.Suspected(3, ended=True))
    assert AlterIsr(2, 2, (N1, N2)) in sent(ordered, CONTROLLER)


def test_one_that_is_back_and_has_everything_comes_in_again() -> None:
    bench = new_leader("1-0", state(2, 2, isr_now=(N1, N2), min_isr=2))
    fetch(bench, N2)
    bench.tell(events.Suspected(3, ended=True))
    ordered = fetch(bench, N3)
    assert AlterIsr(2, 2, (N1, N2, N3)) in sent(ordered, CONTROLLER)
