"""Each invariant of `isr` is broken once, and says so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quorate.core.effects import Append, Send
from quorate.core.entry import EntryId, Header, Member, Span
from quorate.core.events import Persisted, TimePassed
from quorate.core.invariant import Violated
from quorate.core.isr.messages import AlterIsr, FetchRequest, FetchResponse, PartitionTold
from quorate.core.isr.state import PartitionState, Unclean
from tests.unit.sim.isr_bench import IsrBench

N4 = Member(4, 1)


class Broken(IsrBench):
    """A healthy group in which something was written, and hands to break it with."""

    def __init__(self) -> None:
        super().__init__(controllers=(101,))
        self.state = self.begin()
        self.write()
        self.run(1.0)
        self.state = self.stored
        self.version = len(self.operators.history[0])
        self.leader = self.state.leader
        self.followers = [member for member in self.state.replicas if member != self.leader]

    def shadow(self, member: Member) -> Any:
        return self.invariants.shadows[member.node, 0]

    def step(self, member: Member, *effects: Any, event: Any = None) -> None:
        shadow = self.shadow(member)
        told = event if event is not None else TimePassed()
        self.room.stepped(self.invariants, shadow, shadow.replica, told, list(effects))

    def settle(self, member: Member) -> None:
        """As if it had just settled all that is in its log."""
        shadow = self.shadow(member)
        self.room.settled(self.invariants, shadow, shadow.replica, shadow.head.offset)
        self.step(member)

    def store_next(self, state: PartitionState) -> None:
        self.room.wrote(self.invariants, 0, self.version + 1, state)

    def ask(self, isr: tuple[Member, ...]) -> None:
        """The leader asks for this ISR."""
        message = AlterIsr(self.state.leader_epoch, self.state.epoch, tuple(sorted(isr)))
        self.step(self.leader, Send(101, message))

    def fetch(self, **more: Any) -> FetchRequest:
        follower = self.shadow(self.followers[0]).replica
        fields = {
            "epoch": follower.epoch,
            "session": 1,
            "number": 1,
            "prev": follower.log.head,
            "flushed": follower.log.head.offset,
            "commit": follower.commit,
        }
        return FetchRequest(**(fields | more))


@pytest.fixture
def bench() -> Broken:
    return Broken()


def broken(name: str) -> Any:
    return pytest.raises(Violated, match=f"^{name}")


def test_healthy_group_breaks_nothing(bench: Broken) -> None:
    bench.settle(bench.leader)
    bench.step(bench.followers[0], Send(bench.leader.node, bench.fetch()))
    bench.ask((bench.leader, bench.followers[0]))
    bench.store_next(bench.state.with_isr({bench.leader, bench.followers[0]}))


# ---- what is settled ----


@pytest.mark.behaviour("LB-10")
def test_isr_missing_what_is_settled(bench: Broken) -> None:
    follower = bench.shadow(bench.followers[0])
    follower.durable = EntryId(1, follower.durable.offset - 1)
    with broken("isr-missing"):
        bench.settle(bench.leader)


def test_isr_missing_where_one_that_is_asked_for_lacks_it(bench: Broken) -> None:
    bench.ask((*bench.state.isr, N4))
    with broken("isr-missing"):
        bench.settle(bench.leader)


def test_isr_missing_where_one_is_taken_in_without_it(bench: Broken) -> None:
    bench.ask((*bench.state.isr, N4))
    replicas = (*bench.state.replicas, N4)
    taken_in = msgspec.structs.replace(bench.state, replicas=replicas).with_isr({*bench.state.isr, N4})
    with broken("isr-missing"):
        bench.store_next(taken_in)


def test_another_incarnation_does_not_have_what_the_one_before_it_had(bench: Broken) -> None:
    wiped = bench.followers[0]
    bench.chaos.wipe(wiped.node)
    bench.settle(bench.leader)  # The one that is in sync had it.
    renewed = Member(wiped.node, 2)
    others = tuple(member for member in bench.state.isr if member != wiped)
    bench.ask((*others, renewed))
    with broken("isr-missing"):
        bench.settle(bench.leader)


def test_settled_by_follower(bench: Broken) -> None:
    with broken("settled-by-follower"):
        bench.settle(bench.followers[0])


@pytest.mark.behaviour("LB-21")
def test_settled_below_minimum(bench: Broken) -> None:
    bench.shadow(bench.leader).replica.told = bench.state.with_isr({bench.leader})
    with broken("settled-below-minimum"):
        bench.settle(bench.leader)


@pytest.mark.behaviour("LB-7")
def test_watermark_above_what_the_leader_has_settled(bench: Broken) -> None:
    leader = bench.shadow(bench.leader).replica
    answer = FetchResponse(leader.epoch, 1, 1, leader.log.head, leader.commit + 1)
    with broken("watermark-invalid"):
        bench.step(bench.leader, Send(bench.followers[0].node, answer))


# ---- who leads ----


def lead_anew(bench: Broken, member: Member) -> None:
    bench.shadow(member).role = "follower"
    bench.step(member)


def test_leader_that_nobody_chose(bench: Broken) -> None:
    bench.room._chosen[0, bench.state.leader_epoch] = bench.followers[0]
    with broken("leader-unchosen"):
        lead_anew(bench, bench.leader)


def test_leader_of_the_same_epoch_after_a_restart(bench: Broken) -> None:
    bench.room._led[0, bench.state.leader_epoch] = object()
    with broken("led-twice"):
        lead_anew(bench, bench.leader)


def test_leader_that_appends_nothing_of_its_epoch(bench: Broken) -> None:
    bench.shadow(bench.leader).head = EntryId(bench.state.leader_epoch - 1, 7)
    with broken("epoch-unopened"):
        lead_anew(bench, bench.leader)


def test_entry_of_an_epoch_that_nobody_leads(bench: Broken) -> None:
    with broken("epoch-unelected"):
        bench.step(bench.followers[0], Append(9, (Header(99, 100),)))


def test_leader_with_damage(bench: Broken) -> None:
    log = bench.shadow(bench.leader).replica.log
    log.mark_faulty(Span(EntryId(1, 0), EntryId(1, 1)))
    with broken("faulty-leads"):
        bench.step(bench.leader)


# ---- what followers say ----


@pytest.mark.behaviour("LB-9")
def test_acknowledgement_of_what_is_not_flushed(bench: Broken) -> None:
    head = bench.shadow(bench.followers[0]).durable.offset
    with broken("ack-unflushed"):
        bench.step(bench.followers[0], Send(bench.leader.node, bench.fetch(flushed=head + 1)))


@pytest.mark.behaviour("D1")
def test_acknowledgement_of_what_the_leader_does_not_have(
    bench: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = bench.shadow(bench.followers[0]).replica
    monkeypatch.setattr(type(follower.log), "epoch_at", lambda log, _: 5 if log is follower.log else 6)
    with broken("ack-unverified"):
        bench.step(bench.followers[0], Send(bench.leader.node, bench.fetch()))


def test_word_of_an_epoch_that_is_not_flushed(bench: Broken) -> None:
    with broken("epoch-unsaved"):
        bench.step(bench.followers[0], Send(bench.leader.node, bench.fetch(epoch=99)))


def test_flushed_before_the_disk_said_so(bench: Broken) -> None:
    bench.shadow(bench.followers[0]).durable = EntryId(1, 0)
    with broken("durable-early"):
        bench.step(bench.followers[0], event=Persisted(1))


# ---- what controllers store and say ----


@pytest.mark.behaviour("LB-16")
def test_leader_from_outside_of_those_who_have_everything(bench: Broken) -> None:
    bench.ask((bench.leader, bench.followers[0]))
    shrunk = bench.state.with_isr({bench.leader, bench.followers[0]})
    bench.store_next(shrunk)
    bench.version += 1
    outside = bench.followers[1]
    led = msgspec.structs.replace(
        shrunk.with_isr(shrunk.replicas), leader=outside, leader_epoch=shrunk.leader_epoch + 1
    )
    with broken("leader-outside"):
        bench.store_next(led)


@pytest.mark.behaviour("LB-2", "LB-18")
@pytest.mark.parametrize(
    "change", [{"epoch": 1}, {"leader_epoch": 2}, {"version": 1}, {"leader": True}], ids=str
)
def test_states_follow_one_another(bench: Broken, change: dict[str, Any]) -> None:
    led = bench.state.led_by(bench.followers[0])
    bench.version += change.get("version", 0)
    led = msgspec.structs.replace(
        led,
        epoch=led.epoch + change.get("epoch", 0),
        leader_epoch=led.leader_epoch + change.get("leader_epoch", 0) - ("leader" in change),
    )
    with broken("state-skipped"):
        bench.store_next(led)


def uncleanly_led(state: PartitionState, leader: Member, *, epoch: int, leader_epoch: int) -> PartitionState:
    """So many epochs later, one leads that a person has named."""
    later = state.leader_epoch + leader_epoch
    return msgspec.structs.replace(
        state,
        epoch=state.epoch + epoch,
        leader_epoch=later,
        leader=leader,
        isr=(leader,),
        elr=(),
        unclean=Unclean(later, leader, state.may_lead),
    )


def test_unclean_election_in_the_next_epoch_of_both_may_lose_what_is_settled(bench: Broken) -> None:
    """Without `unclean` the same state is a violation: one leads that misses something."""
    shrunk = bench.state.with_isr({bench.leader, bench.followers[0]})
    bench.ask(shrunk.isr)
    bench.store_next(shrunk)
    bench.version += 1
    outside = bench.followers[1]
    bench.shadow(outside).durable = EntryId(1, 0)
    unclean = uncleanly_led(shrunk, outside, epoch=1, leader_epoch=1)
    with broken("leader-outside"):
        bench.store_next(msgspec.structs.replace(unclean, unclean=None))
    bench.store_next(unclean)
    assert bench.room._stored[0] == (bench.version + 1, unclean)


@pytest.mark.behaviour("LB-18")
@pytest.mark.parametrize(("epoch", "leader_epoch"), [(0, 1), (2, 1), (1, 0), (1, 2)])
def test_unclean_election_in_another_epoch_than_the_next(
    bench: Broken, epoch: int, leader_epoch: int
) -> None:
    with broken("state-skipped"):
        bench.store_next(
            uncleanly_led(bench.state, bench.followers[0], epoch=epoch, leader_epoch=leader_epoch)
        )


def test_isr_that_its_leader_did_not_ask_for(bench: Broken) -> None:
    bench.ask((bench.leader, bench.followers[1]))
    with broken("isr-unasked"):
        bench.store_next(bench.state.with_isr({bench.leader, bench.followers[0]}))


def test_one_that_left_when_too_few_were_in_sync_may_lead(bench: Broken) -> None:
    bench.ask((bench.leader,))
    shrunk = bench.state.with_isr({bench.leader})
    assert shrunk.elr == tuple(bench.followers)
    with broken("eligible-lost"):
        bench.store_next(msgspec.structs.replace(shrunk, elr=shrunk.elr[:1]))


@pytest.mark.behaviour("LB-19")
def test_controller_that_tells_what_is_not_stored(bench: Broken) -> None:
    unstored = bench.state.led_by(bench.followers[0])
    told = PartitionTold(unstored.leader_epoch, unstored)
    with broken("told-unstored"):
        bench.room.operated(bench.invariants, 101, 0, [Send(1, told)])
