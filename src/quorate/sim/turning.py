"""A run whose partitions turn: each begins with one protocol, and goes through some others while everything fails.

Clients and the oracle know nothing of it: for them a partition is one log from beginning to end. Ensembles stay
what they are, and disks are not lost, since who counts must not move under a turn; every other fault there is
takes part.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quorate.core.confirm import config as confirm_config
from quorate.machine.metadata import REPLICATIONS
from quorate.sim import run
from quorate.sim.chance import stream
from quorate.sim.chaos import Chaos
from quorate.sim.faults import takes_part
from quorate.sim.generations import Generations
from quorate.sim.healing import Healing
from quorate.sim.luck import choose_unlucky
from quorate.sim.measures import Measures
from quorate.sim.operators import FIRST, Operators
from quorate.sim.oracle import Oracle
from quorate.sim.setup import Setup
from quorate.sim.store import MemoryStore
from quorate.sim.table_group import TableGroup, listen
from quorate.sim.trace import Trace
from quorate.sim.tunables import Tunables
from quorate.sim.turner import Turner, TurnWatcher
from quorate.sim.workload import Workload
from quorate.sim.world import World

LEFT_OUT = ("membership", "wipe", "pacing")


def promoting_itself(tunables: Tunables) -> Tunables:
    """Nobody is there who would promote somebody in `confirm`, nor a node of an earlier version."""
    confirm = msgspec.structs.replace(
        tunables.host.confirm, automatic=True, feature_level=confirm_config.CUTTING_LOOSE
    )
    host = msgspec.structs.replace(tunables.host, confirm=confirm)
    return msgspec.structs.replace(tunables, host=host)


class TurningRun(run.Run):
    def __init__(self, plan: run.Plan, *, trace: bool = False) -> None:
        faults = tuple(name for name in plan.faults if name not in LEFT_OUT)
        self.plan = plan
        plan = msgspec.structs.replace(plan, faults=faults)
        self.tunables = tunables = promoting_itself(run.draw_world(plan))
        self.trace = Trace() if trace else None
        setup = self._place(plan)
        count = len(setup.voters)
        self.room: Any = None
        self.generations = Generations(count, run.ROOMS, setup.protocol)
        invariants: Any = self.generations  # Which says all that is asked of invariants here.
        self.invariants = invariants
        self.oracle = Oracle(count)
        self.world = World(setup, watch=self.invariants, trace=self.trace)
        self.world.on_applied = self.invariants.applied
        self.invariants.on_settled = self.oracle.settled
        self.oracle.settled_end = lambda partition: self.invariants.settled[partition].commit
        self.oracle.is_void = self.generations.is_void
        if tunables.clocks_wild:
            self.oracle.leases_hold = False
        else:
            self.invariants.local = self.world.local
        tables = {number: TableGroup(self.world, invariants, number) for number in setup.tables}
        for group in tables.values():
            group.oracle.flushes = True  # In some of its protocols.
        self.workload = Workload(plan.seed, self.world, self.oracle, tunables.manners, setup.holders, tables)
        if tables:
            self.invariants.on_settled = listen(tables, self.invariants.on_settled)
        oversight = tunables.oversight
        store = MemoryStore(self.world, oversight.store_latency_s)
        self.operators: Operators | None = Operators(self.world, store)
        self.turner = Turner(self.world, self.generations, store, self.operators)
        TurnWatcher(self.world, self.operators, store, oversight.suspect_after_s).begin()
        self.faults = run.plan_faults(plan, setup, tunables)
        self.chaos = Chaos(self.world, self.faults, invariants, self.operators, self.turner)
        self.upgrade = None
        self.measures = Measures(self.world, self.oracle)

    def _place(self, plan: run.Plan) -> Setup:
        """All begin alike; how, is drawn. There is always somebody who could oversee them."""
        tunables = self.tunables
        rng = stream(plan.seed, "turning")
        protocol = rng.choice(REPLICATIONS)
        nodes = tuple(range(1, plan.nodes + 1))
        placing = stream(plan.seed, "placement")
        voters = []
        for number in range(tunables.partitions_count):
            size = placing.choice((3, len(nodes))) if number and len(nodes) > 3 else len(nodes)
            voters.append(tuple(sorted(placing.sample(nodes, size))))
        several = takes_part(plan.seed, "operator", plan.faults)
        operators = tunables.oversight.operators_count if several else 1
        setup = Setup(
            plan.seed,
            tunables,
            tuple(voters),
            tuple(() for _ in voters),
            protocol=protocol,
            operators=tuple(range(FIRST, FIRST + operators)),
            tables=run.place_tables(plan, tunables),
        )
        is_unfair = takes_part(plan.seed, "damage", plan.faults)
        unlucky = choose_unlucky(plan.seed, setup) if is_unfair else ()
        return msgspec.structs.replace(setup, unlucky=unlucky)

    def _before_healing(self, healing: Healing) -> None:
        self.turner.heal()
        healing.wait("turns do not end", self.turner.unfinished)

    def verdict(self) -> run.Verdict:
        verdict = super().verdict()
        verdict.turns = len(self.turner.pairs)
        return verdict


RUN = TurningRun
