"""The candidate: takes the next epoch, votes for itself, asks the others (YB-4, YB-11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.core import quorum
from quorate.core.entry import Member
from quorate.core.raft.messages import AppendEntries, SnapshotChunk, VoteRequest, VoteResponse
from quorate.core.raft.roles import Role

if TYPE_CHECKING:
    from quorate.core.raft.replica import Replica


class Candidate(Role):
    name = "candidate"

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
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
        for member in replica.config.voters:
            if member != replica.me and member not in self._votes:
                replica.send(member.node, VoteRequest(replica.epoch, replica.log.head))

    def receive(self, sender: Member, message: Any) -> None:
        if type(message) is VoteResponse:
            if message.granted:
                self._count(sender)
        elif type(message) in (AppendEntries, SnapshotChunk):
            # Somebody else won this epoch.
            self.replica.become("follower")
            self.replica.role.receive(sender, message)

    def _count(self, voter: Member) -> None:
        replica = self.replica
        self._votes.add(voter)
        if replica.me in self._votes and quorum.has_majority(self._votes, replica.config.voters):
            replica.become("leader")

    def woke(self) -> None:
        """The vote was split or lost: try again in another epoch, unless we may no longer lead."""
        replica = self.replica
        if replica.can_lead():
            replica.become("candidate")
        else:
            replica.stand_down()
