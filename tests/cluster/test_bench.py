"""`quorate bench cluster`, smaller than its quick one: every part measures, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.bench import cluster, kafka
from quorate.bench.cluster_stage import Plan
from quorate.bench.report import Report
from quorate.machine.metadata import REPLICATIONS

pytestmark = pytest.mark.cluster

SMALL = Plan(
    1, seconds=0.2, idle_partitions=20, idle_seconds=1.0, kills=1, log_bytes=32 << 20, moved_bytes=4 << 20
)


def measured(directory: Path, *parts: str, protocol: str | None = None) -> tuple[Report, list[str]]:
    said: list[str] = []
    report = cluster.run(said.append, directory=directory, only=parts, protocol=protocol, plan=SMALL)
    assert list(directory.iterdir()) == []
    return report, said


def of(report: Report, name: str) -> float:
    (found,) = [claim.median for claim in report.claims if claim.name == name]
    return found


def test_latency_and_throughput_of_every_protocol(tmp_path: Path) -> None:
    report, _ = measured(tmp_path, "latency", "throughput")
    for protocol in REPLICATIONS:
        assert of(report, f"{protocol}: latency beside its limit (p50)") > 0
        assert of(report, f"{protocol}: throughput beside its limit") > 0
    assert [figure.median > 0 for figure in report.figures if figure.name == "three bare processes, p50"] == [
        True
    ]
    assert report.command == "quorate bench cluster --only latency,throughput"


@pytest.mark.proof
def test_killed_leaders_are_followed_by_others_and_nothing_is_lost(tmp_path: Path) -> None:
    report, said = measured(tmp_path, "kills")
    for protocol in REPLICATIONS:
        assert of(report, f"{protocol}: longest time without writes") > 0
    assert of(report, "acknowledged entries lost, any node") == 0
    assert of(report, "entries that nobody wrote, or twice") == 0
    assert any("kill -9" in line for line in said)


@pytest.mark.proof
def test_idle_partitions_cost_processor_time_that_is_measured(tmp_path: Path) -> None:
    report, _ = measured(tmp_path, "idle", protocol="isr")
    assert of(report, "isr: 20 idle partitions, of one core") >= 0
    assert of(report, "isr: latency beside them") > 0
    assert report.command == "quorate bench cluster --only idle --protocol isr"


@pytest.mark.proof
def test_what_clients_notice_while_data_moves_and_a_topic_is_turned(tmp_path: Path) -> None:
    report, _ = measured(tmp_path, "moving", "turning", protocol="isr")
    (rate,) = [figure.median for figure in report.figures if figure.name == "· how fast it is made"]
    assert rate > 0
    ways = [claim.name.partition(":")[0] for claim in report.claims if "longest time" in claim.name]
    assert ways == ["isr to confirm", "confirm to raft", "raft to coordinated", "coordinated to isr"]
    assert of(report, "acknowledged entries lost, any node") == 0
    assert of(report, "entries that nobody wrote, or twice") == 0


@pytest.mark.proof
def test_a_node_with_logs_is_ready_again_after_a_stop_and_after_a_kill(tmp_path: Path) -> None:
    report, _ = measured(tmp_path, "open", protocol="raft")
    assert of(report, "ready after a clean stop") > 0
    assert of(report, "ready after kill -9") > 0
    (size,) = [figure.median for figure in report.figures if "logs" in figure.name]
    assert size * (1 << 30) >= SMALL.log_bytes


@pytest.mark.proof
def test_kafkas_clients_are_measured_beside_a_broker_that_keeps_nothing(tmp_path: Path) -> None:
    plan = kafka.Plan(1, producing_s=0.5, long_bytes=8 << 20, empty_count=200, waiting_s=1.0)
    report = kafka.run(directory=tmp_path, plan=plan)
    assert list(tmp_path.iterdir()) == []
    assert all(figure.median > 0 for figure in report.figures)
    assert 0 < of(report, "librdkafka beside a broker that only acknowledges") < 2
    assert of(report, "catching up on batches of 64 KiB") > 1


def test_where_the_disk_has_no_room_that_is_said(tmp_path: Path) -> None:
    plan = Plan(
        1, seconds=0.2, idle_partitions=1, idle_seconds=1.0, kills=1, log_bytes=1 << 60, moved_bytes=1
    )
    said: list[str] = []
    report = cluster.run(said.append, directory=tmp_path, only=("open",), protocol="raft", plan=plan)
    assert report.claims == ()
    assert any("left out" in line for line in said)
