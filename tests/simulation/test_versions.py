"""A cluster is upgraded without downtime: old nodes and new ones keep each other's company (TT-41)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from quorate.core.confirm.config import CUTTING_LOOSE
from quorate.sim.confirm_steward import ConfirmSteward
from quorate.sim.run import Run, plan_seed, run_seeds
from tests.simulation.test_seeds import chunks, expect_nothing_broken

pytestmark = pytest.mark.behaviour("TT-41")

SAMPLE = 6
CHUNK = 3
PROOF = 100
PROOF_CHUNK = 10
GAP_PACES = 2.0
"""Election time-outs within which something is settled in a world without faults, whoever is restarted: nobody has
to find out that a leader is gone."""

CALM: dict[str, Any] = {
    "old_nodes": 1,
    "pace_s": 0.15,
    "election_timeout_s": 0.15,
    "heartbeat_s": 0.03,
    "seconds": 8.0,
    "automatic": 1,
    "partitions_count": 2,
    "clients_count": 4,
    "pause_s": 0.03,
}


def run(seed: int, *, faults: str = "all,membership", nodes: int = 3, **overrides: Any) -> Run:
    plan = plan_seed(seed, protocol="confirm", faults=faults, nodes=nodes, overrides=overrides)
    made = Run(plan)
    found = made.verdict().violations
    assert not found, "\n".join(f"{each.invariant}: {each.detail}\n  {each.reproduce}" for each in found)
    return made


@pytest.mark.parametrize("seeds", chunks(SAMPLE, CHUNK), ids=str)
def test_worlds_with_an_old_node(seeds: range) -> None:
    expect_nothing_broken(
        run_seeds(seeds, protocol="confirm", faults="all,membership", overrides={"old_nodes": 1})
    )


@pytest.mark.proof
@pytest.mark.parametrize("old_nodes", [1, 2])
@pytest.mark.parametrize("seeds", chunks(PROOF, PROOF_CHUNK), ids=str)
def test_worlds_with_old_nodes(seeds: range, old_nodes: int) -> None:
    expect_nothing_broken(
        run_seeds(seeds, protocol="confirm", faults="all,membership", overrides={"old_nodes": old_nodes})
    )


def test_everybody_is_new_in_the_end() -> None:
    made = run(1, faults="crash,network", old_nodes=2)
    assert made.upgrade is not None
    assert len(made.upgrade.old) == 2
    assert not made.upgrade.unfinished()
    assert len(made.upgrade.done_at) == 2 + len(made.world.nodes)
    assert not any(node.is_old for node in made.world.nodes.values())
    for number in made.world.setup.holders[0]:
        hosted = made.world.hosted(number, 0)
        assert hosted is not None
        assert hosted.replica.config.tuning.feature_level == CUTTING_LOOSE


def test_what_old_nodes_do_not_know_is_refused_until_all_are_upgraded() -> None:
    too_new = newer = 0
    for seed in range(4):
        steward = run(seed, faults="membership", old_nodes=1).chaos.steward
        assert isinstance(steward, ConfirmSteward)
        too_new += steward.too_new_count
        newer += steward.newer_count
    assert too_new > 0, "before"
    assert newer > 0, "afterwards"


@pytest.mark.parametrize(("seed", "nodes"), [(0, 3), (1, 3), (2, 5)])
def test_groups_never_stop_settling_while_they_are_upgraded(seed: int, nodes: int) -> None:
    plan = plan_seed(seed, protocol="confirm", faults="none", nodes=nodes, overrides=CALM)
    made = Run(plan)
    moments: dict[int, list[float]] = {partition: [] for partition in made.world.setup.shards}
    settled = made.invariants.on_settled
    assert settled is not None

    def note(partition: int, offset: int, crc: int) -> None:
        moments[partition].append(made.world.now)
        settled(partition, offset, crc)

    made.invariants.on_settled = note
    assert not made.verdict().violations
    assert made.upgrade is not None
    first, last = made.upgrade.done_at[0], made.upgrade.done_at[-1] + 2 * CALM["pace_s"]
    assert last < CALM["seconds"], "while clients write"
    for partition, times in moments.items():
        during = [moment for moment in times if first < moment < last]
        gaps = [after - before for before, after in pairwise((first, *during, last))]
        assert max(gaps) < GAP_PACES * CALM["pace_s"], (
            f"p{partition}: nothing was settled for {max(gaps):.3f}s"
        )


def test_a_world_with_old_nodes_is_the_same_every_time() -> None:
    plan = plan_seed(4, protocol="confirm", faults="all,membership", overrides={"old_nodes": 1})
    first, second = (list(map(str, Run(plan, trace=True).verdict().happenings or ())) for _ in range(2))
    assert first == second
    assert any(" upgraded new code" in line for line in first)


def test_an_old_node_does_not_bear_a_level_that_is_too_high() -> None:
    """The checker, checked: with the level raised too early, it is told what it does not know."""
    total = run_seeds(
        range(4),
        protocol="confirm",
        faults="none",
        overrides={"old_nodes": 1, "feature_level": CUTTING_LOOSE},
    )
    assert {violation.invariant for violation in total.violations} == {"old-node-confused"}
    assert len(total.violations) == 4
