"""`quorate bench spark`, a look: each part measures what it claims, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from quorate.bench.report import Report

pytestmark = [pytest.mark.cluster, pytest.mark.proof]


@pytest.mark.parametrize(
    ("part", "claim"),
    [
        ("read", "read: beside a source with ready Arrow batches"),
        ("write", "write, exactly once: beside a sink that counts"),
        ("audit", "audit: log read and compared by a core"),
        ("sweep", "sweep: two cores beside one"),
        ("tier", "tier: beside Spark writing Parquet from memory"),
    ],
)
def test_a_part_is_measured_beside_what_it_is_compared_with(tmp_path: Path, part: str, claim: str) -> None:
    """In a process of its own: a session is one for all of a process."""
    command = [sys.executable, "-m", "quorate", "bench", "spark", "--quick", "--json", "--only", part]
    done = subprocess.run([*command, "--directory", str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    report = msgspec.json.decode(done.stdout, type=Report)
    assert [(each.name, each.median > 0) for each in report.claims] == [(claim, True)]
    assert report.command == f"quorate bench spark --quick --only {part}"
    assert list(tmp_path.iterdir()) == []
