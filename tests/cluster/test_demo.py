"""A short `quorate demo` without a terminal: a real cluster, a real kill, real Spark, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

TIMEOUT_S = 400.0


def test_a_short_demo_goes_through_its_steps_and_cleans_up(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "quorate", "demo", "--events", "20000", "--seeds", "4"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(scratch), "KEEP": "0"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (
        "1  A cluster",
        "2  A pipeline",
        "3  Events, and a kill",
        "kill -9 ",
        "4  Every event, counted",
        "nothing lost, nothing twice",
        "5  Results, and a lake",
        "20,000 events in",
        "read back as one with the log, and equal",
        "6  The disks, audited",
        "every frame is whole, and all copies agree",
        "7  Made-up worlds, on Spark",
        "messages a commit",
        "8  A bug, planted on purpose",
        "caught in",
        "In short",
        "20,000 events were acknowledged, and Spark counted every one of them once",
    ):
        assert words in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "ERROR" not in done.stderr
    assert (tmp_path / "out" / "demo-story.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert list((tmp_path / "out" / "demo-sweep.parquet").glob("*/*.parquet"))
    assert "</svg>" in (tmp_path / "out" / "demo-report.html").read_text(encoding="utf-8")
    assert [path.name for path in scratch.iterdir() if path.name.startswith("quorate-")] == []
