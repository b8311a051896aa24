"""One seed of `quorate sim transactions`, from its beginning to its verdict."""

from __future__ import annotations

import traceback
from typing import Any

from quorate.core.invariant import Violated
from quorate.sim.chaos import Toll
from quorate.sim.run import Plan, Verdict, Violation
from quorate.sim.transactions.clients import Book, joint, plain
from quorate.sim.transactions.oracle import Reader, judge
from quorate.sim.transactions.serving import Cluster
from quorate.sim.transactions.world import NODES, World

SAFETY_S = 25.0
HEALING_S = 45.0
"""Longer than the longest time-out, and than whatever was sent late."""


class RUN:
    """As all worlds are run (sim/run.py)."""

    def __init__(self, plan: Plan, *, trace: bool = False) -> None:
        self._plan = plan
        self._run = Run(plan.seed, plan.faults, trace=trace)

    def verdict(self) -> Verdict:
        return _verdict(self._plan, self._run)


def _verdict(plan: Plan, run: Run) -> Verdict:
    found = run.verdict()
    world, logs = run.world, run.cluster.by_partition.values()
    verdict = Verdict(plan.seed, world.events, world.events, world.now, happenings=world.happenings)
    outcomes = [each.outcome for each in run.book.plain] + [each.outcome for each in run.book.joint]
    verdict.acknowledged = outcomes.count("committed")
    verdict.reads = sum(reader.reads for reader in run.readers)
    verdict.elections = sum(log.elections for log in logs)
    verdict.truncations = sum(log.cuts for log in logs)
    verdict.crashes = run.crashes
    verdict.toll = Toll(crashes=run.crashes, pauses=run.pauses, storms=run.storms)
    if found is not None:
        verdict.violations = [Violation(plan.seed, *found, plan.command())]
    return verdict


class Run:
    """What a run is made of, and what came of it: (invariant, detail), or None."""

    def __init__(self, seed: int, faults: tuple[str, ...], *, trace: bool = False) -> None:
        self.world = world = World(seed, faults, trace=trace)
        rng = world.rng
        self.cluster = Cluster(world, partitions=rng.randint(1, 3), homes=rng.randint(1, 2))
        self.book = Book()
        self.readers = [Reader(world, log) for log in self.cluster.topics]
        self.crashes = 0
        self.storms = 0
        self.pauses = 0
        world.delay_s = rng.choice((0.002, 0.01, 0.05))
        for number in range(rng.randint(1, 3)):
            self._plain_lives(f"plain-{number}", 0)
        for number in range(rng.randint(0, 2)):
            self._joint_runs(f"app-{number}", 0)
        self._plan()

    def verdict(self) -> tuple[str, str] | None:
        try:
            self.world.run(SAFETY_S)
            self._heal()
            self.world.run(SAFETY_S + HEALING_S)
            judge(self.cluster, self.book, self.readers)
        except Violated as violated:
            return violated.invariant, violated.detail
        except AssertionError as error:
            return "assertion", _where(error)
        except Exception as error:
            return "exception", _where(error)
        return None

    # --- clients ---

    def _plain_lives(self, name: str, life: int) -> None:
        """One life after the other; now and then the next begins before the last is over."""
        world = self.world
        if world.now >= SAFETY_S - 2:
            return
        ends = world.now + world.rng.uniform(1.0, 12.0)
        zombie_s = world.rng.uniform(0.0, 6.0) if world.rng.random() < 0.5 else 0.0
        world.start(plain(self.cluster, self.book, name, life, min(ends + zombie_s, SAFETY_S)))
        world.after(ends - world.now, lambda: self._plain_lives(name, life + 1))

    def _joint_runs(self, app: str, run: int) -> None:
        world = self.world
        if world.now >= SAFETY_S - 2:
            return
        ends = world.now + world.rng.uniform(2.0, 12.0)
        zombie_s = world.rng.uniform(0.0, 6.0) if world.rng.random() < 0.5 else 0.0
        world.start(joint(self.cluster, self.book, app, run, min(ends + zombie_s, SAFETY_S)))
        world.after(ends - world.now, lambda: self._joint_runs(app, run + 1))

    # --- faults ---

    def _plan(self) -> None:
        world, rng = self.world, self.world.rng
        for _ in range(rng.randint(3, 15)):  # Leaders move in every world.
            log = rng.choice(list(self.cluster.by_partition.values()))
            world.after(rng.uniform(0.5, SAFETY_S), lambda log=log: self._move(log))  # type: ignore[misc]
        if "crash" in world.faults:
            for _ in range(rng.randint(0, 6)):
                world.after(rng.uniform(0.5, SAFETY_S - 6), self._crash)
        if "pause" in world.faults:
            for _ in range(rng.randint(0, 4)):
                world.after(rng.uniform(0.5, SAFETY_S - 6), self._pause)
        if "clock" in world.faults:
            for node in NODES:
                world.skew_ms[node] = rng.randint(-1500, 1500)
        if "network" in world.faults:
            world.late_share = rng.choice((0.0, 0.02, 0.1))
            for _ in range(rng.randint(0, 5)):
                world.after(rng.uniform(0.5, SAFETY_S - 6), self._storm)

    def _move(self, log: Any) -> None:
        up = [node for node in NODES if self.world.up[node]]
        log.elect(self.world.rng.choice(up))

    def _crash(self) -> None:
        world = self.world
        if not all(world.up.values()):
            return
        node = world.rng.choice(NODES)
        self.crashes += 1
        self.cluster.crash(node)
        world.after(world.rng.uniform(0.3, 5.0), lambda: self.cluster.restart(node))

    def _pause(self) -> None:
        """A process stands still; of what it leads, others take over."""
        world = self.world
        node = world.rng.choice(NODES)
        self.pauses += 1
        world.tell(node, "paused")
        world.paused_until[node] = world.now + world.rng.uniform(0.5, 4.0)
        others = [each for each in NODES if world.up[each] and each != node]
        for log in self.cluster.by_partition.values():
            if log.leader == node and others:
                log.elect(world.rng.choice(others))

    def _storm(self) -> None:
        world = self.world
        self.storms += 1
        world.loss = world.rng.uniform(0.1, 0.5)
        world.tell(0, "storm", f"{world.loss:.0%} of all messages are lost or doubled")

        def over() -> None:
            world.loss = 0.0

        world.after(world.rng.uniform(0.5, 4.0), over)

    def _heal(self) -> None:
        world = self.world
        world.tell(0, "healed")
        world.is_healed = True
        for node in NODES:
            if not world.up[node]:
                self.cluster.restart(node)


def _where(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.filename.rsplit('/', 1)[-1]}:{frame.lineno})"
