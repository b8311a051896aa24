"""Waiting: this replica knows of nobody whom it could follow.

It was never told of anybody, or the partition is no longer kept here. Or the store says that it leads itself, and
it does not: it has restarted, or its log is not whole. Two leaders of one epoch could give two entries the same
id, and a leader that has lost what it had not flushed is another one. So it never leads in that epoch again, and
says so until it hears of the next.
"""

from __future__ import annotations

from quorate.core.isr.roles import Role


class Waiting(Role):
    name = "waiting"
    _patience_s = 0.0

    def enter(self) -> None:
        replica = self.replica
        replica.leader = 0
        self._patience_s = replica.config.tuning.heartbeat_s
        if replica.told is not None and replica.told.leader == replica.me and not replica.is_crowned:
            self.deadline = replica.now

    def woke(self) -> None:
        """Who could not lead may be mended by now; and what it said may be lost."""
        replica = self.replica
        replica.tell_controllers(replica.heard())
        self.deadline = replica.now + self._patience_s * (1.0 + replica.rng.random())
        self._patience_s = min(2 * self._patience_s, replica.config.tuning.suspect_s)
