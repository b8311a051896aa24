"""`quorate mutants`: names, what is said of each, and how it ends when one survives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quorate.cli.entry import run
from quorate.sim import mutate, patching
from quorate.sim.mutate import Caught

NAME = "raft-commit-old-epoch"


@pytest.fixture
def hunted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A hunt that finds `NAME` at once and nothing else."""
    names: list[str] = []

    def hunt(name: str, seeds: range, **_: Any) -> Caught | None:
        names.append(name)
        return Caught(5, "settled-old-epoch", "p0: …", 0.5, 1) if name == NAME else None

    monkeypatch.setattr(mutate, "hunt", hunt)
    return names


def test_a_caught_mutant_is_reported_with_seed_and_invariant(
    capsys: pytest.CaptureFixture[str], hunted: list[str]
) -> None:
    assert run(["mutants", NAME]) == 0
    said = capsys.readouterr().out
    assert f"caught    {NAME}: by settled-old-epoch, seed 5" in said
    assert said.rstrip().endswith("1 of 1 caught by the expected invariant")
    assert hunted == [NAME]


def test_a_mutant_that_another_invariant_caught_is_not_counted_with_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutate, "hunt", lambda *_, **__: Caught(5, "another", "p0: …", 0.5, 1))
    assert run(["mutants", NAME]) == 0
    assert capsys.readouterr().out.rstrip().endswith("1 of 1 caught, 0 by the expected invariant")


def test_a_survivor_ends_with_exit_code_1(capsys: pytest.CaptureFixture[str], hunted: list[str]) -> None:
    assert run(["mutants", NAME, "raft-stale-io", "--seeds", "20"]) == 1
    said = capsys.readouterr().out
    assert "SURVIVED  raft-stale-io" in said
    assert "1 survived 20 worlds: raft-stale-io" in said


def test_a_patch_that_no_longer_fits_is_no_success(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hunt(name: str, *_: Any, **__: Any) -> None:
        raise patching.DoesNotApply(f"{name}.patch: hunk 1 does not apply")

    monkeypatch.setattr(mutate, "hunt", hunt)
    assert run(["mutants", NAME]) == 1
    said = capsys.readouterr().out
    assert "hunk 1 does not apply" in said
    assert "1 could not be planted" in said


def test_json_lists_each(capsys: pytest.CaptureFixture[str], hunted: list[str]) -> None:
    assert run(["mutants", NAME, "raft-stale-io", "--json"]) == 1
    caught, survived = json.loads(capsys.readouterr().out)["mutants"]
    assert caught["name"] == NAME
    assert caught["caught"] is True
    assert caught["seed"] == 5
    assert caught["invariant"] == "settled-old-epoch"
    assert survived["caught"] is False


def test_all_are_hunted_when_none_is_named(hunted: list[str]) -> None:
    assert run(["mutants"]) == 1
    assert hunted == mutate.names()


def test_the_list_tells_what_each_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mutants", "--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["mutants"]
    assert [mutant["name"] for mutant in found] == mutate.names()
    assert all(mutant["does"] and mutant["origin"] for mutant in found)


def test_the_beginning_of_names_lists_those_that_begin_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mutants", "--list", "--json", "coordinated-"]) == 0
    found = [mutant["name"] for mutant in json.loads(capsys.readouterr().out)["mutants"]]
    assert found == [name for name in mutate.names() if name.startswith("coordinated-")]
    assert run(["mutants", "coordinated-"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in found)


@pytest.mark.parametrize("width", ["60", "110"])
def test_names_are_never_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setattr("quorate.cli.say.PLAIN_WIDTH", int(width))
    assert run(["mutants", "--list"]) == 0
    words = capsys.readouterr().out.split()
    assert [name for name in mutate.names() if name not in words] == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["raft-comit-old-epoch"], "did you mean 'raft-commit-old-epoch'?"),
        (["--seeds", "0"], "'--seeds'"),
        (["--story", "a.svg"], "name one of them"),
        ([NAME, "--story", "no/such/a.svg"], "there is no directory 'no/such'"),
    ],
)
def test_wrong_usage_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert run(["mutants", *arguments]) == 2
    said = capsys.readouterr()
    assert expected in said.err
    assert said.err.count("\n") == 1


def test_the_end_of_a_mutant_is_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hunted: list[str]
) -> None:
    monkeypatch.setattr(mutate, "story", lambda name, seed: [])
    file = tmp_path / "end.svg"
    assert run(["mutants", NAME, "--story", str(file)]) == 0
    assert "settled-old-epoch" in file.read_text(encoding="utf-8")
