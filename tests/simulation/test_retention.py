"""Worlds in which logs keep everything but what expires, and now and then something does."""

from __future__ import annotations

import pytest

from quorate.sim.run import Run, plan_seed, run_seeds
from tests.simulation.test_seeds import chunks, expect_nothing_broken

PROTOCOLS = ("raft", "coordinated", "isr", "confirm")
SAMPLE = 4
PROOF = 100
CHUNK = 2
PROOF_CHUNK = 50
PROMISED = "all,retention"


@pytest.mark.parametrize("seeds", chunks(SAMPLE, CHUNK), ids=str)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_broken_under_all_faults(protocol: str, seeds: range) -> None:
    expect_nothing_broken(run_seeds(seeds, protocol=protocol, faults=PROMISED))


@pytest.mark.proof
@pytest.mark.parametrize("seeds", chunks(PROOF, PROOF_CHUNK), ids=str)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_proof_of_every_promised_seed(protocol: str, seeds: range) -> None:
    expect_nothing_broken(run_seeds(seeds, protocol=protocol, faults=PROMISED))


@pytest.mark.parametrize("protocol", ["coordinated", "isr"])
def test_what_is_missing_is_filled_in_before_anybody_loses_patience(protocol: str) -> None:
    """Each stretch was asked for twice, and the next one only when its time had come (seed 126)."""
    faults = "crash,power,damage,full-disk,wipe,membership,operator,retention"
    expect_nothing_broken(run_seeds(range(126, 127), protocol=protocol, faults=faults))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_something_expires_and_every_copy_starts_there_in_the_end(protocol: str) -> None:
    run = Run(plan_seed(3, protocol=protocol, faults="retention"))
    assert not run.verdict().violations
    assert run.chaos.toll.expired > 0
    wanted = run.chaos.expiry.wanted
    assert wanted
    for partition, (entry, _) in wanted.items():
        for node in run.world.setup.voters[partition]:
            hosted = run.world.hosted(node, partition)
            assert hosted is not None
            assert hosted.replica.log.base == entry
