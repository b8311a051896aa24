"""The leader: proposals, cursors, commit, rest."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core import commands, effects, events
from quorate.core.effects import Outcome
from quorate.core.entry import Flag, Header, Member, Snapshot, Span
from quorate.core.raft.messages import AppendEntries, AppendResponse, SnapshotChunk, SnapshotResponse
from tests.unit.core.kit import (
    FIVE,
    N1,
    N2,
    N3,
    N5,
    NOWHERE,
    TUNING,
    Bench,
    at,
    depose,
    entries,
    flushed,
    keep_alive,
    leader,
    new_leader,
    orders,
    propose,
    rest,
    sent,
)


@pytest.mark.behaviour("YB-2", "YB-8")
def test_a_proposal_gets_its_epoch_and_offset_and_goes_out_while_it_is_being_flushed() -> None:
    bench = leader()
    ordered = propose(bench, count=3, flags=Flag.TRANSACTIONAL, crc=7)
    header = Header(2, 2, 3, 10, flags=Flag.TRANSACTIONAL, crc=7)
    assert orders(ordered) == [effects.Append(3, (header,))]
    assert sent(ordered, N2) == [AppendEntries(2, at("2-1"), 1, (header,))]


@pytest.mark.parametrize("last", ["a proposal", "a refused one", "none"])
def test_proposals_that_come_at_once_go_out_together(last: str) -> None:
    bench = leader(tuning=msgspec.structs.replace(TUNING, uncommitted_entries_max=2 + (last == "a proposal")))
    for request in (1, 2):
        ordered = bench.tell(events.Proposed(request, (Header(0, 0, size=10),), more=True))
        assert [type(order) for order in ordered] == [effects.Append], "flushed here meanwhile"
    ordered = propose(bench, 3) if last != "none" else bench.tell(events.Gathered())
    (message,) = sent(ordered, N2)
    assert [header.offset for header in message.headers] == ([2, 3, 4] if last == "a proposal" else [2, 3])
    assert not sent(bench.tell(events.Gathered()))


@pytest.mark.behaviour("YB-3")
def test_a_client_is_answered_when_a_majority_has_flushed_it() -> None:
    bench = leader()
    propose(bench)
    assert orders(flushed(bench, N2, 2)) == [], "one of three; the leader's own flush is still under way"
    ordered = bench.persist()
    assert effects.Reply(1, Outcome.SETTLED, offset=2, epoch=2) in ordered
    assert effects.Commit(2) in ordered


def test_a_majority_of_followers_commits_without_the_leaders_own_flush() -> None:
    bench = leader()
    propose(bench)
    flushed(bench, N2, 2)
    ordered = flushed(bench, N3, 2)
    assert bench.replica.commit == 2
    assert effects.Reply(1, Outcome.SETTLED, offset=2, epoch=2) in ordered
    assert effects.Commit(2) not in ordered, "published here only when it is flushed here"
    assert effects.Commit(2) in bench.persist()


@pytest.mark.behaviour("YB-19", "OX-23", "OX-24")
def test_entries_of_earlier_epochs_commit_only_with_one_of_the_own() -> None:
    bench = Bench(N1, "1-0 1-1")
    bench.elect()
    assert bench.replica.commit == -1
    flushed(bench, N2, 1)
    flushed(bench, N3, 1)
    assert bench.replica.commit == -1, "on all three, and still not committed by counting"
    flushed(bench, N2, 2)
    bench.persist()
    assert bench.replica.commit == 2


@pytest.mark.behaviour("YB-5", "OR-16")
def test_a_learner_is_sent_everything_and_never_counts() -> None:
    learner = Member(4, 1)
    bench = leader(learners=(learner,))
    ordered = propose(bench)
    assert len(sent(ordered, learner)) == 1
    bench.persist()
    flushed(bench, learner, 2)
    assert bench.replica.commit == 1
    flushed(bench, N2, 2)
    assert bench.replica.commit == 2


def test_another_incarnation_of_a_voter_does_not_count_and_is_searched_anew() -> None:
    bench = leader()
    propose(bench)
    bench.persist()
    wiped = Member(2, 99)
    bench.receive(wiped, AppendResponse(2, False, 1, -1, -1, theirs=NOWHERE))
    bench.receive(wiped, AppendResponse(2, True, 2, 2, -1))
    assert bench.replica.commit == 1
    flushed(bench, N3, 2)
    assert bench.replica.commit == 2


def test_nobody_else_can_be_written_through() -> None:
    bench = Bench(N2, "1-0", epoch=1)
    bench.receive(N1, AppendEntries(1, at("1-0"), -1))
    assert propose(bench) == [effects.Reply(1, Outcome.NOT_LEADER, leader=1)]


def test_an_order_of_another_protocol_is_refused_and_stops_nobody() -> None:
    bench = leader()
    (reply,) = bench.tell(events.Commanded(commands.Demote(9)))
    assert isinstance(reply, effects.Reply)
    assert (reply.request, reply.outcome) == (9, Outcome.REFUSED)


def test_too_many_unsettled_proposals_are_answered_busy() -> None:
    bench = leader(tuning=msgspec.structs.replace(TUNING, uncommitted_entries_max=1))
    propose(bench, 1)
    assert propose(bench, 2) == [effects.Reply(2, Outcome.BUSY, leader=1, why="too much is unsettled")]


def test_those_who_wait_when_leadership_ends_hear_unknown() -> None:
    bench = leader()
    propose(bench)
    ordered = depose(bench, 9)
    assert effects.Reply(1, Outcome.UNKNOWN) in ordered


def test_what_is_in_flight_to_a_silent_follower_is_bounded() -> None:
    bench = leader(tuning=msgspec.structs.replace(TUNING, inflight_messages_max=2))
    messages = [message for request in range(1, 6) for message in sent(propose(bench, request), N3)]
    assert len(messages) == 2
    ordered = flushed(bench, N3, 2)
    assert [header.offset for message in sent(ordered, N3) for header in message.headers] == [4, 5, 6]


def test_an_entry_larger_than_a_message_goes_alone() -> None:
    bench = leader(tuning=msgspec.structs.replace(TUNING, message_bytes_max=100, inflight_messages_max=1))
    for request, size in enumerate((10, 20, 5000, 30), 1):
        propose(bench, request, size=size)
    assert [h.size for m in sent(flushed(bench, N2, 2), N2) for h in m.headers] == [20]
    assert [h.size for m in sent(flushed(bench, N2, 3), N2) for h in m.headers] == [5000]
    assert [h.size for m in sent(flushed(bench, N2, 4), N2) for h in m.headers] == [30]


def test_a_follower_behind_what_is_in_memory_is_served_from_the_disk() -> None:
    bench = new_leader("1-0")
    bench.replica.log.window.clear()
    bench.replica.log._lasts.clear()
    bench.receive(N2, AppendResponse(2, False, 0, -1, -1, theirs=NOWHERE))
    ordered = bench.receive(N2, AppendResponse(2, True, -1, -1, -1))
    assert orders(ordered) == [effects.Read(1, 0, 1, TUNING.message_bytes_max)]
    ordered = bench.tell(events.Loaded(1, entries("1-0 2-1")))
    assert sent(ordered, N2) == [AppendEntries(2, NOWHERE, -1, entries("1-0 2-1"))]


def test_entries_that_were_removed_while_they_were_read_are_not_sent() -> None:
    bench = new_leader("1-0 1-1")
    bench.replica.log.window.clear()
    bench.replica.log._lasts.clear()
    bench.receive(N2, AppendResponse(2, False, 1, -1, -1, theirs=NOWHERE))
    bench.receive(N2, AppendResponse(2, True, -1, -1, -1))
    snapshot = bench.replica.snapshot = Snapshot(at("1-1"), 7, 30)
    bench.replica.log.remove_prefix(snapshot.last)
    ordered = bench.tell(events.Loaded(1, entries("1-0 1-1 2-2")))
    assert sent(ordered, N2) == [SnapshotChunk(2, snapshot, 0, 30)]


def compacted() -> Bench:
    """The leader's log starts at 5; a snapshot covers what is below."""
    return new_leader("1-5", base=at("1-4"), snapshot=Snapshot(at("1-4"), 7, 300))


def test_a_follower_behind_the_log_gets_the_snapshot_then_the_entries() -> None:
    bench = compacted()
    bench.receive(N2, AppendResponse(2, False, 5, -1, -1, theirs=NOWHERE))
    ordered = bench.receive(N2, AppendResponse(2, False, 4, -1, -1, theirs=NOWHERE))
    snapshot = Snapshot(at("1-4"), 7, 300)
    assert sent(ordered, N2) == [SnapshotChunk(2, snapshot, 0, 300)]
    assert sent(bench.receive(N2, SnapshotResponse(2, snapshot, 100)), N2) == [
        SnapshotChunk(2, snapshot, 100, 200)
    ]
    ordered = bench.receive(N2, AppendResponse(2, True, 4, 4, 4))
    assert [h.offset for m in sent(ordered, N2) for h in m.headers] == [5, 6]


def test_damage_below_the_log_is_mended_by_a_snapshot() -> None:
    bench = compacted()
    span = Span(at("1-1"), at("1-3"))
    ordered = bench.receive(N2, AppendResponse(2, True, 6, 1, -1, faulty=span))
    assert sent(ordered, N2) == [SnapshotChunk(2, Snapshot(at("1-4"), 7, 300), 0, 300)]


def test_damage_that_no_log_has_is_answered_with_the_own_entry_there() -> None:
    bench = new_leader("1-0 1-1 1-2")
    for lost, ours in (("1-3", "2-3"), ("1-9", "2-3")):
        answer = AppendResponse(2, True, 0, 0, 0, faulty=Span(at("1-0"), at(lost)))
        assert sent(bench.receive(N2, answer), N2) == [AppendEntries(2, at(ours), -1, search=True)]


def test_what_a_follower_cannot_have_is_said_once_a_heartbeat() -> None:
    bench = new_leader("1-0 1-1 1-2")
    answer = AppendResponse(2, True, 0, 0, 0, faulty=Span(at("1-0"), at("1-3")))
    assert len(sent(bench.receive(N2, answer), N2)) == 1
    assert sent(bench.receive(N2, answer), N2) == []
    bench.wake()
    assert len(sent(bench.receive(N2, answer), N2)) == 1


def test_damage_that_no_log_has_is_answered_with_the_end_of_what_is_settled_there() -> None:
    bench = new_leader("1-0 1-1 1-2")
    answer = AppendResponse(2, True, 0, 0, 1, faulty=Span(at("1-0"), at("1-3")))
    assert sent(bench.receive(N2, answer), N2) == [AppendEntries(2, at("1-1"), -1, search=True)]


def test_a_snapshot_is_taken_every_so_often_and_the_log_shortened() -> None:
    bench = leader(tuning=msgspec.structs.replace(TUNING, snapshot_every=3))
    propose(bench)
    bench.persist()
    ordered = flushed(bench, N2, 2)
    assert effects.TakeSnapshot() in ordered
    ordered = bench.tell(events.SnapshotTaken(Snapshot(at("2-2"), 7, 30)))
    assert ordered == [effects.RemovePrefix(4, at("2-2"))]
    assert bench.replica.log.base == at("2-2")


def test_an_idle_group_stops_ticking_when_everybody_has_agreed_to_rest() -> None:
    bench = leader()
    keep_alive(bench, N2, N3)
    (beat,) = sent(bench.wake(), N2)
    assert beat == AppendEntries(2, at("2-1"), 1, quiet=True)
    bench.receive(N2, AppendResponse(2, True, 1, 1, 1, quiet=True))
    bench.wake()
    assert bench.replica.deadline() is not None, "N3 has not agreed"
    bench.receive(N3, AppendResponse(2, True, 1, 1, 1, quiet=True))
    bench.wake()
    assert bench.replica.deadline() is None


def test_a_proposal_or_a_suspicion_ends_the_rest() -> None:
    for event in (events.Proposed(1, (Header(0, 0, size=1),)), events.Suspected(3)):
        bench = leader()
        rest(bench)
        bench.tell(event)
        assert bench.replica.deadline() is not None


@pytest.mark.behaviour("YB-3")
def test_five_replicas_need_three() -> None:
    bench = leader(voters=FIVE)
    propose(bench)
    bench.persist()
    flushed(bench, N2, 2)
    assert bench.replica.commit == 1
    flushed(bench, N5, 2)
    assert bench.replica.commit == 2


def test_a_search_that_ends_inside_an_entry_streams_from_its_start() -> None:
    bench = new_leader("1-0..9")
    bench.receive(N2, AppendResponse(2, False, 9, -1, -1, theirs=at("1-4")))
    (message,) = sent(bench.receive(N2, AppendResponse(2, True, 4, -1, -1)), N2)
    assert (message.prev, [header.offset for header in message.headers]) == (NOWHERE, [0, 10])


def test_a_resting_leader_that_hears_somebody_stir_puts_everybody_to_rest_again() -> None:
    bench = leader()
    rest(bench)
    keep_alive(bench, N3)
    assert bench.replica.deadline() is not None


def test_a_follower_whose_next_entry_was_removed_while_it_had_no_room_gets_a_snapshot() -> None:
    bench = leader(tuning=msgspec.structs.replace(TUNING, inflight_messages_max=1, snapshot_every=3))
    propose(bench)
    bench.persist()
    flushed(bench, N2, 2)
    bench.tell(events.SnapshotTaken(Snapshot(at("2-2"), 7, 30)))
    propose(bench, 2)
    bench.replica.log.remove_prefix(at("2-3"))
    bench.replica.snapshot = Snapshot(at("2-3"), 8, 30)
    assert sent(bench.wake(), N3) == [SnapshotChunk(2, Snapshot(at("2-3"), 8, 30), 0, 30)]
