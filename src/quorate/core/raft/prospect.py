"""The prospect: misses its leader, and asks whether others do before it stands (YB-16).

A replica that cannot hear the leader is perhaps the one that is cut off. Were it to stand at once, it would take
an epoch that nobody wanted, and depose a leader that everybody else hears. So it asks first, and stands only when
a majority, itself included, sees the leader gone, and could vote for it. If not, it asks again later, and later
still, and its epoch stays what it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.core.entry import Member
from quorate.core.raft.messages import (
    AppendEntries,
    GoneRequest,
    GoneResponse,
    SnapshotChunk,
    StillRequest,
    TakeOver,
)
from quorate.core.raft.roles import Role

if TYPE_CHECKING:
    from quorate.core.raft.replica import Replica

BACKOFF_MAX = 4
"""A prospect in vain waits up to this many election time-outs until it asks again."""
EAGER_TURNS = 4
"""So often it asks again soon, where the leader's process has ended: the others find that out about now."""
LAST_RESORT_TURNS = 5
"""A node that is not wanted as a leader stands when it has asked so often, and nobody else has come to lead:
perhaps only it has what is settled. It hands over as soon as somebody else has it, too."""


class Prospect(Role):
    name = "prospect"
    needs_whole_log = True

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self._gone: set[Member] = set()
        self._turns = 0

    def enter(self) -> None:
        assert self.replica.can_lead()
        self.replica.leader = 0
        self._ask()

    def _ask(self) -> None:
        replica = self.replica
        self._turns += 1
        replica.times_asked += 1
        tuning = replica.config.tuning
        timeout = tuning.election_timeout_s * min(self._turns, BACKOFF_MAX)
        if replica.leader_ended and self._turns <= EAGER_TURNS:
            timeout = min(timeout, 2.0 * tuning.heartbeat_s)
        self.deadline = replica.now + timeout * (0.5 + 0.5 * replica.rng.random())
        self._gone = {replica.me}
        question = GoneRequest(replica.epoch, replica.log.head, replica.times_asked)
        for node in replica.voting_peers:
            replica.send(node, question)
        self._count()

    def receive(self, sender: Member, message: Any) -> None:
        if type(message) is GoneResponse:
            if message.gone and message.asked == self.replica.times_asked:
                self._gone.add(sender)
                self._count()
        elif type(message) in (AppendEntries, SnapshotChunk, StillRequest, TakeOver):
            # There it is.
            self.replica.become("follower")
            self.replica.role.receive(sender, message)

    def _count(self) -> None:
        # One that is not wanted as a leader mostly asks: a leader that is at rest is woken by that.
        may_stand = self.replica.may_stand() or self._turns >= LAST_RESORT_TURNS
        if may_stand and self.replica.can_elect(self._gone):
            self.replica.become("candidate")

    def woke(self) -> None:
        if self.replica.can_lead():
            self._ask()
        else:
            self.replica.stand_down()
