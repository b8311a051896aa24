"""One protocol ends with a Barrier: leaders of all rooms write it last, and nothing above it is settled (017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from quorate.core import effects, events, raft
from quorate.core.commands import Turn
from quorate.core.effects import Outcome
from quorate.core.entry import Barrier, Ceiling, Flag, Header, Kind, Membership, Snapshot, Standing, in_force
from quorate.core.raft.messages import AppendEntries
from tests.unit.core import confirm_kit, coordinated_kit, isr_kit, kit
from tests.unit.core.kit import N1, N2, N3, THREE, at, flushed, of_kind, recovered, replies, sent

AT = 7


def flush_everywhere(room: str, bench: Any) -> list[effects.Effect]:
    ordered: list[effects.Effect] = bench.persist()
    head = bench.replica.log.head
    for member in (N2, N3):
        if room == "isr":
            ordered += isr_kit.fetch(bench, member)
        elif room == "coordinated":
            ordered += coordinated_kit.flushed(bench, member, head.offset)
        else:
            ordered += flushed(bench, member, head.offset)
    return ordered


LEADERS: dict[str, Callable[[], Any]] = {
    "raft": kit.leader,
    "coordinated": coordinated_kit.leader,
    "isr": isr_kit.leader,
    "confirm": confirm_kit.leader,
}


def turn(bench: Any, request: int = 9, turn_at: int = AT) -> list[effects.Effect]:
    ordered: list[effects.Effect] = bench.tell(events.Commanded(Turn(request, turn_at)))
    return ordered


def barriers(ordered: list[effects.Effect]) -> list[Header]:
    appended = [header for append in of_kind(ordered, effects.Append) for header in append.headers]
    return [header for header in appended if type(header.control) is Barrier]


def propose(bench: Any, request: int) -> list[effects.Effect]:
    ordered: list[effects.Effect] = bench.tell(
        events.Proposed(request, (Header(0, 0, size=10, flags=Flag.SYNCHRONOUS),))
    )
    return ordered


@pytest.mark.parametrize("room", LEADERS)
def test_a_leader_told_to_turn_writes_a_barrier_last_and_says_when_it_is_settled(room: str) -> None:
    bench = LEADERS[room]()
    head = bench.replica.log.head.offset
    ordered = turn(bench)
    assert [(header.offset, header.control) for header in barriers(ordered)] == [(head + 1, Barrier(AT))]
    assert not replies(ordered)
    ordered = flush_everywhere(room, bench)
    assert [(reply.request, reply.outcome, reply.offset) for reply in replies(ordered)] == [
        (9, Outcome.SETTLED, head + 1)
    ]
    assert bench.replica.role.whole_at(head + 1) == THREE


@pytest.mark.parametrize("room", LEADERS)
def test_a_leader_that_ends_its_protocol_takes_nothing_and_first_settles_what_it_has(room: str) -> None:
    bench = LEADERS[room]()
    propose(bench, 1)
    assert not barriers(turn(bench)), "something is undecided"
    refused = replies(propose(bench, 2))
    assert [(reply.request, reply.outcome) for reply in refused] == [(2, Outcome.BUSY)]
    ordered = []
    for _ in range(3):  # In `confirm` the CONFIRM has to be settled, too.
        ordered += flush_everywhere(room, bench)
    assert [reply.outcome for reply in replies(ordered)] == [Outcome.SETTLED, Outcome.SETTLED]
    assert len(barriers(ordered)) == 1
    assert type(bench.replica.log.newest(Barrier).control) is Barrier
    assert bench.replica.log.head == bench.replica.barrier.entry


@pytest.mark.parametrize("room", LEADERS)
def test_a_turn_that_is_over_is_refused(room: str) -> None:
    bench = LEADERS[room]()
    (reply,) = replies(turn(bench, turn_at=0))
    assert reply.outcome is Outcome.REFUSED


def alone(*, min_isr: int = 1) -> isr_kit.Bench:
    """N1 leads an `isr` partition whose other copies are away, and takes writes by itself."""
    bench = isr_kit.new_leader("1-0", isr_kit.state(2, 2, isr_now=(N1,), min_isr=min_isr))
    bench.persist()
    return bench


def test_a_leader_in_sync_with_few_goes_on_until_a_majority_is() -> None:
    """A barrier that it settled by itself would stop all writes, and nobody could note it nor call it off."""
    bench = alone()
    for request in (9, 10):
        ordered = turn(bench, request)
        assert [(reply.request, reply.outcome) for reply in replies(ordered)] == [(request, Outcome.REFUSED)]
        assert "1 of 3" in replies(ordered)[0].why
        assert not barriers(ordered)
    assert not replies(propose(bench, 1))
    assert [reply.outcome for reply in replies(bench.persist())] == [Outcome.SETTLED]
    bench.told(isr_kit.state(3, 2, isr_now=(N1, N2)))
    isr_kit.fetch(bench, N2)
    assert len(barriers(turn(bench, 11))) == 1


def test_whoever_is_in_sync_and_may_be_gone_is_none_of_that_majority() -> None:
    """It stays in the ISR until it lags for too long; then the barrier would be settled without it."""
    bench = isr_kit.leader()
    for node in (2, 3):
        bench.tell(events.Suspected(node))
    assert [reply.outcome for reply in replies(turn(bench))] == [Outcome.REFUSED]
    isr_kit.fetch(bench, N2)
    assert len(barriers(turn(bench))) == 1


def test_a_turn_is_put_off_where_a_majority_goes_before_the_barrier_is_written() -> None:
    bench = isr_kit.leader(stored=isr_kit.state(2, 2, min_isr=1))
    propose(bench, 1)
    assert not replies(turn(bench)), "something is undecided"
    bench.persist()
    ordered = bench.told(isr_kit.state(3, 2, isr_now=(N1,)))
    assert [(reply.request, reply.outcome) for reply in replies(ordered)] == [
        (1, Outcome.SETTLED),
        (9, Outcome.REFUSED),
    ]
    assert not barriers(ordered)
    assert not replies(propose(bench, 2)), "it is taken"


def barred(offset: int, epoch: int = 1, turn_at: int = AT) -> Header:
    return Header(epoch, offset, kind=Kind.CONTROL, control=Barrier(turn_at))


def with_barrier(log: str, barrier: Header) -> dict[str, Any]:
    """A log that was found to end with that one."""
    found = recovered(log)
    return {
        "headers": (*found.headers, barrier),
        "head": barrier.id,
        "controls": (barrier,),
        "epochs": found.epochs,
    }


def raft_with(barrier: Header, *, generation: int = 0) -> kit.Bench:
    bench = kit.Bench(N1, "1-0 1-1")
    found = msgspec.structs.replace(
        recovered("1-0 1-1"), **with_barrier("1-0 1-1", barrier), generation=generation
    )
    bench.replica = type(bench.replica)(bench.replica.config, bench.replica.rng)
    bench.tell(events.Started(found))
    return bench


def test_a_leader_settles_the_barrier_of_one_before_it_and_nothing_of_its_own() -> None:
    bench = raft_with(barred(2))
    bench.elect()
    bench.persist()
    head = bench.replica.log.head.offset
    assert head == 3, "it needs an entry of its own to settle anything"
    for member in (N2, N3):
        flushed(bench, member, 2)
        flushed(bench, member, head)
    assert bench.replica.commit == 2
    (reply,) = replies(propose(bench, 1))
    assert reply.outcome is Outcome.BUSY


def test_a_barrier_of_the_own_generation_is_only_an_entry() -> None:
    bench = raft_with(barred(2), generation=AT)
    assert bench.replica.barrier is None
    assert bench.replica.begun == 2
    bench.elect()
    bench.persist()
    for member in (N2, N3):
        flushed(bench, member, 2)
        flushed(bench, member, 3)
    assert bench.replica.commit == 3


def test_a_follower_does_not_settle_past_a_barrier_whatever_it_is_told() -> None:
    bench = kit.following("1-0")
    message = AppendEntries(1, at("1-0"), 2, (barred(1), *kit.entries("1-2")), False, False, 0)
    bench.receive(N1, message)
    bench.persist()
    assert bench.replica.commit == 1


def test_no_linearizable_read_is_answered_with_a_barrier_in_the_log() -> None:
    bench = kit.leader()
    turn(bench)
    flush_everywhere("raft", bench)
    ordered = kit.read(bench)
    assert not replies(ordered)
    assert not sent(ordered)


def test_what_a_log_says_of_members_ends_with_its_generation() -> None:
    old = Header(1, 1, kind=Kind.CONTROL, control=Membership((N1,)))
    found = msgspec.structs.replace(
        recovered("1-0"),
        head=at("1-2"),
        headers=(*kit.entries("1-0"), old, barred(2)),
        controls=(old, barred(2)),
    )
    for generation, expected in ((0, (N1,)), (AT, THREE)):
        bench = kit.Bench(N1, "1-0")
        bench.replica = type(bench.replica)(bench.replica.config, bench.replica.rng)
        bench.tell(events.Started(msgspec.structs.replace(found, generation=generation)))
        assert bench.replica.membership.ensemble == expected


def test_a_copy_that_lacks_its_generations_barrier_goes_by_no_membership_of_its_log() -> None:
    old = Header(1, 1, kind=Kind.CONTROL, control=Membership((N1,)))
    bench = kit.Bench(N1, "1-0")
    bench.replica = type(bench.replica)(bench.replica.config, bench.replica.rng)
    found = msgspec.structs.replace(
        recovered("1-0"), head=at("1-1"), headers=(*kit.entries("1-0"), old), controls=(old,), generation=AT
    )
    bench.tell(events.Started(found))
    assert bench.replica.begun is None
    assert bench.replica.membership.ensemble == THREE


def test_a_snapshot_that_ends_at_a_barrier_says_so() -> None:
    standing = Standing().after(Membership((N1, N2))).after(Ceiling(5)).after(Barrier(AT))
    assert (standing.turned, standing.ceiling) == (AT, 5)
    assert standing.membership_of(0) == Membership((N1, N2))
    assert standing.membership_of(AT) is None
    assert standing.after(Membership((N3,))).membership_of(AT) == Membership((N3,))
    bench = kit.Bench(N1, "")
    bench.replica = type(bench.replica)(bench.replica.config, bench.replica.rng)
    snapshot = Snapshot(at("1-4"), 1, 10, standing)
    found = events.Recovered(at("1-4"), at("1-4"), (), commit=4, snapshot=snapshot)
    bench.tell(events.Started(found))
    assert bench.replica.barrier.entry == at("1-4")
    assert bench.replica.membership.ensemble == (N1, N2)


def test_every_barrier_stays_in_force_and_other_controls_until_the_next_of_their_kind() -> None:
    ceilings = [Header(1, offset, kind=Kind.CONTROL, control=Ceiling(offset)) for offset in (0, 2)]
    found = in_force([ceilings[0], barred(1, turn_at=3), ceilings[1], barred(3, turn_at=5)], settled=9)
    assert [header.offset for header in found] == [1, 2, 3]


def test_a_replica_whose_generation_begins_saves_that_first_and_promises_nothing_to_anybody() -> None:
    bench = kit.Bench(N1, "1-0")
    bench.replica = type(bench.replica)(
        msgspec.structs.replace(bench.replica.config, preferred=1), bench.replica.rng
    )
    state = raft.SavedState(epoch=4)
    ordered = bench.tell(
        events.Started(
            msgspec.structs.replace(recovered("1-0"), state=state, generation=AT, begins=True, commit=0)
        )
    )
    assert of_kind(ordered, effects.SaveState) == [effects.SaveState(1, state)]
    assert bench.replica.deadline() == bench.now + bench.replica.config.tuning.heartbeat_s
