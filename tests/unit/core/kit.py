"""Small words for tests of the core: a replica with a given log, and the facts it is told."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

from quorate.core import effects, events, metadata, raft
from quorate.core.commands import ChangeMembership
from quorate.core.effects import Effect
from quorate.core.entry import NOWHERE, EntryId, Header, Member, Snapshot, Span
from quorate.core.events import ReadLevel
from quorate.core.raft.messages import (
    AppendEntries,
    AppendResponse,
    GoneResponse,
    StillResponse,
    VoteResponse,
)

EffectKind = TypeVar("EffectKind", bound=Effect)

N1, N2, N3, N4, N5 = (Member(node, 1) for node in range(1, 6))
THREE = (N1, N2, N3)
FIVE = (N1, N2, N3, N4, N5)
TUNING = raft.Tuning(election_timeout_s=1.0, heartbeat_s=0.1, keep_behind=0)


def at(text: str) -> EntryId:
    """`3-7`: epoch 3, offset 7."""
    epoch, offset = text.split("-")
    return EntryId(int(epoch), int(offset))


def entries(text: str) -> tuple[Header, ...]:
    """`1-0 1-1 3-2`: one-offset entries; `1-0..4` covers five offsets."""
    headers = []
    for word in text.split():
        epoch, offsets = word.split("-")
        first, _, last = offsets.partition("..")
        count = int(last or first) - int(first) + 1
        headers.append(Header(int(epoch), int(first), count, size=100))
    return tuple(headers)


def recovered(log: str = "", *, commit: int = -1, base: EntryId = NOWHERE, **more: Any) -> events.Recovered:
    headers = entries(log)
    epochs: list[tuple[int, int]] = []
    for header in headers:
        if header.epoch != (epochs[-1][0] if epochs else base.epoch):
            epochs.append((header.epoch, header.offset))
    head = headers[-1].id if headers else base
    return events.Recovered(base, head, tuple(epochs), headers, commit=commit, **more)


class Stand:
    """One replica of whatever protocol: tell it things, look at what it orders."""

    now: float
    replica: Any

    def tell(self, event: events.Event) -> list[Effect]:
        ordered: list[Effect] = self.replica.step(self.now, event)
        return ordered

    def receive(self, sender: Member, message: Any) -> list[Effect]:
        return self.tell(events.Received(sender, message))

    def persist(self) -> list[Effect]:
        """Everything ordered so far is flushed."""
        ordering = self.replica.ordering
        return self.tell(events.Persisted(ordering.issued)) if not ordering.idle else []

    def wake(self) -> list[Effect]:
        deadline = self.replica.deadline()
        assert deadline is not None
        self.now = max(self.now, deadline)
        return self.tell(events.TimePassed())

    def log(self) -> str:
        return " ".join(
            f"{header.epoch}-{header.offset}" + (f"..{header.last}" if header.count > 1 else "")
            for header in self.replica.log.window
        )


class Bench(Stand):
    """One replica on the bench."""

    def __init__(
        self,
        me: Member = N1,
        log: str = "",
        *,
        voters: tuple[Member, ...] = THREE,
        learners: tuple[Member, ...] = (),
        epoch: int = 0,
        vote: Member | None = None,
        tuning: raft.Tuning = TUNING,
        preferred: int = 0,
        **more: Any,
    ) -> None:
        self.now = 0.0
        self.replica = raft.Replica(raft.Config(me, voters, learners, tuning, preferred), Random(1))
        state = raft.SavedState(epoch, vote)
        self.started = self.tell(events.Started(recovered(log, state=state, **more)))

    def miss_leader(self) -> None:
        """Let so much time pass that it owes nobody its vote, and not so much that it stands."""
        self.now = max(self.now, self.replica.promised_until)

    def stand(self) -> list[Effect]:
        """Let it miss its leader, and everybody with it: a candidate; returns what it orders then."""
        ordered = self.wake()
        for voter in sorted(self.replica.voters):
            if self.replica.role.name != "prospect":
                break
            if voter != self.replica.me:
                ordered = answer_gone(self, voter)
        assert self.replica.role.name == "candidate"
        return ordered

    def elect(self) -> list[Effect]:
        """Make it stand and win with everybody's vote; returns what it orders on winning."""
        self.stand()
        ordered = self.persist()
        for voter in sorted(self.replica.voters):
            if self.replica.role.name == "leader":
                break
            if voter != self.replica.me:
                ordered = self.receive(voter, VoteResponse(self.replica.epoch, True))
        assert self.replica.role.name == "leader"
        return ordered


def leader(log: str = "1-0", **more: Any) -> Bench:
    """N1 leads epoch 2; everybody streams and has its no-op."""
    bench = Bench(N1, log, **more)
    before = bench.replica.log.head.offset
    bench.elect()
    bench.persist()
    for member in bench.replica.config.voters + bench.replica.config.learners:
        if member != N1:
            bench.receive(member, AppendResponse(2, True, before, before, -1))
            flushed(bench, member, before + 1)
    assert bench.replica.commit == before + 1
    return bench


def new_leader(log: str, **more: Any) -> Bench:
    """N1 leads epoch 2 and has heard nothing from its followers yet."""
    bench = Bench(N1, log, **more)
    bench.elect()
    bench.persist()
    return bench


def following(log: str = "1-0", *, me: Member = N2, **more: Any) -> Bench:
    """N2, or another, follows N1 in epoch 1, and has just heard from it."""
    bench = Bench(me, log, epoch=1, **more)
    bench.miss_leader()
    bench.receive(N1, AppendEntries(1, bench.replica.log.head, bench.replica.log.head.offset))
    return bench


class Store:
    """The metadata store: one shard, compare-and-set."""

    def __init__(self, shard: Any = None) -> None:
        self.version = 0 if shard is None else 1
        self.shard = shard

    def do(self, asked: Any) -> Any:
        if type(asked) is metadata.ReadShard:
            return metadata.ShardRead(asked.token, self.version, self.shard)
        if asked.version != self.version:
            return metadata.WriteRefused(asked.token)
        self.version, self.shard = asked.version + 1, asked.shard
        return metadata.ShardWritten(asked.token, self.version)


class Office:
    """One overseer of a shard, whose store answers at once unless it is told otherwise."""

    def __init__(self, overseer: Any, store: Any, me: Member) -> None:
        self.now = 0.0
        self.me = me
        self.overseer = overseer
        self.store = store if isinstance(store, Store) else Store(store)
        self.answers = True
        """Whether the store does."""
        self.open: list[Any] = []
        """What it was asked and has not answered."""

    def start(self) -> list[Effect]:
        return self.tell(events.Started(recovered()))

    def tell(self, event: Any) -> list[Effect]:
        """The overseer's orders, what comes of the store's answers included, in order."""
        ordered = []
        for effect in self.overseer.step(self.now, event):
            ordered.append(effect)
            if type(effect) in (metadata.ReadShard, metadata.WriteShard):
                self.open.append(effect)
        if self.answers:
            ordered += self.answer()
        return ordered

    def answer(self) -> list[Effect]:
        """The store does what it was asked."""
        ordered = []
        while self.open:
            asked = self.open.pop(0)
            ordered += self.tell(self.do(asked))
        return ordered

    def do(self, asked: Any) -> Any:
        return self.store.do(asked)

    @property
    def shard(self) -> Any:
        """What the store holds."""
        return self.store.shard

    def receive(self, sender: Member, message: Any) -> list[Effect]:
        return self.tell(events.Received(sender, message))

    def wake(self) -> list[Effect]:
        deadline = self.overseer.deadline()
        assert deadline is not None
        self.now = max(self.now, deadline)
        return self.tell(events.TimePassed())


# ---- what it is told ----


def propose(bench: Bench, request: int = 1, **header: Any) -> list[Effect]:
    return bench.tell(events.Proposed(request, (Header(0, 0, **({"size": 10} | header)),)))


def change(
    bench: Bench, *ensemble: Member, learners: tuple[Member, ...] = (), request: int = 7, version: int = 0
) -> list[Effect]:
    return bench.tell(events.Commanded(ChangeMembership(request, ensemble, learners, version)))


def read(bench: Bench, request: int = 1, level: ReadLevel = ReadLevel.LINEARIZABLE) -> list[Effect]:
    return bench.tell(events.ReadAsked(request, level))


def lease(bench: Bench, request: int = 1) -> list[Effect]:
    return read(bench, request, ReadLevel.LEASE)


def still(bench: Bench, member: Member, number: int, promised_s: float = 1.0) -> list[Effect]:
    return bench.receive(member, StillResponse(bench.replica.epoch, number, promised_s))


def flushed(bench: Bench, follower: Member, offset: int) -> list[Effect]:
    return bench.receive(follower, AppendResponse(bench.replica.epoch, True, offset, offset, -1))


def catch_up(bench: Bench, *members: Member) -> list[Effect]:
    """They have everything, flushed, and so has the leader."""
    ordered = bench.persist()
    for member in members:
        ordered += flushed(bench, member, bench.replica.log.head.offset)
    return ordered


def keep_alive(bench: Bench, *members: Member) -> None:
    """They have what is settled, and say so."""
    commit = bench.replica.commit
    for member in members:
        bench.receive(member, AppendResponse(bench.replica.epoch, True, commit, commit, commit))


def rest(bench: Bench) -> None:
    """Everybody is current and says so: the leader falls silent."""
    replica = bench.replica
    head = replica.log.head.offset
    for member in sorted(replica.membership.members):
        if member != replica.me:
            answer = AppendResponse(replica.epoch, True, head, head, head, quiet=True)
            bench.receive(member, answer)
    bench.wake()
    assert replica.deadline() is None


def depose(bench: Bench, epoch: int, *, by: Member = N2) -> list[Effect]:
    """The leader hears of a later epoch from one that followed it."""
    return bench.receive(by, AppendResponse(epoch, False, -1, -1, -1, theirs=NOWHERE))


def answer_gone(bench: Bench, member: Member, *, gone: bool = True, asked: int = 0) -> list[Effect]:
    """To the prospect's newest question, or to another: is the leader gone?"""
    number = asked or bench.replica.times_asked
    return bench.receive(member, GoneResponse(bench.replica.epoch, number, gone))


# ---- what it orders ----


def of_kind(ordered: list[Effect], kind: type[EffectKind]) -> list[EffectKind]:
    return [effect for effect in ordered if isinstance(effect, kind)]


def replies(ordered: list[Effect]) -> list[effects.Reply]:
    """The answers among the orders."""
    return of_kind(ordered, effects.Reply)


def sent(ordered: list[Effect], to: Member | None = None) -> list[Any]:
    """The messages among the orders."""
    return [effect.message for effect in of_kind(ordered, effects.Send) if to is None or effect.to == to.node]


def orders(ordered: list[Effect]) -> list[Effect]:
    """The orders without the messages."""
    return [effect for effect in ordered if not isinstance(effect, effects.Send)]


__all__ = [
    "FIVE", "N1", "N2", "N3", "N4", "N5", "NOWHERE", "THREE", "TUNING",
    "Bench", "EntryId", "Header", "Member", "Office", "Snapshot", "Span", "Stand", "Store",
    "answer_gone", "at", "catch_up", "change", "depose", "entries", "flushed", "following", "keep_alive", "leader",
    "lease", "new_leader", "of_kind", "orders", "propose", "read", "recovered", "replies", "rest", "sent", "still",
]  # fmt: skip
