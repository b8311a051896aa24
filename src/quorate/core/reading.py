"""Reads that see everything that was settled before they began: the leader's part.

A leader that has settled something of its own epoch knows everything that is settled, unless another one leads
by now. So it notes what is settled when a read arrives, and then asks who still follows it, in a *round* that
begins after the read. When enough have answered that round (a majority, or everybody who may lead next: each room
says), nobody else led when the read began, and the read may be answered. Reads that come while a round is open
share the next one.

With a Barrier in its log a leader answers none of them: those who follow it can be enough for its own protocol
while others lead by the next (017). They wait until this one is over.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quorate.core import effects, events
from quorate.core.effects import Outcome
from quorate.core.entry import Member

LONG_AGO = float("-inf")


class StillRequest(msgspec.Struct, frozen=True, gc=False, tag="still?"):
    """A leader that wants to serve reads asks who still follows it."""

    epoch: int
    round: int


class StillResponse(msgspec.Struct, frozen=True, gc=False, tag="still"):
    """This replica followed the leader of `epoch` after `round` had begun."""

    epoch: int
    round: int
    promised_s: float = 0.0
    """For so long after it heard of the round, by its own clock, it votes for nobody else."""


class Reading:
    def __init__(self, leader: Any) -> None:
        self._leader = leader
        self._early: list[tuple[float, events.ReadAsked]] = []
        """Came before anything of this epoch was settled, and when."""
        self._round = 0
        self._began = LONG_AGO
        """When the newest round did."""
        self._asked: list[tuple[int, int]] = []
        """(offset, request) of the reads that wait for the open round."""
        self._next: list[tuple[int, int]] = []
        """Those that came since."""
        self._following: set[Member] = set()
        """Who has answered the open round; empty if none is."""

    @property
    def is_waiting(self) -> bool:
        return bool(self._asked or self._next or self._early)

    def ask(self, event: events.ReadAsked) -> None:
        if not self._leader.has_settled or self._leader.replica.barrier is not None:
            self._early.append((self._leader.replica.now, event))
            return
        if self.is_known_to_lead(event):
            self._leader.replica.waiting.read(self._leader.replica.commit, event.request)
            return
        self._next.append((self._leader.replica.commit, event.request))
        if self._following:
            self._leader.wake()  # Its answers may have been lost, and we may be at rest since.
        else:
            self._begin()

    def is_known_to_lead(self, event: events.ReadAsked) -> bool:
        """Whether nobody else can lead now, without asking."""
        return False

    def settled(self) -> None:
        """Something of this epoch is."""
        early, self._early = self._early, []
        for _, event in early:
            self.ask(event)

    def _begin(self) -> None:
        """A round for everything that waits."""
        replica = self._leader.replica
        self._round += 1
        self._began = replica.now
        self._asked, self._next = self._next, []
        self._following = {replica.me}
        self._leader.wake()
        self._send()
        self._count()

    def _send(self) -> None:
        replica = self._leader.replica
        question = StillRequest(replica.epoch, self._round)
        for node in replica.voting_peers:
            replica.send(node, question)

    def answered(self, sender: Member, message: StillResponse) -> None:
        if self._following and message.round == self._round:
            self._following.add(sender)
            self.heard(message)
            self._count()

    def heard(self, message: StillResponse) -> None:
        """An answer to the open round."""

    def _count(self) -> None:
        replica = self._leader.replica
        if not replica.has_quorum(self._following):
            return
        self._following = set()
        self.confirmed()
        asked, self._asked = self._asked, []
        for offset, request in asked:
            replica.waiting.read(offset, request)
        if self._next:
            self._begin()

    def confirmed(self) -> None:
        """Enough followed after the round had begun."""

    def woke(self) -> None:
        """A heartbeat: ask again who has not answered."""
        if self._following:
            self._send()
            self._count()  # Others may count by now, or nobody else.

    def give_up(self, seconds: float) -> None:
        """Nobody has confirmed for so long that we lead, and nobody else tells us that we do not."""
        latest = self._leader.replica.now - seconds
        if self._leader.entered_at >= latest:
            return
        late = [event.request for asked_at, event in self._early if asked_at < latest]
        self._early = [(asked_at, event) for asked_at, event in self._early if asked_at >= latest]
        if (self._asked or self._next) and self._began < latest:
            late += [request for _, request in self._asked + self._next]
            self._asked, self._next, self._following = [], [], set()
        self._answer(late, Outcome.TIMED_OUT, "too few follow to know whether this node still leads")

    def leave(self) -> None:
        """Reads change nothing: they can be asked again elsewhere."""
        waiting = [request for _, request in self._asked + self._next]
        self._answer(waiting + [event.request for _, event in self._early], Outcome.NOT_LEADER)
        self._asked, self._next, self._early = [], [], []

    def _answer(self, requests: list[int], outcome: Outcome, why: str = "") -> None:
        for request in requests:
            self._leader.replica.emit(effects.Reply(request, outcome, why=why))
