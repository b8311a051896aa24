"""What a node says of itself that no protocol needs: its disk's room, its clock, its version, its certificates.

`quorate doctor` judges by it. Nothing in here is looked at unless somebody asks, but for how long entries wait.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import msgspec

from quorate import __version__
from quorate.core.entry import Partition
from quorate.node.certificates import Certificate

if TYPE_CHECKING:
    from quorate.node.node import Node

LOOK_EVERY_S = 1.0


class Health(msgspec.Struct, frozen=True, gc=False):
    version: str
    wall_ms: int
    """Its time of day when it answered, since 1970."""
    uptime_s: float
    directory: str = ""
    disk_total_bytes: int = 0
    """Of the disk that its directory is on; 0: it cannot be told."""
    disk_free_bytes: int = 0
    """What it may still use of it."""
    is_full: bool = False
    """The disk has refused something lately."""
    heard: tuple[int, ...] = ()
    """Itself, and the nodes that have said something to it too lately to be suspected."""
    certificates: tuple[Certificate, ...] = ()
    """Those it was started with."""


def health_of(node: Node) -> Health:
    total_bytes, free_bytes = _disk(str(node.config.directory))
    return Health(
        __version__,
        time.time_ns() // 1_000_000,
        time.monotonic() - node.began,
        directory=os.path.abspath(node.config.directory),
        disk_total_bytes=total_bytes,
        disk_free_bytes=free_bytes,
        is_full=node.fullness.lately,
        heard=node.heard,
        certificates=node.security.certificates,
    )


def _disk(directory: str) -> tuple[int, int]:
    try:
        found = os.statvfs(directory)
    except OSError:
        return 0, 0
    # Some blocks may be kept for the administrator: they are no part of what can be filled.
    usable = found.f_blocks - found.f_bfree + found.f_bavail
    return usable * found.f_frsize, found.f_bavail * found.f_frsize


class Unsettled:
    """How long the oldest entry waits that is led here and not settled: what readers, and writers, wait for.

    Looked at now and then, so what is said is too little, by LOOK_EVERY_S at most.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._seen: dict[Partition, tuple[int, float]] = {}
        """By partition: the first offset that was not settled, and since when that was so."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look(time.monotonic())
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self, now: float) -> None:
        seen: dict[Partition, tuple[int, float]] = {}
        for partition, hosted in self._node.host.hosted.items():
            replica = hosted.replica
            if replica.role.name != "leader" or replica.log.head.offset <= hosted.commit:
                continue
            first, before = hosted.commit + 1, self._seen.get(partition)
            seen[partition] = before if before is not None and before[0] == first else (first, now)
        self._seen = seen

    def age_s(self, partition: Partition, now: float) -> float:
        """0: nothing waits, as far as was seen."""
        seen, hosted = self._seen.get(partition), self._node.host.hosted.get(partition)
        if seen is None or hosted is None or seen[0] != hosted.commit + 1:
            return 0.0
        return now - seen[1]
