"""What need not be kept any longer, in a world: somebody decides, and every node hears of it sooner or later.

As in real nodes (node/retention.py), whoever leads a partition decides, and only what is settled goes. Mostly
that is all up to the end of a segment; now and then any entry, as a person may want it. Where a log may start
only rises. Nodes are told again and again, each when it happens to hear of it: some go by something older for a
while, and one whose disk was wiped knows nothing at first.
"""

from __future__ import annotations

from random import Random
from typing import Any

from quorate.core.entry import NOWHERE, EntryId
from quorate.host import Host, Hosted
from quorate.sim.chance import stream
from quorate.sim.faults import Fault
from quorate.sim.world import World

ANY_ENTRY = 0.3
FRAMES_BYTES = 1 << 16

Start = tuple[EntryId, int]
"""An entry, and the checksum of its frame."""


class Expiry:
    def __init__(self, world: World) -> None:
        self.wanted: dict[int, Start] = {}
        """By partition: the last entry that need not be kept."""
        self._world = world
        self._rng = stream(world.setup.seed, "hears of expiry")

    def strike(self, fault: Fault) -> bool:
        """Let something go of some partition that is led; whether there is anything."""
        world, rng = self._world, Random(fault.chance)
        topics = [number for number in world.setup.shards if number not in world.setup.tables]
        if not topics:
            return False
        partition = rng.choice(topics)
        leaders = world.leaders(partition)
        if not leaders:
            return False
        node = rng.choice(leaders)
        hosted, host = world.hosted(node, partition), world.nodes[node].host
        assert hosted is not None
        assert host is not None
        known = self.wanted.get(partition, (NOWHERE, 0))[0].offset
        places = [
            place for place in self._places(rng, host, hosted) if known < place[0].offset <= hosted.commit
        ]
        if not places:
            return False
        if not self.wanted:
            self._remind(None)
        self.wanted[partition] = rng.choice(places)
        return True

    def _places(self, rng: Random, host: Host, hosted: Hosted) -> list[Start]:
        partition = hosted.partition
        if rng.random() < ANY_ENTRY:
            first = hosted.replica.log.base.offset + 1
            frames = host.store.frames(partition, first, hosted.commit, FRAMES_BYTES) or ()
            return [(frame.header.id, frame.checksum) for frame in frames]
        return [(stretch.last, stretch.checksum) for stretch in host.store.stretches(partition)]

    def _remind(self, _: Any) -> None:
        """Everybody, each a little later than the other, and for as long as the world lasts."""
        world = self._world
        pace = world.tunables.pace_s
        world.after(pace * 2, self._remind, None)
        for partition, start in self.wanted.items():
            for node in world.setup.holders[partition]:
                world.after(pace * 4 * self._rng.random(), self._tell, (node, partition, start))

    def _tell(self, what: tuple[int, int, Start]) -> None:
        node, partition, start = what
        self._world.expire(node, partition, *start)
