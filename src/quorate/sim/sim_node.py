"""One machine of a made-up world."""

from __future__ import annotations

from quorate.host import Host
from quorate.sim.clock import Clock
from quorate.sim.disk import SimDisk

NEVER = float("inf")


class SimNode:
    """One machine: a disk that outlives processes, a clock, and at most one process."""

    __slots__ = (
        "clock",
        "disk",
        "down_until",
        "host",
        "incarnation",
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
