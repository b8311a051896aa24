"""A small world with operators, for the tests beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from quorate.core.coordinated import OperatorTuning, Shard, Status, Tuning
from quorate.core.coordinated.invariants import CoordinatedInvariants
from quorate.core.raft import Tuning as RaftTuning
from quorate.host import HostSettings
from quorate.sim.chaos import Chaos
from quorate.sim.group_store import GroupStore
from quorate.sim.invariants import Invariants
from quorate.sim.operators import Operators
from quorate.sim.planner import Planner
from quorate.sim.setup import Setup
from quorate.sim.store import MemoryStore
from quorate.sim.trouble import Trouble
from quorate.sim.tunables import Oversight, Tunables
from quorate.sim.watcher import Watcher
from quorate.sim.world import World
from quorate.storage.settings import TINY

LATENCY_S = 0.001
SUSPECT_S = 0.1
RAFT = RaftTuning(election_timeout_s=0.15, heartbeat_s=0.03)
TUNABLES = Tunables(
    host=HostSettings(store=TINY, raft=RAFT, metadata=RAFT, coordinated=Tuning(heartbeat_s=0.03)),
    oversight=Oversight(operator=OperatorTuning(retry_s=0.05, patience_s=0.3, watch_s=0.5)),
)


class Bench:
    """Three nodes of one shard, two more that could join it, and operators."""

    def __init__(
        self,
        *,
        operators: tuple[int, ...] = (101, 102),
        unlucky: tuple[int, ...] = (),
        whole: bool = False,
        watched: bool = True,
    ) -> None:
        setup = Setup(
            7,
            TUNABLES,
            ((1, 2, 3),),
            ((),),
            outsiders=((4, 5),),
            unlucky=unlucky,
            protocol="coordinated",
            operators=operators,
        )
        if whole:
            groups = {"voters": ((1, 2, 3), (1, 2, 3)), "learners": ((), ()), "outsiders": ((4, 5), ())}
            setup = msgspec.structs.replace(setup, **groups, metadata=1)
        room = CoordinatedInvariants()
        self.invariants = Invariants(len(setup.voters), lambda: room if not whole else None)
        self.world = World(setup, watch=self.invariants)
        self.written: list[tuple[int, Shard]] = []
        self.store: MemoryStore | GroupStore
        if whole:
            self.store = group = GroupStore(self.world, LATENCY_S)
            self.invariants.on_settled = lambda partition, offset, crc: (
                group.settled(offset, crc) if partition == 1 else None
            )
        else:
            self.store = MemoryStore(self.world, LATENCY_S)
        self.store.on_written = self._wrote(room if not whole else None)
        self.operators = Operators(self.world, self.store)
        if not whole:
            self.operators.on_step = partial(room.operated, self.invariants)
        if watched:
            Watcher(self.world, self.operators, self.store, SUSPECT_S).begin()
        self.chaos = Chaos(self.world, (), self.invariants, self.operators)
        for number in self.world.nodes:
            self.world.start(number)

    def _wrote(self, room: CoordinatedInvariants | None) -> Callable[[int, int, Shard], None]:
        def wrote(shard: int, version: int, content: Shard) -> None:
            if room is not None:
                room.wrote(self.invariants, shard, version, content)
            self.operators.history[shard].append(content)
            self.written.append((version, content))

        return wrote

    @property
    def planner(self) -> Planner:
        assert isinstance(self.chaos.steward, Planner)
        return self.chaos.steward

    @property
    def trouble(self) -> Trouble:
        assert self.chaos.trouble is not None
        return self.chaos.trouble

    def run(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def until(self, done: Callable[[], bool], seconds: float = 10.0) -> None:
        deadline = self.world.now + seconds
        while not done():
            assert self.world.now < deadline, self.stored
            assert self.world.happen()

    @property
    def stored(self) -> Shard | None:
        return self.store.newest(0)

    def is_steady(self) -> bool:
        stored = self.stored
        return stored is not None and stored.status is Status.STEADY and stored.reconfiguration is None

    def elect(self) -> Shard:
        """Start the operators, and wait for the first leader."""
        for number in self.operators.processes:
            self.operators.start(number)
        self.until(self.is_steady)
        assert self.stored is not None
        return self.stored
