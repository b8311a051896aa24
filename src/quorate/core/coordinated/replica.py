"""One node's copy of a shard: it only obeys (OX-1). Fenced, Follower or Leader, as it was told last.

It keeps a log as every replica does (core/keeping.py), knows no peers but those it was told, and detects no
failures. It is fenced when it starts: whatever it was before, it is again only when the leader, or the operator,
says so.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from quorate.core import effects, events
from quorate.core.coordinated.config import Config, SavedState
from quorate.core.coordinated.fenced import Fenced
from quorate.core.coordinated.follower import Follower
from quorate.core.coordinated.leader import Leader
from quorate.core.coordinated.messages import (
    AbortReconfigurationRequest,
    AbortReconfigurationResponse,
    AddEntryRequest,
    AddEntryResponse,
    AddFollowerRequest,
    BecomeLeaderRequest,
    BecomeLeaderResponse,
    CommitReconfigurationRequest,
    CommitReconfigurationResponse,
    FenceRequest,
    FenceResponse,
    PrepareReconfigurationRequest,
    PrepareReconfigurationResponse,
    SnapshotRequest,
    SnapshotResponse,
    TruncateRequest,
)
from quorate.core.coordinated.roles import Role
from quorate.core.entry import NOWHERE, Member, Snapshot
from quorate.core.fetching import ChunkGone, ChunkRequest, ChunkResponse, Fetching
from quorate.core.keeping import COMMON_HANDLERS, Keeper
from quorate.core.reading import StillRequest
from quorate.core.repairing import HaveEntries, WantEntries


class Replica(Keeper):
    config: Config
    role: Role
    resting = "fenced"

    def __init__(self, config: Config, rng: Random) -> None:
        super().__init__(config, rng)
        self.told: tuple[Member, ...] = ()
        self.token = 0
        """Names the newest fencing of this life; whoever is told to lead must be told so by this name."""
        self.crown: BecomeLeaderRequest
        """With which it was told to lead."""
        self.fetching = Fetching(self)

    def describe(self) -> str:
        quiet = " quiet" if self.role.deadline is None else ""
        owed = f" owes {self.owed}" if self.owed > self.log.head else ""
        return (
            f"n{self.me.node} {self.role.name} e{self.epoch} log {self.log} commit {self.commit}{quiet}{owed}"
        )

    def deadline(self) -> float | None:
        own, fetching = super().deadline(), self.fetching.deadline
        return own if fetching is None else fetching if own is None else min(own, fetching)

    def saved_state(self) -> SavedState:
        return SavedState(self.epoch, self.owed, self.told)

    def can_lead(self) -> bool:
        return not self.faulty and not self.installing

    @property
    def voting_peers(self) -> tuple[int, ...]:
        return self.role.voting_peers

    def has_quorum(self, members: set[Member]) -> bool:
        return self.role.has_quorum(members)

    # --- epochs ---

    def enter_epoch(self, epoch: int) -> None:
        """The one place where the epoch changes. Nothing is verified with its leader yet."""
        assert epoch > self.epoch
        self.epoch = epoch
        self.leader = 0
        self.verified = NOWHERE
        self.fetching.pause()
        self.save_state()

    def tell(self, members: tuple[Member, ...]) -> None:
        """Who else holds this log. Saved with the next epoch."""
        self.told = members
        nodes = {member.node for member in members} - {self.me.node}
        self.peers = self.repairing.peers = tuple(sorted(nodes))

    def follow(self, sender: Member, epoch: int) -> None:
        """The leader of that epoch has spoken."""
        if epoch > self.epoch:
            self.enter_epoch(epoch)
            self.become("follower")
        elif self.role.name != "follower":
            assert self.role.name != "leader", "two leaders in one epoch"
            self.become("follower")
        assert self.leader in (0, sender.node), "two leaders in one epoch"
        self.leader = sender.node
        if sender.node not in self.peers:
            self.tell(tuple(sorted((*self.told, sender))))

    def release(self, effect: effects.Effect) -> None:
        """Whoever is fenced says nothing more of earlier epochs (OX-7), nor a head that is on its way out."""
        if isinstance(effect, effects.Send):
            is_old = effect.message.epoch != self.epoch
            is_overtaken = type(effect.message) is FenceResponse and self.staging is not None
            if is_old or is_overtaken:
                return
        self.emit(effect)

    # --- facts ---

    def _started(self, event: events.Started) -> None:
        saved = event.recovered.state if event.recovered.state is not None else SavedState()
        assert isinstance(saved, SavedState)
        self.recover(event.recovered, epoch=saved.epoch, owed=saved.owed)
        self.tell(saved.told)
        self.role = Fenced(self)
        self.role.enter()
        if event.recovered.begins:
            self.save_state()  # What it is from now on: with the cut that was ordered before it.
        self.publish()

    def _received(self, event: events.Received) -> None:
        message = event.message
        handler = _APART_FROM_LEADERSHIP.get(type(message))
        if handler is not None:
            handler(self, event.sender, message)
        elif message.epoch < self.epoch:
            self._refuse_stale(event.sender, message)
        elif type(message) in _REQUESTS:
            _REQUESTS[type(message)](self, event.sender, message)
        elif message.epoch > self.epoch:
            # Somebody answers from a later epoch: whatever we are, it is over.
            self.enter_epoch(message.epoch)
            self.become("fenced")
        else:
            self.role.receive(event.sender, message)

    def _time_passed(self, event: events.TimePassed) -> None:
        super()._time_passed(event)
        self.fetching.woke()

    def _persisted(self, event: events.Persisted) -> None:
        super()._persisted(event)
        self.fetching.persisted()

    def _failed(self, event: events.Failed) -> None:
        self.fetching.forget()
        super()._failed(event)

    def installed(self, snapshot: Snapshot) -> None:
        """What a snapshot stands for is settled, and so is in the log of every leader since."""
        self.verify(snapshot.last, snapshot.last.offset)
        self.fetching.installed()

    def fetched(self, asker: int, installed: bool) -> None:
        """What came of a snapshot, for whoever wanted it here."""
        self.send_when_durable(asker, SnapshotResponse(self.epoch, self.log.head, installed))

    # --- what the operator asks ---

    def _fence(self, sender: Member, message: FenceRequest) -> None:
        """Stop, and say how far this log goes (OX-7)."""
        if message.epoch > self.epoch:
            self.tell(message.ensemble)
            self.enter_epoch(message.epoch)
            self.become("fenced")
        self._answer_fence(sender)

    def _answer_fence(self, sender: Member) -> None:
        if self.role.name == "leader" or self.staging is not None:
            return  # It was fenced before it was told to lead. While a snapshot comes in, the head says nothing.
        token = self.token if self.role.name == "fenced" else 0
        self.send_when_durable(sender.node, FenceResponse(self.epoch, self.claim, token, self.faulty))

    def _become_leader(self, sender: Member, message: BecomeLeaderRequest) -> None:
        is_chosen = self.role.name == "fenced" and message.token == self.token and message.epoch == self.epoch
        if is_chosen and self.can_lead():
            self.crown = message
            self.become("leader")
        leads = self.role.name == "leader" and message.epoch == self.epoch
        self.send_when_saved(sender.node, BecomeLeaderResponse(message.epoch, leads))

    def _add_follower(self, sender: Member, message: AddFollowerRequest) -> None:
        if isinstance(self.role, Leader) and message.epoch == self.epoch:
            self.role.add_follower(sender, message)

    def _prepare(self, sender: Member, message: PrepareReconfigurationRequest) -> None:
        if isinstance(self.role, Leader):
            self.role.reconfiguring.prepare(sender, message)
        else:
            self.send(sender.node, PrepareReconfigurationResponse(message.epoch, prepared=False))

    def _commit(self, sender: Member, message: CommitReconfigurationRequest) -> None:
        if isinstance(self.role, Leader):
            self.role.reconfiguring.commit(sender, message)
        else:
            self.send(sender.node, CommitReconfigurationResponse(message.epoch, leads=False))

    def _abort(self, sender: Member, message: AbortReconfigurationRequest) -> None:
        if isinstance(self.role, Leader):
            self.role.reconfiguring.abort(sender, message)
        else:
            self.send(sender.node, AbortReconfigurationResponse(message.epoch, leads=False))

    def _snapshot(self, sender: Member, message: SnapshotRequest) -> None:
        if message.epoch > self.epoch:
            self.tell(tuple(sorted({*self.told, message.source})))
            self.enter_epoch(message.epoch)
            self.become("fenced")
        if self.role.name != "leader":
            self.fetching.order(asker=sender.node, source=message.source.node, snapshot=message.snapshot)

    # --- what the leader asks ---

    def _from_leader(self, sender: Member, message: AddEntryRequest | TruncateRequest | StillRequest) -> None:
        self.follow(sender, message.epoch)
        self.role.receive(sender, message)

    # --- what has nothing to do with who leads ---

    def _chunk_request(self, sender: Member, message: ChunkRequest) -> None:
        self.fetching.serve(sender, message)

    def _chunk_response(self, sender: Member, message: ChunkResponse) -> None:
        self.fetching.chunk(sender, message)

    def _chunk_gone(self, sender: Member, message: ChunkGone) -> None:
        self.fetching.gone(sender, message)

    # --- the past ---

    def _refuse_stale(self, sender: Member, message: Any) -> None:
        """Tell an operator or a leader of the past which epoch it is; drop answers."""
        if type(message) in (AddEntryRequest, TruncateRequest, StillRequest):
            answer = AddEntryResponse(self.epoch, False, -1, -1, self.commit, self.log.head)
            self.send_when_saved(sender.node, answer)
        elif type(message) in _REQUESTS:
            # Whatever was asked in the past: this is true in any case, and refuses nothing that is asked now.
            self._answer_fence(sender)


Replica.roles = {role.name: role for role in (Fenced, Follower, Leader)}
Replica.transitions = frozenset(
    {
        ("fenced", "fenced"),  # a higher epoch, or a failed order
        ("fenced", "follower"),
        ("fenced", "leader"),
        ("follower", "fenced"),
        ("follower", "follower"),  # its leader has adopted a higher epoch
        ("leader", "fenced"),
        ("leader", "follower"),
    }
)
Replica.handlers = COMMON_HANDLERS | {
    events.Started: Replica._started,
    events.Received: Replica._received,
    events.TimePassed: Replica._time_passed,
    events.Persisted: Replica._persisted,
    events.Failed: Replica._failed,
}

_APART_FROM_LEADERSHIP: dict[type, Callable[[Replica, Member, Any], None]] = {
    WantEntries: Replica.want_entries,
    HaveEntries: Replica.have_entries,
    ChunkRequest: Replica._chunk_request,
    ChunkResponse: Replica._chunk_response,
    ChunkGone: Replica._chunk_gone,
}

_REQUESTS: dict[type, Callable[[Replica, Member, Any], None]] = {
    FenceRequest: Replica._fence,
    BecomeLeaderRequest: Replica._become_leader,
    AddFollowerRequest: Replica._add_follower,
    PrepareReconfigurationRequest: Replica._prepare,
    CommitReconfigurationRequest: Replica._commit,
    AbortReconfigurationRequest: Replica._abort,
    SnapshotRequest: Replica._snapshot,
    AddEntryRequest: Replica._from_leader,
    TruncateRequest: Replica._from_leader,
    StillRequest: Replica._from_leader,
}
"""Those of this epoch or a later one; each takes the epoch on as its sender may demand it."""
