"""The candidate: takes the next epoch, votes for itself, asks the others (YB-4, YB-11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.core.entry import Member
from quorate.core.raft.messages import AppendEntries, SnapshotChunk, StillRequest, VoteRequest, VoteResponse
from quorate.core.raft.roles import Role

if TYPE_CHECKING:
    from quorate.core.raft.replica import Replica


class Candidate(Role):
    name = "candidate"
    needs_whole_log = True

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self.handed_over = False
        """The leader wants it: said before the role begins its work."""
        self._votes: set[Member] = set()
        self._vote_io = 0

    def enter(self) -> None:
        replica = self.replica
        assert replica.can_lead()
        self._vote_io = replica.enter_epoch(replica.epoch + 1, vote=replica.me)
        timeout = replica.config.tuning.election_timeout_s
        self.deadline = replica.now + timeout * (1.0 + replica.rng.random())

    def persisted(self) -> None:
        """Its own vote is a promise too: it counts, and the others are asked, once it is durable (YB-7)."""
        replica = self.replica
        if self._vote_io and self._vote_io <= replica.ordering.persisted:
            self._vote_io = 0
            self._ask()
            self._count(replica.me)

    def _ask(self) -> None:
        replica = self.replica
        question = VoteRequest(replica.epoch, replica.log.head, self.handed_over)
        for node in replica.voting_peers:
            replica.send(node, question)

    def receive(self, sender: Member, message: Any) -> None:
        if type(message) is VoteResponse:
            if message.granted:
                self._count(sender)
        elif type(message) in (AppendEntries, SnapshotChunk, StillRequest):
            # Somebody else won this epoch.
            self.replica.become("follower")
            self.replica.role.receive(sender, message)

    def _count(self, voter: Member) -> None:
        replica = self.replica
        self._votes.add(voter)
        if not self._vote_io and replica.can_elect(self._votes):
            replica.become("leader")

    def woke(self) -> None:
        """The vote was split or lost: see how things are before another epoch is tried."""
        replica = self.replica
        if replica.may_stand():
            replica.become("prospect")
        else:
            replica.stand_down()
