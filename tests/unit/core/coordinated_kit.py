"""Small words for tests of `coordinated`: a node or an operator on the bench, and a town of them.

A `Town` is as quiet as a world can be: disks flush at once, messages go round by round, clocks stand still until
somebody is woken. Everything in it is watched by the simulator's invariants.
"""

from __future__ import annotations

from random import Random
from typing import Any

from quorate.core import coordinated, effects, events, metadata
from quorate.core.coordinated.invariants import CoordinatedInvariants
from quorate.core.coordinated.leader import Leader
from quorate.core.coordinated.messages import (
    AddEntryRequest,
    AddEntryResponse,
    BecomeLeaderRequest,
    FenceRequest,
    FenceResponse,
)
from quorate.core.coordinated.orders import CallOff, MoveLeader, Reconfigure
from quorate.core.coordinated.shard import Kind, Phase, Reconfiguration, Shard, Status
from quorate.core.effects import Effect, Reply, Send
from quorate.core.entry import EntryId, Header, Member, Snapshot
from quorate.sim.invariants import Invariants
from tests.unit.core.kit import (
    N1,
    N2,
    N3,
    N4,
    N5,
    THREE,
    Office,
    Stand,
    Store,
    at,
    of_kind,
    orders,
    recovered,
    replies,
    sent,
)

OPERATOR = Member(101, 1)
TUNING = coordinated.Tuning(heartbeat_s=0.1, keep_behind=0)
OPERATOR_TUNING = coordinated.OperatorTuning(retry_s=0.2, patience_s=1.5, watch_s=2.0)


class Bench(Stand):
    """One node on the bench: tell it things, look at what it orders."""

    def __init__(
        self,
        me: Member = N1,
        log: str = "",
        *,
        epoch: int = 0,
        tuning: coordinated.Tuning = TUNING,
        **more: Any,
    ) -> None:
        self.now = 0.0
        self.replica = coordinated.Replica(coordinated.Config(me, tuning), Random(me.node))
        state = coordinated.SavedState(epoch)
        self.started = self.tell(events.Started(recovered(log, state=state, **more)))

    def fence(self, epoch: int, ensemble: tuple[Member, ...] = THREE) -> FenceResponse:
        """Fence it, and return what it answers."""
        ordered = self.receive(OPERATOR, FenceRequest(epoch, ensemble)) + self.persist()
        (answer,) = sent(ordered, OPERATOR)
        assert isinstance(answer, FenceResponse)
        return answer


def crown(
    bench: Bench, epoch: int, ensemble: tuple[Member, ...] = THREE, **heads: str | None
) -> list[Effect]:
    """Fence it, and make it lead that epoch, with followers at these heads: `n2="1-0"`, `n3=None` if empty."""
    token = bench.fence(epoch, ensemble).token
    members = {f"n{member.node}": member for member in ensemble}
    followers = tuple(
        (members[name], at(head) if head is not None else EntryId(0, -1)) for name, head in heads.items()
    )
    return bench.receive(OPERATOR, BecomeLeaderRequest(epoch, token, ensemble, followers))


def leader(log: str = "1-0", *, epoch: int = 2, ensemble: tuple[Member, ...] = THREE, **more: Any) -> Bench:
    """N1 leads; everybody has all of it, and its no-op is settled."""
    bench = Bench(N1, log, epoch=epoch - 1, **more)
    head = bench.replica.log.head
    text = f"{head.epoch}-{head.offset}" if head.offset >= 0 else None
    crown(bench, epoch, ensemble, **{f"n{member.node}": text for member in ensemble if member != N1})
    bench.persist()
    for member in ensemble:
        if member != N1:
            flushed(bench, member, head.offset + 1)
    assert bench.replica.commit == head.offset + 1
    return bench


def following(log: str = "1-0", *, epoch: int = 1, me: Member = N2, **more: Any) -> Bench:
    """N2 follows N1, and agrees with it up to its head."""
    bench = Bench(me, log, epoch=epoch, **more)
    bench.receive(N1, AddEntryRequest(epoch, bench.replica.log.head, -1))
    bench.persist()
    assert bench.replica.role.name == "follower"
    return bench


def lead(bench: Bench) -> Leader:
    """The role of one that leads."""
    assert isinstance(bench.replica.role, Leader)
    return bench.replica.role


def flushed(bench: Bench, follower: Member, offset: int, *, epoch: int = 0) -> list[Effect]:
    """A follower acknowledges everything up to there."""
    head = bench.replica.log.position(offset)
    answer = AddEntryResponse(epoch or bench.replica.epoch, True, offset, offset, -1, head)
    return bench.receive(follower, answer)


def propose(bench: Bench, request: int = 1) -> list[Effect]:
    return bench.tell(events.Proposed(request, (Header(0, 0, size=10),)))


def swap(old: Member, new: Member, phase: Phase = Phase.PREPARE) -> Reconfiguration:
    return Reconfiguration(Kind.SWAP, phase, old, new)


def expand(new: Member, phase: Phase = Phase.PREPARE) -> Reconfiguration:
    return Reconfiguration(Kind.EXPAND, phase, new=new)


def contract(old: Member, phase: Phase = Phase.PREPARE) -> Reconfiguration:
    return Reconfiguration(Kind.CONTRACT, phase, old)


# ---- an operator on the bench ----


class Desk(Office):
    """One operator."""

    def __init__(
        self,
        store: Shard | Store | None = None,
        *,
        birth: Shard | None = None,
        me: Member = OPERATOR,
        prefers: tuple[int, ...] = (),
    ) -> None:
        self.operator = coordinated.Operator(OPERATOR_TUNING, Random(me.node), birth, prefers=prefers)
        super().__init__(self.operator, store, me)

    def fenced(
        self, sender: Member, head: str | None, *, faulty: bool = False, epoch: int = 0
    ) -> list[Effect]:
        assert self.shard is not None
        entry = at(head) if head is not None else EntryId(0, -1)
        return self.receive(sender, FenceResponse(epoch or self.shard.epoch, entry, sender.node, faulty))

    def wake_until_sent(self, to: Member, kind: type) -> Any:
        """The first message of that kind to that node, as time passes."""
        for _ in range(100):
            for message in sent(self.wake(), to):
                if type(message) is kind:
                    return message
        raise AssertionError(f"{kind.__name__} is never sent to n{to.node}")

    def wake_until_written(self) -> Shard:
        for _ in range(100):
            if stored := written(self.wake()):
                return stored[0]
        raise AssertionError("nothing is ever written")

    def order(self, kind: Kind, *, old: Member | None = None, new: Member | None = None) -> list[Effect]:
        return self.tell(events.Commanded(Reconfigure(7, kind, old, new)))


def steady(
    epoch: int = 1,
    ensemble: tuple[Member, ...] = THREE,
    leader: Member = N1,
    change: Reconfiguration | None = None,
) -> Shard:
    return Shard(epoch, Status.STEADY, ensemble, leader, change)


def electing(
    epoch: int = 2, ensemble: tuple[Member, ...] = THREE, change: Reconfiguration | None = None
) -> Shard:
    return Shard(epoch, Status.ELECTION, ensemble, None, change)


def in_election(shard: Shard | None = None) -> Desk:
    """An operator that has just begun an election out of this (otherwise: steady e1, led by N1)."""
    desk = Desk(shard or steady())
    desk.start()
    if desk.shard is not None and desk.shard.status is Status.STEADY:
        desk.tell(events.Suspected(desk.shard.leader.node if desk.shard.leader is not None else 0))
    assert desk.shard is not None
    assert desk.shard.status is Status.ELECTION
    return desk


def written(ordered: list[Any]) -> list[Shard]:
    return [effect.shard for effect in ordered if type(effect) is metadata.WriteShard]


# ---- a town ----


class Town:
    """Nodes, one operator at a time, and messages that travel in rounds."""

    def __init__(self, *logs: str, ensemble: int = 0, epoch: int = 0) -> None:
        """A node per log; the first so many of them are the ensemble."""
        self.members = tuple(Member(number, 1) for number in range(1, len(logs) + 1))
        self.ensemble = self.members[: ensemble or len(logs)]
        self.epoch = epoch
        """Before the first election."""
        self.room = CoordinatedInvariants()
        self.invariants = Invariants(1, lambda: self.room)
        self.post: list[tuple[Member, int, Any]] = []
        """(sender, target, message): what waits."""
        self.rounds: list[list[str]] = []
        """The names of the messages that were delivered, round by round, each with its way."""
        self.replies: list[Reply] = []
        self.down: set[int] = set()
        self.nodes: dict[int, Bench] = {}
        self._given(logs)
        for member, log in zip(self.members, logs, strict=True):
            bench = self.nodes[member.node] = _Watched(self, member, log, epoch)
            bench.tell(events.Started(bench.found))
        self.desk = self.new_operator(101)

    def _given(self, logs: tuple[str, ...]) -> None:
        for log in logs:
            before = EntryId(0, -1)
            for header in recovered(log).headers:
                entry = (before.epoch, before.offset, header.offset, header.crc, header.control)
                self.invariants._entries[0].setdefault((header.epoch, header.last), entry)
                self.invariants.leaders[0].setdefault(header.epoch, 0)
                before = header.id

    def new_operator(self, number: int) -> Desk:
        """Another operator of the same store."""
        earlier: Desk | None = getattr(self, "desk", None)
        birth = Shard(self.epoch, Status.ELECTION, self.ensemble)
        desk = _WatchedDesk(self, Member(number, 1), birth, earlier)
        self.desk = desk
        return desk

    def start(self) -> None:
        """An operator comes, and everything settles down."""
        self.desk.start()
        self.settle()

    def deliver(self) -> list[str]:
        """One round: everything that waits arrives, and what comes of it waits."""
        waiting, self.post = self.post, []
        delivered = []
        for sender, target, message in waiting:
            if target in self.down or sender.node in self.down:
                continue
            delivered.append(f"{name(sender.node)} -> {name(target)} {type(message).__name__}")
            if target == self.desk.me.node:
                self.desk.receive(sender, message)
            elif target in self.nodes:
                self.nodes[target].receive(sender, message)
        self.rounds.append(delivered)
        return delivered

    def settle(self) -> None:
        for _ in range(200):
            if not self.post:
                return
            self.deliver()
        raise AssertionError(f"never at rest: {self.post}")

    def wake(self, seconds: float = 2.0) -> None:
        """Time passes for everybody, a little at a time."""
        machines: list[Any] = [*self.nodes.values(), self.desk]
        end = max(machine.now for machine in machines) + seconds
        while True:
            due = [
                (machine.deadline(), index)
                for index, machine in enumerate(machines)
                if machine.deadline() is not None and not self._is_down(machine)
            ]
            if not due or min(due)[0] > end:
                break
            when, index = min(due)
            machines[index].now = max(machines[index].now, when)
            machines[index].tell(events.TimePassed())
            self.settle()
        for machine in machines:
            machine.now = end

    def _is_down(self, machine: Any) -> bool:
        node = machine.me.node if isinstance(machine, Desk) else machine.replica.me.node
        return node in self.down

    def leader(self) -> Bench:
        assert self.desk.shard is not None
        assert self.desk.shard.leader is not None
        return self.nodes[self.desk.shard.leader.node]

    def logs(self) -> list[str]:
        return [bench.log() for bench in self.nodes.values()]


def name(number: int) -> str:
    return f"operator {number - 100}" if number > 100 else f"n{number}"


class _Watched(Bench):
    """A node of a town: flushes at once, posts what it says, and is looked at."""

    def __init__(self, town: Town, me: Member, log: str, epoch: int) -> None:
        self.town = town
        self.now = 0.0
        self.replica = coordinated.Replica(coordinated.Config(me, TUNING), Random(me.node))
        self.found = recovered(log, state=coordinated.SavedState(epoch) if epoch else None)
        self._bytes = 0

    def deadline(self) -> float | None:
        return self.replica.deadline()

    def tell(self, event: events.Event) -> list[Effect]:
        ordered = self.replica.step(self.now, event)
        self.town.invariants.stepped(self.replica.me.node, 0, self.replica, event, ordered)
        for effect in list(ordered):
            if isinstance(effect, Send):
                self.town.post.append((self.replica.me, effect.to, effect.message))
            elif isinstance(effect, Reply):
                self.town.replies.append(effect)
            elif isinstance(effect, effects.TakeSnapshot):
                ordered += self.tell(events.SnapshotTaken(self._snapshot()))
        if not self.replica.ordering.idle:
            ordered += self.tell(events.Persisted(self.replica.ordering.issued))
        return ordered

    def _snapshot(self) -> Snapshot:
        last = self.replica.log.boundary_at_or_below(self.replica.published)
        assert last is not None
        return Snapshot(last, 1, 10)


class _WatchedDesk(Desk):
    """An operator of a town: shares the store with all before it."""

    def __init__(self, town: Town, me: Member, birth: Shard, earlier: Desk | None) -> None:
        super().__init__(earlier.store if earlier is not None else None, birth=birth, me=me)
        self.town = town

    def deadline(self) -> float | None:
        return self.operator.deadline()

    def tell(self, event: Any) -> list[Effect]:
        ordered = self.operator.step(self.now, event)
        self.town.room.operated(self.town.invariants, self.me.node, 0, ordered)
        for effect in list(ordered):
            if isinstance(effect, Send):
                self.town.post.append((self.me, effect.to, effect.message))
            elif isinstance(effect, Reply):
                self.town.replies.append(effect)
            elif type(effect) in (metadata.ReadShard, metadata.WriteShard):
                self.open.append(effect)
        if self.answers:
            ordered += self.answer()
        return ordered

    def do(self, asked: Any) -> Any:
        answer = super().do(asked)
        if type(answer) is metadata.ShardWritten:
            assert self.shard is not None
            self.town.room.wrote(self.town.invariants, 0, self.store.version, self.shard)
        return answer


__all__ = [
    "N1", "N2", "N3", "N4", "N5", "OPERATOR", "THREE", "TUNING",
    "Bench", "CallOff", "Desk", "Kind", "MoveLeader", "Phase", "Reconfiguration", "Reconfigure", "Shard", "Status",
    "Town",
    "at", "contract", "crown", "electing", "expand", "flushed", "following", "in_election", "lead", "leader",
    "of_kind", "orders", "propose", "replies", "sent", "steady", "swap", "written",
]  # fmt: skip
