"""Worlds full of faults: nothing acknowledged is lost, nothing else is broken, and everything heals."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from quorate.sim.faults import PROFILES
from quorate.sim.run import Sum, Verdict, run_seeds

SAMPLE = 25
PROOF = 2_000
CHUNK = 5
PROOF_CHUNK = 100
ONE_KIND = 1
"""Worlds for each kind of fault by itself, beside those with all of them at once."""
ONE_KIND_PROOF = 20
WITHOUT_MEMBERSHIP = ",".join(name for name in PROFILES if name != "membership")


def chunks(count: int, size: int) -> list[range]:
    return [range(first, first + size) for first in range(0, count, size)]


def expect_nothing_broken(total: Sum) -> None:
    lines = [f"{each.invariant}: {each.detail}\n  {each.reproduce}" for each in total.violations]
    assert not lines, "\n" + "\n".join(lines)
    assert total.acknowledged > 0, "a world in which nothing succeeds proves nothing"


class Case(NamedTuple):
    """A world that showed a bug once."""

    seed: int
    faults: str
    overrides: dict[str, int]
    nodes: int = 3


@pytest.mark.parametrize("seeds", chunks(SAMPLE, CHUNK), ids=str)
def test_nothing_is_broken_under_all_faults(seeds: range) -> None:
    total = run_seeds(seeds)
    expect_nothing_broken(total)
    assert total.crashes > 0


@pytest.mark.behaviour("YB-12", "YB-13", "YB-15")
def test_ensembles_change_and_leadership_moves_in_worlds_of_commands() -> None:
    verdicts: list[Verdict] = []
    expect_nothing_broken(run_seeds(range(6), faults="membership", progress=verdicts.append))
    assert sum(verdict.toll.changes_settled for verdict in verdicts) > 0
    assert sum(verdict.toll.transfers_settled for verdict in verdicts) > 0
    assert sum(verdict.ends for verdict in verdicts) > 0


@pytest.mark.parametrize("profile", PROFILES)
def test_nothing_is_broken_under_one_kind_of_fault(profile: str) -> None:
    expect_nothing_broken(run_seeds(range(ONE_KIND), faults=profile))


def test_nothing_is_broken_without_faults() -> None:
    total = run_seeds(range(3), faults="none")
    expect_nothing_broken(total)
    assert total.truncations == 0


@pytest.mark.parametrize("nodes", [1, 2, 5, 7])
def test_nothing_is_broken_in_worlds_of_another_size(nodes: int) -> None:
    expect_nothing_broken(run_seeds(range(2), nodes=nodes))


@pytest.mark.behaviour("YB-5", "OR-16")
def test_nothing_is_broken_with_learners() -> None:
    expect_nothing_broken(run_seeds(range(3), learners=2))


ONCE_BROKEN = {
    "a machine behind a snapshot was not fed on": Case(
        172, "damage,crash,network,power", {"value_bytes_max": 10, "tail_bytes": 4096}
    ),
    "a check left out what waited for its segment": Case(
        74_340, "damage,slow-disk", {"value_bytes_max": 100}, nodes=4
    ),
    "entries were removed while they were read": Case(94_695, "damage,pause,wipe,crash", {}, nodes=4),
    "a machine was not fed on behind a repair": Case(16_773, "damage", {"tail_bytes": 65_536}),
    "what was repaired was found damaged by an older read": Case(
        61_580, "damage", {"value_bytes_max": 100, "tail_bytes": 65_536}
    ),
    "a frame in the place of another was read": Case(
        59_250, "damage,clock,full-disk", {"value_bytes_max": 1, "tail_bytes": 65_536}, nodes=4
    ),
    "a segment that never was had a flushed name": Case(68_959, WITHOUT_MEMBERSHIP, {"tail_bytes": 4096}),
    "marks of an older generation were believed": Case(61_906, "damage,wipe", {"tail_bytes": 65_536}),
    "a check went through many segments that are not written yet": Case(
        72_604, WITHOUT_MEMBERSHIP, {"value_bytes_max": 1000, "tail_bytes": 0}, nodes=1
    ),
    "a leader at rest found damage that only a snapshot mends": Case(
        10_121, "damage,crash,pause,clock", {}, nodes=4
    ),
    "a full disk kept a machine from a snapshot that was installed": Case(
        316, WITHOUT_MEMBERSHIP, {"producers_share": 1}
    ),
    "nobody had what was damaged": Case(201, "damage", {"value_bytes_max": 10, "tail_bytes": 0}),
}

COMMANDS_ONCE_BROKE = {
    "an ensemble of one had nobody to ping": Case(0, "membership", {}),
    "only those who were left out had the entry that said so": Case(14, "membership", {}),
    "a round of reads was open when nobody else counted any more": Case(48, "membership", {}),
    "a leader that was leaving took another change": Case(54, "membership", {}),
    "a read waited for what a replica that was left out will never have": Case(176, "all", {}),
    "a leader that was leaving led on while a change was open": Case(766, "all", {}),
    "an answer to another life made a prospect stand": Case(620, "all", {}),
    "who never stands never came to rest": Case(826, "all", {}),
    "a change to what stood already was answered with another offset": Case(853, "all", {}),
}


@pytest.mark.parametrize("case", ONCE_BROKEN.values(), ids=ONCE_BROKEN.keys())
def test_nothing_is_broken_where_something_was(case: Case) -> None:
    # Without what was added since these worlds are as near as can be to what they were when they showed it.
    before = {
        "producers_share": 0,
        "readers_count": 0,
        "clocks_wild": 1,
        "ceiling_s": 0,
        "prefer_snapshots": 0,
    }
    overrides = {**before, **case.overrides}
    total = run_seeds([case.seed], faults=case.faults, nodes=case.nodes, overrides=overrides)
    expect_nothing_broken(total)


@pytest.mark.parametrize("case", COMMANDS_ONCE_BROKE.values(), ids=COMMANDS_ONCE_BROKE.keys())
def test_nothing_is_broken_where_a_command_broke_something(case: Case) -> None:
    expect_nothing_broken(run_seeds([case.seed], faults=case.faults, overrides=case.overrides))


@pytest.mark.proof
@pytest.mark.parametrize("seeds", chunks(PROOF, PROOF_CHUNK), ids=str)
def test_nothing_is_broken_under_all_faults_and_commands_in_two_thousand_worlds(seeds: range) -> None:
    expect_nothing_broken(run_seeds(seeds, faults="all,membership"))


@pytest.mark.proof
@pytest.mark.parametrize("profile", PROFILES)
def test_nothing_is_broken_under_one_kind_of_fault_in_a_hundred_worlds(profile: str) -> None:
    expect_nothing_broken(run_seeds(range(100), faults=profile))


@pytest.mark.proof
@pytest.mark.parametrize("nodes", [2, 5, 7])
def test_nothing_is_broken_in_a_hundred_worlds_of_another_size(nodes: int) -> None:
    expect_nothing_broken(run_seeds(range(100), nodes=nodes))
