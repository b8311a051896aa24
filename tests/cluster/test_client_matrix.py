"""Every client against topics of every protocol: keys, headers, both kinds of time, and compacted topics, as
`docs/CLIENTS.md` tells.

`tools/clients.py` runs all of it and writes that page. A sample runs with every `make test`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quorate.bench.cluster_processes import POLL_S
from tests.cluster.client_matrix import APPENDED, CLIENTS, CREATED, HEADER, Sent, Whole
from tests.cluster.client_notes import COMPACTED, RECORDS, note
from tests.cluster.kafka_clients import TIMEOUT_S, Confluent
from tests.cluster.other_clients import JavaTools, NotThere
from tests.cluster.support import expect_no_traceback
from tests.cluster.test_kafka_clients import KafkaCluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

REPLICATIONS = ("raft", "coordinated", "isr", "confirm")
SAMPLE = {("confluent-kafka", "confirm"), ("aiokafka", "isr"), ("kafka-python", "coordinated")}
CLOCKS_MS = 1000
"""Nodes and clients are on one machine; a batch's time is that of its last record."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("matrix")) as cluster:
        for node in cluster.nodes.values():
            config = msgspec.json.decode(node.config.read_bytes())
            node.config.write_bytes(msgspec.json.encode({**config, "compaction_every_s": 0.1}))
        cluster.start()
        cluster.until_ready()
        yield cluster
        expect_no_traceback(*cluster.nodes.values())


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
        note(kind.name, replication, RECORDS, f"not run: {why}")
        pytest.skip(str(why))
    note(kind.name, replication, RECORDS, "failed", version=client.version)
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
    note(kind.name, replication, RECORDS, "passed", version=client.version)


@pytest.mark.parametrize(("kind", "replication"), combinations())
def test_a_client_finds_the_newest_of_each_key_in_a_compacted_topic(
    cluster: KafkaCluster, kind: type[Whole], replication: str
) -> None:
    try:
        client = kind(cluster.bootstrap)
    except NotThere as why:
        note(kind.name, replication, COMPACTED, f"not run: {why}")
        pytest.skip(str(why))
    note(kind.name, replication, COMPACTED, "failed", version=client.version)
    confluent = Confluent(cluster.bootstrap)
    topic = f"compacted-{CLIENTS.index(kind)}-{replication}"
    compacted: dict[str, Any] = {
        "cleanup_policy": "compact",
        "min_cleanable_dirty_ratio": "0.01",
        "segment_bytes": "16384",
    }
    confluent.create(topic, quorate_replication=replication, **compacted)
    records = [Sent(f"key-{each % 5}", f"value {each}") for each in range(50)]
    client.write(topic, records)
    assert failure_of(confluent, topic, key=None) == "INVALID_RECORD"
    # A segment ends with these, and what lies before them is compacted.
    for number in range(3):
        assert failure_of(confluent, topic, key=f"last-{number}", value="x" * 16_000) is None
    newest = [*range(45, 50)]
    until_compacted(confluent, topic, {f"value {each}".encode() for each in newest})
    read = client.read(topic, len(newest) + 3)
    assert [Sent(got.key, got.value) for got in read[: len(newest)]] == [records[each] for each in newest]
    assert [got.key for got in read[len(newest) :]] == ["last-0", "last-1", "last-2"]
    note(kind.name, replication, COMPACTED, "passed", version=client.version)


def failure_of(client: Confluent, topic: str, *, key: str | None, value: str = "x") -> str | None:
    """What a producer hears of a record; None: it is written."""
    failures: list[Any] = []
    producer = client.producer()
    producer.produce(
        topic, value, key, partition=0, headers=[HEADER], on_delivery=lambda error, _: failures.append(error)
    )
    assert producer.flush(TIMEOUT_S) == 0
    (failure,) = failures
    return None if failure is None else str(failure.name())


def until_compacted(client: Confluent, topic: str, kept: set[bytes]) -> None:
    """Of the records with short values only these are left."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        _, end = client.ends(topic)
        found = {value for _, value in client.consume_to(topic, end) if len(value) < 100}
        if found == kept:
            return
        assert kept <= found
        assert time.monotonic() < deadline, f"{topic} is not compacted: {sorted(found)}"
        time.sleep(POLL_S)


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


@pytest.mark.proof
def test_kafkas_own_tools_look_after_groups_copies_and_transactions(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    try:
        tools = JavaTools(cluster.bootstrap)
    except NotThere as why:
        pytest.skip(str(why))

    def file(name: str, content: object) -> str:
        (tmp_path / name).write_bytes(msgspec.json.encode(content))
        return str(tmp_path / name)

    tools.run("TopicCommand", "--create", "--topic", "kept", "--partitions", "1", "--replication-factor", "3")
    tools.write_in_transactions("kept", 40, "performer")
    what = ("--topic", "kept", "--group", "readers", "--from-beginning", "--max-messages", "40")
    committed = ("--isolation-level", "read_committed", "--timeout-ms", str(int(TIMEOUT_S * 1000)))
    said = tools.run("consumer.ConsoleConsumer", *what, *committed)
    assert len(said.splitlines()) == 40

    assert "performer" in tools.run("TransactionsCommand", "list")
    assert "CompleteCommit" in tools.run("TransactionsCommand", "describe", "--transactional-id", "performer")
    where = ("--topic", "kept", "--partition", "0")
    assert "None" in tools.run("TransactionsCommand", "describe-producers", *where)
    hanging = tools.run("TransactionsCommand", "find-hanging", "--topic", "kept")
    assert len(hanging.splitlines()) == 1, "a head, and nothing below it"

    groups = "consumer.group.ConsumerGroupCommand"
    assert "readers" in tools.run(groups, "--list")
    assert "kept" in tools.run(groups, "--describe", "--group", "readers")
    reset = ("--reset-offsets", "--group", "readers", "--topic", "kept", "--to-earliest", "--execute")
    assert "readers" in tools.run(groups, *reset)
    assert "Successful" in tools.run(groups, "--delete-offsets", "--group", "readers", "--topic", "kept")
    assert "successful" in tools.run(groups, "--delete", "--group", "readers")

    place = {"topic": "kept", "partition": 0}
    gone = file("gone.json", {"version": 1, "partitions": [{**place, "offset": 3}]})
    assert "low_watermark: 3" in tools.run("DeleteRecordsCommand", "--offset-json-file", gone)
    moved = file("moved.json", {"version": 1, "partitions": [{**place, "replicas": [2, 3, 1]}]})
    mover = "reassign.ReassignPartitionsCommand"
    tools.run(mover, "--execute", "--reassignment-json-file", moved)
    deadline = time.monotonic() + TIMEOUT_S
    while "is completed" not in tools.run(mover, "--verify", "--reassignment-json-file", moved):
        assert time.monotonic() < deadline
    tools.run("LeaderElectionCommand", "--election-type", "preferred", *where)
    assert "Leader: 2" in tools.run("TopicCommand", "--describe", "--topic", "kept")
