"""What `quorate audit` ends with, of whatever was found."""

from __future__ import annotations

import pytest

from quorate.audit.findings import KINDS, Finding
from quorate.cli import audit as command
from quorate.cli.entry import run
from quorate.spark.audit import Report


def ended(monkeypatch: pytest.MonkeyPatch, *findings: Finding, copies_count: int = 3) -> int:
    report = Report(["n1"], partitions_count=1, copies_count=copies_count, findings=list(findings))
    monkeypatch.setattr(command, "_places", lambda directories: [])
    monkeypatch.setattr(command, "_run", lambda places, master: report)
    return run(["audit", "data/"])


def test_what_is_as_it_was_written_is_said_and_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch) == 0
    assert "Every frame is whole, every chain unbroken, and all copies agree." in capsys.readouterr().out


def test_one_copy_of_each_is_not_said_to_agree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, copies_count=1) == 0
    said = capsys.readouterr().out
    assert "every chain unbroken, and there was nothing to compare: one copy of each." in said
    assert "agree" not in said


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_told_as_wrong_is_a_failure(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also what costs time alone: a disk has not kept what was flushed to it."""
    assert ended(monkeypatch, Finding("n1", "00ff", kind, 0, 0, "x.log")) == 1
    assert "What is wrong" in capsys.readouterr().out
