"""The follower: raft's, but for what `confirm` adds: somebody may have to promote it, and it may not count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core.entry import EntryId
from quorate.core.raft import follower

if TYPE_CHECKING:
    from quorate.core.confirm.replica import Replica


class Follower(follower.Follower):
    replica: Replica

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self._missed = 0
        """Who led this epoch when it was last heard."""

    def woke(self) -> None:
        if self.replica.config.tuning.automatic:
            super().woke()
            return
        # Nobody stands unasked (TT-12), so nobody would ask the others either: perhaps the leader is at rest, and
        # something late has woken us alone.
        replica = self.replica
        self._missed = replica.leader or self._missed
        if self._missed:
            replica.leader = self._missed
            self._answer(accepted=True, probe=replica.verified.offset)
        replica.leader = 0
        self.restart_clock()

    @property
    def is_loose(self) -> bool:
        return not self.replica.counts

    def _answer(
        self, *, accepted: bool, probe: int, theirs: EntryId | None = None, quiet: bool = False
    ) -> None:
        """A leader of the first version would count one that is loose: better not to be heard at all (TT-8)."""
        if self.replica.counts or self.replica.knows_loose:
            super()._answer(accepted=accepted, probe=probe, theirs=theirs, quiet=quiet)
