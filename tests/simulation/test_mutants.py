"""Every known bug, planted again, is caught; without it nothing is."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.sim import mutate
from quorate.sim.happening import Happening
from quorate.sim.run import run_seed

PROMISES = {
    "raft-keep-conflicts": pytest.mark.behaviour("OR-5"),
    "coordinated-fence-stored": pytest.mark.behaviour("OX-21"),
}
"""Promises that are kept by a mutant's death."""

EACH = 3
"""One of so many is planted in every run, and all of them in a proof."""


def sampled() -> list[Any]:
    params = []
    for number, name in enumerate(mutate.names()):
        marks = [PROMISES[name]] if name in PROMISES else []
        if number % EACH and name not in PROMISES:
            marks.append(pytest.mark.proof)
        params.append(pytest.param(name, marks=marks))
    return params


@pytest.mark.parametrize("name", sampled())
def test_the_killing_seed_catches_it(name: str, rewrite: bool) -> None:
    if rewrite and (found := mutate.hunt(name)) is not None:
        mutate.record_seed(name, found.seed)
    mutant = mutate.describe(name)
    caught = mutate.hunt(name, ())
    assert caught is not None, (
        f"{name} survives seed {mutant.seed}; --rewrite looks for another that kills it"
    )
    assert caught.seed == mutant.seed
    assert caught.invariant in mutant.caught_by, caught.detail


@pytest.mark.parametrize("name", sampled())
def test_without_it_the_killing_seed_violates_nothing(name: str) -> None:
    mutant = mutate.describe(name)
    verdict = run_seed(
        mutant.seed,
        protocol=mutant.protocol,
        faults=mutant.faults,
        nodes=mutant.nodes,
        learners=mutant.learners,
        overrides=mutant.overrides,
    )
    assert verdict.violations == []


@pytest.mark.proof
@pytest.mark.parametrize("name", mutate.names())
def test_it_is_caught_within_a_thousand_seeds(name: str) -> None:
    mutant = mutate.describe(name)
    caught = mutate.hunt(name, range(1000), hint=False)
    assert caught is not None, f"{name} survives"
    assert caught.invariant in mutant.caught_by, caught.detail


def test_a_caught_mutant_has_a_story() -> None:
    happenings = mutate.story("raft-ack-before-flush")
    assert all(isinstance(happening, Happening) for happening in happenings)
    assert happenings[0].what == "started"
    assert happenings[-1].what == "violated"
    assert happenings[-1].text.startswith("ack-unflushed")
