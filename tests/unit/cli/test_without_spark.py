"""Commands on Spark where there is none, or only some of what they need: one line and exit code 2."""

from __future__ import annotations

import subprocess
import sys

import pytest

LATER = "from quorate.cli.entry import run; sys.exit(run(sys.argv[2:]))"
"""In a process of its own: here others have imported what is to be missing."""
SWEEP = ("sweep", "raft", "--seeds", "0:2")
TIER = ("tier", "events", "--lake", "lake")


def said_without(missing: str, words: tuple[str, ...]) -> str:
    program = f"import sys; sys.modules.update(dict.fromkeys(sys.argv[1].split(','))); {LATER}"
    command = [sys.executable, "-c", program, missing, *words]
    done = subprocess.run(command, check=False, text=True, capture_output=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


@pytest.mark.parametrize("words", [SWEEP, TIER], ids=["sweep", "tier"])
@pytest.mark.parametrize(
    "missing", ["pyspark", "pyspark,pyarrow,deltalake"], ids=["with the lake", "base only"]
)
def test_without_spark_it_is_said_how_to_get_it(words: tuple[str, ...], missing: str) -> None:
    said = said_without(missing, words)
    assert "Spark is not installed" in said
    assert "pip install '.[local]'" in said


def test_without_deltalake_it_is_said_how_to_get_it() -> None:
    said = said_without("deltalake", TIER)
    assert "`deltalake` is not installed" in said
    assert "pip install '.[local]'" in said
