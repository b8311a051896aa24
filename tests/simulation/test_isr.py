"""Worlds of `isr`, with controllers, their store, and everything that can go wrong with either."""

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
PROMISED = "all,membership"
EVERYTHING = "all,membership,operator"


class Case(NamedTuple):
    """A world that showed a bug once."""

    seed: int
    faults: str


@pytest.mark.behaviour("LB-10", "LB-17")
@pytest.mark.parametrize("seeds", chunks(SAMPLE, CHUNK), ids=str)
def test_nothing_is_broken_under_all_faults(seeds: range) -> None:
    total = run_seeds(seeds, protocol="isr", faults=PROMISED)
    expect_nothing_broken(total)
    assert total.crashes > 0
    assert total.operators
    assert total.shrinks
    assert total.expands


def test_nothing_is_broken_where_controllers_compete_and_die() -> None:
    total = run_seeds(range(5), protocol="isr", faults=EVERYTHING)
    expect_nothing_broken(total)
    assert total.operators
    assert total.operators > 5


@pytest.mark.parametrize("profile", PROFILES)
def test_nothing_is_broken_under_one_kind_of_fault(profile: str) -> None:
    expect_nothing_broken(run_seeds(range(ONE_KIND), protocol="isr", faults=profile))


@pytest.mark.proof
@pytest.mark.parametrize("profile", PROFILES)
def test_proof_of_one_kind_of_fault(profile: str) -> None:
    expect_nothing_broken(run_seeds(range(ONE_KIND, ONE_KIND_PROOF), protocol="isr", faults=profile))


def test_nobody_falls_out_of_sync_without_faults() -> None:
    """However many entries are under way at any moment: lag is a matter of time."""
    total = run_seeds(range(3), protocol="isr", faults="none")
    expect_nothing_broken(total)
    assert total.acknowledged > 100
    assert total.shrinks == 0
    assert total.operators == 3
    assert total.reconfigurations == 0


@pytest.mark.behaviour("LB-12", "LB-13")
def test_leaders_are_reported_and_followed_by_others() -> None:
    """Nobody but the followers says that a leader is gone."""
    overrides = {"watched": False}
    total = run_seeds(range(6), protocol="isr", faults="network,pause,crash", overrides=overrides)
    expect_nothing_broken(total)
    assert total.reports
    assert total.elections > 6


def test_copies_change_in_worlds_of_orders() -> None:
    total = run_seeds(range(6), protocol="isr", faults="membership")
    expect_nothing_broken(total)
    assert total.reconfigurations
    assert total.reconfigurations > 6


@pytest.mark.parametrize("whole", [False, True], ids=["dictionary", "metadata group"])
def test_both_stores_serve(whole: bool) -> None:
    total = run_seeds(range(100, 105), protocol="isr", faults=EVERYTHING, overrides={"whole": whole})
    expect_nothing_broken(total)


def test_five_nodes() -> None:
    expect_nothing_broken(run_seeds(range(4), protocol="isr", faults=EVERYTHING, nodes=5))


def test_same_seed_gives_the_same_story() -> None:
    def lines(verdict: Verdict) -> list[str]:
        return [str(happening) for happening in verdict.happenings or ()]

    runs = [run_seed(3, protocol="isr", faults=EVERYTHING, trace=True) for _ in range(2)]
    assert lines(runs[0]) == lines(runs[1])


@pytest.mark.parametrize(
    "case",
    [
        Case(2, PROMISED),  # A leader spoke in an epoch that it had not flushed.
        Case(209, PROMISED),  # It led before that epoch was flushed, and led it again after a crash.
        Case(198, PROMISED),  # A refused disk order: it spoke of a head that it was about to cut.
        Case(107, PROMISED),  # One that was taken in had forgotten that by its next start.
        Case(119, PROMISED),  # A leader that was removed did not hear of it.
        Case(715, EVERYTHING),  # A late request of an earlier session took the place of the newest.
        Case(186, PROMISED),  # Answers that took longer than the pause between two requests were dropped.
    ],
    ids=str,
)
def test_worlds_that_showed_a_bug(case: Case) -> None:
    expect_nothing_broken(run_seeds([case.seed], protocol="isr", faults=case.faults))


@pytest.mark.proof
@pytest.mark.behaviour("LB-10", "LB-17")
@pytest.mark.parametrize("seeds", chunks(PROOF, PROOF_CHUNK), ids=str)
def test_proof_of_every_promised_seed(seeds: range) -> None:
    expect_nothing_broken(run_seeds(seeds, protocol="isr", faults=PROMISED))
