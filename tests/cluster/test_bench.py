"""`quorate bench cluster`, the quick one: it measures, kills, and finds everything again."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.bench import cluster


@pytest.mark.cluster
def test_the_quick_bench_loses_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    said: list[str] = []
    report = cluster.run(said.append, directory=tmp_path, quick=True)
    assert report.held, [claim for claim in report.claims if not claim.held]
    assert all(figure.median > 0 for figure in report.figures if "beside its limit" in figure.name)
    assert sum("kill -9" in line for line in said) == 2
    assert list(tmp_path.iterdir()) == []
