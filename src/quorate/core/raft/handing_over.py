"""Handing leadership over to a chosen node (YB-15): the leader's part.

The leader takes no more proposals, and lets everybody know who its *heir* is, so that nobody else stands
meanwhile. When the heir has the whole log flushed, it is told to take over: it stands at once, and nobody refuses
it because the old leader is still heard. Either it wins, or the leader gives up after an election time-out and goes
on leading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core import effects
from quorate.core.commands import TransferLeadership
from quorate.core.cursor import Cursor, Phase
from quorate.core.effects import Outcome
from quorate.core.raft.messages import TakeOver

if TYPE_CHECKING:
    from quorate.core.raft.leader import Leader

LONG_AGO = float("-inf")
OWN_IDEA = 0
"""Instead of a request: nobody waits for the answer."""
AGAIN_AFTER = 10
"""Election time-outs until a leader of low priority tries again to hand over."""


class HandingOver:
    __slots__ = ("_leader", "_request", "_tried", "_until", "heir")

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._request = OWN_IDEA
        self._until = 0.0
        self._tried = LONG_AGO
        self.heir = 0
        """The node that is to lead; 0: nobody else."""

    @property
    def is_wanted(self) -> bool:
        """It goes on, or should."""
        return self.heir != 0 or self._better() is not None

    def order(self, command: TransferLeadership) -> None:
        replica = self._leader.replica
        why_not = ""
        if command.to == replica.me.node:
            replica.emit(
                effects.Reply(command.request, Outcome.SETTLED, epoch=replica.epoch, leader=command.to)
            )
            return
        if self.heir and self._request != OWN_IDEA:
            why_not = f"leadership is being handed over to node {self.heir}"
        elif all(member.node != command.to for member in replica.membership.ensemble):
            why_not = f"node {command.to} is not in the ensemble {replica.membership}"
        elif command.to in self._leader.cursors and self._leader.cursors[command.to].loose:
            why_not = f"node {command.to} does not count until it is joined again"
        if why_not:
            replica.emit(effects.Reply(command.request, Outcome.REFUSED, leader=replica.leader, why=why_not))
            return
        self._begin(command.to, command.request)

    def _begin(self, heir: int, request: int) -> None:
        leader = self._leader
        self.heir, self._request = heir, request
        self._tried = leader.replica.now
        self._until = self._tried + leader.replica.config.tuning.election_timeout_s
        leader.wake()
        leader.beat()
        self.go_on()

    def go_on(self) -> None:
        """Tell the heir, as soon as it has everything. It may have to be told again."""
        replica = self._leader.replica
        cursor = self._leader.cursors.get(self.heir)
        if cursor is None or cursor.phase is not Phase.STREAMING:
            return
        if cursor.matched == replica.log.head.offset and cursor.member in replica.voters:
            self._leader.reading.may_lease = False
            replica.send(self.heir, TakeOver(replica.epoch))

    def woke(self) -> None:
        """A heartbeat: remind the heir, or give up."""
        if not self.heir:
            self._prefer_higher_priority()
        elif self._leader.replica.now < self._until:
            self.go_on()
        else:
            self._answer(Outcome.TIMED_OUT, f"node {self.heir} did not take over in time")
            self.heir = 0

    def _prefer_higher_priority(self) -> None:
        replica = self._leader.replica
        soon = self._tried + AGAIN_AFTER * replica.config.tuning.election_timeout_s
        better = self._better() if replica.now >= soon and self._leader.has_settled else None
        if better is not None:
            self._begin(better.node, OWN_IDEA)

    def _better(self) -> Cursor | None:
        """The follower of the highest priority, above our own, that could take over at once."""
        replica = self._leader.replica
        current = [
            cursor
            for cursor in self._leader.cursors.values()
            if cursor.priority > replica.config.tuning.priority
            and cursor.phase is Phase.STREAMING
            and cursor.matched >= replica.commit
            and not cursor.loose
            and cursor.member in replica.membership.ensemble
        ]
        return max(current, key=lambda cursor: (cursor.priority, cursor.matched), default=None)

    def leave(self) -> None:
        """Leadership has ended. Whether the heir has it is known when somebody is heard to lead."""
        if self.heir and self._request != OWN_IDEA:
            self._leader.replica.waiting.expect_leader(self.heir, self._request, self._until)
            self._request = OWN_IDEA

    def _answer(self, outcome: Outcome, why: str) -> None:
        if self._request != OWN_IDEA:
            replica = self._leader.replica
            replica.emit(effects.Reply(self._request, outcome, leader=replica.leader, why=why))
            self._request = OWN_IDEA
