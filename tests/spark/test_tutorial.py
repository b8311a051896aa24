"""The tutorial runs as it is written, cell by cell, against a cluster, in the Spark that is there."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from time import monotonic, sleep

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from quorate.bench.cluster_processes import POLL_S
from quorate.cli.demo_cluster import DemoCluster
from tests.spark.conftest import TIMEOUT_S

pytestmark = pytest.mark.cluster

TUTORIAL = Path(__file__).resolve().parents[2] / "examples" / "tutorial" / "tutorial.py"
CELL = "# %%"


def cells_of(text: str) -> list[str]:
    """Those with code; a cell begins at its mark and ends before the next one."""
    cells = text.split(f"\n{CELL}")
    return [cell for cell in cells[1:] if not cell.startswith(" [markdown]")]


def test_every_cell_of_the_tutorial_runs_and_once_more_on_the_same_cluster(
    spark: SparkSession,
    cluster: DemoCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QUORATE_BOOTSTRAP", cluster.bootstrap)
    monkeypatch.setattr("quorate.spark.session.local_session", lambda _: nullcontext(spark))
    cells = cells_of(TUTORIAL.read_text(encoding="utf-8"))
    assert len(cells) == 8
    before = names_of_topics(cluster)
    for _ in range(2):
        names: dict[str, object] = {"__name__": "tutorial"}
        for number, cell in enumerate(cells):
            exec(compile(cell, f"cell {number}", "exec"), names)
        said = capsys.readouterr().out
        assert "|hammer| 1250|" in said
        assert "125000" in said
    deadline = monotonic() + TIMEOUT_S  # Whoever is asked may hear a moment later of what is gone.
    while (left := names_of_topics(cluster) - before) and monotonic() < deadline:
        sleep(POLL_S)
    assert not left, "nothing of it is left"


def names_of_topics(cluster: DemoCluster) -> set[str]:
    """Of users, and groups of tables, too; not homes, which are made when somebody first needs them."""
    there = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=TIMEOUT_S).topics
    return {name for name in there if not name.startswith("__")}
