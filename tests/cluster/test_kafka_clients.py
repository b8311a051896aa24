"""Kafka's clients against three real processes: what they write is there, once, and they find it again."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions, NewTopic

from quorate.batch import encode_records
from quorate.bench.cluster_processes import POLL_S, Cluster, NodeProcess
from tests.cluster.kafka_clients import TIMEOUT_S, Aiokafka, Confluent, KafkaClient, KafkaPython, Kcat
from tests.cluster.person import Operator
from tests.cluster.support import QUICK_RAFT, expect_no_traceback, run
from tests.unit.kafka.harness import Connection

pytestmark = [
    pytest.mark.cluster,
    # Sockets that a client leaves to the garbage collector are its own business.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CLIENTS: list[type[KafkaClient]] = [Confluent, Aiokafka, KafkaPython, Kcat]
FIRST = 1
"""The first offset that a client gets: a leader's own entry lies before it."""


class KafkaCluster(Cluster):
    def __init__(self, directory: Path, raft: dict[str, float] = QUICK_RAFT) -> None:
        super().__init__(directory, partitions=0, metadata_voters=3, raft=raft)
        for node in self.nodes.values():
            node.command = (sys.executable, "-m", "quorate.kafka")

    @property
    def bootstrap(self) -> str:
        return ",".join(str(node.address) for node in self.nodes.values())

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """As the nodes that run say."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            known = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
            leader = known[partition].leader if partition in known else -1
            if leader in self.nodes and self.nodes[leader].is_running:
                return int(leader)
            time.sleep(POLL_S)
        raise AssertionError(f"no leader for {topic}")

    def until_ready(self) -> None:
        """Every node knows every other."""
        deadline = time.monotonic() + TIMEOUT_S
        for node in self.nodes.values():
            admin = AdminClient({"bootstrap.servers": str(node.address)})
            while len(admin.list_topics(timeout=TIMEOUT_S).brokers) < len(self.nodes):
                assert time.monotonic() < deadline, "the nodes did not register"
                time.sleep(POLL_S)

    def until_gone(self, topic: str) -> None:
        """Every node learns of a deletion; the one that was asked, first."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        deadline = time.monotonic() + TIMEOUT_S
        while topic in admin.list_topics(timeout=TIMEOUT_S).topics:
            assert time.monotonic() < deadline, f"{topic} is still there"
            time.sleep(POLL_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("kafka")) as cluster:
        cluster.start()
        cluster.until_ready()
        yield cluster
        expect_no_traceback(*cluster.nodes.values())


def make(kind: type[KafkaClient], cluster: KafkaCluster) -> KafkaClient:
    if kind is Kcat and shutil.which("kcat") is None:
        pytest.skip("kcat is not on the PATH; on Debian: apt-get install kcat")
    return kind(cluster.bootstrap)


@pytest.mark.parametrize(
    ("kind", "compression"), [(kind, name) for kind in CLIENTS for name in kind.compressions]
)
def test_a_client_finds_what_it_wrote(
    cluster: KafkaCluster, kind: type[KafkaClient], compression: str
) -> None:
    client = make(kind, cluster)
    topic = f"{client.name}-{compression}"
    client.create(topic)
    values = [b"%d %s" % (number, b"x" * 50) for number in range(500)]
    began_ms = int(time.time() * 1000)
    client.produce(topic, values, compression)
    assert client.consume(topic, len(values)) == list(enumerate(values, start=FIRST))
    assert client.ends(topic) == (0, FIRST + len(values))
    assert client.first_at(topic, began_ms) == FIRST
    later_ms = int(time.time() * 1000) + 60_000
    # Where no record is so late, some clients say nothing and librdkafka says the end.
    assert client.first_at(topic, later_ms) in (None, FIRST + len(values))
    client.delete(topic)
    cluster.until_gone(topic)


@pytest.mark.parametrize("kind", CLIENTS)
def test_one_client_reads_what_another_wrote(cluster: KafkaCluster, kind: type[KafkaClient]) -> None:
    reader = make(kind, cluster)
    writer = Confluent(cluster.bootstrap)
    topic = f"for-{reader.name}"
    writer.create(topic)
    values = [b"value %d" % number for number in range(100)]
    writer.produce(topic, values, "zstd" if "zstd" in reader.compressions else "gzip")
    assert [value for _, value in reader.consume(topic, len(values))] == values


def test_offsets_for_times_name_the_exact_record(cluster: KafkaCluster) -> None:
    client = Confluent(cluster.bootstrap)
    client.create("times")
    producer = client.producer(compression_type="gzip", linger_ms=200)
    for number in range(100):
        producer.produce("times", b"%d" % number, partition=0, timestamp=1_000_000 + 10 * number)
    assert producer.flush(TIMEOUT_S) == 0
    assert client.first_at("times", 0) == FIRST
    assert client.first_at("times", 1_000_000 + 10 * 42) == FIRST + 42
    assert client.first_at("times", 1_000_000 + 10 * 42 + 1) == FIRST + 43
    assert client.first_at("times", 1_000_000 + 10 * 100) in (None, FIRST + 100)


def test_a_leader_killed_while_a_producer_writes_loses_and_doubles_nothing(tmp_path: Path) -> None:
    count, delivered_before_kill_count = 6000, 500
    with KafkaCluster(tmp_path) as cluster:
        cluster.start()
        cluster.until_ready()
        client = Confluent(cluster.bootstrap)
        client.create("events")
        victim = cluster.nodes[cluster.leader_of("events")]
        delivered: list[int] = []
        failed: list[Any] = []

        def told(error: Any, message: Any) -> None:
            if error:
                failed.append(error)
            else:
                delivered.append(message.offset())

        producer = client.producer(enable_idempotence=True, linger_ms=1, batch_num_messages=20)
        for number in range(count // 2):
            producer.produce("events", b"%d" % number, partition=0, on_delivery=told)
        while len(delivered) < delivered_before_kill_count:
            producer.poll(TIMEOUT_S)
        assert len(delivered) < count // 2, "the kill shall find requests under way"
        victim.kill()
        for number in range(count // 2, count):
            producer.produce("events", b"%d" % number, partition=0, on_delivery=told)
        assert producer.flush(TIMEOUT_S) == 0
        assert failed == []
        assert len(delivered) == count
        read = client.consume("events", count)
        assert [int(value) for _, value in read] == list(range(count))
        assert [offset for offset, _ in read] == sorted(delivered)
        victim.start()
        values = [b"after"]
        client.produce("events", values, "none")
        assert [value for _, value in client.consume("events", count + 1)][-1:] == values
        expect_no_traceback(*cluster.nodes.values())


def test_topics_are_refused_with_one_line_that_says_why(cluster: KafkaCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def why_not(new: NewTopic) -> str:
        with pytest.raises(KafkaException) as refused:
            admin.create_topics([new])[new.topic].result(TIMEOUT_S)
        error = refused.value.args[0]
        return f"{error.name()}: {error.str()}"

    paxos = NewTopic("refused", 1, 3, config={"quorate.replication": "paxos"})
    there_are = "there are: raft, coordinated, isr, confirm"
    assert why_not(paxos) == f"INVALID_CONFIG: quorate.replication=paxos is unknown; {there_are}"
    unknown = NewTopic("refused", 1, 3, config={"segment.jitter.s": "1"})
    assert why_not(unknown) == "INVALID_CONFIG: segment.jitter.s is not a setting of topics here"
    both = NewTopic("refused", 1, 3, config={"cleanup.policy": "compact,delete"})
    why = "INVALID_CONFIG: cleanup.policy=compact,delete is not done here; only delete or compact"
    assert why_not(both) == why
    assert why_not(NewTopic("refused", 1, 4)).startswith("INVALID_REPLICATION_FACTOR: replication factor 4")
    assert why_not(NewTopic("refused", 20_000, 3)).startswith("INVALID_PARTITIONS: 20000 partitions")
    assert why_not(NewTopic("a topic", 1, 3)).startswith("TOPIC_EXCEPTION: 'a topic' is no topic name")
    admin.create_topics([NewTopic("there", 1, 3)])["there"].result(TIMEOUT_S)
    assert why_not(NewTopic("there", 1, 3)) == "TOPIC_ALREADY_EXISTS: topic 'there' is there already"


@pytest.mark.parametrize("replication", ["raft", "coordinated", "isr", "confirm"])
def test_topics_of_every_protocol_are_altered_and_grow(cluster: KafkaCluster, replication: str) -> None:
    client, name = Confluent(cluster.bootstrap), f"altered-{replication}"
    client.create(name, quorate_replication=replication)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def resource(*altered: ConfigEntry) -> ConfigResource:
        return ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=list(altered))

    def described() -> dict[str, ConfigEntry]:
        (found,) = admin.describe_configs([resource()]).values()
        entries: dict[str, ConfigEntry] = found.result(TIMEOUT_S)
        return entries

    assert described()["quorate.replication"].value == replication
    assert described()["max.message.bytes"].is_default
    small = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    (altered,) = admin.incremental_alter_configs([resource(small)]).values()
    altered.result(TIMEOUT_S)
    assert described()["max.message.bytes"].value == "2000"
    reset = ConfigEntry("max.message.bytes", None, incremental_operation=AlterConfigOpType.DELETE)
    (altered,) = admin.incremental_alter_configs([resource(reset)]).values()
    altered.result(TIMEOUT_S)
    assert described()["max.message.bytes"].value == "1048588"
    admin.create_partitions([NewPartitions(name, 3)])[name].result(TIMEOUT_S)
    partitions = admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions
    assert sorted(partitions) == [0, 1, 2]
    assert all(sorted(partition.isrs) == [1, 2, 3] for partition in partitions.values())
    producer = client.producer()
    for number in partitions:
        producer.produce(name, b"value", partition=number)
    assert producer.flush(TIMEOUT_S) == 0
    refused = admin.create_partitions([NewPartitions(name, 2)])[name]
    with pytest.raises(KafkaException, match="has 3 partitions; more can be added, and none removed"):
        refused.result(TIMEOUT_S)


def test_a_topic_that_is_only_validated_is_not_made(cluster: KafkaCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("validated", 1, 3)], validate_only=True)["validated"].result(TIMEOUT_S)
    assert "validated" not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_partitions_go_where_the_client_says(cluster: KafkaCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic("assigned", 2, replica_assignment=[[2, 1], [3]])
    admin.create_topics([new])["assigned"].result(TIMEOUT_S)
    partitions = admin.list_topics("assigned", timeout=TIMEOUT_S).topics["assigned"].partitions
    assert [partitions[number].replicas for number in (0, 1)] == [[2, 1], [3]]
    assert partitions[1].leader == 3


def test_a_batch_beyond_the_topics_limit_is_refused(cluster: KafkaCluster) -> None:
    client = Confluent(cluster.bootstrap)
    client.create("small", max_message_bytes="2000")
    errors: list[str] = []
    producer = client.producer()
    for size in (1000, 3000):
        producer.produce(
            "small",
            b"x" * size,
            on_delivery=lambda error, _: errors.append(error.name() if error else "taken"),
        )
        assert producer.flush(TIMEOUT_S) == 0
    assert errors == ["taken", "MSG_SIZE_TOO_LARGE"]


def test_a_leader_that_nobody_follows_answers_where_its_own_flush_is_enough(tmp_path: Path) -> None:
    """For whoever asks for no more, or in a topic that says so; in any other, acks=all waits for a quorum."""

    async def asked(node: NodeProcess) -> None:
        batch = encode_records([(None, b"value")])
        async with Connection(*await asyncio.open_connection(*node.address)) as connection:
            for topic, acks in (("lonely", 1), ("weaker", -1)):
                answer = await connection.produce(topic, batch, acks=acks)
                assert answer.error_code == 0
                assert answer.base_offset >= FIRST  # Behind what each leadership begins with.
            waited = asyncio.ensure_future(connection.produce("lonely", batch, acks=-1))
            done, _ = await asyncio.wait([waited], timeout=0.5)
            assert not done or waited.result().error_code, "a quorum has not flushed it"
            waited.cancel()

    # Nobody else is to lead before the leader is asked.
    with KafkaCluster(tmp_path, raft={"election_timeout_s": 4.0, "heartbeat_s": 0.1}) as cluster:
        cluster.start()
        cluster.until_ready()
        Confluent(cluster.bootstrap).create("lonely")
        leader = cluster.leader_of("lonely")
        Confluent(cluster.bootstrap).create("weaker", quorate_flush="leader")
        Operator(cluster.bootstrap).brings_about(f"topic transfer weaker --to {leader}")
        others = [node for number, node in cluster.nodes.items() if number != leader]
        for node in others:
            node.send(signal.SIGSTOP)
        run(asked(cluster.nodes[leader]))
        for node in others:
            node.send(signal.SIGCONT)
        expect_no_traceback(*cluster.nodes.values())


@pytest.mark.parametrize("acks", [0, 1])
def test_weaker_acks_are_written_all_the_same(cluster: KafkaCluster, acks: int) -> None:
    client = Confluent(cluster.bootstrap)
    topic = f"acks-{acks}"
    client.create(topic)
    producer = client.producer(acks=acks)
    values = [b"%d" % number for number in range(50)]
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    assert [value for _, value in client.consume(topic, len(values))] == values


def test_a_consumer_that_waits_hears_of_a_record_at_once(cluster: KafkaCluster) -> None:
    client = Confluent(cluster.bootstrap)
    client.create("waited-for")
    consumer = client.consumer(fetch_wait_max_ms=25_000)
    consumer.assign([TopicPartition("waited-for", 0, 0)])
    assert consumer.consume(1, timeout=0.5) == []
    client.produce("waited-for", [b"now"], "none")
    began = time.monotonic()
    (message,) = consumer.consume(1, timeout=TIMEOUT_S)
    assert message.value() == b"now"
    # One that was not woken would have taken all the time that it may wait.
    assert time.monotonic() - began < 10
    consumer.close()


def test_bytes_that_are_no_requests_end_their_connection_and_nothing_else(cluster: KafkaCluster) -> None:
    node = cluster.nodes[1]
    for nonsense in (
        b"\x7f\xff\xff\xff" + b"far too long",
        b"GET / HTTP/1.1\r\n\r\n",
        (10).to_bytes(4, "big") + bytes(10),
        (14).to_bytes(4, "big") + b"\0\3\0\4\0\0\0\1\0\0\x7f\xff\xff\xff",
        (10).to_bytes(4, "big") + b"\0\xff\0\0\0\0\0\1\0\0",
    ):
        with socket.create_connection(node.address, timeout=TIMEOUT_S) as connection:
            connection.sendall(nonsense)
            assert connection.recv(100) == b""
    assert node.is_running
    said = node.output.read_text(encoding="utf-8")
    assert "2147483647 elements cannot be in 0 bytes" in said
    assert "request 255 version 0: this request is not served here; disconnected" in said
