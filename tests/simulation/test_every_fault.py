"""Every single fault of a disk, on a small cluster: sampled here, exhaustive in the proof."""

from __future__ import annotations

import pytest

from quorate.sim import every_fault
from quorate.sim.every_fault import Fault, Given

CHUNKS = 32
SAMPLE_EVERY = 131
"""A prime, so that a sample meets every part of a frame."""


@pytest.fixture(scope="module")
def given() -> Given:
    return every_fault.make()


@pytest.fixture(scope="module")
def rolled_back() -> Given:
    """Of `confirm`: what is void was damaged, or what says so."""
    return every_fault.make("confirm")


def all_faults(given: Given) -> list[Fault]:
    return [*every_fault.faults(given.files[every_fault.VICTIM])]


def complaints(given: Given, chosen: list[Fault]) -> list[str]:
    return [f"{fault}: {wrong}" for fault in chosen if (wrong := every_fault.survive(given, fault))]


def test_the_small_cluster_has_everything_that_can_be_damaged(given: Given) -> None:
    names = " ".join(given.files[every_fault.VICTIM])
    for needed in ("journal.a", "journal.b", "marks.a", "marks.b", ".log", "snapshot-"):
        assert needed in names
    assert all(len(settled) >= 5 for settled in given.settled)


def test_an_undamaged_cluster_comes_back_as_it_was(given: Given) -> None:
    name, content = next(iter(given.files[every_fault.VICTIM].items()))
    assert every_fault.survive(given, Fault(name, "zero", len(content), 0)) == ""


@pytest.mark.parametrize("chunk", range(8))
def test_a_sample_of_faults_is_survived(given: Given, chunk: int) -> None:
    assert complaints(given, all_faults(given)[chunk::8][::SAMPLE_EVERY]) == []


@pytest.mark.proof
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_fault_is_survived(given: Given, chunk: int) -> None:
    assert complaints(given, all_faults(given)[chunk::CHUNKS]) == []


@pytest.mark.behaviour("TT-10", "D8")
@pytest.mark.parametrize("chunk", range(4))
def test_a_sample_of_faults_is_survived_where_something_is_void(rolled_back: Given, chunk: int) -> None:
    assert complaints(rolled_back, all_faults(rolled_back)[chunk::4][:: 2 * SAMPLE_EVERY]) == []


@pytest.mark.proof
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_one_of_ten_faults_is_survived_where_something_is_void(rolled_back: Given, chunk: int) -> None:
    assert complaints(rolled_back, all_faults(rolled_back)[chunk::CHUNKS][::11]) == []
