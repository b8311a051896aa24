"""A rolling upgrade, as a careful person does it (TT-41).

In the beginning some nodes have the first version's code, and the feature level is the first everywhere. In the
middle of the world the old nodes get the new code, one after the other. When all have it the level is raised, node
by node: it stands in a node's settings, so each is started again.

Only one node is down because of it at any moment, and leads nothing then: the person lets somebody else lead first,
and goes on to the next node when everybody follows again. Where faults keep that from ever being so, patience ends.
"""

from __future__ import annotations

from typing import Any

from quorate.core.confirm.config import CUTTING_LOOSE, FIRST_VERSION
from quorate.sim.chance import stream
from quorate.sim.steward import Steward
from quorate.sim.world import World

LOOKS_PACES = 0.25
"""How often the person looks whether it can go on, in election time-outs."""
PATIENCE_LOOKS = 60
"""After so many looks it goes on, whatever it sees."""
TRANSFER_LOOKS = 8
"""After so many looks it orders once more that somebody else leads."""
BEHIND_MAX = 32
"""Whoever lacks no more offsets than this of what is settled follows well enough."""


class Upgrade:
    def __init__(self, world: World, steward: Steward) -> None:
        self.world = world
        self.steward = steward
        self.done_at: list[float] = []
        """When each step was taken."""
        self._rng = rng = stream(world.setup.seed, "upgrade")
        self._pace = world.tunables.pace_s
        self._looks = 0
        self.old = self._choose_old()
        everybody = world.setup.nodes
        self._steps = [(number, "new code") for number in rng.sample(self.old, len(self.old))]
        self._steps += [(number, "level raised") for number in rng.sample(everybody, len(everybody))]
        for number in self.old:
            world.nodes[number].is_old = True

    def _choose_old(self) -> list[int]:
        """Whoever counts in the beginning comes first: others may never be told anything."""
        voters = sorted({node for group in self.world.setup.voters for node in group})
        others = [node for node in self.world.setup.nodes if node not in voters]
        order = self._rng.sample(voters, len(voters)) + self._rng.sample(others, len(others))
        return order[: self.world.tunables.old_nodes]

    def begin(self) -> None:
        at = self.world.tunables.seconds * (0.2 + 0.3 * self._rng.random())
        self.world.after(at, self._look, None)

    def unfinished(self) -> list[str]:
        return [f"n{number}: {what}" for number, what in self._steps] + [
            f"n{number} is down" for number, node in self.world.nodes.items() if node.host is None
        ]

    def _look(self, _: None) -> None:
        if not self._steps:
            return
        number, what = self._steps[0]
        self._looks += 1
        if self._looks > PATIENCE_LOOKS or self._may_restart(number):
            self._looks = 0
            del self._steps[0]
            self._restart(number, what)
        self.world.after(self._pace * LOOKS_PACES, self._look, None)

    # --- may this node be down? ---

    def _may_restart(self, number: int) -> bool:
        if not all(self._is_up(other) for other in self.world.nodes if other != number):
            return False
        partitions = range(len(self.world.partitions))
        led = [partition for partition in partitions if number in self.world.leaders(partition)]
        if self._looks % TRANSFER_LOOKS == 1:
            for partition in led:
                self._let_another_lead(number, partition)
        return not led and all(self._can_spare(number, partition) for partition in partitions)

    def _is_up(self, number: int) -> bool:
        node = self.world.nodes[number]
        return node.host is not None and node.paused_until <= self.world.now

    def _let_another_lead(self, number: int, partition: int) -> None:
        hosted = self.world.hosted(number, partition)
        assert hosted is not None
        heirs = [
            voter.node
            for voter in hosted.replica.membership.ensemble
            if voter.node != number and self._could_lead(voter.node, partition)
        ]
        if heirs:
            self.steward.transfer(number, partition, to=self._rng.choice(heirs))

    def _could_lead(self, number: int, partition: int) -> bool:
        hosted = self.world.hosted(number, partition)
        return hosted is not None and bool(hosted.replica.can_lead())

    def _can_spare(self, number: int, partition: int) -> bool:
        """One leads, can settle, and everybody else who counts follows it."""
        leaders = self.world.leaders(partition)
        if len(leaders) != 1:
            return False
        hosted = self.world.hosted(leaders[0], partition)
        assert hosted is not None
        leader: Any = hosted.replica
        if not leader.role.has_settled:
            return False
        others = [voter.node for voter in leader.membership.voters if voter.node != number]
        followers = [self.world.hosted(other, partition) for other in others]
        return all(
            follower is not None
            and follower.replica.leader == leaders[0]
            and follower.replica.commit + BEHIND_MAX >= leader.commit
            for follower in followers
        )

    # --- the step itself ---

    def _restart(self, number: int, what: str) -> None:
        node = self.world.nodes[number]
        if node.host is not None:
            self.world.crash(number)
        if what == "new code":
            node.is_old = False
        else:
            assert not any(other.is_old for other in self.world.nodes.values())
            node.feature_level = CUTTING_LOOSE
        self.done_at.append(self.world.now)
        if self.world.trace is not None:
            self.world.trace.add(self.world.now, number, "upgraded", text=what)
        seconds = self._pace * (0.1 + 0.9 * self._rng.random())
        node.down_until = max(node.down_until, self.world.now + seconds)
        self.world.after(node.down_until - self.world.now, self._start, number)

    def _start(self, number: int) -> None:
        """Unless something else keeps it down for longer, or has started it already."""
        node = self.world.nodes[number]
        if node.host is not None:
            return
        if self.world.now >= node.down_until:
            self.world.start(number)
        else:
            self.world.after(node.down_until - self.world.now, self._start, number)


def level_of(world: World, number: int) -> int:
    """The feature level in a node's settings."""
    return world.nodes[number].feature_level or world.tunables.host.confirm.feature_level


def is_first_everywhere(world: World) -> bool:
    return all(level_of(world, number) == FIRST_VERSION for number in world.nodes)
