"""One machine of a made-up world."""

from __future__ import annotations

from msgspec.structs import replace

from quorate.host import Host, HostSettings, Parcel
from quorate.sim.clock import Clock
from quorate.sim.disk import SimDisk
from quorate.sim.old_node import as_old

NEVER = float("inf")


class SimNode:
    """One machine: a disk that outlives processes, a clock, and at most one process."""

    __slots__ = (
        "clock",
        "disk",
        "down_until",
        "feature_level",
        "host",
        "incarnation",
        "is_old",
        "lives",
        "number",
        "paused_until",
        "wake_at",
        "wall",
    )

    def __init__(self, number: int, disk: SimDisk, wall: Clock) -> None:
        self.number = number
        self.disk = disk
        self.clock = Clock()
        """Of what has passed: nothing but its rate may be wrong, unless the run says otherwise."""
        self.wall = wall
        """Of the day: people and other machines set it, forwards and backwards."""
        self.host: Host | None = None
        self.lives = 0
        self.incarnation = 1
        self.down_until = 0.0
        self.paused_until = 0.0
        self.wake_at = NEVER
        self.is_old = False
        """The first version's code is installed here (`confirm`, TT-41)."""
        self.feature_level = 0
        """As it stands in this node's own settings; 0: as tuned for all."""

    def settings(self, tuned: HostSettings) -> HostSettings:
        """With what its next process starts."""
        if not self.feature_level:
            return tuned
        return replace(tuned, confirm=replace(tuned.confirm, feature_level=self.feature_level))

    def translated(self, parcel: Parcel) -> Parcel:
        """What it says and hears, in the words of the code that is installed here."""
        return as_old(parcel) if self.is_old else parcel
