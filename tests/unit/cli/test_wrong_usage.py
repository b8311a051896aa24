"""Wrong names, ranges and files: one clear line on stderr, exit code 2, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.cli.entry import run


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
        (["sim", "zab"], "there is no protocol 'zab'; there are: raft, coordinated, isr"),
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
        (["sim", "raft", "--only", "first"], "--only 'first'"),
        (["sim", "raft", "--set", "partitions_count"], "NAME=NUMBER"),
        (["sim", "raft", "--set", "partitions_count=two"], "'two' is no number"),
        (["sim", "raft", "--set", "colour=2"], "'colour'"),
        (["topic", "add", "events"], "missing option '--node'"),
        (["topic", "add", "events", "--node", "1,x"], "--node '1,x': write a node's number"),
        (["topic", "add", "events", "--node", "9" * 19], "write a node's number"),
        (["topic", "add", "events", "--node", "9" * 5000], "write a node's number"),
        (["topic", "transfer", "events"], "missing option '--to'"),
        (["topic", "replace", "events", "--node", "x"], "'--node'"),
        (["cluster", "ad", "4"], "did you mean 'add'"),
        (["cluster", "add", "0"], "'NODE'"),
        (["cluster", "add", "4", "--servers", "nowhere"], "--servers: 'nowhere' is no address of a node"),
        (["bench", "disk"], "there is no benchmark 'disk'"),
        (["bench", "wall"], "did you mean 'wal'?"),
        (["bench", "wal", "--directory", "no/such/place"], "there is no directory 'no/such/place'"),
    ],
)
def test_one_line_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert expected in complaint(capsys, *arguments)


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
