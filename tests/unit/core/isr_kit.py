"""Small words for tests of `isr`: a replica or a controller on the bench."""

from __future__ import annotations

from random import Random
from typing import Any

from quorate.core import events, isr, metadata
from quorate.core.effects import Effect
from quorate.core.entry import NOWHERE, EntryId, Header, Kind, Member, NoOp
from quorate.core.events import ReadLevel
from quorate.core.isr.leader import Leader
from quorate.core.isr.messages import (
    AlterIsr,
    FetchRequest,
    FetchResponse,
    PartitionHeard,
    PartitionTold,
    ReportLeader,
)
from tests.unit.core.kit import N1, N2, N3, THREE, Office, Stand, Store, recovered, sent

CONTROLLER = Member(101, 1)
AGAIN = Member(3, 2)
"""N3 with another disk."""
TUNING = isr.Tuning(heartbeat_s=0.1, lag_s=1.0, suspect_s=1.0, keep_behind=0)
CONTROLLER_TUNING = isr.ControllerTuning(retry_s=0.2, patience_s=1.5, watch_s=2.0, report_s=1.0)


def state(
    epoch: int = 1,
    leader_epoch: int = 1,
    leader: Member = N1,
    *,
    replicas: tuple[Member, ...] = THREE,
    isr_now: tuple[Member, ...] | None = None,
    **more: Any,
) -> isr.PartitionState:
    in_sync = replicas if isr_now is None else isr_now
    return isr.PartitionState(epoch, leader_epoch, leader, replicas, in_sync, **more)


class Bench(Stand):
    """One replica on the bench; `told` is what it has saved of an earlier life."""

    def __init__(
        self,
        me: Member = N1,
        log: str = "",
        *,
        epoch: int = 0,
        told: isr.PartitionState | None = None,
        tuning: isr.Tuning = TUNING,
        **more: Any,
    ) -> None:
        self.now = 0.0
        self.replica = isr.Replica(isr.Config(me, tuning), Random(me.node))
        saved = isr.SavedState(epoch, told=told, controllers=(CONTROLLER.node,) if told is not None else ())
        self.tell(events.Started(recovered(log, state=saved, **more)))
        self.persist()

    def told(
        self, stored: isr.PartitionState, sender: Member = CONTROLLER, *, answer: bool = True
    ) -> list[Effect]:
        """Somebody says what is stored, whatever is saved of it is flushed, and what is due at once is done."""
        message = PartitionTold(stored.leader_epoch, stored, answer)
        ordered = self.receive(sender, message) + self.persist() + self.persist()
        return ordered + self.wake_now()

    def wake_now(self) -> list[Effect]:
        """What does not wait any longer."""
        deadline = self.replica.deadline()
        return self.wake() if deadline is not None and deadline <= self.now else []

    @property
    def asked(self) -> FetchRequest:
        """A follower's newest request."""
        asked = self.replica.role._asked
        assert isinstance(asked, FetchRequest)
        return asked

    def answer(self, headers: tuple[Header, ...] = (), *, commit: int = -1, **more: Any) -> list[Effect]:
        """The leader answers the newest request."""
        asked = self.asked
        response = FetchResponse(
            self.replica.epoch, asked.session, asked.number, asked.prev, commit, headers, **more
        )
        return self.receive(self.replica.told.leader, response)


def following(log: str = "1-0", *, epoch: int = 1, me: Member = N2, **more: Any) -> Bench:
    """N2 follows N1, and agrees with it up to its head."""
    bench = Bench(me, log, **more)
    bench.told(state(epoch, epoch))
    bench.answer()
    assert bench.replica.role.name == "follower"
    assert bench.replica.verified == bench.replica.log.head
    return bench


def new_leader(log: str = "1-0", stored: isr.PartitionState | None = None, **more: Any) -> Bench:
    """N1 leads epoch 2 and has heard nothing from its followers yet."""
    bench = Bench(N1, log, **more)
    bench.told(stored if stored is not None else state(2, 2))
    assert bench.replica.role.name == "leader"
    return bench


def leader(log: str = "1-0", stored: isr.PartitionState | None = None, **more: Any) -> Bench:
    """N1 leads epoch 2; everybody has all of it, and its no-op is settled."""
    bench = new_leader(log, stored, **more)
    for member in bench.replica.told.replicas:
        if member != N1:
            fetch(bench, member)
    assert bench.replica.commit == bench.replica.log.head.offset
    return bench


def lead(bench: Bench) -> Leader:
    """The role of one that leads."""
    assert isinstance(bench.replica.role, Leader)
    return bench.replica.role


_numbers = iter(range(1, 1 << 30))


def fetch(
    bench: Bench,
    follower: Member,
    prev: EntryId | None = None,
    *,
    flushed: int | None = None,
    commit: int = -1,
    **more: Any,
) -> list[Effect]:
    """A follower asks; by default it has the leader's whole log, flushed."""
    at = bench.replica.log.head if prev is None else prev
    request = FetchRequest(
        bench.replica.epoch,
        session=follower.node,
        number=more.pop("number", next(_numbers)),
        prev=at,
        flushed=at.offset if flushed is None else flushed,
        commit=commit,
        **more,
    )
    return bench.receive(follower, request)


def answered(ordered: list[Effect], to: Member) -> FetchResponse:
    """The one answer to a request of this follower."""
    (answer,) = (message for message in sent(ordered, to) if type(message) is FetchResponse)
    return answer


def propose(bench: Bench, request: int = 1) -> list[Effect]:
    return bench.tell(events.Proposed(request, (Header(0, 0, size=10),)))


def read(bench: Bench, request: int = 1) -> list[Effect]:
    return bench.tell(events.ReadAsked(request, ReadLevel.LINEARIZABLE))


def pass_time(bench: Bench, seconds: float) -> list[Effect]:
    """So much time goes by, with every deadline on the way."""
    end = bench.now + seconds
    ordered: list[Effect] = []
    while (deadline := bench.replica.deadline()) is not None and deadline <= end:
        ordered += bench.wake()
    bench.now = end
    return ordered


def noop(epoch: int, offset: int, node: int = 1) -> Header:
    return Header(epoch, offset, kind=Kind.CONTROL, control=NoOp(node))


def rest(bench: Bench) -> None:
    """Everybody has everything, knows it, and is told to rest."""
    commit = bench.replica.commit
    for member in bench.replica.told.replicas:
        if member != N1:
            assert answered(fetch(bench, member, commit=commit), member).rest
    pass_time(bench, 1.0)
    assert bench.replica.deadline() is None


def of_two() -> Bench:
    """N1 leads; N2 has everything; N3 is not in sync, and has not been heard of."""
    bench = new_leader("1-0", state(2, 2, isr_now=(N1, N2), min_isr=2))
    fetch(bench, N2)
    return bench


# ---- a controller on the bench ----


class Desk(Office):
    """One controller, whose store answers at once unless it is told otherwise."""

    def __init__(
        self,
        store: isr.PartitionState | Store | None = None,
        *,
        birth: isr.Birth | None = None,
        me: Member = CONTROLLER,
        seed: int = 1,
    ) -> None:
        self.controller = isr.Controller(CONTROLLER_TUNING, Random(seed), birth)
        super().__init__(self.controller, store, me)

    @property
    def stored(self) -> isr.PartitionState:
        assert isinstance(self.shard, isr.PartitionState)
        return self.shard

    def heard(
        self, sender: Member, *, leads: bool | None = None, can_lead: bool = True, epoch: int | None = None
    ) -> list[Effect]:
        """A replica says that it knows what is stored."""
        stored = self.stored
        does = sender == stored.leader if leads is None else leads
        of = stored.leader_epoch if epoch is None else epoch
        return self.receive(sender, PartitionHeard(of, stored.epoch, does, can_lead))

    def report(
        self, sender: Member, *, epoch: int | None = None, leader_epoch: int | None = None
    ) -> list[Effect]:
        stored = self.stored
        of = stored.leader_epoch if leader_epoch is None else leader_epoch
        return self.receive(sender, ReportLeader(of, stored.epoch if epoch is None else epoch))

    def alter(self, *members: Member, sender: Member | None = None, epoch: int | None = None) -> list[Effect]:
        stored = self.stored
        request = AlterIsr(stored.leader_epoch, stored.epoch if epoch is None else epoch, members)
        return self.receive(sender or stored.leader, request)

    def order(self, order: Any) -> list[Effect]:
        return self.tell(events.Commanded(order))

    def pass_time(self, seconds: float) -> list[Effect]:
        end = self.now + seconds
        ordered: list[Effect] = []
        while (deadline := self.controller.deadline()) is not None and deadline <= end:
            ordered += self.wake()
        self.now = end
        return ordered


def at_work(stored: isr.PartitionState | Store | None = None, **more: Any) -> Desk:
    """A controller that has told everybody what is stored, and been answered."""
    desk = Desk(stored if stored is not None else state(), **more)
    desk.start()
    for member in desk.stored.replicas:
        desk.heard(member)
    return desk


def told(stored: isr.PartitionState) -> PartitionTold:
    return PartitionTold(stored.leader_epoch, stored)


def written(ordered: list[Any]) -> list[isr.PartitionState]:
    return [effect.shard for effect in ordered if type(effect) is metadata.WriteShard]


__all__ = [
    "AGAIN", "CONTROLLER", "CONTROLLER_TUNING", "N1", "N2", "N3", "NOWHERE", "THREE", "TUNING",
    "Bench", "Desk",
    "answered", "at_work", "fetch", "following", "lead", "leader", "new_leader", "noop", "pass_time", "propose",
    "read", "state", "told", "written",
]  # fmt: skip
