"""What a role of this room can be asked beyond what every role can (core/roles.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core import roles
from quorate.core.entry import Member, Snapshot

if TYPE_CHECKING:
    from quorate.core.coordinated.replica import Replica


class Role(roles.Role):
    replica: Replica

    @property
    def voting_peers(self) -> tuple[int, ...]:
        """A leader's: whom it asks whether they still follow."""
        return ()

    def has_quorum(self, members: set[Member]) -> bool:
        """A leader's: whether these are enough."""
        return False

    def installed(self, snapshot: Snapshot) -> None:
        self.replica.installed(snapshot)
