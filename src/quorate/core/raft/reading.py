"""Reads that see everything that was settled before they began: the leader's part.

A leader that has settled something of its own epoch knows everything that is settled, unless another one leads
by now. So it notes what is settled when a read arrives, and then asks who still follows it, in a *round* that
begins after the read. When a majority has answered that round, nobody else led when the read began, and the read
may be answered. Reads that come while a round is open share the next one.

A *lease* saves the round. Whoever follows a leader promises not to vote for another within an election time-out
of hearing from it, and says how long that is with its configuration. When a majority has answered a round, nobody
else can be elected within that time of the round's beginning; and with clocks that run up to a share `d` too fast
or too slow, within (1 - d) / (1 + d) of it by the leader's own. The leader's clock is read after the read has come
in, so a leader that is paused, even between the two, answers what was true when it looked. A leader that hands over
lets others vote at once, and so has no lease again in its epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core import effects, events
from quorate.core.effects import Outcome
from quorate.core.entry import Member
from quorate.core.events import ReadLevel
from quorate.core.raft.messages import StillRequest, StillResponse

if TYPE_CHECKING:
    from quorate.core.raft.leader import Leader

LONG_AGO = float("-inf")


class Reading:
    __slots__ = (
        "_asked",
        "_began",
        "_early",
        "_following",
        "_leader",
        "_lease_used",
        "_next",
        "_promised_s",
        "_round",
        "lease_until",
        "may_lease",
    )

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._early: list[events.ReadAsked] = []
        """Came before anything of this epoch was settled."""
        self._round = 0
        self._began = LONG_AGO
        """When the newest round did."""
        self._asked: list[tuple[int, int]] = []
        """(offset, request) of the reads that wait for the open round."""
        self._next: list[tuple[int, int]] = []
        """Those that came since."""
        self._following: set[Member] = set()
        """Who has answered the open round; empty if none is."""
        self._promised_s = 0.0
        """The shortest time for which one of them votes for nobody else."""
        self._lease_used = LONG_AGO
        self.lease_until = LONG_AGO
        self.may_lease = True

    @property
    def is_waiting(self) -> bool:
        return bool(self._asked or self._next or self._early)

    def ask(self, event: events.ReadAsked) -> None:
        replica = self._leader.replica
        if not self._leader.has_settled:
            self._early.append(event)
            return
        if event.level is ReadLevel.LEASE:
            self._lease_used = replica.now
            if self.has_lease:
                replica.waiting.read(replica.commit, event.request)
                return
        self._next.append((replica.commit, event.request))
        if self._following:
            self._leader.wake()  # Its answers may have been lost, and we may be at rest since.
        else:
            self._begin()

    @property
    def has_lease(self) -> bool:
        return self.may_lease and self._leader.replica.now < self.lease_until

    def settled(self) -> None:
        """Something of this epoch is."""
        early, self._early = self._early, []
        for event in early:
            self.ask(event)

    def _begin(self) -> None:
        """A round for everything that waits."""
        replica = self._leader.replica
        self._round += 1
        self._began = replica.now
        self._asked, self._next = self._next, []
        self._following = {replica.me}
        self._promised_s = replica.config.tuning.election_timeout_s
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
            self._promised_s = min(self._promised_s, message.promised_s)
            self._count()

    def _count(self) -> None:
        replica = self._leader.replica
        if not replica.has_quorum(self._following):
            return
        self._following = set()
        drift = replica.config.tuning.clock_drift_max
        self.lease_until = self._began + self._promised_s * (1.0 - drift) / (1.0 + drift)
        asked, self._asked = self._asked, []
        for offset, request in asked:
            replica.waiting.read(offset, request)
        if self._next:
            self._begin()

    def woke(self) -> None:
        """A heartbeat: ask again who has not answered; and keep a lease that somebody uses."""
        replica = self._leader.replica
        if self._following:
            self._send()
            self._count()  # Others may count by now, or nobody else.
        elif self.may_lease and replica.now - self._lease_used < replica.config.tuning.election_timeout_s:
            self._begin()

    def leave(self) -> None:
        """Reads change nothing: they can be asked again elsewhere."""
        replica = self._leader.replica
        waiting = [request for _, request in self._asked + self._next]
        for request in waiting + [event.request for event in self._early]:
            replica.emit(effects.Reply(request, Outcome.NOT_LEADER))
        self._asked, self._next, self._early = [], [], []
