"""Worlds of `coordinated`, with operators, their store, and everything that can go wrong with either."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from quorate.sim.faults import PROFILES
from quorate.sim.run import Verdict, run_seed, run_seeds
from tests.simulation.test_seeds import ONE_KIND, ONE_KIND_PROOF, chunks, expect_nothing_broken

SAMPLE = 20
PROOF = 2_000
CHUNK = 5
PROOF_CHUNK = 100
EVERYTHING = "all,operator,membership"


class Case(NamedTuple):
    """A world that showed a bug once."""

    seed: int
    faults: str


@pytest.mark.behaviour("OX-3")
@pytest.mark.parametrize("seeds", chunks(SAMPLE, CHUNK), ids=str)
def test_nothing_is_broken_under_all_faults(seeds: range) -> None:
    total = run_seeds(seeds, protocol="coordinated", faults=EVERYTHING)
    expect_nothing_broken(total)
    assert total.crashes > 0
    assert total.operators
    assert total.operators > len(seeds)


@pytest.mark.parametrize("profile", PROFILES)
def test_nothing_is_broken_under_one_kind_of_fault(profile: str) -> None:
    expect_nothing_broken(run_seeds(range(ONE_KIND), protocol="coordinated", faults=profile))


@pytest.mark.proof
@pytest.mark.parametrize("profile", PROFILES)
def test_proof_of_one_kind_of_fault(profile: str) -> None:
    expect_nothing_broken(run_seeds(range(ONE_KIND, ONE_KIND_PROOF), protocol="coordinated", faults=profile))


def test_nothing_is_broken_without_faults() -> None:
    total = run_seeds(range(3), protocol="coordinated", faults="none")
    expect_nothing_broken(total)
    assert total.operators == 3
    assert total.reconfigurations == 0


def test_ensembles_change_in_worlds_of_orders() -> None:
    total = run_seeds(range(6), protocol="coordinated", faults="membership")
    expect_nothing_broken(total)
    assert total.reconfigurations
    assert total.reconfigurations > 6


@pytest.mark.parametrize("whole", [False, True], ids=["dictionary", "metadata group"])
def test_both_stores_serve(whole: bool) -> None:
    total = run_seeds(range(100, 105), protocol="coordinated", faults=EVERYTHING, overrides={"whole": whole})
    expect_nothing_broken(total)


def test_five_nodes() -> None:
    expect_nothing_broken(run_seeds(range(4), protocol="coordinated", faults=EVERYTHING, nodes=5))


def test_same_seed_gives_the_same_story() -> None:
    def lines(verdict: Verdict) -> list[str]:
        return [str(happening) for happening in verdict.happenings or ()]

    runs = [run_seed(3, protocol="coordinated", faults=EVERYTHING, trace=True) for _ in range(2)]
    assert lines(runs[0]) == lines(runs[1])
    assert len(lines(runs[0])) > 500


@pytest.mark.parametrize(
    "case",
    [
        Case(31, "none"),  # A follower fell below the leader's log while its entries were under way.
        Case(11, "pause"),  # A node was suspected while the operator was writing.
        Case(12, "membership"),  # The leader of two was to be swapped.
        Case(7, EVERYTHING),  # Another operator called off what this one was preparing.
        Case(122, EVERYTHING),  # An acknowledgement of the epoch before was let go by a fenced node.
        Case(982, EVERYTHING),  # Fenced, and the answer named a head that a snapshot had replaced since.
        Case(198, EVERYTHING),  # A late one was not added while a contraction waited for it.
    ],
    ids=str,
)
def test_worlds_that_showed_a_bug(case: Case) -> None:
    expect_nothing_broken(run_seeds([case.seed], protocol="coordinated", faults=case.faults))


@pytest.mark.proof
@pytest.mark.behaviour("OX-3")
@pytest.mark.parametrize("seeds", chunks(PROOF, PROOF_CHUNK), ids=str)
def test_proof_of_every_promised_seed(seeds: range) -> None:
    expect_nothing_broken(run_seeds(seeds, protocol="coordinated", faults=EVERYTHING))
