"""A failing seed becomes a shorter story of the same failure."""

from __future__ import annotations

import pytest

from quorate.core.entry import NOWHERE
from quorate.core.events import Recovered
from quorate.core.raft import Replica
from quorate.sim.run import parse_only, parse_setting, plan_seed, run_plan
from quorate.sim.shrink import shrink


def acknowledges_before_flushing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plants a bug that needs no fault at all to be seen."""
    monkeypatch.setattr(Replica, "durable", property(lambda self: self.log.head))
    monkeypatch.setattr(Replica, "flushed_agreement", lambda self: self.verified.offset)


def forgets_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plants a bug that needs a restart to be seen."""
    monkeypatch.setattr(
        "quorate.host.host.as_recovered",
        lambda log, record, snapshot: Recovered(NOWHERE, NOWHERE, (), state=record.state),
    )


def test_nothing_broken_is_nothing_to_shrink() -> None:
    assert shrink(plan_seed(1, faults="crash")) is None


def test_bug_without_a_fault_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledges_before_flushing(monkeypatch)
    shrunk = shrink(plan_seed(1), runs_max=60)
    assert shrunk is not None
    assert shrunk.violation.invariant == "ack-unflushed"
    assert shrunk.faults_before > 0
    assert shrunk.faults_count == 0
    assert shrunk.events <= shrunk.events_before


def test_bug_that_needs_a_restart_keeps_the_fault_that_causes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    forgets_its_log(monkeypatch)
    shrunk = shrink(plan_seed(2, faults="crash"), runs_max=80)
    assert shrunk is not None
    assert shrunk.faults_count == 1
    assert shrunk.faults_count < shrunk.faults_before


def test_shrunk_plan_fails_again_and_its_command_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledges_before_flushing(monkeypatch)
    shrunk = shrink(plan_seed(1), runs_max=60)
    assert shrunk is not None
    assert run_plan(shrunk.plan).violations == [shrunk.violation]
    words = shrunk.violation.reproduce.split()
    again = plan_seed(
        int(words[words.index("--seed") + 1]),
        only=parse_only(words[words.index("--only") + 1]),
        until=float(words[words.index("--until") + 1]),
        learners=int(words[words.index("--learners") + 1]),
        overrides=dict(
            parse_setting(words[place + 1]) for place, word in enumerate(words) if word == "--set"
        ),
    )
    assert [each.invariant for each in run_plan(again).violations] == ["ack-unflushed"]
