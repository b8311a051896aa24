"""Lease reads: the round that a read needs (core/reading.py) is saved where clocks allow it.

Whoever follows a leader promises not to vote for another within an election time-out of hearing from it, and says
how long that is with its configuration. When a majority has answered a round, nobody else can be elected within
that time of the round's beginning; and with clocks that run up to a share `d` too fast or too slow, within
(1 - d) / (1 + d) of it by the leader's own. The leader's clock is read after the read has come in, so a leader that
is paused, even between the two, answers what was true when it looked. A leader that hands over lets others vote at
once, and so has no lease again in its epoch.
"""

from __future__ import annotations

from quorate.core import events, reading
from quorate.core.events import ReadLevel
from quorate.core.reading import LONG_AGO, StillResponse


class Reading(reading.Reading):
    def __init__(self, leader: object) -> None:
        super().__init__(leader)
        self._promised_s = 0.0
        """The shortest time for which one of those who answered votes for nobody else."""
        self._lease_used = LONG_AGO
        self.lease_until = LONG_AGO
        self.may_lease = True

    @property
    def has_lease(self) -> bool:
        return bool(self.may_lease and self._leader.replica.now < self.lease_until)

    def is_known_to_lead(self, event: events.ReadAsked) -> bool:
        if event.level is not ReadLevel.LEASE:
            return False
        self._lease_used = self._leader.replica.now
        return self.has_lease

    def _begin(self) -> None:
        self._promised_s = self._leader.replica.config.tuning.election_timeout_s
        super()._begin()

    def heard(self, message: StillResponse) -> None:
        self._promised_s = min(self._promised_s, message.promised_s)

    def confirmed(self) -> None:
        drift = self._leader.replica.config.tuning.clock_drift_max
        self.lease_until = self._began + self._promised_s * (1.0 - drift) / (1.0 + drift)

    def woke(self) -> None:
        """A heartbeat: ask again who has not answered; and keep a lease that somebody uses."""
        replica = self._leader.replica
        if self._following:
            super().woke()
        elif self.may_lease and replica.now - self._lease_used < replica.config.tuning.election_timeout_s:
            self._begin()
