"""`quorate bench cluster`, the quick one: it measures, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.bench import cluster
from quorate.machine.metadata import REPLICATIONS


@pytest.mark.cluster
def test_latency_and_throughput_of_every_protocol(tmp_path: Path) -> None:
    said: list[str] = []
    report = cluster.run(said.append, directory=tmp_path, quick=True, only=("latency", "throughput"))
    names = [claim.name for claim in report.claims]
    for protocol in REPLICATIONS:
        assert f"{protocol}: latency beside its limit (p50)" in names
        assert f"{protocol}: throughput beside its limit" in names
    assert all(figure.min > 0 for figure in report.figures)
    assert all(claim.min > 0 for claim in report.claims)
    assert list(tmp_path.iterdir()) == []
