"""`python -m quorate.kafka`: what it refuses to start with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quorate.bench.cluster_processes import free_ports
from quorate.kafka import guests
from quorate.node.__main__ import EXIT_NOT_STARTED, EXIT_STOPPED, main


def test_a_node_without_a_metadata_group_does_not_serve_kafka_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"cluster": "test", "node": 1, "directory": "n1", "listen": f"127.0.0.1:{free_ports(1)[0]}"}
    file = tmp_path / "n1.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    assert main(["--config", str(file), "--format"], guests=guests) == EXIT_STOPPED
    assert main(["--config", str(file)], guests=guests) == EXIT_NOT_STARTED
    (line,) = capsys.readouterr().err.splitlines()
    assert "Kafka clients are served only where a metadata group is; name its voters" in line
