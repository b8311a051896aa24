"""Every node crashed at every event of a change, a transfer, an installation: sampled here, all in the proof."""

from __future__ import annotations

import pytest

from quorate.core.entry import Member, Membership
from quorate.sim import every_crash
from quorate.sim.every_crash import PLAYS, Crash

CHUNKS = 8
SAMPLE_EVERY = 61
"""A prime, so that a sample meets every node and every way to crash."""

KEPT = [
    pytest.param("change", marks=pytest.mark.behaviour("YB-12")),
    pytest.param("transfer", marks=pytest.mark.behaviour("YB-15")),
    pytest.param("snapshot", marks=pytest.mark.behaviour("OR-16")),
]
assert len(KEPT) == len(PLAYS)


def complaints(name: str, chosen: list[Crash]) -> list[str]:
    return [f"{crash}: {wrong}" for crash in chosen if (wrong := every_crash.survive(name, crash))]


def test_undisturbed_change_adds_two_and_leaves_out_the_leader() -> None:
    stage = every_crash.begun("change")
    leader = stage.leader
    stage.until(lambda: not stage.steward.waiting, "no answer")
    assert stage.invariants.membership(0) == Membership(
        tuple(Member(node, 1) for node in range(1, 6) if node != leader)
    )


def test_undisturbed_transfer_moves_leadership() -> None:
    stage = every_crash.begun("transfer")
    leader = stage.leader
    stage.until(lambda: not stage.steward.waiting, "no answer")
    assert stage.leader == leader % 3 + 1


def test_undisturbed_sleeper_gets_a_snapshot() -> None:
    stage = every_crash.begun("snapshot")
    sleeper = stage.world.hosted(stage.leader % 3 + 1, 0)
    assert sleeper is not None
    had = sleeper.replica.log.head.offset
    stage.until(lambda: sleeper.commit == stage.invariants.settled[0].commit, "it does not catch up")
    assert sleeper.replica.log.base.offset > had


@pytest.mark.parametrize("name", KEPT)
def test_a_sample_of_crashes_is_survived(name: str) -> None:
    assert complaints(name, [*every_crash.crashes(name)][::SAMPLE_EVERY]) == []


@pytest.mark.proof
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("name", KEPT)
def test_every_crash_is_survived(name: str, chunk: int) -> None:
    assert complaints(name, [*every_crash.crashes(name)][chunk::CHUNKS]) == []
