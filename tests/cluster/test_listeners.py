"""Listeners in real processes: TLS and passwords for clients, certificates between nodes, addresses by who asks."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorate.client import Cluster, NotLetIn, Security
from quorate.node.codec import Hello, encode_greeting
from quorate.node.letters import PREFACE
from tests.cluster.kafka_clients import TIMEOUT_S, Confluent
from tests.cluster.secured import SecuredCluster, needs_openssl

pytestmark = [pytest.mark.cluster, needs_openssl]

ANN, PASSWORD = "ann", "correct horse"


class SecuredConfluent(Confluent):
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.admin = AdminClient(settings)


def quorate(cluster: SecuredCluster, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quorate", "--access", str(cluster.access), *arguments]
    return subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with SecuredCluster(tmp_path_factory.mktemp("secured")) as cluster:
        cluster.start()
        added = quorate(cluster, "user", "add", ANN, given=f"{PASSWORD}\n")
        assert (added.returncode, added.stdout, added.stderr) == (0, "user ann is added\n", "")
        yield cluster
        for node in cluster.nodes.values():
            assert node.stop() == 0
            assert "Traceback" not in node.output.read_text(encoding="utf-8")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_confluent_writes_and_reads_over_tls_with_a_password(cluster: SecuredCluster, mechanism: str) -> None:
    client = SecuredConfluent(cluster.client_settings(ANN, PASSWORD, mechanism))
    topic = f"with-{mechanism.lower()}"
    client.create(topic)
    values = [f"{number}".encode() for number in range(100)]
    client.produce(topic, values, "none")
    assert [value for _, value in client.consume(topic, 100)] == values
    brokers = client.admin.list_topics(timeout=TIMEOUT_S).brokers
    assert {broker.port for broker in brokers.values()} == set(cluster.ports.values())
