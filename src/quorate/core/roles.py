"""What a role of any protocol can be asked; each overrides what it takes part in."""

from __future__ import annotations

from typing import Any

from quorate.core import effects, events
from quorate.core.effects import Outcome
from quorate.core.entry import Member, Snapshot


class Role:
    name = "role"
    needs_whole_log = False
    """Whether damage ends it."""

    def __init__(self, replica: Any) -> None:
        self.replica = replica
        self.deadline: float | None = None

    @property
    def leads_from(self) -> int | None:
        """A leader's first offset of its own epoch; None in every other role."""
        return None

    def counts(self, member: Member) -> bool:
        """Whether this role knows that what is settled depends on that copy."""
        return False

    def counted(self) -> None:
        """It is known anew who counts."""

    def enter(self) -> None:
        """The role begins."""

    def leave(self) -> None:
        """The role ends."""

    def receive(self, sender: Member, message: Any) -> None:
        """A message of the current epoch; what a role has no use for is old news, and dropped."""

    def proposed(self, event: events.Proposed) -> None:
        leader = self.replica.leader
        self.replica.emit(effects.Reply(event.request, Outcome.NOT_LEADER, leader=leader))

    def gathered(self) -> None:
        """Nothing more is proposed at once."""

    def asked_to_read(self, event: events.ReadAsked) -> None:
        """A read that only a leader can answer."""
        leader = self.replica.leader
        self.replica.emit(effects.Reply(event.request, Outcome.NOT_LEADER, leader=leader))

    def commanded(self, command: Any) -> None:
        leader = self.replica.leader
        self.replica.emit(effects.Reply(command.request, Outcome.NOT_LEADER, leader=leader))

    def persisted(self) -> None:
        """More of what was ordered is durable."""

    def loaded(self, event: events.Loaded) -> None:
        """Headers that this role asked for; a role that has changed since does not care."""

    def installed(self, snapshot: Snapshot) -> None:
        """A snapshot has taken the log's place."""

    def snapshot_taken(self) -> None:
        """There is a newer one."""

    def beyond_repair(self) -> None:
        """A peer no longer has the entries that are missing here: only a snapshot helps."""

    def suspected(self, node: int) -> None:
        """A node has not been heard from."""

    def ended(self, node: int) -> None:
        """Its process seems to be gone: there is less to wait for."""
        self.suspected(node)

    def woke(self) -> None:
        """The role's deadline has come."""
