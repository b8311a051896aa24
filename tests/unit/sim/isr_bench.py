"""A small world of `isr` with controllers, for the tests beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from quorate.batch import encode_records
from quorate.core.effects import Outcome, Reply
from quorate.core.isr import ControllerTuning, PartitionState, Tuning
from quorate.core.isr.invariants import IsrInvariants
from quorate.core.raft import Tuning as RaftTuning
from quorate.host import HostSettings
from quorate.sim.chaos import Chaos
from quorate.sim.group_store import GroupStore
from quorate.sim.invariants import Invariants
from quorate.sim.isr_planner import IsrPlanner
from quorate.sim.isr_watcher import IsrWatcher
from quorate.sim.operators import Operators
from quorate.sim.setup import Setup
from quorate.sim.store import MemoryStore
from quorate.sim.tunables import Oversight, Tunables
from quorate.sim.world import World
from quorate.storage.settings import TINY

LATENCY_S = 0.001
SUSPECT_S = 0.1
RAFT = RaftTuning(election_timeout_s=0.15, heartbeat_s=0.03)
TUNABLES = Tunables(
    host=HostSettings(
        store=TINY, raft=RAFT, metadata=RAFT, isr=Tuning(heartbeat_s=0.03, lag_s=0.3, suspect_s=0.15)
    ),
    oversight=Oversight(
        controller=ControllerTuning(retry_s=0.05, patience_s=0.3, watch_s=0.5, report_s=0.8),
        min_isr_share=0.5,
    ),
)


class IsrBench:
    """Three nodes of one partition, of which two must be in sync, two more that could join, and controllers."""

    def __init__(
        self,
        *,
        controllers: tuple[int, ...] = (101, 102),
        unlucky: tuple[int, ...] = (),
        whole: bool = False,
        store_on: tuple[int, ...] = (1, 2, 3),
        watched: bool = True,
    ) -> None:
        """`whole`: the store is the metadata group, `store_on` these nodes; otherwise it is a dictionary."""
        setup = Setup(
            7,
            TUNABLES,
            ((1, 2, 3),),
            ((),),
            outsiders=((4, 5),),
            unlucky=unlucky,
            protocol="isr",
            operators=controllers,
        )
        if whole:
            groups = {"voters": ((1, 2, 3), store_on), "learners": ((), ()), "outsiders": ((4, 5), ())}
            setup = msgspec.structs.replace(setup, **groups, metadata=1)
        self.room = IsrInvariants()
        self.invariants = Invariants(len(setup.voters), lambda: self.room if not whole else None)
        self.world = World(setup, watch=self.invariants)
        self.store: MemoryStore | GroupStore
        if whole:
            self.store = group = GroupStore(self.world, LATENCY_S)
            self.invariants.on_settled = lambda partition, offset, crc: (
                group.settled(offset, crc) if partition == 1 else None
            )
        else:
            self.store = MemoryStore(self.world, LATENCY_S)
        self.is_whole = whole
        self.store.on_written = self._wrote
        self.operators = Operators(self.world, self.store)
        if not whole:
            self.operators.on_step = partial(self.room.operated, self.invariants)
        if watched:
            IsrWatcher(self.world, self.operators, self.store, SUSPECT_S).begin()
        self.chaos = Chaos(self.world, (), self.invariants, self.operators)
        for number in self.world.nodes:
            self.world.start(number)

    def _wrote(self, shard: int, version: int, content: PartitionState) -> None:
        if not self.is_whole:
            self.room.wrote(self.invariants, shard, version, content)
        self.operators.history[shard].append(content)

    @property
    def planner(self) -> IsrPlanner:
        assert isinstance(self.chaos.steward, IsrPlanner)
        return self.chaos.steward

    @property
    def stored(self) -> PartitionState:
        state: Any = self.store.newest(0)
        assert isinstance(state, PartitionState)
        return state

    def is_steady(self) -> bool:
        """Somebody leads, and everybody who has a copy is in sync."""
        if self.store.newest(0) is None:
            return False
        state = self.stored
        hosted = self.world.hosted(state.leader.node, 0)
        leads = hosted is not None and hosted.replica.role.name == "leader"
        return leads and state.isr == state.replicas

    def run(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def until(self, done: Callable[[], bool], seconds: float = 20.0) -> None:
        deadline = self.world.now + seconds
        while not done():
            assert self.world.now < deadline, self.store.newest(0)
            assert self.world.happen()

    def begin(self) -> PartitionState:
        """Start the controllers, and wait for the first leader."""
        for number in self.operators.processes:
            self.operators.start(number)
        self.until(self.is_steady)
        return self.stored

    def write(self) -> int:
        """One record, tried until it is settled; its offset."""
        deadline = self.world.now + 20.0
        while True:
            assert self.world.now < deadline, self.stored
            replies: list[Reply] = []
            payload = encode_records([(None, b"value")])
            taken = self.world.propose(self.stored.leader.node, 0, [payload], replies.append)
            self.until(lambda answers=replies, taken=taken: bool(answers) or not taken)  # type: ignore[misc]
            if replies and replies[0].outcome is Outcome.SETTLED:
                return replies[0].offset
            assert self.world.happen()
