"""What an attacker found in `coordinated`, each as what must hold instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quorate.core import effects, events, metadata
from quorate.core.coordinated.messages import (
    AbortReconfigurationRequest,
    AddEntryRequest,
    AddEntryResponse,
    BecomeLeaderRequest,
    BecomeLeaderResponse,
    PrepareReconfigurationRequest,
    PrepareReconfigurationResponse,
    SnapshotRequest,
    SnapshotResponse,
    TruncateRequest,
    TruncateResponse,
)
from quorate.core.effects import Outcome
from quorate.core.entry import NOWHERE, Header, Member, Snapshot, Span
from quorate.core.events import ReadLevel
from quorate.core.fetching import ChunkResponse
from tests.unit.core.coordinated_kit import (
    N1,
    N2,
    N3,
    N4,
    OPERATOR,
    TUNING,
    Bench,
    Desk,
    Kind,
    MoveLeader,
    Phase,
    Status,
    Town,
    at,
    contract,
    crown,
    flushed,
    following,
    in_election,
    leader,
    of_kind,
    propose,
    replies,
    sent,
    steady,
    swap,
)


def chosen(ordered: list[Any]) -> list[int]:
    """Who is told to lead."""
    return [send.to for send in of_kind(ordered, effects.Send) if type(send.message) is BecomeLeaderRequest]


def exchange(one: Bench, other: Bench, messages: list[Any]) -> None:
    """Let them answer each other, beginning with these to `other`, until both rest. No time passes."""
    rounds = 0
    while messages:
        rounds += 1
        assert rounds < 20, f"never at rest: {messages}"
        answers = []
        for message in messages:
            answers += sent(other.receive(one.replica.me, message) + other.persist(), one.replica.me)
        messages = []
        for answer in answers:
            messages += sent(one.receive(other.replica.me, answer) + one.persist(), other.replica.me)


# ---- a leader that does not know yet what is settled ----


class LossyTown(Town):
    """A town where some messages are lost."""

    is_lost: Callable[[Member, int, Any], bool] = staticmethod(lambda sender, target, message: False)

    def deliver(self) -> list[str]:
        self.post = [waiting for waiting in self.post if not self.is_lost(*waiting)]
        return super().deliver()


def test_a_leader_that_has_settled_nothing_since_its_election_does_not_prepare() -> None:
    bench = Bench(N1, "1-0 1-1", epoch=1, commit=0)
    crown(bench, 2, n2="1-1", n3="1-0")
    bench.persist()
    prepare = PrepareReconfigurationRequest(3, swap(N3, N4))

    assert sent(bench.receive(OPERATOR, prepare) + bench.persist(), OPERATOR) == []
    assert bench.replica.epoch == 2
    flushed(bench, N2, 2)
    ordered = bench.receive(OPERATOR, prepare) + bench.persist()
    assert effects.TakeSnapshot() in ordered
    everything = Snapshot(at("2-2"), 1, 10)
    ordered = bench.tell(events.SnapshotTaken(everything))
    assert PrepareReconfigurationResponse(3, prepared=True, snapshot=everything) in sent(ordered, OPERATOR)


def test_a_swap_right_after_an_election_gives_the_new_node_all_that_was_acknowledged() -> None:
    town = LossyTown("", "", "", "", ensemble=3)
    town.start()
    town.wake(1.0)
    # n3 hears from nobody; n2 gets the entry, and does not hear that it is settled.
    town.is_lost = lambda sender, target, message: sender.node in (1, 2) and target == 3
    propose(town.nodes[1], 77)
    town.deliver()
    town.deliver()
    assert [reply.outcome for reply in town.replies if reply.request == 77] == [Outcome.SETTLED]
    settled = town.nodes[1].replica.log.head
    town.post.clear()
    town.down.add(1)
    town.desk.tell(events.Suspected(1))
    town.settle()
    assert town.leader() is town.nodes[2]

    town.desk.order(Kind.SWAP, old=N1, new=N4)
    town.wake(1.0)
    assert town.desk.shard is not None
    assert town.desk.shard.reconfiguration == swap(N1, N4)
    town.is_lost = lambda sender, target, message: target == 4 and type(message) is AddEntryRequest
    town.wake()
    assert town.desk.shard == steady(town.desk.shard.epoch, (N2, N3, N4), N2)
    assert town.nodes[4].replica.commit >= settled.offset

    town.down.add(2)
    town.desk.tell(events.Suspected(2))
    town.is_lost = lambda sender, target, message: False
    town.wake()
    assert town.leader().replica.commit > settled.offset


# ---- elections ----


def test_damage_that_one_to_be_avoided_cannot_disprove_keeps_everybody_else_from_leading() -> None:
    # 1-7 is settled on n1 and n3. n1 is not to lead any more, n3 has damage below 1-11, and n2 has nothing.
    desk = Desk(steady(1))
    desk.start()
    desk.tell(events.Commanded(MoveLeader(7)))
    ordered = desk.fenced(N1, "1-7") + desk.fenced(N3, "1-11", faulty=True) + desk.fenced(N2, None)
    assert chosen(ordered) == []


def test_a_contraction_that_may_have_been_applied_may_have_settled_what_is_damaged_with_fewer() -> None:
    # n3 has applied the contraction of n4: 2-9 is settled on n2 and n3, two of three.
    desk = in_election(steady(2, (N1, N2, N3, N4), N3, contract(N4, Phase.COMMIT)))
    ordered = desk.fenced(N1, "1-3") + desk.fenced(N4, "1-4") + desk.fenced(N3, "2-9", faulty=True)
    while desk.now < 5.0:
        ordered += desk.wake()
    assert chosen(ordered) == []


def test_a_leader_that_is_suspected_and_answers_is_not_chosen_again_while_another_will_do() -> None:
    desk = Desk(steady(1))
    desk.start()
    desk.tell(events.Suspected(1))
    ordered = desk.fenced(N1, "1-9") + desk.fenced(N2, "1-5") + desk.fenced(N3, "1-5")
    assert chosen(ordered) == [2]
    desk.receive(N2, BecomeLeaderResponse(2, leads=True))
    assert desk.shard == steady(2, leader=N2)


# ---- snapshots ----


def test_installed_is_said_only_of_the_snapshot_that_was_asked_for() -> None:
    new = Bench(N4)
    older, newer = Snapshot(at("1-5"), 1, 10), Snapshot(at("2-9"), 2, 10)
    new.receive(OPERATOR, SnapshotRequest(2, older, N1))
    new.persist()
    new.receive(N1, ChunkResponse(2, older, 0, 10))
    assert new.replica.installing
    # Before the disk is done there is another reconfiguration.
    new.receive(OPERATOR, SnapshotRequest(4, newer, N1))
    assert sent(new.persist(), OPERATOR) == []
    assert new.replica.log.head == older.last


def test_a_snapshot_that_an_earlier_asker_wanted_is_not_reported_in_another_epoch() -> None:
    new = Bench(N4)
    snapshot = Snapshot(at("1-5"), 1, 10)
    new.receive(OPERATOR, SnapshotRequest(2, snapshot, N1))
    new.persist()
    new.receive(N1, ChunkResponse(2, snapshot, 0, 10))
    assert new.replica.installing
    new.receive(N2, AddEntryRequest(4, at("2-9"), -1))
    assert sent(new.persist(), OPERATOR) == []


def test_the_operator_does_not_commit_when_the_new_node_ends_below_the_snapshot() -> None:
    desk = Desk(steady(2, change=swap(N3, N4)))
    desk.start()
    snapshot = Snapshot(at("2-9"), 2, 10)
    desk.receive(N1, PrepareReconfigurationResponse(2, prepared=True, snapshot=snapshot))
    desk.receive(N4, SnapshotResponse(2, at("1-5"), True))
    assert desk.shard == steady(2, change=swap(N3, N4))
    desk.receive(N4, SnapshotResponse(2, at("2-9"), True))
    assert desk.shard == steady(2, change=swap(N3, N4, Phase.COMMIT))


def test_what_a_snapshot_has_replaced_is_not_verified_any_more() -> None:
    bench = following("1-0 1-1 1-2 1-3 1-4 1-5", commit=1)
    assert bench.replica.verified == at("1-5")
    bench.tell(events.Damaged(Span(at("1-1"), at("1-4"))))
    snapshot = Snapshot(at("1-3"), 1, 10)
    bench.receive(N1, SnapshotRequest(1, snapshot, N1))
    bench.persist()
    bench.receive(N1, ChunkResponse(1, snapshot, 0, 10))
    bench.persist()
    assert bench.replica.verified == bench.replica.log.head == at("1-3")
    bench.receive(N1, AddEntryRequest(1, at("1-3"), 5, (Header(1, 4, size=10),)))
    assert bench.replica.commit == 4


def test_a_snapshot_below_the_start_of_the_log_is_not_installed_though_the_own_one_is_lost() -> None:
    bench = Bench(N4, "2-21", epoch=2, base=at("1-20"), commit=20)
    assert bench.replica.lacks_snapshot
    ordered = bench.receive(OPERATOR, SnapshotRequest(3, Snapshot(at("1-15"), 1, 10), N1)) + bench.persist()
    assert sent(ordered, N1) == []
    assert bench.replica.log.base == at("1-20")


def test_a_snapshot_that_entries_have_overtaken_is_not_installed() -> None:
    bench = following("1-0", commit=0)
    snapshot = Snapshot(at("1-1"), 1, 10)
    bench.receive(N1, SnapshotRequest(1, snapshot, N1))
    bench.receive(N1, AddEntryRequest(1, at("1-0"), 2, (Header(1, 1, size=10), Header(1, 2, size=10))))
    bench.persist()
    assert bench.replica.commit == 2
    ordered = bench.receive(N1, ChunkResponse(1, snapshot, 0, 10)) + bench.persist()
    assert of_kind(ordered, effects.InstallSnapshot) == []
    assert SnapshotResponse(1, at("1-2"), True) in sent(ordered, N1)


def test_a_follower_below_the_log_of_a_leader_without_a_snapshot_waits_for_time_to_pass() -> None:
    bench = Bench(N1, "1-6 1-7", base=at("1-5"), commit=7, epoch=1, snapshot=Snapshot(at("1-5"), 1, 10))
    crown(bench, 2, n2="1-7", n3="1-2")
    bench.persist()
    bench.tell(events.SnapshotLost())
    bench.tell(events.SnapshotFailed("disk full"))
    follower = Bench(N3, "1-0 1-1 1-2", epoch=2)
    ordered = bench.receive(N3, SnapshotResponse(2, at("1-2"), False))
    exchange(bench, follower, sent(ordered, N3))


def test_a_follower_that_cannot_use_the_snapshot_it_was_offered_is_offered_it_again_as_time_passes() -> None:
    snapshot = Snapshot(at("1-5"), 1, 10)
    bench = Bench(N1, "1-6 1-7", base=at("1-5"), commit=7, epoch=1, snapshot=snapshot)
    crown(bench, 2, n2="1-7", n3="1-2")
    bench.persist()
    assert sent(bench.receive(N3, SnapshotResponse(2, at("1-2"), False)), N3) == []
    assert sent(bench.wake(), N3) == [SnapshotRequest(2, snapshot, N1)]


# ---- truncation of what is damaged ----


def test_damage_that_contradicts_the_leader_is_truncated_though_it_searches() -> None:
    bench = Bench(N1, "1-0 1-1 2-2", epoch=4)
    crown(bench, 5, n2="2-2")
    bench.persist()
    flushed(bench, N2, 3)
    # n3 comes back as one of whose log nothing is known.
    bench.receive(OPERATOR, PrepareReconfigurationRequest(6, contract(N3)))
    bench.persist()
    (question,) = sent(bench.receive(OPERATOR, AbortReconfigurationRequest(6, contract(N3))), N3)
    assert question == AddEntryRequest(6, at("6-4"), -1)
    lost = Span(at("1-1"), at("3-4"))
    answer = AddEntryResponse(6, False, 4, -1, 1, at("3-5"), faulty=lost)
    assert sent(bench.receive(N3, answer), N3) == [TruncateRequest(6, at("3-5"), at("2-2"), at("1-1"))]


def test_a_truncation_that_changed_nothing_is_asked_for_again_only_as_time_passes() -> None:
    bench = Bench(N1, "1-0 1-1 2-2", epoch=4)
    crown(bench, 5, n2="2-2", n3="3-3")
    bench.persist()
    assert sent(bench.receive(N3, TruncateResponse(5, at("3-3"), 1)), N3) == []
    (again,) = sent(bench.wake(), N3)
    assert isinstance(again, TruncateRequest)
    assert (again.head, again.to) == (at("3-3"), at("2-2"))


# ---- reads ----


def test_reads_of_a_leader_that_nobody_follows_end() -> None:
    bench = leader()
    answers = []
    for request in range(5):
        answers += replies(bench.tell(events.ReadAsked(request, ReadLevel.LINEARIZABLE)))
    assert answers == []
    while bench.now < TUNING.read_wait_s + 1.0:
        answers += replies(bench.wake())
    assert [(reply.request, reply.outcome) for reply in answers] == [
        (request, Outcome.TIMED_OUT) for request in range(5)
    ]


# ---- orders ----


def test_a_late_request_of_the_last_change_refuses_nothing_of_the_next() -> None:
    bench = leader()
    change = contract(N3)
    late = PrepareReconfigurationRequest(3, change)
    bench.receive(OPERATOR, late)
    bench.persist()
    bench.receive(OPERATOR, AbortReconfigurationRequest(3, change))
    bench.persist()
    bench.receive(OPERATOR, PrepareReconfigurationRequest(4, change))
    bench.persist()
    assert sent(bench.receive(OPERATOR, late) + bench.persist(), OPERATOR) == []
    assert bench.replica.epoch == 4


def test_of_a_write_that_may_yet_be_done_nobody_is_told_that_it_was_dropped() -> None:
    desk = Desk(steady(1))
    desk.start()
    desk.answers = False
    desk.order(Kind.CONTRACT, old=N3)
    (write,) = desk.open
    desk.open.clear()
    ordered = desk.tell(metadata.StoreSilent(write.token)) + desk.wake()
    desk.answers = True
    ordered += desk.answer()
    assert [reply.outcome for reply in replies(ordered)] == [Outcome.UNKNOWN]
    desk.do(write)
    assert desk.shard == steady(2, change=contract(N3))


def test_two_incarnations_of_a_node_never_count_in_one_ensemble() -> None:
    desk = Desk(steady(1))
    desk.start()
    (reply,) = replies(desk.order(Kind.SWAP, old=N3, new=Member(2, 2)))
    assert reply.outcome is Outcome.REFUSED
    assert desk.shard == steady(1)
    desk.order(Kind.SWAP, old=N2, new=Member(2, 2))
    assert desk.shard == steady(2, change=swap(N2, Member(2, 2)))


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        (Kind.SWAP, N3, None),
        (Kind.SWAP, None, N4),
        (Kind.EXPAND, N3, N4),
        (Kind.EXPAND, None, None),
        (Kind.CONTRACT, None, None),
        (Kind.CONTRACT, N3, N4),
    ],
)
def test_an_order_that_names_the_wrong_nodes_is_refused(
    kind: Kind, old: Member | None, new: Member | None
) -> None:
    desk = Desk(steady(1))
    desk.start()
    (reply,) = replies(desk.order(kind, old=old, new=new))
    assert (reply.outcome, reply.why) == (Outcome.REFUSED, f"{kind} names the wrong nodes")
    assert desk.shard is not None
    assert desk.shard.status is Status.STEADY


def test_a_follower_above_whose_head_the_log_has_come_to_begin_gets_a_snapshot() -> None:
    bench = Bench(N1, "1-0 1-1", epoch=1)
    asked = crown(bench, 2, n2="1-1", n3=None)
    assert [type(message) for message in sent(asked, N3)] == [TruncateRequest]
    bench.persist()
    flushed(bench, N2, 2)
    everything = Snapshot(at("2-2"), 1, 10)
    bench.tell(events.SnapshotTaken(everything))
    assert bench.replica.log.base == at("2-2")
    bench.receive(N3, TruncateResponse(2, NOWHERE, -1))
    assert sent(bench.wake(), N3) == [SnapshotRequest(2, everything, N1)]


def test_one_that_could_not_cut_hears_by_what_name_the_leader_knows_what_is_settled_there() -> None:
    bench = Bench(N1, "1-0 1-1 2-2", epoch=4)
    asked = crown(bench, 5, n2="2-2", n3="3-3")
    assert TruncateRequest(5, at("3-3"), at("2-2"), NOWHERE) in sent(asked, N3)
    bench.persist()
    bench.receive(N3, TruncateResponse(5, at("3-3"), 1))
    assert sent(bench.wake(), N3) == [TruncateRequest(5, at("3-3"), at("2-2"), at("1-1"))]
