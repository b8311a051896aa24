"""A small world without chance, in which one thing is played again and again, disturbed at each of its steps.

every_crash.py plays raft's, every_operator_crash.py those of operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from quorate.core.invariant import Violated
from quorate.host import HostSettings
from quorate.host.detector import DetectorSettings
from quorate.sim.disk import SimDiskSettings
from quorate.sim.healing import LIVENESS, Healing
from quorate.sim.invariants import Invariants
from quorate.sim.oracle import Oracle
from quorate.sim.planner import Planner
from quorate.sim.setup import Setup
from quorate.sim.steward import Steward
from quorate.sim.tunables import Tunables
from quorate.sim.workload import Workload
from quorate.sim.world import World
from quorate.storage.settings import TINY

SEED = 5
PACE_S = 0.1
PATIENCE_S = 20.0
LATE_PACES = 4
"""So many paces later everything that was under way has arrived, and others have missed whoever comes back."""

TUNING: dict[str, Any] = {
    "heartbeat_s": PACE_S / 5,
    "snapshot_every": 8,
    "keep_behind": 0,
    "chunk_bytes": 64,
    "repair_retry_s": PACE_S / 2,
    "read_wait_s": PACE_S,
}
"""Of any protocol."""


def small(host: dict[str, Any], **more: Any) -> Tunables:
    """`host`: the protocol's tuning, by its name."""
    return Tunables(
        pace_s=PACE_S,
        disk=SimDiskSettings(latency_min=0.0001, latency_max=0.0005),
        host=HostSettings(
            store=msgspec.structs.replace(TINY, mark_delay_s=PACE_S / 10),
            detector=DetectorSettings(ping_s=PACE_S / 2, suspect_s=PACE_S * 2),
            **host,
        ),
        **more,
    )


class Stage:
    def __init__(self, setup: Setup, room: Any) -> None:
        """`room`: the protocol's own invariants."""
        self.room = room
        self.invariants = Invariants(1, lambda: room)
        self.oracle = Oracle(1)
        self.world = World(setup, watch=self)
        self.world.on_applied = self.invariants.applied
        self.invariants.on_settled = self.oracle.settled
        self.invariants.local = self.world.local
        self.oracle.settled_end = lambda partition: self.invariants.settled[partition].commit
        self.workload = Workload(SEED, self.world, self.oracle, setup.tunables.manners, setup.holders)

    def stepped(self, node: int, partition: int, replica: Any, event: Any, effects: list[Any]) -> None:
        self.invariants.stepped(node, partition, replica, event, effects)

    def happen(self) -> None:
        self.world.happen()

    def until(self, done: Callable[[], bool], what: str) -> None:
        deadline = self.world.now + PATIENCE_S
        while not done():
            if self.world.now > deadline:
                raise self.stuck(what)
            self.happen()

    def stuck(self, what: str) -> Violated:
        """How it is said that something does not come about."""
        return Violated(LIVENESS, what)

    def restart(self, node: int) -> None:
        if self.world.nodes[node].host is None:
            self.world.start(node)

    def come_to_rest(self, steward: Steward | Planner) -> None:
        self.workload.close()
        for number in self.world.nodes:
            self.restart(number)
        Healing(self.world, self.workload, self.oracle, self.invariants, steward).run()
