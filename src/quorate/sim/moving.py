"""At which rate data is moved in a world, and for whom nothing waits: both as nodes hear of them.

As in real nodes (node/following.py) one rate stands for the cluster, and nodes follow who is of each ensemble and
where its copies are. Every node hears of all that when it happens to; one that has started again knows nothing at
first.
"""

from __future__ import annotations

from typing import Any

from quorate.host import Host
from quorate.host.pacing import UNLIMITED
from quorate.sim.chance import stream
from quorate.sim.faults import Fault
from quorate.sim.world import World

HEARS_PACES = 2.0
"""A node hears of anything new within twice so many election time-outs, as long as it runs."""
STANDS_STILL = 0


class Moving:
    def __init__(self, world: World, steward: Any) -> None:
        self._world = world
        self._steward = steward
        self._rng = stream(world.setup.seed, "hears of the rate")
        self._rate = UNLIMITED
        self._reminding = False

    def strike(self, fault: Fault) -> None:
        """Another rate. Some hear of it at once."""
        self._rate = int(fault.amount)
        for node in fault.nodes:
            self._tell(node)
        if not self._reminding:
            self._reminding = True
            self._remind(None)

    def heal(self) -> None:
        """In half of the worlds with a rate nothing moves for now: whoever counts must have everything even so."""
        stays = self._reminding and stream(self._world.setup.seed, "moved at the end").random() < 0.5
        self._rate = STANDS_STILL if stays else UNLIMITED

    @property
    def stands_still(self) -> bool:
        return self._rate == STANDS_STILL

    def go_on(self) -> None:
        """Nothing waits any more, once that is heard everywhere."""
        self._rate = UNLIMITED

    def _remind(self, _: Any) -> None:
        """Everybody, each a little later than the other, and for as long as the world lasts."""
        world = self._world
        seconds = world.tunables.pace_s * HEARS_PACES
        world.after(seconds, self._remind, None)
        for node in world.nodes:
            world.after(seconds * self._rng.random(), self._tell, node)

    def _tell(self, node: int) -> None:
        for partition in self._world.setup.shards:
            self._tell_of(partition, node)

    def _tell_of(self, partition: int, node: int) -> None:
        rate, which = self._rate, self._world.partitions[partition]
        ensemble, holders = self._steward.layout(partition)

        def hear(host: Host, now: float) -> None:
            host.pace(now, rate)
            host.count(now, which, ensemble)
            host.pacer.keep(which, holders)

        self._world.ask(node, partition, hear)
