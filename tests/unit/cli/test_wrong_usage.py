"""Wrong names, ranges and files: one clear line on stderr, exit code 2, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.cli.entry import run
from quorate.sim.run import Plan, faults_count
from quorate.sim.tunables import LEAST, numbers_of


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a wrong command line gets."""
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("quorate: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["simm"], "did you mean 'sim'"),
        (["sim"], "missing argument"),
        (["sim", "rafft"], "there is no protocol 'rafft'; did you mean 'raft'?"),
        (["sim", "zab"], "there is no protocol 'zab'; there are: raft, coordinated, isr, confirm"),
        (["sim", "raft", "--sed", "7"], "no such option: --sed"),
        (["sim", "raft", "--nodes", "many"], "'--nodes'"),
        (["sim", "raft", "--nodes", "0"], "'--nodes'"),
        (["sim", "raft", "--seeds", "0-500"], "'0-500' is no range of seeds; write FIRST:END"),
        (["sim", "raft", "--seeds", "9:9"], "there is no seed in '9:9'"),
        (["sim", "raft", "--seeds", "0:5", "--seed", "7"], "give one of them"),
        (["sim", "raft", "--trace"], "name it with --seed"),
        (["sim", "raft", "--seeds", "0:9", "--trace"], "not 9"),
        (["sim", "raft", "--seed", "7", "--trace", "--json"], "give --trace a file"),
        (["sim", "raft", "--faults", "netwrok"], "did you mean 'network'?"),
        (["sim", "raft", "--faults", ","], "--faults names nothing"),
        (["sim", "raft", "--faults", "all,none"], "none and all contradict each other"),
        (["sim", "raft", "--faults", "operator"], "raft has no operators; only coordinated and isr have"),
        (
            ["sim", "coordinated", "--learners", "1"],
            "coordinated has no learners; only raft and confirm have",
        ),
        (["sim", "raft", "--seed", "x"], "--seed 'x' is no seed; write one number"),
        (["sim", "raft", "--seed", "9" * 19], "a seed has at most 18 digits"),
        (["sim", "raft", "--only", "first"], "--only 'first'"),
        (["sim", "raft", "--seed", "3", "--faults", "none", "--only", "0"], "this world has no faults"),
        (["sim", "raft", "--set", "partitions_count"], "NAME=NUMBER"),
        (["sim", "raft", "--set", "partitions_count=two"], "'two' is no number"),
        (["sim", "raft", "--set", "colour=2"], "'colour'"),
        (["sim", "raft", "--set", "watch_s=2"], "raft has no such setting, only coordinated and isr have"),
        (["sim", "coordinated", "--set", "lag_s=2"], "coordinated has no such setting, only isr has"),
        (["sim", "isr", "--set", "min_isr_share=1.5"], "min_isr_share: 1.5 is not between 0 and 1"),
        (["sim", "raft", "--set", "partitions_count=0"], "partitions_count: 0 is not between 1 and 64"),
        (["sim", "raft", "--set", "heartbeat_s=9"], "heartbeat_s must be below election_timeout_s"),
        (["sim", "coordinated", "--set", "operators_count=0"], "operators_count: 0 is not between 1 and 9"),
        (["sim", "coordinated", "--set", "whole=2"], "whole: 2 is not between 0 and 1"),
        (["topic", "add", "events"], "missing option '--node'"),
        (["topic", "add", "events", "--node", "1,x"], "--node '1,x': write a node's number"),
        (["topic", "add", "events", "--node", "9" * 19], "write a node's number"),
        (["topic", "add", "events", "--node", "9" * 5000], "write a node's number"),
        (["topic", "transfer", "events", "--to", "0"], "'--to'"),
        (
            ["topic", "alter", "events"],
            "nothing is to be altered: give --config, --reset, --partitions, --replicas or --replication",
        ),
        (["topic", "alter", "events", "--config", "a=1", "--reset", "a"], "--config and --reset both name a"),
        (["topic", "alter", "events", "--config", "a"], "--config 'a': write KEY=VALUE"),
        (["topic", "alter", "events", "--partitions", "0"], "'--partitions'"),
        (["topic", "replace", "events", "--node", "x"], "'--node'"),
        (["cluster", "ad", "4"], "did you mean 'add'"),
        (["cluster", "add", "0"], "'NODE'"),
        (["cluster", "add", "4", "--bootstrap", "nowhere"], "--bootstrap: 'nowhere' is no address of a node"),
        (["bench", "disk"], "there is no benchmark 'disk'"),
        (["bench", "wall"], "did you mean 'wal'?"),
        (["bench", "cluster", "--only", "latency,idel"], "did you mean 'idle'?"),
        (["bench", "cluster", "--protocol", "rafd"], "did you mean 'raft'?"),
        (["bench", "wal", "--only", "latency"], "`bench wal` has no such parts"),
        (["bench", "wal", "--directory", "no/such/place"], "there is no directory 'no/such/place'"),
    ],
)
def test_one_line_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert expected in complaint(capsys, *arguments)


@pytest.mark.parametrize("name", [name for name in LEAST if name.endswith("_s")])
def test_a_time_that_would_stand_still_is_refused_with_its_bound(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    for protocol in ("raft", "coordinated", "isr"):
        if name in numbers_of(protocol):
            said = complaint(capsys, "sim", protocol, "--seed", "1", "--set", f"{name}=0")
            assert f"{name}: 0 is not at least {LEAST[name]}" in said


def test_the_faults_of_another_protocol_are_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint(capsys, "sim", "raft", "--faults", "bogus").endswith(
        "membership, retention, compaction, pacing\n"
    )
    assert complaint(capsys, "sim", "isr", "--faults", "bogus").endswith(
        "membership, operator, retention, compaction, pacing\n"
    )


def test_the_settings_of_another_protocol_are_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "operators_count" not in complaint(capsys, "sim", "raft", "--set", "colour=2")
    assert "operators_count" in complaint(capsys, "sim", "coordinated", "--set", "colour=2")


def test_faults_beyond_the_schedule_are_refused_with_its_range(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan(3, faults=("crash",))
    last = faults_count(plan) - 1
    words = ("sim", "raft", "--seed", "3", "--faults", "crash", "--set", "seconds=0.5", "--only")
    said = complaint(capsys, *words, f"0,{last + 1}")
    assert f"--only {last + 1}: this world's schedule goes from 0 to {last}" in said
    assert run([*words, str(last)]) == 0


def test_a_picture_of_another_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "sim", "raft", "--seed", "7", "--story", "story.png")
    assert said == "quorate: cannot draw 'story.png': pictures are SVG; name it 'story.svg'\n"


def test_a_story_without_a_place_is_refused_before_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wanted = tmp_path / "missing" / "story.svg"
    said = complaint(capsys, "sim", "raft", "--seed", "7", "--story", str(wanted))
    assert str(wanted) in said
    assert "make it first" in said
    assert "it is a directory" in complaint(capsys, "sim", "raft", "--seed", "7", "--trace", str(tmp_path))


def test_help_is_pointed_to_by_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "`quorate sim --help`" in complaint(capsys, "sim", "raft", "--nonsense")


@pytest.mark.parametrize("made", [(), ("place",), ("place", "place/orders", "place/orders/data")])
def test_where_no_backup_is_nothing_is_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made: tuple[str, ...]
) -> None:
    for directory in made:
        (tmp_path / directory).mkdir()
    place = str(tmp_path / "place")
    assert complaint(capsys, "backup", "verify", place) == (
        f"quorate: {place}: there is no backup at all; name the place that `quorate backup create` was given\n"
    )
