"""What every raft role can be asked; each role overrides what it takes part in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.core import effects, events
from quorate.core.commands import Command
from quorate.core.effects import Outcome
from quorate.core.entry import Member, Snapshot

if TYPE_CHECKING:
    from quorate.core.raft.replica import Replica


class Role:
    name = "role"

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.deadline: float | None = None

    @property
    def leads_from(self) -> int | None:
        """A leader's first offset of its own epoch; None in every other role."""
        return None

    def enter(self) -> None:
        """The role begins."""

    def leave(self) -> None:
        """The role ends."""

    def receive(self, sender: Member, message: Any) -> None:
        """A message of the current epoch; what a role has no use for is old news, and dropped."""

    def proposed(self, event: events.Proposed) -> None:
        leader = self.replica.leader
        self.replica.emit(effects.Reply(event.request, Outcome.NOT_LEADER, leader=leader))

    def asked_to_read(self, event: events.ReadAsked) -> None:
        """A read that only a leader can answer."""
        leader = self.replica.leader
        self.replica.emit(effects.Reply(event.request, Outcome.NOT_LEADER, leader=leader))

    def commanded(self, command: Command) -> None:
        leader = self.replica.leader
        self.replica.emit(effects.Reply(command.request, Outcome.NOT_LEADER, leader=leader))

    def membership_changed(self) -> None:
        """Others count from now on."""

    def was_asked_whether_gone(self, sender: Member) -> None:
        """Somebody misses the leader."""

    def persisted(self) -> None:
        """More of what was ordered is durable."""

    def loaded(self, event: events.Loaded) -> None:
        """Headers that this role asked for; a role that has changed since does not care."""

    def installed(self, snapshot: Snapshot) -> None:
        """A snapshot has taken the log's place."""

    def beyond_repair(self) -> None:
        """A peer no longer has the entries that are missing here: only a snapshot helps."""

    def suspected(self, node: int) -> None:
        """A node has not been heard from."""

    def granted_vote(self) -> None:
        """This replica's vote went to somebody else."""

    def woke(self) -> None:
        """The role's deadline has come."""
