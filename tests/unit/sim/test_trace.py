"""The story, line by line: short, and the same everywhere."""

from __future__ import annotations

from quorate.core.commands import ChangeMembership
from quorate.core.effects import Append, Commit, Cut, Outcome, Reply, SaveState, Send
from quorate.core.entry import EntryId, Header, Kind, Member, Membership, NoOp, Span
from quorate.core.events import Commanded, Persisted, Proposed, ReadAsked, ReadLevel, Received, TimePassed
from quorate.core.raft import SavedState
from quorate.core.raft.messages import (
    AppendEntries,
    GoneRequest,
    GoneResponse,
    TakeOver,
    VoteRequest,
    VoteResponse,
)
from quorate.sim.trace import Trace, tell, tell_effect


class Talker:
    def describe(self) -> str:
        return "n2 leader e7 log 3..19 commit 17"


def lines(trace: Trace) -> list[str]:
    return list(trace.lines())


def test_step_is_told_with_its_cause_its_orders_and_the_replica_afterwards() -> None:
    trace = Trace()
    message = VoteRequest(7, EntryId(6, 19))
    orders = [SaveState(4, SavedState(7, Member(1, 1))), Send(1, VoteResponse(7, True))]
    trace.stepped(1.25, 2, 0, Talker(), Received(Member(1, 1), message), orders, message=33)
    (line,) = lines(trace)
    assert line == (
        "  1.250000 n2 p0 received n1 #33 vote-request epoch 7 last 6-19"
        " -> save saved-state epoch 7 vote n1 owed nothing (order 4)"
        "   [n2 leader e7 log 3..19 commit 17]"
    )


def test_answers_to_clients_are_lines_of_their_own() -> None:
    trace = Trace()
    header = Header(0, 0, 2, 100)
    reply = Reply(5, Outcome.NOT_LEADER, leader=3)
    trace.stepped(0.5, 1, 1, Talker(), Proposed(5, (header,)), [reply], message=0)
    assert [line.split("   [")[0] for line in lines(trace)] == [
        "  0.500000 n1 p1 proposed request 5: 2x100B",
        "  0.500000 n1 p1 answered request 5: not leader, try n3",
    ]


def test_timers_and_flushes_are_told_in_a_word() -> None:
    trace = Trace()
    trace.stepped(0.5, 1, 0, Talker(), TimePassed(), [], message=0)
    trace.stepped(0.5, 1, 0, Talker(), Persisted(9), [Commit(3)], message=0)
    assert [line.split("   [")[0] for line in lines(trace)] == [
        "  0.500000 n1 p0 woke",
        "  0.500000 n1 p0 flushed order 9 -> commit 3",
    ]


def test_orders_name_entries_by_their_ids() -> None:
    first, second = Header(3, 4, 1, 90), Header(3, 5, 2, 80)
    assert tell_effect(Append(1, (first,))) == "append 3-4 90B (order 1)"
    assert tell_effect(Append(2, (first, second))) == "append 3-4..3-6 (2) (order 2)"
    assert tell_effect(Cut(3, EntryId(2, 3))) == "cut to 2-3 (order 3)"


def test_messages_tell_only_fields_that_say_something() -> None:
    noop = Header(7, 20, kind=Kind.CONTROL, control=NoOp(2))
    assert tell(AppendEntries(7, EntryId(6, 19), 17)) == "append-entries epoch 7 prev 6-19 commit 17"
    assert tell(AppendEntries(7, EntryId(6, 19), 17, (noop,))).endswith("headers 7-20 noop")
    assert tell(Span(EntryId(1, 2), EntryId(1, 5))) == "(1-2, 1-5]"


def test_reads_and_commands_are_told_with_what_is_wanted() -> None:
    trace = Trace()
    change = ChangeMembership(4, (Member(1, 1), Member(2, 3)), (Member(5, 1),))
    trace.stepped(0.5, 1, 0, Talker(), ReadAsked(3, ReadLevel.AT_OFFSET, 7), [], message=0)
    trace.stepped(0.5, 1, 0, Talker(), Commanded(change), [Reply(4, Outcome.REFUSED, why="no")], message=0)
    assert [line.split("   [")[0] for line in lines(trace)] == [
        "  0.500000 n1 p0 asked request 3: up to where it may read (at offset 7)",
        "  0.500000 n1 p0 commanded change-membership request 4 ensemble (n1 n2/3) learners (n5) version 0",
        "  0.500000 n1 p0 answered request 4: refused (no)",
    ]


def test_questions_about_the_leader_are_told_and_what_is_usual_is_not() -> None:
    assert tell(GoneRequest(3, EntryId(2, 5), 9)) == "gone-request epoch 3 last 2-5 asked 9"
    assert tell(GoneResponse(3, 9, True)) == "gone-response epoch 3 asked 9 gone yes"
    assert tell(TakeOver(3)) == "take-over epoch 3"
    beat = AppendEntries(3, EntryId(2, 5), 5)
    assert tell(beat) == "append-entries epoch 3 prev 2-5 commit 5"
    assert tell(AppendEntries(3, EntryId(2, 5), 5, heir=2)) == f"{tell(beat)} heir 2"


def test_membership_is_told_with_its_entry() -> None:
    membership = Membership((Member(2, 1),), outgoing=(Member(1, 1),))
    header = Header(3, 4, kind=Kind.CONTROL, control=membership)
    assert tell_effect(Append(1, (header,))) == "append 3-4 membership {n1}+{n2} (order 1)"
