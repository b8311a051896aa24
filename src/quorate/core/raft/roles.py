"""What a raft role can be asked beyond what every role can (core/roles.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core import roles
from quorate.core.entry import Member

if TYPE_CHECKING:
    from quorate.core.raft.replica import Replica


class Role(roles.Role):
    replica: Replica

    def counts(self, member: Member) -> bool:
        return member in self.replica.membership.voters

    def membership_changed(self) -> None:
        """Others count from now on."""

    def was_asked_whether_gone(self, sender: Member) -> None:
        """Somebody misses the leader."""

    def granted_vote(self) -> None:
        """This replica's vote went to somebody else."""
