"""Failure detection, from outside: whoever tells operators that a node is gone, or does not lead though it should.

It looks at the world now and then, as each operator could see it from where it stands: a node that is down, stands
still, or is cut off from that operator is gone. Of whoever the store says to lead, it also sees whether it does
lead, and whether it reaches enough others to settle anything. What is wrong for a while is told, and told again for
as long as it lasts.
"""

from __future__ import annotations

from quorate.core.coordinated import Shard, Status
from quorate.core.entry import Member
from quorate.core.quorum import majority
from quorate.sim.operators import Operators
from quorate.sim.store import Store
from quorate.sim.world import World

LOOKS_PER_DELAY = 3


class Watcher:
    def __init__(self, world: World, operators: Operators, store: Store, delay_s: float) -> None:
        """`delay_s`: what is wrong for this long is told."""
        self._world = world
        self._operators = operators
        self._store = store
        self._delay_s = delay_s
        self._wrong_since: dict[tuple[int, int, int], float] = {}
        """By operator, shard and node."""

    def begin(self) -> None:
        self._world.after(self._delay_s / LOOKS_PER_DELAY, self._look, None)

    def _look(self, _: None) -> None:
        self.begin()
        now = self._world.now
        for number, process in self._operators.processes.items():
            for shard in self._world.setup.shards if process.is_up else ():
                wrong = self._wrong(number, shard)
                for node in self._world.setup.nodes:
                    key = (number, shard, node)
                    if node not in wrong:
                        self._wrong_since.pop(key, None)
                    elif now - self._wrong_since.setdefault(key, now) >= self._delay_s:
                        self._operators.suspect(number, shard, node)

    def _wrong(self, operator: int, shard: int) -> list[int]:
        stored = self._store.newest(shard)
        if stored is None:
            return []
        change = stored.reconfiguration
        members = [
            *stored.ensemble,
            *((change.new,) if change is not None and change.new is not None else ()),
        ]
        wrong = [member.node for member in members if self._is_gone(operator, member.node)]
        if stored.status is Status.STEADY and not self._leads(shard, stored):
            assert stored.leader is not None
            wrong.append(stored.leader.node)
        return wrong

    def _is_gone(self, operator: int, number: int) -> bool:
        node = self._world.nodes[number]
        return node.host is None or node.paused_until > self._world.now or self._is_cut(operator, number)

    def _is_cut(self, one: int, other: int) -> bool:
        links = self._world.network.links
        return one != other and bool(links[one, other].cuts or links[other, one].cuts)

    def _leads(self, shard: int, stored: Shard) -> bool:
        leader = stored.leader
        assert leader is not None
        hosted = self._world.hosted(leader.node, shard)
        if hosted is None or hosted.replica.me != leader or hosted.replica.role.name != "leader":
            return False
        return hosted.replica.epoch >= stored.epoch and self._reaches_enough(leader, stored)

    def _reaches_enough(self, leader: Member, stored: Shard) -> bool:
        reached = [member for member in stored.ensemble if not self._is_cut(leader.node, member.node)]
        return len(reached) >= majority(len(stored.ensemble))
