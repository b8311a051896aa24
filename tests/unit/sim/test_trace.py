"""The story, line by line: short, and the same everywhere."""

from __future__ import annotations

from quorate.core.effects import Append, Commit, Cut, Outcome, Reply, SaveState, Send
from quorate.core.entry import EntryId, Header, Kind, Member, NoOp, Span
from quorate.core.events import Persisted, Proposed, Received, TimePassed
from quorate.core.raft import SavedState
from quorate.core.raft.messages import AppendEntries, VoteRequest, VoteResponse
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
