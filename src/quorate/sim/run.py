"""One seed, one world, one verdict. And ranges of seeds: `python -m quorate.sim.run 0:100 --faults all`."""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, cast

import msgspec

from quorate.core.confirm.config import CUTTING_LOOSE
from quorate.core.confirm.invariants import ConfirmInvariants
from quorate.core.coordinated.invariants import CoordinatedInvariants
from quorate.core.invariant import Violated
from quorate.core.isr.invariants import IsrInvariants
from quorate.core.raft.invariants import RaftInvariants
from quorate.sim.chance import stream
from quorate.sim.chaos import Chaos, Toll
from quorate.sim.confirm_steward import place_quorums
from quorate.sim.faults import PACING, Fault, Place, keeps_all, parse_profiles, schedule, takes_part
from quorate.sim.group_store import GroupStore
from quorate.sim.happening import Happening
from quorate.sim.healing import Healing
from quorate.sim.invariants import Invariants
from quorate.sim.isr_watcher import IsrWatcher
from quorate.sim.luck import choose_priorities, choose_unlucky
from quorate.sim.measures import Measured, Measures
from quorate.sim.operators import FIRST, Operators
from quorate.sim.oracle import Oracle
from quorate.sim.overseen import OVERSEEN
from quorate.sim.rooms import Rooms
from quorate.sim.setup import Setup
from quorate.sim.steward import Steward
from quorate.sim.store import MemoryStore, Store
from quorate.sim.survival import survival_in
from quorate.sim.table_group import TableGroup, listen
from quorate.sim.trace import Trace
from quorate.sim.tunables import Tunables, check_overrides, draw, keeping_all, pacing
from quorate.sim.upgrade import Upgrade
from quorate.sim.watcher import Watcher
from quorate.sim.workload import Workload
from quorate.sim.world import World

STEPS_MAX = 60_000
"""The safety phase ends after so many steps of replicas, if its time is not over before."""
NODES_MAX = 9
ROOMS: dict[str, Callable[[], Any]] = {
    "raft": RaftInvariants,
    "coordinated": CoordinatedInvariants,
    "isr": IsrInvariants,
    "confirm": ConfirmInvariants,
}
TURNING, TRANSACTIONS = "turning", "transactions"
"""Instead of a protocol: worlds whose partitions go from one to another (turning.py), or of transactions."""
WITH_LEARNERS = ("raft", "confirm")
"""Elsewhere, whoever is not in an ensemble is told nothing."""
WITH_TABLES = ("confirm",)  # Elsewhere there are tables where somebody wants to see some.


class Plan(msgspec.Struct, frozen=True):
    """Everything that decides a run: the same plan, the same bytes."""

    seed: int
    protocol: str = "raft"
    faults: tuple[str, ...] = parse_profiles("all")
    nodes: int = 3
    learners: int | None = None
    """None: drawn."""
    overrides: Mapping[str, Any] = {}
    """Tunables by name, instead of those that are drawn."""
    only: tuple[int, ...] | None = None
    """Positions in the schedule of the faults that happen; None: all of them."""
    until: float | None = None
    """When the safety phase ends; None: as drawn."""

    def command(self) -> str:
        """What a person types to see this run again."""
        usual = parse_profiles("all")
        more = [name for name in self.faults if name not in usual]
        named = ("all", *more) if set(usual) <= set(self.faults) else self.faults
        profiles = ",".join(named) or "none"
        parts = [f"quorate sim {self.protocol} --seed {self.seed} --faults {profiles} --nodes {self.nodes}"]
        if self.learners is not None and self.protocol in WITH_LEARNERS:
            parts.append(f"--learners {self.learners}")
        parts += [f"--set {name}={value}" for name, value in sorted(self.overrides.items())]
        if self.only is not None:
            parts.append("--only " + (",".join(map(str, self.only)) or "none"))
        if self.until is not None:
            parts.append(f"--until {self.until:.6f}")
        return " ".join(parts)


class Violation(msgspec.Struct, frozen=True):
    seed: int
    invariant: str
    detail: str
    reproduce: str


class Verdict(msgspec.Struct):
    """What came of one run."""

    seed: int
    events: int = 0
    """Everything that happened: arrivals, completions, timers, requests, faults."""
    steps: int = 0
    """Facts that replicas were told; after each of them, everything was checked."""
    seconds: float = 0.0
    """Virtual time."""
    acknowledged: int = 0
    reads: int = 0
    ends: int = 0
    """Reads that were told up to where they may read."""
    elections: int = 0
    """Of every group: also of the store's, where that is a raft group in the same world."""
    truncations: int = 0
    crashes: int = 0
    """How often a node's process ended, for whatever reason; what was thrown is in `toll`."""
    partitions: int = 0
    damaged: int = 0
    operators: int = 0
    """Lives of operators, where there are some."""
    reconfigurations: int = 0
    """Changes of an ensemble that were completed."""
    shrinks: int = 0
    expands: int = 0
    """Changes of who is in sync, where that is what counts."""
    reports: int = 0
    """Times that a follower missed its leader, and said so to controllers."""
    confirms: int = 0
    rollbacks: int = 0
    undone: int = 0
    promotions: int = 0
    """Decisions, and what was taken back, where there are some: core/confirm/invariants.py."""
    measured: Measured = Measured()
    """What it cost and gave."""
    turns: int = 0
    """Partitions that have gone from one protocol to another."""
    toll: Toll = msgspec.field(default_factory=Toll)
    violations: list[Violation] = []
    happenings: list[Happening] | None = None
    """The story, if it was asked for."""


def run_seed(
    seed: int,
    *,
    protocol: str = "raft",
    faults: str | tuple[str, ...] = "all",
    nodes: int = 3,
    learners: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    only: tuple[int, ...] | None = None,
    until: float | None = None,
    trace: bool = False,
) -> Verdict:
    """One seed under the named faults. Raises ValueError for names and numbers that make no sense."""
    plan = plan_seed(
        seed,
        protocol=protocol,
        faults=faults,
        nodes=nodes,
        learners=learners,
        overrides=overrides,
        only=only,
        until=until,
    )
    return run_plan(plan, trace=trace)


def plan_seed(
    seed: int,
    *,
    protocol: str = "raft",
    faults: str | tuple[str, ...] = "all",
    nodes: int = 3,
    learners: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    only: tuple[int, ...] | None = None,
    until: float | None = None,
) -> Plan:
    """What `run_seed` runs; the shrinker takes it, too."""
    if protocol not in (known := (*ROOMS, TURNING, TRANSACTIONS)):
        raise ValueError(f"there is no protocol {protocol!r}; there are: {', '.join(known)}")
    if not 1 <= nodes <= NODES_MAX:
        raise ValueError(f"a world has 1 to {NODES_MAX} nodes, not {nodes}")
    if learners is not None and not 0 <= learners <= NODES_MAX:
        raise ValueError(f"a world has 0 to {NODES_MAX} learners, not {learners}")
    if learners is not None and protocol not in WITH_LEARNERS:
        raise ValueError(f"{protocol} has no learners; only {' and '.join(WITH_LEARNERS)} have")
    profiles = parse_profiles(faults) if isinstance(faults, str) else faults
    check_overrides(protocol, overrides or {}, seed=seed)
    return Plan(seed, protocol, profiles, nodes, learners, overrides or {}, only, until)


def run_plan(plan: Plan, *, trace: bool = False) -> Verdict:
    collecting = gc.isenabled()
    gc.disable()  # A run makes few cycles and many objects.
    try:
        return _run_of(plan)(plan, trace=trace).verdict()
    finally:
        if collecting:
            gc.enable()


def _run_of(plan: Plan) -> type[Run]:
    """Those of other worlds need what stands here."""
    where = {TURNING: "turning", TRANSACTIONS: "transactions.run"}.get(plan.protocol)
    return Run if where is None else cast(type[Run], import_module(f"quorate.sim.{where}").RUN)


class Run:
    """A world with faults, clients and checks, from its beginning to its end."""

    def __init__(self, plan: Plan, *, trace: bool = False) -> None:
        self.plan = plan
        self.tunables = draw_world(plan)
        self.trace = Trace() if trace else None
        setup = place_partitions(plan, self.tunables)
        partitions_count = len(setup.voters)
        self.room = room = ROOMS[plan.protocol]()
        others = {setup.metadata: ROOMS["raft"]()} if setup.metadata >= 0 else {}
        self.invariants = Invariants(partitions_count, lambda: Rooms(room, others) if others else room)
        self.oracle = Oracle(partitions_count)
        self.world = World(setup, watch=self.invariants, trace=self.trace)
        self.measures = Measures(self.world, self.oracle)
        self.world.on_applied = self.invariants.applied
        self.invariants.on_settled = self.oracle.settled
        self.oracle.settled_end = lambda partition: self.invariants.settled[partition].commit
        if self.tunables.clocks_wild:
            self.oracle.leases_hold = False
        else:
            self.invariants.local = self.world.local
        self.oracle.survival = survival_in(plan.seed, plan.faults, partitions_count, self.oracle)
        if isinstance(room, ConfirmInvariants):
            self.oracle.is_void = room.is_void
        holders = tuple(setup.holders[number] for number in setup.shards)
        tables = {number: TableGroup(self.world, self.invariants, number) for number in setup.tables}
        self.workload = Workload(plan.seed, self.world, self.oracle, self.tunables.manners, holders, tables)
        self.faults = plan_faults(plan, setup, self.tunables)
        self.operators = self._operators(room) if setup.operators else None
        if tables:
            self.invariants.on_settled = listen(tables, self.invariants.on_settled)
        self.chaos = Chaos(self.world, self.faults, self.invariants, self.operators)
        self.upgrade: Upgrade | None = None
        if plan.protocol == "confirm" and self.tunables.old_nodes:
            assert isinstance(self.chaos.steward, Steward)
            self.upgrade = Upgrade(self.world, self.chaos.steward)

    def _operators(self, room: CoordinatedInvariants | IsrInvariants) -> Operators:
        oversight = self.tunables.oversight
        store = self._store()
        operators = Operators(self.world, store)

        def wrote(shard: int, version: int, content: Any) -> None:
            room.wrote(self.invariants, shard, version, content)
            operators.history[shard].append(content)

        store.on_written = wrote
        operators.on_step = partial(room.operated, self.invariants)
        if isinstance(room, CoordinatedInvariants):
            Watcher(self.world, operators, store, oversight.suspect_after_s).begin()
        elif oversight.watched:
            IsrWatcher(self.world, operators, store, oversight.suspect_after_s).begin()
        return operators

    def _store(self) -> Store:
        group = self.world.setup.metadata
        latency_s = self.tunables.oversight.store_latency_s
        if group < 0:
            return MemoryStore(self.world, latency_s)
        store = GroupStore(self.world, latency_s)

        def settled(partition: int, offset: int, crc: int) -> None:
            if partition == group:
                store.settled(offset, crc)
            else:
                self.oracle.settled(partition, offset, crc)

        self.invariants.on_settled = settled
        return store

    def verdict(self) -> Verdict:
        violations: list[Violation] = []
        try:
            self._live()
        except Violated as violated:
            violations.append(self._violation(violated.invariant, violated.detail))
        except AssertionError as error:
            violations.append(self._violation("assertion", told(error)))
        except Exception as error:  # Whatever it is, it is somebody's bug: ours or the simulator's.
            violations.append(self._violation("exception", f"{type(error).__name__}: {told(error)}"))
        toll = self.chaos.toll
        return Verdict(
            seed=self.plan.seed,
            events=self.world.events_count,
            steps=self.world.steps_count,
            seconds=self.world.now,
            acknowledged=self.oracle.acknowledged_count,
            reads=self.oracle.reads_count,
            ends=self.oracle.ends_count,
            elections=self.invariants.elections,
            truncations=self.invariants.truncations,
            crashes=self.world.crashes_count,
            partitions=toll.partitions,
            damaged=toll.damaged,
            operators=self.operators.lives_count if self.operators is not None else 0,
            reconfigurations=self.operators.reconfigurations_count if self.operators is not None else 0,
            **{name: getattr(self.room, name, 0) for name in IN_SYNC + DECIDED},
            measured=self.measures.result(len(self.world.setup.shards)),
            toll=toll,
            violations=violations,
            happenings=self.trace.happenings if self.trace is not None else None,
        )

    def _live(self) -> None:
        until = self.plan.until if self.plan.until is not None else self.tunables.seconds
        for number in self.world.nodes:
            self.world.start(number)
        if self.operators is not None:
            for number in self.operators.processes:
                self.operators.start(number)
        self.chaos.begin()
        self.workload.begin()
        if self.upgrade is not None:
            self.upgrade.begin()
        self.world.run(until, STEPS_MAX)
        self.workload.close()
        self.measures.healed(truncated=self.invariants.truncated_count)
        self.chaos.heal()
        healing = Healing(self.world, self.workload, self.oracle, self.invariants, self.chaos.steward)
        healing.follows(self.chaos)
        if self.upgrade is not None:
            healing.wait("the upgrade does not end", self.upgrade.unfinished)
        self._before_healing(healing)
        healing.run()

    def _before_healing(self, healing: Healing) -> None:
        """Nothing but faults is over."""

    def _violation(self, invariant: str, detail: str) -> Violation:
        if self.trace is not None:
            self.trace.add(self.world.now, 0, "violated", text=f"{invariant}: {detail}")
        return Violation(self.plan.seed, invariant, detail, self.plan.command())


def told(error: BaseException) -> str:
    """An exception with the place that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = frame.filename.partition("quorate/")[2] or frame.filename
    return f"{where}:{frame.lineno} in {frame.name}: {str(error) or frame.line}"


def draw_world(plan: Plan) -> Tunables:
    drawn = draw(plan.seed, plan.overrides)
    tunables = pacing(drawn) if takes_part(plan.seed, PACING, plan.faults) else drawn
    return keeping_all(tunables) if keeps_all(plan.seed, plan.faults) else tunables


def place_partitions(plan: Plan, tunables: Tunables) -> Setup:
    """Every partition on all nodes; where there are many, some on a part of them."""
    rng = stream(plan.seed, "placement")
    nodes = tuple(range(1, plan.nodes + 1))
    drawn = 1 if rng.random() < 0.2 else 0
    learners_count = plan.learners if plan.learners is not None else drawn
    if plan.protocol not in WITH_LEARNERS:
        learners_count = 0
    learners = tuple(range(plan.nodes + 1, plan.nodes + learners_count + 1))
    voters = []
    for number in range(tunables.partitions_count):
        size = rng.choice((3, len(nodes))) if number and len(nodes) > 3 else len(nodes)
        voters.append(tuple(sorted(rng.sample(nodes, size))))
    setup = Setup(
        plan.seed,
        tunables,
        tuple(voters),
        tuple(learners for _ in voters),
        protocol=plan.protocol,
        operators=place_operators(plan, tunables),
        tables=place_tables(plan, tunables),
    )
    if takes_part(plan.seed, "membership", plan.faults):
        setup = with_outsiders(plan, setup)
    if setup.operators and tunables.oversight.whole:
        setup = with_metadata(setup)
    unlucky = choose_unlucky(plan.seed, setup)
    if setup.operators:
        unlucky = fewer_unlucky(plan, setup, unlucky)
    if plan.protocol == "confirm":
        # Where copies may be lost, little but majorities is fair.
        unlucky = unlucky if stream(plan.seed, "confirm luck").random() < 0.6 else ()
        if tunables.host.confirm.feature_level >= CUTTING_LOOSE:
            setup = msgspec.structs.replace(setup, quorums=place_quorums(plan.seed, setup.voters, unlucky))
    priorities = choose_priorities(plan.seed, setup.nodes, unlucky)
    return msgspec.structs.replace(setup, unlucky=unlucky, priorities=priorities)


def place_operators(plan: Plan, tunables: Tunables) -> tuple[int, ...]:
    """One is enough, as long as nobody wants to see several compete."""
    if plan.protocol not in OVERSEEN:
        return ()
    several = takes_part(plan.seed, "operator", plan.faults) or "operators_count" in plan.overrides
    count = tunables.oversight.operators_count if several else 1
    return tuple(range(FIRST, FIRST + count))


def place_tables(plan: Plan, tunables: Tunables) -> tuple[int, ...]:
    """Which partitions are table groups."""
    if plan.protocol not in WITH_TABLES and "tables_share" not in plan.overrides:
        return ()
    rng = stream(plan.seed, "tables")
    return tuple(
        number for number in range(tunables.partitions_count) if rng.random() < tunables.tables_share
    )


def with_metadata(setup: Setup) -> Setup:
    """The nodes that are there in the beginning replicate the metadata group, too; nobody joins it."""
    voters = tuple(sorted({node for group in setup.voters for node in group}))
    return msgspec.structs.replace(
        setup,
        voters=(*setup.voters, voters),
        learners=(*setup.learners, ()),
        outsiders=(*setup.outsiders, ()) if setup.outsiders else (),
        metadata=len(setup.voters),
    )


def with_outsiders(plan: Plan, setup: Setup) -> Setup:
    """Where ensembles change, there are nodes that can join them."""
    rng = stream(plan.seed, "outsiders")
    last = setup.nodes[-1]
    spare = tuple(range(last + 1, last + 1 + rng.choice((1, 2, 2, 3))))
    outsiders = tuple(
        tuple(node for node in setup.nodes + spare if node not in voters + learners)
        for voters, learners in zip(setup.voters, setup.learners, strict=True)
    )
    return msgspec.structs.replace(setup, outsiders=outsiders)


def fewer_unlucky(plan: Plan, setup: Setup, unlucky: tuple[int, ...]) -> tuple[int, ...]:
    """Ensembles change by one node at a time: with an unlucky one in each and everybody else unlucky, too, hardly
    any change would be fair."""
    if not any(takes_part(plan.seed, name, plan.faults) for name in ("damage", "wipe")):
        return ()
    rng = stream(plan.seed, "lucky outsiders")
    voting = {voter for voters in setup.voters for voter in voters}
    return tuple(node for node in unlucky if node in voting or rng.random() < 0.3)


def faults_count(plan: Plan) -> int:
    """How many faults the schedule has that `plan.only` chooses from."""
    tunables = draw(plan.seed, plan.overrides)
    everything = msgspec.structs.replace(plan, only=None)
    return len(plan_faults(everything, place_partitions(plan, tunables), tunables))


def plan_faults(plan: Plan, setup: Setup, tunables: Tunables) -> tuple[Fault, ...]:
    ends = tunables.seconds * 0.95
    acts = plan.protocol == "confirm"
    place = Place(setup.nodes, setup.unlucky, tunables.pace_s, ends, setup.operators, acts)
    faults = schedule(plan.seed, plan.faults, place)
    if plan.only is not None:
        faults = tuple(fault for index, fault in enumerate(faults) if index in plan.only)
    return faults


# ---- many seeds ----


class Sum(msgspec.Struct):
    """What came of many runs, as `quorate sim --json` prints it."""

    protocol: str
    seeds: int = 0
    events: int = 0
    events_per_second: float = 0.0
    acknowledged: int = 0
    elections: int = 0
    truncations: int = 0
    crashes: int = 0
    partitions: int = 0
    damaged: int = 0
    operators: int | msgspec.UnsetType = msgspec.UNSET
    """This one and the next: only of protocols that have operators."""
    reconfigurations: int | msgspec.UnsetType = msgspec.UNSET
    shrinks: int | msgspec.UnsetType = msgspec.UNSET
    expands: int | msgspec.UnsetType = msgspec.UNSET
    reports: int | msgspec.UnsetType = msgspec.UNSET
    """Only of `isr`."""
    confirms: int | msgspec.UnsetType = msgspec.UNSET
    rollbacks: int | msgspec.UnsetType = msgspec.UNSET
    undone: int | msgspec.UnsetType = msgspec.UNSET
    promotions: int | msgspec.UnsetType = msgspec.UNSET
    """Only of `confirm`."""
    turns: int | msgspec.UnsetType = msgspec.UNSET
    violations: list[Violation] = []

    @property
    def summed(self) -> tuple[str, ...]:
        """What is added up, by the names that it has in a verdict, too."""
        more = {"coordinated": OPERATED, "isr": OPERATED + IN_SYNC, "confirm": DECIDED, TURNING: ("turns",)}
        return SUMMED + more.get(self.protocol, ())

    def add(self, verdict: Verdict) -> None:
        self.seeds += 1
        for name in self.summed:
            setattr(self, name, (getattr(self, name) or 0) + getattr(verdict, name))
        self.violations += verdict.violations


OPERATED = ("operators", "reconfigurations")
IN_SYNC = ("shrinks", "expands", "reports")
DECIDED = ("confirms", "rollbacks", "undone", "promotions")
SUMMED = ("events", "acknowledged", "elections", "truncations", "crashes", "partitions", "damaged")


def run_seeds(
    seeds: Iterable[int],
    *,
    protocol: str = "raft",
    progress: Callable[[Verdict], None] | None = None,
    clock: Callable[[], float] = time.process_time,
    **settings: Any,
) -> Sum:
    """Run one seed after the other; `settings` are those of `run_seed`."""
    total = Sum(protocol)
    began = clock()
    for seed in seeds:
        verdict = run_seed(seed, protocol=protocol, **settings)
        total.add(verdict)
        if progress is not None:
            progress(verdict)
    total.events_per_second = round(total.events / max(clock() - began, 1e-9), 1)
    return total


def parse_seeds(text: str) -> range:
    """`7`, or `0:500` (the end is left out); raises ValueError with a line for a person."""
    first, colon, last = text.partition(":")
    if not first.isdigit() or (colon and not last.isdigit()):
        raise ValueError(f"{text!r} is no range of seeds; write 7, or 0:500")
    return range(int(first), int(last) if colon else int(first) + 1)


def parse_setting(text: str) -> tuple[str, int | float]:
    """`snapshot_every=5`: one of the numbers of tunables.py; raises ValueError with a line for a person."""
    name, _, value = text.partition("=")
    try:
        return name, float(value) if "." in value else int(value)
    except ValueError:
        raise ValueError(f"{text!r} is no setting; write NAME=NUMBER, such as snapshot_every=5") from None


def parse_only(text: str) -> tuple[int, ...]:
    """`3,7,12`, or `none`: which faults of a schedule happen."""
    return () if text == "none" else tuple(map(int, text.split(",")))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m quorate.sim.run", description=__doc__)
    parser.add_argument("seeds", type=parse_seeds)
    parser.add_argument("--protocol", default="raft")
    parser.add_argument("--faults", default="all")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--learners", type=int)
    parser.add_argument("--set", type=parse_setting, action="append", default=[], metavar="NAME=NUMBER")
    parser.add_argument("--only", type=parse_only, help="positions of the faults that happen")
    parser.add_argument("--until", type=float, help="virtual seconds until everything heals")
    parser.add_argument("--trace", action="store_true", help="the story of the first seed instead of a sum")
    chosen = parser.parse_args(arguments)
    settings = {
        "protocol": chosen.protocol,
        "faults": chosen.faults,
        "nodes": chosen.nodes,
        "learners": chosen.learners,
        "overrides": dict(chosen.set),
        "only": chosen.only,
        "until": chosen.until,
    }
    if chosen.trace:
        verdict = run_seed(chosen.seeds[0], trace=True, **settings)
        for happening in verdict.happenings or []:
            print(happening)
        return 1 if verdict.violations else 0
    total = run_seeds(chosen.seeds, **settings)
    print(msgspec.json.format(msgspec.json.encode(total)).decode())
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
