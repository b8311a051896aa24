"""`quorate sim`: exit codes, the JSON object, and one story that is the same wherever it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from quorate.cli import sweep
from quorate.cli.entry import run
from quorate.cli.world_options import faults_in_words, in_words, parse_faults
from quorate.cli.worlds import THROWN, Totals, held
from quorate.sim.chaos import Toll
from quorate.sim.run import Plan, Sum, Verdict, Violation

KEYS = [
    "protocol",
    "seeds",
    "events",
    "events_per_second",
    "acknowledged",
    "elections",
    "truncations",
    "crashes",
    "partitions",
    "damaged",
    "violations",
]
CALM = ("--faults", "none", "--set", "seconds=0.5")
"""A short world: these tests are about the command, not about the simulator."""


def test_json_is_one_object_with_every_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "raft", "--seeds", "0:2", "--json", *CALM]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == KEYS
    assert found["protocol"] == "raft"
    assert found["seeds"] == 2
    assert found["events"] > 0
    assert found["violations"] == []


def test_a_table_says_what_held(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "raft", "--seed", "3", *CALM]) == 0
    said = capsys.readouterr().out
    assert "What held" in said
    assert "raft: 1 world" in said
    assert "nothing was violated" in said


def test_more_processes_find_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for jobs in ("1", "2"):
        assert run(["sim", "raft", "--seeds", "0:4", "--json", "--jobs", jobs, *CALM]) == 0
        found.append(json.loads(capsys.readouterr().out) | {"events_per_second": 0})
    assert found[0] == found[1]


def test_a_trace_is_the_same_in_every_process(tmp_path: Path) -> None:
    traces = []
    for hash_seed in ("1", "2"):
        file = tmp_path / f"trace-{hash_seed}"
        subprocess.run(
            [sys.executable, "-m", "quorate", "sim", "raft", "--seed", "7", "--trace", str(file), *CALM],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        )
        traces.append(file.read_bytes())
    assert traces[0] == traces[1]
    assert traces[0].count(b"\n") > 100


def test_a_trace_without_a_file_goes_to_stdout_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "trace"
    assert run(["sim", "raft", "--seed", "7", "--trace", str(file), *CALM]) == 0
    capsys.readouterr()
    assert run(["sim", "raft", "--seed", "7", *CALM, "--trace"]) == 0
    said = capsys.readouterr()
    assert said.out == file.read_text(encoding="utf-8")
    assert "nothing was violated" in said.err


def test_a_story_is_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "story.svg"
    assert run(["sim", "raft", "--seed", "7", "--story", str(file), *CALM]) == 0
    assert ElementTree.parse(file).getroot().tag.endswith("svg")
    assert str(file) in capsys.readouterr().err


# ---- what does not hold ----

DETAIL = "p0: n2 has [3-1] where n1 has 2-1"


@pytest.fixture
def _violated(monkeypatch: pytest.MonkeyPatch) -> None:
    def lying(plans: list[Plan], jobs: int) -> Iterator[Verdict]:
        for plan in plans:
            bad = Violation(plan.seed, "log-matching", DETAIL, plan.command())
            yield Verdict(seed=plan.seed, events=10, violations=[bad] if plan.seed == 4 else [])

    monkeypatch.setattr(sweep, "verdicts", lying)


@pytest.mark.usefixtures("_violated")
def test_a_violation_ends_with_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "raft", "--seeds", "0:9", "--json"]) == 1
    (violation,) = json.loads(capsys.readouterr().out)["violations"]
    assert violation == {
        "seed": 4,
        "invariant": "log-matching",
        "detail": DETAIL,
        "reproduce": "quorate sim raft --seed 4 --faults all --nodes 3",
    }


@pytest.mark.usefixtures("_violated")
def test_a_violation_is_told_with_how_to_see_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "raft", "--seeds", "0:9"]) == 1
    said = capsys.readouterr().out
    assert "What did not hold" in said
    assert DETAIL in said
    assert "quorate sim raft --seed 4 --faults all --nodes 3 --trace" in said
    assert "1 violation" in said


@pytest.mark.usefixtures("_violated")
def test_other_worlds_are_not_violated(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "raft", "--seeds", "0:3"]) == 0


def test_the_reproduce_command_can_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan(3, faults=("crash", "pause"), learners=1, overrides={"seconds": 0.25}, only=(0, 2), until=0.5)
    assert run(plan.command().split()[1:]) == 0


def test_a_shrunk_plan_of_coordinated_can_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan(3, "coordinated", faults=(), learners=0, overrides={"seconds": 0.25})
    assert "--learners" not in plan.command()
    assert run(plan.command().split()[1:]) == 0


# ---- what is said of it ----


@pytest.mark.parametrize(
    ("protocol", "faults", "expected"),
    [
        ("raft", "all", "all usual kinds of fault"),
        ("raft", "all,retention", "all usual kinds of fault and retention"),
        ("coordinated", "all", "all usual kinds of fault"),
        ("coordinated", "all,operator", "every kind of fault"),
        ("coordinated", "all,operator,retention", "every kind of fault and retention"),
        ("confirm", "retention", "no faults and retention"),
        ("coordinated", "crash,operator", "crash, operator faults"),
        ("raft", "none", "no faults"),
    ],
)
def test_every_kind_of_fault_is_said_only_where_it_is_so(protocol: str, faults: str, expected: str) -> None:
    assert faults_in_words(Plan(0, protocol, parse_faults(faults, protocol))) == expected


def test_one_is_not_told_as_many() -> None:
    assert in_words(Plan(7, faults=(), nodes=1), range(7, 8)) == "raft on 1 node, seed 7, under no faults"
    assert in_words(Plan(0), range(3)) == "raft on 3 nodes, seeds 0 to 2, under all usual kinds of fault"
    totals = Totals("coordinated")
    totals.add(Verdict(seed=0, events=1, operators=1))
    (_, events), *_, (_, operators), (_, worlds) = held(totals)  # and no row of reconfigurations
    assert events.startswith("event,")
    assert operators.startswith("life of an operator:")
    assert worlds.startswith("world healed:")


def test_orders_to_change_ensembles_are_told_among_what_was_thrown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for protocol in ("raft", "coordinated"):
        assert run(["sim", protocol, "--seed", "1", "--faults", "membership", "--set", "seconds=1.5"]) == 0
        said = capsys.readouterr().out
        assert "What was thrown at it" in said
        assert "of an ensemble ordered" in said


def test_everything_that_is_thrown_is_told_of() -> None:
    # What came of changes, transfers and orders is no further thing that was thrown.
    settled = {"changes_settled", "transfers_settled", "orders_settled"}
    assert set(THROWN) == set(Toll.__struct_fields__) - settled


def test_coordinated_has_operators_and_reconfigurations_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "coordinated", "--seed", "0", "--json", *CALM]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == [*KEYS[:-1], "operators", "reconfigurations", "violations"]
    assert found["operators"] == 1


@pytest.mark.behaviour("TT-6", "TT-10", "TT-17")
def test_confirm_has_its_decisions_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "confirm", "--seed", "0", "--json", *CALM]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == [*KEYS[:-1], "confirms", "rollbacks", "undone", "promotions", "violations"]
    assert found["confirms"] > 0
    assert found["promotions"] > 0
    assert found["rollbacks"] == 0


def test_every_key_of_the_json_object_is_documented() -> None:
    page = Path("docs/SIMULATOR.md").read_text(encoding="utf-8")
    assert [name for name in Sum.__struct_fields__ if f"| `{name}` |" not in page] == []
