"""What a role of this room can be asked beyond what every role can (core/roles.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core import roles
from quorate.core.entry import Member, Snapshot

if TYPE_CHECKING:
    from quorate.core.isr.replica import Replica


class Role(roles.Role):
    replica: Replica

    def counts(self, member: Member) -> bool:
        told = self.replica.told
        return told is not None and member in told.isr

    @property
    def voting_peers(self) -> tuple[int, ...]:
        """A leader's: whom it asks whether they still follow."""
        return ()

    def has_quorum(self, members: set[Member]) -> bool:
        """A leader's: whether these are enough."""
        return False

    def altered(self) -> None:
        """What is stored has changed, and the leader has not."""

    def heard_leader(self) -> None:
        """The leader of this epoch lives."""

    def fetched(self, installed: bool) -> None:
        """A snapshot is here, or will not come."""

    def installed(self, snapshot: Snapshot) -> None:
        """What a snapshot stands for is settled. Whether the leader has it, too, is seen when it is asked for more.

        It may be another one by now, whom a person has let lead.
        """
        self.replica.advance_commit(snapshot.last.offset)
        self.replica.fetching.installed()
