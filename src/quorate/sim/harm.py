"""Turns bytes of unlucky nodes into others, where that is fair.

Only what lies at or below a log's durable mark may be told from a torn write, so nobody can promise
anything about younger bytes. A byte is old enough when it was flushed, and its node has been up and writing
normally for several mark delays since: the marks that speak of it are flushed in two places by then.

Fair is also to leave one proof. Journal and marks vouch for each other: after a harm to either, both are spared
until the node has been restarted and has written them anew. And that a round was flushed, only the next round
and the marks say: what the newest one put straight into a segment could be a torn write, if the marks are gone. So
of segments and marks only one is harmed, until the journal has gone on.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from quorate.sim.disk import SimDisk
from quorate.sim.faults import Fault
from quorate.sim.invariants import Invariants
from quorate.sim.sim_node import SimNode
from quorate.sim.world import World
from quorate.storage.frame import frames_in

if TYPE_CHECKING:
    from quorate.sim.chaos import Toll

PLACES_TRIED = 40
BLOCKS = (8, 64, 512)
WEIGHTS = {"log": 4, "journal": 8, "marks": 3, "snapshot": 2}
"""How often each kind of file is hit; there are many segments, and two journals."""


class Old(NamedTuple):
    """What was flushed at some moment, and what has been written since."""

    files: dict[str, bytes]
    writes: list[tuple[str, int, int]]

    def untouched(self, name: str, start: int, end: int) -> bool:
        """Equal bytes would not do: a young round may have some in common with what was there before."""
        return not any(
            other == name and written < end and start < until for other, written, until in self.writes
        )


class Blow(NamedTuple):
    """A harm that was done to a node."""

    life: int
    journals: dict[str, bytes]
    """What was flushed of them then: another round, or another life, and they differ."""


class Harm:
    def __init__(self, world: World, toll: Toll, invariants: Invariants | None) -> None:
        self.world = world
        self.toll = toll
        self.invariants = invariants
        self.keep_down: Callable[[int, float], None] = lambda number, seconds: None
        self.over = False
        """Everything has healed."""
        self.troubled_at: dict[int, float] = {}
        """Until when a node's disk was full or slow, or its clock behind: marks may have waited until then."""
        self._blows: dict[tuple[int, str], Blow] = {}
        """The last one to each kind of file of a node."""

    def begin(self, fault: Fault) -> None:
        """Remember what is flushed now; by the time that the marks speak of it, it is fair game."""
        number = fault.nodes[0]
        node = self.world.nodes[number]
        if node.host is None:
            return
        disk = node.disk
        old = disk.durable_files()
        writes: list[tuple[str, int, int]] = []
        disk.watches.append(writes)
        life = node.lives
        began = self.world.now

        def strike(_: None) -> None:
            disk.watches = [other for other in disk.watches if other is not writes]
            undisturbed = node.paused_until <= began and self.troubled_at.get(number, -1.0) < began
            if undisturbed and not self.over and node.host is not None and node.lives == life:
                self._strike(fault, number, Old(old, writes))

        self.world.after(self._marked_after(), strike, None)

    def _marked_after(self) -> float:
        tunables = self.world.tunables
        return 3 * tunables.host.store.mark_delay_s + 12 * tunables.disk.latency_max

    def _strike(self, fault: Fault, number: int, old: Old) -> None:
        rng = Random(fault.chance)
        node = self.world.nodes[number]
        spared = self._spared(node)
        names = [name for name in sorted(old.files) if kind_of(name) not in spared]
        found = self._harm(rng, node.disk, old, names)
        if found is None:
            return
        self._blows[number, kind_of(found.partition(":")[0])] = Blow(node.lives, journals_on(node.disk))
        self.toll.damaged += 1
        if self.invariants is not None:
            self.invariants.damaged(number)
        if self.world.trace is not None:
            self.world.trace.add(self.world.now, number, "damaged", text=found)
        if fault.seconds:
            self.world.crash(number)
            self.keep_down(number, fault.seconds)

    def _spared(self, node: SimNode) -> set[str]:
        """The kinds of files that hold the last proof of what was harmed before."""
        spared: set[str] = set()
        journals = journals_on(node.disk)
        for kind in WEIGHTS:
            blow = self._blows.get((node.number, kind))
            if blow is None:
                continue
            if kind in ("journal", "marks") and blow.life == node.lives:
                spared |= {"journal", "marks"}
            if kind in ("log", "marks") and blow.journals == journals:
                spared |= {"log", "marks"} - {kind}
        return spared

    def _harm(self, rng: Random, disk: SimDisk, old: Old, names: list[str]) -> str | None:
        present = set(disk.files())
        names = [name for name in names if name in present and any(old.files[name])]
        weights = [WEIGHTS[kind_of(name)] for name in names]
        for _ in range(PLACES_TRIED if names else 0):
            (name,) = rng.choices(names, weights)
            then = old.files[name]
            size = len(disk.content(name))
            if size < len(then):
                continue  # It was cut, or another has its name.
            at = rng.randrange(len(then.rstrip(b"\0")))  # A journal is preallocated: its rest is empty.
            other = rng.randrange(len(then))
            kind = rng.choice(("flip", "zero", "swap", "swap frames", "truncate"))
            length = 1 if kind == "flip" else min(rng.choice(BLOCKS), len(then) - at)
            if kind == "swap frames":  # Both stay intact: only their identity tells.
                frames = [*frames_in(then)]
                pairs = [(one, two) for one, two in pairwise(frames) if one[1] == two[1]]
                if not pairs:
                    continue
                (at, length), (other, _) = rng.choice(pairs)
            if not any(then[at : at + length]) or not old.untouched(name, at, at + length):
                continue
            if kind == "flip":
                disk.flip(name, at, rng.randrange(8))
            elif kind == "zero":
                disk.zero(name, at, length)
            elif kind == "truncate":
                if size > len(then) or not old.untouched(name, at, len(then)):
                    continue  # Something young is behind it.
                disk.truncate_to(name, at)
            else:
                one, two = then[at : at + length], then[other : other + length]
                if abs(other - at) < length or one == two or len(two) < length:
                    continue
                if not old.untouched(name, other, other + length):
                    continue
                disk.swap(name, at, other, length)
            return f"{name}: {kind} {length} bytes at {at}"
        return None


def kind_of(name: str) -> str:
    if name.startswith(("journal.", "marks.")):
        return name.partition(".")[0]
    return "log" if name.endswith(".log") else "snapshot"


def journals_on(disk: SimDisk) -> dict[str, bytes]:
    return {name: content for name, content in disk.durable_files().items() if kind_of(name) == "journal"}
