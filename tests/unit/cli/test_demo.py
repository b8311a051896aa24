"""`quorate demo` without a terminal: every step says what it does, and the picture is where it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.cli.entry import run


def test_a_short_demo_goes_through_its_steps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["demo", "--seconds", "1", "--jobs", "2"]) == 0
    said = capsys.readouterr().out
    for words in (
        "1  Raft through worlds",
        "What held",
        "2  A bug, planted",
        "Caught in",
        "3  The story",
        "In short",
    ):
        assert words in said
    picture = tmp_path / "out" / "demo-story.svg"
    assert str(picture) in said
    assert picture.read_text(encoding="utf-8").startswith("<?xml")


def test_a_picture_without_a_place_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--story", "no/such/picture.svg"]) == 2
    assert "there is no directory 'no/such'" in capsys.readouterr().err
