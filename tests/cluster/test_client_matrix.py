"""Every client against topics of every protocol: keys, headers and both kinds of time, as `docs/CLIENTS.md` tells.

`tools/clients.py` runs all of it and writes that page. A sample runs with every `make test`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.client_matrix import APPENDED, CLIENTS, CREATED, HEADER, Sent, Whole
from tests.cluster.kafka_clients import Confluent
from tests.cluster.other_clients import JavaTools, NotThere
from tests.cluster.support import expect_no_traceback
from tests.cluster.test_kafka_clients import KafkaCluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

REPORT = "QUORATE_CLIENTS_REPORT"
REPLICATIONS = ("raft", "coordinated", "isr", "confirm")
SAMPLE = {("confluent-kafka", "confirm"), ("aiokafka", "isr"), ("kafka-python", "coordinated")}
CLOCKS_MS = 1000
"""Nodes and clients are on one machine; a batch's time is that of its last record."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("matrix")) as cluster:
        cluster.start()
        cluster.until_ready()
        yield cluster
        expect_no_traceback(*cluster.nodes.values())


def note(client: str, version: str, replication: str, what: str) -> None:
    """For `tools/clients.py`, if it listens."""
    if REPORT in os.environ:
        with Path(os.environ[REPORT]).open("a", encoding="utf-8") as report:
            report.write(json.dumps([client, version, replication, what]) + "\n")


def combinations() -> list[object]:
    return [
        pytest.param(
            kind,
            replication,
            id=f"{kind.name}|{replication}",
            marks=() if (kind.name, replication) in SAMPLE else pytest.mark.proof,
        )
        for kind in CLIENTS
        for replication in REPLICATIONS
    ]


@pytest.mark.parametrize(("kind", "replication"), combinations())
def test_whole_records_go_through_a_client(
    cluster: KafkaCluster, kind: type[Whole], replication: str
) -> None:
    try:
        client = kind(cluster.bootstrap)
    except NotThere as why:
        note(kind.name, "", replication, f"not run: {why}")
        pytest.skip(str(why))
    note(kind.name, client.version, replication, "failed")
    number = CLIENTS.index(kind)
    for time_kind, setting in ((CREATED, "CreateTime"), (APPENDED, "LogAppendTime")):
        topic = f"matrix-{number}-{replication}-{setting}"
        Confluent(cluster.bootstrap).create(
            topic, quorate_replication=replication, message_timestamp_type=setting
        )
        records = [Sent(f"key-{each % 5}", f"value {each}") for each in range(50)]
        began_ms = int(time.time() * 1000)
        client.write(topic, records)
        ended_ms = int(time.time() * 1000)
        read = client.read(topic, len(records))
        assert [Sent(got.key, got.value) for got in read] == records
        assert {got.headers for got in read} == {(HEADER,)}
        assert {got.kind for got in read} <= {time_kind, None}
        assert all(began_ms - CLOCKS_MS <= got.time_ms <= ended_ms + CLOCKS_MS for got in read)
    note(kind.name, client.version, replication, "passed")


@pytest.mark.proof
def test_kafkas_own_tools_administer_a_cluster(cluster: KafkaCluster) -> None:
    try:
        tools = JavaTools(cluster.bootstrap)
    except NotThere as why:
        pytest.skip(str(why))
    tools.run(
        "TopicCommand", "--create", "--topic", "tooled", "--partitions", "2", "--replication-factor", "3"
    )
    said = tools.run("TopicCommand", "--describe", "--topic", "tooled")
    assert "PartitionCount: 2\tReplicationFactor: 3" in said
    tools.run("TopicCommand", "--alter", "--topic", "tooled", "--partitions", "3")
    tools.run("ConsoleProducer", "--topic", "tooled", given="one\ntwo\nthree\n")
    ends = dict(line.rsplit(":", 1) for line in tools.run("GetOffsetShell", "--topic", "tooled").splitlines())
    assert sorted(ends) == ["tooled:0", "tooled:1", "tooled:2"]
    assert sum(map(int, ends.values())) == 3 + 3  # A leader's own entry lies before them.
    assert "tooled" in tools.run("LogDirsCommand", "--describe", "--topic-list", "tooled")
    assert "LeaderId:" in tools.run("MetadataQuorumCommand", "describe", "--status")
    tools.run("TopicCommand", "--delete", "--topic", "tooled")
    cluster.until_gone("tooled")
