"""What does not come about once everything has healed is a violation, by the name of Oxia's specification."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.core.coordinated import Operator
from quorate.core.coordinated.messages import CommitReconfigurationResponse, FenceResponse
from quorate.core.events import Received
from quorate.core.invariant import Violated
from quorate.sim import every_crash, healing
from quorate.sim.every_operator_crash import PLAYS, prepared


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for long: whatever ends at all ends within these worlds' first paces."""
    monkeypatch.setattr(healing, "PATIENCE_PACES", 40)


def deafen(monkeypatch: pytest.MonkeyPatch, to: type) -> None:
    """Operators never hear this; whatever they wait for stalls."""
    step = Operator.step

    def deaf(self: Operator, now: float, event: Any) -> list[Any]:
        is_missed = type(event) is Received and type(event.message) is to
        return [] if is_missed else step(self, now, event)

    monkeypatch.setattr(Operator, "step", deaf)


def broken_by(stage: Any) -> str:
    with pytest.raises(Violated) as caught:
        stage.heal()
    return caught.value.invariant


@pytest.mark.parametrize("name", ["swap", "expand", "contract"])
def test_reconfiguration_that_nobody_ends(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = prepared(name)
    deafen(monkeypatch, CommitReconfigurationResponse)
    stage.play(PLAYS[name].begin)
    with pytest.raises(Violated, match=r"^eventually-reconfiguration-completes: it does not end"):
        stage.until(lambda: len(stage.history) > 1 and stage.is_at_rest(), "it does not end")
    assert broken_by(stage) == "eventually-reconfiguration-completes"


def test_values_that_nobody_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = prepared("election")
    deafen(monkeypatch, FenceResponse)
    stage.play(PLAYS["election"].begin)
    stage.run(10.0)
    assert broken_by(stage) == "eventually-all-values-committed"


def test_values_come_first_where_a_reconfiguration_is_stuck_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = prepared("swap")
    deafen(monkeypatch, CommitReconfigurationResponse)
    stage.play(PLAYS["swap"].begin)
    stage.until(lambda: stage.stored.may_have_grown is not None, "it is never committed")
    stage.world.network.cut([link for link in stage.world.network.links if stage.leader.node in link])
    deafen(monkeypatch, FenceResponse)
    assert broken_by(stage) == "eventually-all-values-committed"


def test_other_protocols_have_no_such_names() -> None:
    stage = every_crash.begun("change")
    stage.world.network.cut([*stage.world.network.links])
    stage.chaos.heal = lambda: None  # type: ignore[method-assign]
    assert broken_by(stage) == "liveness"


@pytest.mark.parametrize("name", ["election", "swap", "expand", "contract"])
def test_whatever_is_heard_comes_to_its_end(name: str) -> None:
    stage = prepared(name)
    stage.play(PLAYS[name].begin)
    stage.until(lambda: len(stage.history) > 1, "it never begins")
    stage.heal()
    assert stage.stored.reconfiguration is None
