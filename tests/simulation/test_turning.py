"""Worlds whose partitions go from one protocol to another, again and again, while everything fails (017)."""

from __future__ import annotations

from itertools import permutations

import pytest

from quorate.machine.metadata import REPLICATIONS
from quorate.sim.run import plan_seed, run_seeds
from quorate.sim.turning import TurningRun
from tests.simulation.test_seeds import chunks, expect_nothing_broken

SAMPLE = 12
PROOF = 1000
CHUNK = 4
PROOF_CHUNK = 50
PROMISED = "all,operator,retention"
PAIRS = set(permutations(REPLICATIONS, 2))


@pytest.mark.parametrize("seeds", chunks(SAMPLE, CHUNK), ids=str)
def test_nothing_is_broken_under_all_faults(seeds: range) -> None:
    expect_nothing_broken(run_seeds(seeds, protocol="turning", faults=PROMISED))


@pytest.mark.proof
@pytest.mark.parametrize("seeds", chunks(PROOF, PROOF_CHUNK), ids=str)
def test_proof_of_every_promised_seed(seeds: range) -> None:
    expect_nothing_broken(run_seeds(seeds, protocol="turning", faults=PROMISED))


@pytest.mark.proof
@pytest.mark.parametrize("seeds", chunks(200, PROOF_CHUNK), ids=str)
def test_proof_for_tables(seeds: range) -> None:
    settings = {"tables_share": 1}
    expect_nothing_broken(run_seeds(seeds, protocol="turning", faults=PROMISED, overrides=settings))


def test_every_pair_of_protocols_is_among_few_seeds_and_each_turn_comes_to_its_end() -> None:
    found: set[tuple[str, str]] = set()
    for seed in range(40):
        run = TurningRun(plan_seed(seed, protocol="turning", faults="none"))
        assert not run.verdict().violations
        assert not run.turner.unfinished()
        found |= set(run.turner.pairs)
        if found >= PAIRS:
            return
    raise AssertionError(f"missing: {sorted(PAIRS - found)}")
