"""One copy of a partition: it follows or leads as it was told last.

It keeps a log as every replica does (core/keeping.py). Who leads, who holds the partition and who is in sync it is
told by controllers, and knows of nobody else. Its epoch is the leader epoch; it changes only with what it is told.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from quorate.core import effects, events
from quorate.core.entry import NOWHERE, Member
from quorate.core.fetching import ChunkGone, ChunkRequest, ChunkResponse, Fetching
from quorate.core.isr.config import Config, SavedState
from quorate.core.isr.follower import Follower
from quorate.core.isr.leader import Leader
from quorate.core.isr.messages import FetchRequest, PartitionHeard, PartitionTold
from quorate.core.isr.roles import Role
from quorate.core.isr.state import PartitionState
from quorate.core.isr.waiting import Waiting
from quorate.core.keeping import COMMON_HANDLERS, Keeper
from quorate.core.reading import StillRequest, StillResponse
from quorate.core.repairing import HaveEntries, WantEntries

CONTROLLERS_MAX = 4
"""So many of those who have told it something are told of troubles; several may be at work at once."""

SESSIONS_PER_LIFE = 1 << 32


class Replica(Keeper):
    config: Config
    role: Role
    resting = "waiting"

    def __init__(self, config: Config, rng: Random) -> None:
        super().__init__(config, rng)
        self.told: PartitionState | None = None
        self.controllers: tuple[int, ...] = ()
        self.fetching = Fetching(self)
        self._lives = 0
        self._sessions_count = 0
        """In this life."""
        self._crown_io = 0
        """It was told to lead, and will as soon as this order, which saves that, is durable; 0: it was not."""

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
        return SavedState(self.epoch, self.owed, self.told, self.controllers, self._lives)

    def can_lead(self) -> bool:
        return not self.faulty and not self.installing

    @property
    def voting_peers(self) -> tuple[int, ...]:
        return self.role.voting_peers

    def has_quorum(self, members: set[Member]) -> bool:
        return self.role.has_quorum(members)

    # --- what is stored ---

    def take(self, state: PartitionState) -> None:
        """The one place where the epoch changes: a newer state is told."""
        assert state.leader_epoch >= self.epoch
        is_next = state.leader_epoch > self.epoch
        self._know(state)
        self.epoch = state.leader_epoch
        saved_by = self.save_state()
        if is_next:
            self.verified = NOWHERE  # Nothing is compared with this leader yet.
            self.fetching.pause()
            # A leader that forgot its epoch would be told to lead it once more, and give out the same ids again.
            self._crown_io = saved_by if state.leader == self.me else 0
            self.become(self._place())
        elif self.role.name in ("leader", self._place()):
            self.role.altered()
        else:
            self.become(self._place())

    def _know(self, state: PartitionState) -> None:
        self.told = state
        nodes = {member.node for member in state.replicas} - {self.me.node}
        self.peers = self.repairing.peers = tuple(sorted(nodes)) if self.me in state.replicas else ()

    def _place(self) -> str:
        """What one that does not lead is, by what it was told last."""
        told = self.told
        if told is None or self.me not in told.replicas or told.leader == self.me:
            return "waiting"
        return "follower" if told.leader_epoch == self.epoch else "waiting"

    def stand_down(self) -> None:
        """It leads no more in this epoch, or its disk has refused something: whom it followed, it follows anew."""
        self.leader = 0
        self.become(self._place())

    @property
    def is_crowned(self) -> bool:
        """It is about to lead."""
        return self._crown_io > 0

    def _begin_to_lead(self) -> None:
        self._crown_io = 0
        self.become("leader" if self.can_lead() else "waiting")
        self.tell_controllers(self.heard())

    def next_session(self) -> int:
        """Higher than all before, also those of earlier lives."""
        self._sessions_count += 1
        assert self._sessions_count < SESSIONS_PER_LIFE
        return self._lives * SESSIONS_PER_LIFE + self._sessions_count

    def heard(self) -> PartitionHeard:
        """How this replica stands, for a controller."""
        partition_epoch = self.told.epoch if self.told is not None else 0
        return PartitionHeard(self.epoch, partition_epoch, self.role.name == "leader", self.can_lead())

    def tell_controllers(self, message: Any) -> None:
        for node in self.controllers:
            self.send_when_saved(node, message)

    def release(self, effect: effects.Effect) -> None:
        """What waited for the disk is said only in the epoch it was meant for, and only if it is still so."""
        if isinstance(effect, effects.Send):
            message = effect.message
            if message.epoch != self.epoch:
                return
            if type(message) is FetchRequest and message.flushed > self.flushed_agreement():
                return  # Damaged since: the follower has something else to say.
        self.emit(effect)

    # --- facts ---

    def _started(self, event: events.Started) -> None:
        saved = event.recovered.state if event.recovered.state is not None else SavedState()
        assert isinstance(saved, SavedState)
        self.recover(event.recovered, epoch=saved.epoch, owed=saved.owed)
        self.controllers = saved.controllers
        self._lives = saved.lives + 1
        if saved.told is not None:
            self._know(saved.told)
            self.save_state()
        self.role = self.roles[self._place()](self)
        self.role.enter()
        if event.recovered.begins:
            self.save_state()  # What it is from now on: with the cut that was ordered before it.
        self.publish()

    def _received(self, event: events.Received) -> None:
        message = event.message
        handler = _WHATEVER_THE_EPOCH.get(type(message))
        if handler is not None:
            handler(self, event.sender, message)
        elif message.epoch < self.epoch:
            self._refuse_stale(event.sender, message)
        elif message.epoch == self.epoch:
            self.role.receive(event.sender, message)
        elif self.role.name == "leader":
            self.stand_down()  # Somebody was told of another leader since. The epoch is taken from a state only.

    def _time_passed(self, event: events.TimePassed) -> None:
        super()._time_passed(event)
        self.fetching.woke()

    def _persisted(self, event: events.Persisted) -> None:
        super()._persisted(event)
        self.fetching.persisted()
        if 0 < self._crown_io <= event.io:
            self._begin_to_lead()

    def _failed(self, event: events.Failed) -> None:
        self.fetching.forget()
        self._crown_io = 0
        super()._failed(event)

    def fetched(self, asker: int, installed: bool) -> None:
        self.role.fetched(installed)

    # --- what has nothing to do with who leads, or says so itself ---

    def _told(self, sender: Member, message: PartitionTold) -> None:
        state = message.state
        is_new_controller = message.answer and sender.node not in self.controllers
        if message.answer:
            others = [node for node in self.controllers if node != sender.node]
            self.controllers = (sender.node, *others)[:CONTROLLERS_MAX]
        is_news = self.told is None or state.epoch > self.told.epoch
        if is_news and state.leader_epoch >= self.epoch:
            self.take(state)
        elif is_new_controller:
            self.save_state()  # After a restart it must be told how we stand.
        if message.answer and not self.is_crowned:  # Otherwise when it leads.
            self.send_when_saved(sender.node, self.heard())

    def _still(self, sender: Member, message: StillRequest) -> None:
        """Nobody can lead a later epoch who has not heard of it: that is all that is asked (core/reading.py)."""
        if message.epoch < self.epoch:
            self._refuse_stale(sender, message)
            return
        if message.epoch == self.epoch:
            self.role.heard_leader()
        self.send_when_saved(sender.node, StillResponse(message.epoch, message.round))

    def _chunk_request(self, sender: Member, message: ChunkRequest) -> None:
        self.fetching.serve(sender, message)

    def _chunk_response(self, sender: Member, message: ChunkResponse) -> None:
        if message.epoch == self.epoch:
            self.role.heard_leader()
        self.fetching.chunk(sender, message)

    def _chunk_gone(self, sender: Member, message: ChunkGone) -> None:
        self.fetching.gone(sender, message)

    def _refuse_stale(self, sender: Member, message: Any) -> None:
        """Whoever asks from the past is told what is stored, as far as it is known here; answers are dropped."""
        if type(message) in (FetchRequest, StillRequest):
            self.pass_on(sender)

    def pass_on(self, to: Member) -> None:
        if self.told is not None and self.told.leader_epoch == self.epoch:
            self.send_when_saved(to.node, PartitionTold(self.epoch, self.told, answer=False))


Replica.roles = {role.name: role for role in (Waiting, Follower, Leader)}
Replica.transitions = frozenset(
    {
        ("waiting", "waiting"),
        ("waiting", "follower"),
        ("waiting", "leader"),
        ("follower", "waiting"),
        ("follower", "follower"),  # another leader, or a failed order
        ("follower", "leader"),
        ("leader", "waiting"),
        ("leader", "follower"),
        ("leader", "leader"),  # in the next leader epoch
    }
)
Replica.handlers = COMMON_HANDLERS | {
    events.Started: Replica._started,
    events.Received: Replica._received,
    events.TimePassed: Replica._time_passed,
    events.Persisted: Replica._persisted,
    events.Failed: Replica._failed,
}

_WHATEVER_THE_EPOCH: dict[type, Callable[[Replica, Member, Any], None]] = {
    PartitionTold: Replica._told,
    StillRequest: Replica._still,
    WantEntries: Replica.want_entries,
    HaveEntries: Replica.have_entries,
    ChunkRequest: Replica._chunk_request,
    ChunkResponse: Replica._chunk_response,
    ChunkGone: Replica._chunk_gone,
}
