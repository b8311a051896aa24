"""The follower: raft's, but for what `confirm` adds: somebody may have to promote it, and it may not count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core.raft import follower

if TYPE_CHECKING:
    from quorate.core.confirm.replica import Replica


class Follower(follower.Follower):
    replica: Replica

    def woke(self) -> None:
        if self.replica.config.tuning.automatic:
            super().woke()
        else:
            self.replica.leader = 0
            self.restart_clock()  # Nobody stands unasked (TT-12).

    @property
    def is_loose(self) -> bool:
        return not self.replica.counts
