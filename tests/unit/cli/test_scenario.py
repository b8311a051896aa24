"""`quorate scenario`: files that cannot be played get one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.cli.entry import run


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scenario", "no/such.txt"]) == 2
    said = capsys.readouterr().err
    assert "there is no file 'no/such.txt'" in said
    assert said.count("\n") == 1


def test_a_directory_without_scenarios_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["scenario", str(tmp_path)]) == 2
    assert "there is no scenario" in capsys.readouterr().err


def test_a_wrong_line_is_told_with_file_and_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "story.txt"
    file.write_text("nodes R1 R2 R3\ndance\n", encoding="utf-8")
    assert run(["scenario", str(file)]) == 2
    assert f"{file}:2:" in capsys.readouterr().err


STORY = """# What is written on a majority stays.
#
# behaviour: OR-6
nodes A B C
elect A
settle
# C hears nothing of this.
cut A <-> C
propose A "x" as w1
settle
expect answer w1 = settled at 1
"""


def test_a_scenario_is_drawn_with_its_names_its_lines_and_its_remarks(tmp_path: Path) -> None:
    file, picture = tmp_path / "majority.txt", tmp_path / "out.svg"
    file.write_text(STORY, encoding="utf-8")
    assert run(["scenario", str(file), "--story", str(picture)]) == 0
    drawn = picture.read_text(encoding="utf-8")
    for words in (
        "majority (raft)",
        "What is written on a majority stays.",
        ">line 8<",
        "C hears nothing of this.",
        "A → B: append-entries",
        "cut off from C",
    ):
        assert words in drawn, words
    assert "n1" not in drawn
    assert "OR-6" not in drawn
    assert "not as expected" not in drawn


def test_what_was_not_as_expected_is_drawn_too(tmp_path: Path) -> None:
    file, picture = tmp_path / "wrong.txt", tmp_path / "out.svg"
    file.write_text(STORY.replace("settled at 1", "settled at 2"), encoding="utf-8")
    assert run(["scenario", str(file), "--story", str(picture)]) == 1
    drawn = picture.read_text(encoding="utf-8")
    assert "not as expected" in drawn
    assert "settled at 1" in drawn


def test_a_scenario_is_traced_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, trace = tmp_path / "majority.txt", tmp_path / "trace.log"
    file.write_text(STORY, encoding="utf-8")
    assert run(["scenario", str(file), "--trace", str(trace)]) == 0
    lines = trace.read_text(encoding="utf-8").splitlines()
    assert "  0.000000 world line 5 elect A" in lines
    assert any(" B p0 received A #" in line for line in lines)
    capsys.readouterr()
    assert run(["scenario", str(file), "--trace", "-"]) == 0
    assert "world line 5 elect A" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--story", "--trace"])
def test_a_story_is_that_of_one_scenario(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(STORY, encoding="utf-8")
    assert run(["scenario", str(tmp_path), option, str(tmp_path / "out.svg")]) == 2
    assert "tell of one scenario, not 2" in capsys.readouterr().err
    assert not (tmp_path / "out.svg").exists()


def test_what_is_not_understood_is_not_drawn(tmp_path: Path) -> None:
    file, picture = tmp_path / "story.txt", tmp_path / "out.svg"
    file.write_text("nodes R1 R2 R3\ndance\n", encoding="utf-8")
    assert run(["scenario", str(file), "--story", str(picture)]) == 2
    assert not picture.exists()
