"""Worlds in which logs are compacted, under every fault, in every protocol: a dictionary says what is to stay."""

from __future__ import annotations

import pytest

from quorate.sim.run import Run, plan_seed, run_seeds
from tests.simulation.test_seeds import chunks, expect_nothing_broken

PROTOCOLS = ("raft", "coordinated", "isr", "confirm")
SAMPLE = 4
PROOF = 100
CHUNK = 2
PROOF_CHUNK = 50
PROMISED = "all,compaction"


@pytest.mark.parametrize("seeds", chunks(SAMPLE, CHUNK), ids=str)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_broken_under_all_faults(protocol: str, seeds: range) -> None:
    expect_nothing_broken(run_seeds(seeds, protocol=protocol, faults=PROMISED))


@pytest.mark.proof
@pytest.mark.parametrize("seeds", chunks(PROOF, PROOF_CHUNK), ids=str)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_proof_of_every_promised_seed(protocol: str, seeds: range) -> None:
    expect_nothing_broken(run_seeds(seeds, protocol=protocol, faults=PROMISED))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_logs_are_compacted_more_than_once_and_alike_in_the_end(protocol: str) -> None:
    run = Run(plan_seed(3, protocol=protocol, faults="compaction"))
    assert not run.verdict().violations
    assert run.chaos.compaction.count > 1
    for partition, generation in run.chaos.compaction.agreed.items():
        copies = [run.world.hosted(node, partition) for node in run.world.setup.holders[partition]]
        assert all(copy is not None and copy.replica.log.compacted == generation.upto for copy in copies)
