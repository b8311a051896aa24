"""Worlds in which what is sent to copies that do not count yet waits its turn, and stands still for a while."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.host.pacing import Pacer
from quorate.sim.run import run_seeds
from tests.simulation.test_seeds import chunks, expect_nothing_broken

PROTOCOLS = ("raft", "coordinated", "isr", "confirm")
SAMPLE = 4
PROOF = 200
CHUNK = 2
PROOF_CHUNK = 50
PROMISED = "all,pacing"


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
def test_copies_that_are_made_wait_their_turn_and_get_it(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []
    when_free = Pacer.when_free

    def watched(pacer: Pacer, *what: Any, **more: Any) -> None:
        when_free(pacer, *what, **more)
        waited.append(pacer.waiting_count)

    monkeypatch.setattr(Pacer, "when_free", watched)
    expect_nothing_broken(run_seeds(range(SAMPLE), protocol=protocol, faults="membership,pacing"))
    assert any(waited)
