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
