"""What goes wrong with operators and their store; chaos.py does the rest."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from quorate.core.coordinated.shard import Shard
from quorate.core.isr import PartitionState
from quorate.machine.shards import State
from quorate.sim.faults import ANY_OPERATOR, Fault, between
from quorate.sim.operators import Operators

if TYPE_CHECKING:
    from quorate.sim.chaos import Toll

TRAP_EVERY_S = 0.0002
TRAP_TRIES = 500
Cut = Callable[[tuple[tuple[int, int], ...], float], None]
"""Cuts links for so many seconds."""
Later = Callable[[float, Callable[[], None]], None]
"""Does something after so many seconds, unless everything has healed by then."""


class Trouble:
    def __init__(self, operators: Operators, toll: Toll, later: Later, cut: Cut) -> None:
        self.operators = operators
        self.world = operators.world
        self.toll = toll
        self.kinds: dict[str, Callable[[Fault], None]] = {
            "operator-crash": self._crash,
            "operator-fuse": self._light,
            "operator-pause": self._pause,
            "operator-rumour": self._rumour,
            "operator-strand": self._set_trap,
            "store-slow": self._slow_down,
            "store-silent": self._silence,
        }
        self._later = later
        self._cut = cut
        self._traps: list[Fault] = []
        self._lengths: dict[int, float] = {}
        """How long an operator stays down whose fuse burns."""
        self._store_troubles = 0
        operators.on_crash = self._burnt_down
        told, operators.store.on_written = operators.store.on_written, self._wrote
        self._told = told

    def crash(self, number: int, seconds: float) -> None:
        if self.operators.crash(number):
            self.toll.operators_crashed += 1
        self._keep_down(number, seconds)

    def pause(self, number: int, seconds: float) -> None:
        self.toll.pauses += 1
        self.operators.pause(number, seconds)

    def _whom(self, fault: Fault) -> list[int]:
        rng = Random(fault.chance)
        return [
            rng.choice(self.world.setup.operators) if number == ANY_OPERATOR else number
            for number in fault.nodes
        ]

    def _crash(self, fault: Fault) -> None:
        for number in self._whom(fault):
            self.crash(number, fault.seconds)

    def _light(self, fault: Fault) -> None:
        """It dies between two of its next orders."""
        for number in self._whom(fault):
            self.operators.processes[number].fuse = int(fault.amount)
            self._lengths[number] = fault.seconds

    def _burnt_down(self, number: int) -> None:
        self.toll.operators_crashed += 1
        self._keep_down(number, self._lengths.get(number, 0.0))

    def _keep_down(self, number: int, seconds: float) -> None:
        process = self.operators.processes[number]
        process.down_until = max(process.down_until, self.world.now + seconds)

        def start() -> None:
            if not process.is_up and self.world.now >= process.down_until:
                self.operators.start(number)

        self._later(process.down_until - self.world.now, start)

    def _pause(self, fault: Fault) -> None:
        for number in self._whom(fault):
            self.pause(number, fault.seconds)

    def _rumour(self, fault: Fault) -> None:
        """Somebody says that a node is gone. It is not true, or not yet known to be."""
        rng = Random(fault.chance)
        shard = rng.choice(self.world.setup.shards)
        suspects = self.world.leaders(shard) if rng.random() < 0.7 else self.world.setup.holders[shard]
        for number in self._whom(fault) if suspects else ():
            self.toll.rumours += 1
            self.operators.suspect(number, shard, rng.choice(suspects))

    # --- a change that stalls in its commit phase ---

    def _set_trap(self, fault: Fault) -> None:
        """The next leader that is told to let a new node count does so unheard, and is cut off together with it."""
        self._traps.append(fault)

    def _wrote(self, shard: int, version: int, content: State) -> None:
        self._told(shard, version, content)
        if isinstance(content, PartitionState):
            self._strand_leader(content)
            return
        change = content.may_have_grown
        if self._traps and change is not None and change.new is not None and content.leader is not None:
            fault = self._traps.pop(0)
            mute = tuple((content.leader.node, number) for number in self.world.setup.operators)
            self._cut(mute, fault.seconds)
            self._spring(shard, content, fault, tries=TRAP_TRIES)

    def _strand_leader(self, state: PartitionState) -> None:
        """Something is stored (who is in sync, who leads), and the leader that it names does not hear so."""
        if self._traps:
            leader = state.leader.node
            links = [(number, leader) for number in self.world.setup.operators]
            self._cut(tuple(links), self._traps.pop(0).seconds)

    def _spring(self, shard: int, content: Shard, fault: Fault, *, tries: int) -> None:
        change, leader = content.may_have_grown, content.leader
        assert change is not None
        assert change.new is not None
        assert leader is not None
        hosted = self.world.hosted(leader.node, shard)
        if hosted is not None and change.new in getattr(hosted.replica.role, "ensemble", ()):
            group = (leader.node, change.new.node)
            self._cut(between(group, self.world.setup.everybody), fault.seconds)
        elif tries:
            again = partial(self._spring, shard, content, fault, tries=tries - 1)
            self._later(TRAP_EVERY_S, again)

    # --- the store ---

    def _slow_down(self, fault: Fault) -> None:
        self._store_trouble(fault, "slow", lambda: self.operators.store.slow_down(fault.amount))

    def _silence(self, fault: Fault) -> None:
        self._store_trouble(fault, "silent", self.operators.store.fall_silent)

    def _store_trouble(self, fault: Fault, what: str, begin: Callable[[], None]) -> None:
        self.toll.store_troubles += 1
        self._store_troubles += 1
        if self.world.trace is not None:
            self.world.trace.add(self.world.now, 0, "store", text=f"{what} for {fault.seconds:.3f}s")
        begin()

        def end() -> None:
            self._store_troubles -= 1
            if not self._store_troubles:
                self.operators.store.recover()

        self._later(fault.seconds, end)

    def heal(self) -> None:
        """The store answers, and at least one operator runs."""
        self._traps.clear()
        self.operators.store.recover()
        self.operators.on_crash = lambda number: None
        for number, process in self.operators.processes.items():
            process.fuse = None
            self.operators.resume(number)
        rng = Random(self.world.setup.seed)
        survivors = rng.sample(self.world.setup.operators, rng.randint(1, len(self.world.setup.operators)))
        for number in self.world.setup.operators:
            if number in survivors and not self.operators.processes[number].is_up:
                self.operators.start(number)
