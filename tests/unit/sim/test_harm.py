"""What harm is fair: bytes of a lone, idle node, whose newest entry went straight to its segment."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from quorate.batch import encode_records
from quorate.core.raft import Tuning
from quorate.host import HostSettings
from quorate.sim.chaos import Toll
from quorate.sim.faults import Fault
from quorate.sim.harm import Harm, kind_of
from quorate.sim.invariants import Invariants
from quorate.sim.run import ROOMS
from quorate.sim.setup import Setup
from quorate.sim.tunables import Tunables
from quorate.sim.world import World
from quorate.storage.settings import TINY

TUNABLES = Tunables(host=HostSettings(store=TINY, raft=Tuning(election_timeout_s=0.15, heartbeat_s=0.03)))
CHANCES = range(40)
FIRSTS_MAX = 8


class Bench:
    def __init__(self) -> None:
        invariants = Invariants(1, ROOMS["raft"])
        self.world = World(Setup(7, TUNABLES, voters=((1,),), learners=((),)), watch=invariants)
        self.disk = self.world.nodes[1].disk
        self.harm = Harm(self.world, Toll(), invariants)
        self.world.start(1)
        self.world.run(1.0)
        self.write()

    def write(self) -> None:
        """A round with a large entry, and its marks."""
        batch = encode_records([(None, bytes(range(1, 256)) * 8)])
        assert self.world.propose(1, 0, [batch], lambda reply: None)
        self.world.run(self.world.now + 1.0)

    def strike(self, chance: int) -> str:
        """The kind of file that was hit; empty: none could be."""
        before = {name: self.disk.content(name) for name in self.disk.files()}
        self.harm.begin(Fault(self.world.now, "damage", nodes=(1,), chance=chance))
        self.world.run(self.world.now + 1.0)
        hit = [kind_of(name) for name in before if self.disk.content(name) != before[name]]
        assert len(hit) <= 1
        return hit[0] if hit else ""

    def restart(self) -> None:
        self.world.crash(1)
        self.world.start(1)
        self.world.run(self.world.now + 1.0)


@cache
def chances_of(kind: str) -> list[int]:
    """Those that harm one kind of file of a node first."""
    found = [chance for chance in CHANCES if Bench().strike(chance) == kind]
    assert found, f"no chance hits {kind}"
    return found


def hit_after(kind: str, then: Callable[[Bench], None] = lambda bench: None) -> set[str]:
    """The kinds of files that can be harmed after another, when something has happened in between."""
    hits = set()
    for chance in CHANCES:
        bench = Bench()
        bench.strike(chances_of(kind)[0])
        then(bench)
        hits.add(bench.strike(chance))
    return hits - {""}


def test_what_the_newest_round_put_into_a_segment_keeps_the_marks_that_prove_it() -> None:
    assert "log" not in hit_after("marks")
    assert hit_after("log") == {"journal", "log"}


def test_segments_and_marks_are_fair_again_when_the_journal_has_gone_on() -> None:
    assert "log" in hit_after("marks", Bench.write)
    assert hit_after("log", Bench.write) == {"journal", "log", "marks"}


def test_journal_and_marks_are_spared_after_either_until_the_node_has_written_both_anew() -> None:
    for kind in ("journal", "marks"):
        assert hit_after(kind, Bench.write) == {"log"}
        assert hit_after(kind, Bench.restart) == {"journal", "log", "marks"}


@pytest.mark.parametrize("kind", ["journal", "log", "marks"])
def test_two_harms_never_make_a_node_forget_what_it_had_flushed(kind: str) -> None:
    """The invariants say so when it comes back, by raising `Violated`."""
    for first in chances_of(kind)[:FIRSTS_MAX]:
        for second in CHANCES:
            bench = Bench()
            bench.strike(first)
            bench.strike(second)
            bench.restart()
