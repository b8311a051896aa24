"""Worlds full of faults: nothing acknowledged is lost, nothing else is broken, and everything heals."""

from __future__ import annotations

import pytest

from quorate.sim.faults import PROFILES
from quorate.sim.run import Sum, run_seeds

SAMPLE = 25
PROOF = 1_000
CHUNK = 5
PROOF_CHUNK = 100


def chunks(count: int, size: int) -> list[range]:
    return [range(first, first + size) for first in range(0, count, size)]


def expect_nothing_broken(total: Sum) -> None:
    lines = [f"{each.invariant}: {each.detail}\n  {each.reproduce}" for each in total.violations]
    assert not lines, "\n" + "\n".join(lines)
    assert total.acknowledged > 0, "a world in which nothing succeeds proves nothing"


@pytest.mark.parametrize("seeds", chunks(SAMPLE, CHUNK), ids=str)
def test_nothing_is_broken_under_all_faults(seeds: range) -> None:
    total = run_seeds(seeds)
    expect_nothing_broken(total)
    assert total.crashes > 0


@pytest.mark.parametrize("profile", PROFILES)
def test_nothing_is_broken_under_one_kind_of_fault(profile: str) -> None:
    expect_nothing_broken(run_seeds(range(3), faults=profile))


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


@pytest.mark.proof
@pytest.mark.parametrize("seeds", chunks(PROOF, PROOF_CHUNK), ids=str)
def test_nothing_is_broken_under_all_faults_in_a_thousand_worlds(seeds: range) -> None:
    expect_nothing_broken(run_seeds(seeds))


@pytest.mark.proof
@pytest.mark.parametrize("profile", PROFILES)
def test_nothing_is_broken_under_one_kind_of_fault_in_a_hundred_worlds(profile: str) -> None:
    expect_nothing_broken(run_seeds(range(100), faults=profile))


@pytest.mark.proof
@pytest.mark.parametrize("nodes", [2, 5, 7])
def test_nothing_is_broken_in_a_hundred_worlds_of_another_size(nodes: int) -> None:
    expect_nothing_broken(run_seeds(range(100), nodes=nodes))
