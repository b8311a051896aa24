"""Coordinators, producers and readers in worlds of faults: exactly once, and nothing else."""

from __future__ import annotations

import pytest

from quorate.sim.run import run_seed
from tests.simulation.test_replay import story

FAULTS = "network,crash,pause,clock"


def violations(seeds: range) -> list[str]:
    found = []
    for seed in seeds:
        verdict = run_seed(seed, protocol="transactions", faults=FAULTS)
        found += [f"seed {seed}: {each.invariant}: {each.detail}" for each in verdict.violations]
    return found


def test_a_sample_of_worlds_holds() -> None:
    assert violations(range(60)) == []


@pytest.mark.proof
@pytest.mark.parametrize("first", range(0, 2000, 250))
def test_two_thousand_worlds_hold(first: int) -> None:
    assert violations(range(first, first + 250)) == []


def test_worlds_are_worth_something() -> None:
    """Transactions are committed, leaders change, and something goes wrong."""
    verdicts = [run_seed(seed, protocol="transactions", faults=FAULTS) for seed in range(20)]
    assert sum(verdict.acknowledged for verdict in verdicts) > 100
    assert sum(verdict.elections for verdict in verdicts) > 100
    assert sum(verdict.crashes for verdict in verdicts) > 5


def test_a_story_is_the_same_in_processes_that_hash_differently() -> None:
    told = story(5, hash_seed=1, protocol="transactions")
    assert told == story(5, hash_seed=2, protocol="transactions")
    assert told.count(b"\n") > 300
