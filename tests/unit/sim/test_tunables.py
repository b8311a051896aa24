"""What is drawn for a run, and what may be set instead."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quorate.sim import mutate
from quorate.sim.run import plan_seed
from quorate.sim.tunables import LEAST, MOST, check_overrides, draw, numbers_of


def drawn_numbers(part: Any) -> dict[str, int | float]:
    """Of a struct and of those in it. Names that several have stand for different bounds of the same kind."""
    found: dict[str, int | float] = {}
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, msgspec.Struct):
            found |= drawn_numbers(value)
        elif isinstance(value, int | float):
            found[name] = value
    return found


def test_nothing_is_drawn_that_could_not_be_set() -> None:
    for seed in range(300):
        for name, value in drawn_numbers(draw(seed)).items():
            assert LEAST.get(name, 0) <= value <= MOST.get(name, value), f"seed {seed}: {name} is {value}"


def test_bounds_are_of_tunables_that_there_are() -> None:
    assert set(LEAST) | set(MOST) <= set(numbers_of("isr")) | set(numbers_of("confirm"))


def test_only_protocols_with_operators_have_their_tunables() -> None:
    only = set(numbers_of("coordinated")) - set(numbers_of("raft"))
    assert only == {"operators_count", "store_latency_s", "suspect_after_s", "watch_s", "whole", "whole_logs"}
    assert set(numbers_of("raft")) < set(numbers_of("coordinated"))
    assert set(numbers_of("isr")) - set(numbers_of("coordinated")) == {
        *("lag_s", "min_isr_share", "report_s", "watched")
    }
    assert set(numbers_of("coordinated")) - {"whole_logs"} < set(numbers_of("isr"))


def test_confirm_has_a_little_more_than_raft() -> None:
    assert set(numbers_of("confirm")) - set(numbers_of("raft")) == {
        *("alone_timeouts", "automatic", "feature_level", "old_nodes")
    }


@pytest.mark.parametrize("name", LEAST)
def test_bounds_are_named_to_whoever_goes_below(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: 0 is not (at least|between) {LEAST[name]}"):
        plan_seed(1, protocol="isr", overrides={name: 0})


def test_what_depends_on_each_other_is_checked_together() -> None:
    check_overrides("raft", {"heartbeat_s": 1.0, "election_timeout_s": 2.0}, seed=1)
    with pytest.raises(ValueError, match="heartbeat_s must be below election_timeout_s; they are 2 and 1"):
        check_overrides("raft", {"heartbeat_s": 2.0, "election_timeout_s": 1.0}, seed=1)
    with pytest.raises(ValueError, match="ping_s must be below suspect_s"):
        check_overrides("raft", {"suspect_s": 0.001}, seed=1)


def test_no_mutant_needs_what_is_refused() -> None:
    for mutant in map(mutate.describe, mutate.names()):
        check_overrides(mutant.protocol, mutant.overrides, seed=mutant.seed)


def test_learners_are_refused_where_nobody_is_told_of_them() -> None:
    assert plan_seed(1, learners=1).learners == 1
    with pytest.raises(ValueError, match="coordinated has no learners; only raft and confirm have"):
        plan_seed(1, protocol="coordinated", learners=1)
