"""Every node crashed at every event of a change, a transfer, an installation: sampled here, all in the proof."""

from __future__ import annotations

import pytest

from quorate.core.entry import Member, Membership, Quorums
from quorate.sim import every_crash
from quorate.sim.every_crash import PLAYS, Crash

CHUNKS = 8
SAMPLE_EVERY = 61
"""A prime, so that a sample meets every node and every way to crash."""

KEPT = [
    pytest.param("change", marks=pytest.mark.behaviour("YB-12")),
    pytest.param("transfer", marks=pytest.mark.behaviour("YB-15")),
    pytest.param("snapshot", marks=pytest.mark.behaviour("OR-16")),
    pytest.param("roll-back", marks=pytest.mark.behaviour("TT-10", "D8")),
    pytest.param("promote", marks=pytest.mark.behaviour("TT-20", "TT-23")),
    pytest.param("demote", marks=pytest.mark.behaviour("TT-21")),
    pytest.param("cut-loose", marks=pytest.mark.behaviour("TT-32", "D9")),
    pytest.param("resize", marks=pytest.mark.behaviour("TT-40", "D10")),
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


def test_undisturbed_rollback_takes_back_what_was_written() -> None:
    stage = every_crash.begun("roll-back")
    stage.until(lambda: not stage.steward.waiting, "no answer")
    assert (stage.room.rollbacks, stage.room.undone) == (1, 6), "three transactions, on two copies by then"


def test_undisturbed_promotion_moves_leadership() -> None:
    stage = every_crash.begun("promote")
    leader = stage.leader
    stage.until(lambda: not stage.steward.waiting, "no answer")
    assert leader % 3 + 1 in stage.world.leaders(0)


def test_undisturbed_replica_is_cut_loose_and_joined_again() -> None:
    stage = every_crash.begun("cut-loose")
    loose = stage.leader % 3 + 1
    stage.until(lambda: stage.person.loose_nodes(0) == [loose], "it is not loose")
    stage.until(lambda: not stage.person.loose_nodes(0), "it is not joined again")


def test_undisturbed_quorums_change() -> None:
    stage = every_crash.begun("resize")
    stage.until(lambda: not stage.steward.waiting, "no answer")
    assert stage.invariants.membership(0).quorums == Quorums(3, 2)


@pytest.mark.parametrize("name", KEPT)
def test_a_sample_of_crashes_is_survived(name: str) -> None:
    assert complaints(name, [*every_crash.crashes(name)][::SAMPLE_EVERY]) == []


@pytest.mark.proof
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("name", KEPT)
def test_every_crash_is_survived(name: str, chunk: int) -> None:
    assert complaints(name, [*every_crash.crashes(name)][chunk::CHUNKS]) == []
