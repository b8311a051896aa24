"""Worlds of `confirm`: topics and tables, quorums of all safe sizes, orders, and a person who looks after them."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from quorate.sim.faults import profiles_of
from quorate.sim.run import Verdict, run_seed, run_seeds
from tests.simulation.test_seeds import ONE_KIND, ONE_KIND_PROOF, chunks, expect_nothing_broken

SAMPLE = 20
PROOF = 2_000
CHUNK = 5
PROOF_CHUNK = 100
PROMISED = "all,membership"


class Case(NamedTuple):
    """A world that showed a bug once."""

    seed: int
    faults: str = PROMISED


@pytest.mark.behaviour("TT-1", "TT-5", "D8")
@pytest.mark.parametrize("seeds", chunks(SAMPLE, CHUNK), ids=str)
def test_nothing_is_broken_under_all_faults(seeds: range) -> None:
    total = run_seeds(seeds, protocol="confirm", faults=PROMISED)
    expect_nothing_broken(total)
    assert total.crashes > 0
    assert total.confirms
    assert total.undone
    assert total.promotions


@pytest.mark.parametrize("profile", profiles_of("confirm"))
def test_nothing_is_broken_under_one_kind_of_fault(profile: str) -> None:
    expect_nothing_broken(run_seeds(range(ONE_KIND), protocol="confirm", faults=profile))


@pytest.mark.proof
@pytest.mark.parametrize("profile", profiles_of("confirm"))
def test_proof_of_one_kind_of_fault(profile: str) -> None:
    expect_nothing_broken(run_seeds(range(ONE_KIND, ONE_KIND_PROOF), protocol="confirm", faults=profile))


def test_nothing_is_taken_back_without_faults() -> None:
    total = run_seeds(range(3), protocol="confirm", faults="none")
    expect_nothing_broken(total)
    assert total.acknowledged > 100
    assert total.confirms
    assert (total.rollbacks, total.undone) == (0, 0)


@pytest.mark.behaviour("TT-10", "TT-38", "D8")
def test_rollbacks_are_settled_in_worlds_of_orders() -> None:
    total = run_seeds(range(8), protocol="confirm", faults="membership")
    expect_nothing_broken(total)
    assert total.rollbacks
    assert total.undone
    assert total.undone > total.rollbacks


@pytest.mark.behaviour("TT-12")
def test_somebody_leads_where_nothing_is_automatic() -> None:
    """Nobody stands unasked; a person promotes somebody."""
    overrides = {"automatic": False}
    total = run_seeds(range(5), protocol="confirm", faults="network,crash", overrides=overrides)
    expect_nothing_broken(total)
    assert total.promotions
    assert total.promotions > 5


def test_five_nodes() -> None:
    expect_nothing_broken(run_seeds(range(4), protocol="confirm", faults=PROMISED, nodes=5))


@pytest.mark.behaviour("TT-34")
def test_asynchronous_replicas_follow() -> None:
    expect_nothing_broken(run_seeds(range(4), protocol="confirm", faults=PROMISED, learners=2))


def test_same_seed_gives_the_same_story() -> None:
    def lines(verdict: Verdict) -> list[str]:
        return [str(happening) for happening in verdict.happenings or ()]

    runs = [run_seed(7, protocol="confirm", faults=PROMISED, trace=True) for _ in range(2)]
    assert lines(runs[0]) == lines(runs[1])
    assert any("commanded" in line for line in lines(runs[0]))


@pytest.mark.parametrize(
    "case",
    [
        Case(1),  # A rollback began in the middle of a proposal of which something was settled.
        Case(90),  # The same, and its client heard that all of it had been rolled back.
        Case(
            70
        ),  # An acknowledgement that waited for the disk was sent by one that had been cut loose since.
        Case(505),  # A second snapshot of one state took the place of the first, and nobody was sent either.
        Case(509),  # A leader let one take over that had been cut loose.
        Case(
            964
        ),  # Clients that insisted sent transactions faster than followers of one message at a time settle them.
        Case(
            1776
        ),  # An heir was given up by time, unsaid, since nobody was there to hear it: no bug, a false alarm.
        Case(153),  # A reader asked for what a snapshot took the place of meanwhile.
        Case(
            340
        ),  # Only those who were leaving had the entry that said so, and nobody could promote one of them.
    ],
    ids=str,
)
def test_worlds_that_showed_a_bug(case: Case) -> None:
    expect_nothing_broken(run_seeds([case.seed], protocol="confirm", faults=case.faults))


@pytest.mark.proof
@pytest.mark.behaviour("TT-1", "TT-5", "D8")
@pytest.mark.parametrize("seeds", chunks(PROOF, PROOF_CHUNK), ids=str)
def test_proof_of_every_promised_seed(seeds: range) -> None:
    expect_nothing_broken(run_seeds(seeds, protocol="confirm", faults=PROMISED))
