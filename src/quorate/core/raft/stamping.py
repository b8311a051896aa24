"""Timestamps that rise with the log, whoever leads (YB-14): the leader's part.

Leaders give every proposal a timestamp near the time of day. Clocks differ between nodes, so a leader agrees with
the group on a *ceiling* first, an entry like any other, and gives out nothing above it. A new leader finds the last
ceiling in its log, and takes no proposals before its own clock is past that: so whatever it gives out is above
whatever was given out before.

An entry that raises the ceiling goes right before the proposal that needs it. Nobody hears of a timestamp before
its proposal is settled, and with that the ceiling is, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core.entry import Ceiling, Header, Kind

if TYPE_CHECKING:
    from quorate.core.raft.replica import Replica

MS = 1000


class Stamping:
    __slots__ = ("_ceiling", "_floor", "_last", "_replica")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._floor = self._ceiling = self._last = replica.ceiling

    def must_wait(self, wall_ms: int) -> bool:
        """Whether an earlier leader may have given out timestamps up to now, or later."""
        return self._replica.config.tuning.ceiling_s > 0 and wall_ms <= self._floor

    def stamp(self, wall_ms: int) -> int:
        """The timestamp of the proposal that is appended next; 0 where none are given out."""
        replica = self._replica
        if not replica.config.tuning.ceiling_s:
            return 0
        assert not self.must_wait(wall_ms)
        self._last = max(wall_ms, self._last + 1)
        if self._last > self._ceiling:
            self._ceiling = self._last + int(replica.config.tuning.ceiling_s * MS)
            offset = replica.log.head.offset + 1
            ceiling = Header(replica.epoch, offset, kind=Kind.CONTROL, control=Ceiling(self._ceiling))
            replica.append((ceiling,))
        return self._last
