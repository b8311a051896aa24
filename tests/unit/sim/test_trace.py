"""The story, line by line: short, and the same everywhere."""

from __future__ import annotations

from random import Random

import pytest

from quorate.core import coordinated, raft
from quorate.core.commands import ChangeMembership
from quorate.core.coordinated import Operator, OperatorTuning, Shard, Status
from quorate.core.coordinated.messages import AddEntryResponse, CommitReconfigurationRequest, SnapshotRequest
from quorate.core.coordinated.orders import CallOff, MoveLeader, Reconfigure
from quorate.core.coordinated.shard import Kind as ChangeKind
from quorate.core.coordinated.shard import Phase, Reconfiguration
from quorate.core.effects import Append, Commit, Cut, Outcome, Reply, SaveState, Send
from quorate.core.entry import EntryId, Header, Kind, Member, Membership, NoOp, Snapshot, Span
from quorate.core.events import (
    Commanded,
    Persisted,
    Proposed,
    ReadAsked,
    ReadLevel,
    Received,
    SnapshotTaken,
    TimePassed,
)
from quorate.core.isr.messages import FetchResponse, PartitionTold
from quorate.core.isr.state import PartitionState, Unclean
from quorate.core.metadata import ShardRead, ShardWritten, StoreSilent, WriteRefused, WriteShard
from quorate.core.raft import SavedState
from quorate.core.raft.messages import (
    AppendEntries,
    GoneRequest,
    GoneResponse,
    TakeOver,
    VoteRequest,
    VoteResponse,
)
from quorate.sim.happening import Happening, Names
from quorate.sim.operators import FIRST
from quorate.sim.trace import Trace, tell, tell_effect, tell_event, tell_state


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
        " -> save epoch 7 vote n1 (order 4)"
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


# ---- operators and their store ----

ENSEMBLE = (Member(1, 1), Member(2, 1), Member(3, 1))
SWAP = Reconfiguration(ChangeKind.SWAP, Phase.WANTED, Member(1, 1), Member(1, 2))
STEADY = Shard(4, Status.STEADY, ENSEMBLE, Member(2, 1), SWAP)


@pytest.mark.parametrize(
    ("event", "what", "text"),
    [
        (
            ShardRead(1, 9, STEADY),
            "read the store",
            "version 9 shard e4 steady {n1,n2,n3} led by n2, swap n1 for n1/2 (wanted)",
        ),
        (ShardWritten(1, 4), "wrote to the store", "version 4"),
        (WriteRefused(1), "found the store written by somebody else", ""),
        (StoreSilent(1), "heard nothing from the store", ""),
        (SnapshotTaken(Snapshot(EntryId(1, 98), 7, 166)), "took a snapshot", "up to 1-98 166B"),
        (
            Commanded(Reconfigure(4, ChangeKind.EXPAND, new=Member(4, 1))),
            "commanded",
            "request 4: add n4",
        ),
        (Commanded(CallOff(5)), "commanded", "request 5: call off"),
        (Commanded(MoveLeader(6)), "commanded", "request 6: move the leader"),
    ],
)
def test_nothing_is_said_twice(event: object, what: str, text: str) -> None:
    assert tell_event(event) == (what, text, 0)


def test_things_in_messages_and_orders_are_not_named_twice_either() -> None:
    remove = Reconfiguration(ChangeKind.CONTRACT, Phase.COMMIT, Member(3, 2), again=True)
    snapshot = Snapshot(EntryId(1, 98), 7, 166)
    assert tell(CommitReconfigurationRequest(5, remove)) == (
        "commit-reconfiguration-request epoch 5 reconfiguration remove n3/2 (commit again)"
    )
    assert tell(SnapshotRequest(5, snapshot, Member(1, 1))) == (
        "snapshot-request epoch 5 snapshot up to 1-98 166B source n1"
    )
    assert tell(WriteShard(1, 3, Shard(1, Status.ELECTION, ENSEMBLE))) == (
        "write-shard version 3 shard e1 election in {n1,n2,n3}"
    )


def test_a_partition_is_told_with_incarnations_and_what_a_person_has_accepted() -> None:
    again = Member(3, 2)
    state = PartitionState(5, 2, Member(1, 1), (*ENSEMBLE[:2], again), (Member(1, 1),), (again,), min_isr=2)
    assert tell(state) == "e2 (v5) led by n1, isr {n1} elr {n3/2} of {n1,n2,n3/2}"
    unclean = PartitionState(6, 3, again, (again,), (again,), unclean=Unclean(3, again, ENSEMBLE))
    assert tell(PartitionTold(3, unclean)) == (
        "partition-told epoch 3 state e3 (v6) led by n3/2, isr {n3/2} of {n3/2}, uncleanly since e3 answer yes"
    )


def test_a_fetch_response_says_what_is_settled_only_where_logs_part() -> None:
    assert tell(FetchResponse(1, 5, 2, EntryId(1, 0), 1)) == (
        "fetch-response epoch 1 session 5 number 2 prev 1-0 commit 1"
    )
    parted = FetchResponse(2, 5, 2, EntryId(1, 4), 1, diverging=EntryId(1, 3), settled=EntryId(1, 1))
    assert tell(parted) == (
        "fetch-response epoch 2 session 5 number 2 prev 1-4 commit 1 diverging 1-3 settled 1-1"
    )


def test_what_is_not_there_is_none_and_no_number() -> None:
    answer = AddEntryResponse(1, True, -1, -1, -1, EntryId(1, 0))
    assert tell(answer) == (
        "add-entry-response epoch 1 accepted yes probe none matched none commit none head 1-0"
    )

    class Empty:
        def describe(self) -> str:
            return "n2 follower e7 log empty commit -1 quiet"

    assert tell_state(Empty()) == "n2 follower e7 log empty commit none quiet"


def test_an_operator_says_what_it_does_and_with_whom() -> None:
    operator = Operator(OperatorTuning(), Random(0), birth=Shard(0, Status.ELECTION, ENSEMBLE))
    assert tell_state(operator) == "operator e0 v0 knowing nothing yet"
    operator.shard, operator.version = STEADY, 9
    assert tell_state(operator) == ("operator e4 v9 waiting: {n1,n2,n3} led by n2, swap n1 for n1/2 (wanted)")


def test_operators_have_one_name_however_the_code_calls_them() -> None:
    told = Happening(0.5, FIRST, "sent", 0, "x", 7, 2)
    assert str(told) == "  0.500000 operator 1 p0 sent n2 #7 x"
    assert str(Happening(0.5, 2, "sent", 0, "x", 7, FIRST)) == "  0.500000 n2 p0 sent operator 1 #7 x"
    ordered = Happening(0.5, 0, "commanded", text=f"operator {FIRST + 1}: p0 swap without n3 with n3/2")
    assert str(ordered) == "  0.500000 world commanded operator 2: p0 swap without n3 with n3/2"
    assert str(Happening(0, 0, "healed", text=f"n1>n{FIRST}")).endswith("world healed n1>operator 1")


def test_a_scenarios_names_are_used_where_it_has_some() -> None:
    told = Happening(0.5, 1, "sent", 0, "fence-request epoch 1 ensemble (n1 n2)", 7, FIRST)
    assert told.told(Names({1: "R1", 2: "R2", FIRST: "O"})) == (
        "  0.500000 R1 p0 sent O #7 fence-request epoch 1 ensemble (R1 R2)"
    )


@pytest.mark.parametrize(("frames", "said"), [("+1 frames", "with 1 entry"), ("+3 frames", "with 3 entries")])
def test_what_a_message_carries_is_counted_in_words(frames: str, said: str) -> None:
    assert str(Happening(0.5, 1, "sent", 0, f"add-entry-request {frames}", 7, 2)).endswith(said)


class ShardReplica(coordinated.Replica):
    def __init__(self) -> None: ...

    def describe(self) -> str:
        return "n1 leader e1 log empty commit 3"


class GroupReplica(raft.Replica):
    def __init__(self) -> None: ...

    def describe(self) -> str:
        return "n1 follower e1 log empty commit 3"


def test_the_raft_group_of_a_coordinated_world_is_the_store() -> None:
    trace = Trace()
    trace.stepped(0.0, 1, 0, ShardReplica(), TimePassed(), [], message=0)
    trace.stepped(0.0, 1, 1, GroupReplica(), TimePassed(), [], message=0)
    trace.add(0.5, 1, "lost", partition=1, message=3, peer=2)
    trace.add(0.5, 0, "violated", text="commit-regressed: p1 n1: from 2 to 1 (p11)")
    assert [line.split("   [")[0] for line in lines(trace)] == [
        "  0.000000 n1 p0 woke",
        "  0.000000 n1 store woke",
        "  0.500000 n1 store lost n2 #3",
        "  0.500000 world violated commit-regressed: store n1: from 2 to 1 (p11)",
    ]


def test_the_raft_groups_of_a_raft_world_are_partitions() -> None:
    trace = Trace()
    for partition in (0, 1):
        trace.stepped(0.0, 1, partition, GroupReplica(), TimePassed(), [], message=0)
    assert [happening.in_store for happening in trace.happenings] == [False, False]
