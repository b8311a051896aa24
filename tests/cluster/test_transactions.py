"""Transactions against three real processes: nothing lost, nothing twice, nothing aborted seen, nothing torn."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from quorate.batch import encode_records
from quorate.bench.cluster_processes import POLL_S
from quorate.client import CommitFailed, Joint, NumberIn, Part, RunFenced
from quorate.machine.metadata import REPLICATIONS
from tests.cluster.client_notes import TRANSACTIONS, note
from tests.cluster.kafka_clients import TIMEOUT_S, Confluent
from tests.cluster.other_clients import NotThere
from tests.cluster.person import Operator
from tests.cluster.support import expect_no_traceback
from tests.cluster.test_kafka_clients import FIRST, KafkaCluster
from tests.cluster.transaction_clients import PRODUCERS, by_kcat

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

END_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("transactions")) as cluster:
        cluster.start()
        cluster.until_ready()
        yield cluster
        expect_no_traceback(*cluster.nodes.values())


# ---- what readers see ----


def seen(
    bootstrap: str, topic: str, *, partitions: int = 2, isolation: str = "read_committed"
) -> dict[int, list[bytes]]:
    """Everything that a reader sees up to the ends of the partitions, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: dict[int, list[bytes]] = {number: [] for number in range(partitions)}
    ended: set[int] = set()
    deadline = time.monotonic() + TIMEOUT_S
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"only {sorted(ended)} of {topic} were read to their end"
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            if error.name() == "_PARTITION_EOF":
                ended.add(message.partition() or 0)
            continue
        found[message.partition() or 0].append(message.value() or b"")
    consumer.close()
    return found


def until_seen(bootstrap: str, topic: str, wanted: Callable[[dict[int, list[bytes]]], bool]) -> None:
    deadline = time.monotonic() + END_S
    while not wanted(found := seen(bootstrap, topic)):
        assert time.monotonic() < deadline, found
        time.sleep(POLL_S)


IN_EVERY_RUN = {(client, "raft") for client in ("confluent-kafka", "aiokafka", "kafka-python")} | {
    ("confluent-kafka", "confirm")
}


def combinations() -> list[Any]:
    """One protocol with each client of ours, and one client with another protocol; all of them in a proof."""
    return [
        pytest.param(
            client,
            replication,
            id=f"{client}|{replication}",
            marks=() if (client, replication) in IN_EVERY_RUN else pytest.mark.proof,
        )
        for client in PRODUCERS
        for replication in REPLICATIONS
    ]


@pytest.mark.parametrize(("client", "replication"), combinations())
def test_readers_see_what_was_committed_whole_and_in_order(
    cluster: KafkaCluster, client: str, replication: str
) -> None:
    topic = f"plain-{client}-{replication}"
    Confluent(cluster.bootstrap).create(topic, partitions=2, quorate_replication=replication)
    transactions = [
        ([b"%d.%d" % (number, each) for each in range(4)], number % 3 != 1) for number in range(6)
    ]
    note(client, replication, TRANSACTIONS, "failed")
    try:
        PRODUCERS[client](cluster.bootstrap, topic, transactions)
    except NotThere as why:
        note(client, replication, TRANSACTIONS, f"not run: {why}")
        pytest.skip(str(why))
    wanted = {
        part: [value for values, commit in transactions if commit for value in values[part::2]]
        for part in range(2)
    }
    until_seen(cluster.bootstrap, topic, lambda found: found == wanted)
    all_of_it = seen(cluster.bootstrap, topic, isolation="read_uncommitted")
    assert sum(map(len, all_of_it.values())) == 24
    note(client, replication, TRANSACTIONS, "passed")


@pytest.mark.proof
@pytest.mark.parametrize("replication", REPLICATIONS)
def test_kcat_writes_one_transaction(cluster: KafkaCluster, replication: str) -> None:
    topic = f"kcat-{replication}"
    Confluent(cluster.bootstrap).create(topic, partitions=2, quorate_replication=replication)
    values = [b"%d" % number for number in range(10)]
    note("kcat", replication, TRANSACTIONS, "failed")
    try:
        by_kcat(cluster.bootstrap, topic, values)
    except NotThere as why:
        note("kcat", replication, TRANSACTIONS, f"not run: {why}")
        pytest.skip(str(why))
    until_seen(cluster.bootstrap, topic, lambda found: found == {0: values, 1: []})
    note("kcat", replication, TRANSACTIONS, "passed")


def test_an_older_producer_is_fenced(cluster: KafkaCluster) -> None:
    topic = "fencing"
    Confluent(cluster.bootstrap).create(topic, partitions=2)
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": "fenced"}
    old, new = Producer(settings), Producer(settings)
    old.init_transactions(TIMEOUT_S)
    old.begin_transaction()
    old.produce(topic, b"old", partition=0)
    old.flush(TIMEOUT_S)
    new.init_transactions(TIMEOUT_S)
    new.begin_transaction()
    new.produce(topic, b"new", partition=0)
    with pytest.raises(KafkaException) as caught:
        old.commit_transaction(TIMEOUT_S)
    assert caught.value.args[0].fatal()
    new.commit_transaction(TIMEOUT_S)
    until_seen(cluster.bootstrap, topic, lambda found: found == {0: [b"new"], 1: []})


# ---- a person ----


def listed_of(person: Operator, name: str) -> list[dict[str, Any]]:
    found = person.shows("transaction list")["transactions"]
    return [each for each in found if each["transaction"] == name]


def test_a_transaction_that_nobody_ends_is_aborted_by_a_person_and_readers_go_on(
    cluster: KafkaCluster,
) -> None:
    topic, person = "stuck", Operator(cluster.bootstrap)
    Confluent(cluster.bootstrap).create(topic, partitions=2)
    settings = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
    stuck = Producer({**settings, "transactional.id": "pay day", "transaction.timeout.ms": 600_000})
    stuck.init_transactions(TIMEOUT_S)
    stuck.begin_transaction()
    for number in range(2):
        stuck.produce(topic, b"held", partition=number)
    assert stuck.flush(TIMEOUT_S) == 0
    other = Producer(settings)
    other.produce(topic, b"behind", partition=0)
    assert other.flush(TIMEOUT_S) == 0
    assert seen(cluster.bootstrap, topic) == {0: [], 1: []}

    (listed,) = listed_of(person, "pay day")
    assert (listed["kind"], listed["state"]) == ("plain", "open")
    assert listed["holds_back"] == ["stuck/0", "stuck/1"]
    assert 590 < listed["age_s"] + listed["left_s"] <= 600
    assert "pay day" in person.does("transaction list")
    mistyped = person.is_refused("transaction abort payday")
    assert "no transaction of 'payday' is open; `quorate transaction list`" in mistyped

    done = person.types_words("transaction", "abort", "pay day", "--json")
    assert done.returncode == 0, done.stderr
    aborted = {"transaction": "pay day", "outcome": "aborted", "producer_ids": [listed["producer_id"]]}
    assert json.loads(done.stdout) == aborted
    assert seen(cluster.bootstrap, topic) == {0: [b"behind"], 1: []}, "as soon as the command has ended"
    assert listed_of(person, "pay day") == []
    with pytest.raises(KafkaException) as caught:
        stuck.commit_transaction(TIMEOUT_S)
    assert caught.value.args[0].fatal(), "whoever had it open is fenced"


def test_what_a_joint_app_has_open_is_aborted_by_a_person_and_its_next_run_goes_on(
    cluster: KafkaCluster,
) -> None:
    topic, person = "stuck-jointly", Operator(cluster.bootstrap)
    Confluent(cluster.bootstrap).create(topic, partitions=2)
    with joint(cluster, "clicks", "first") as one:
        parts = [write(one, 41, task, topic) for task in range(2)]
        listed = listed_of(person, "clicks")
        assert [(each["kind"], each["number"]) for each in listed] == [("joint", 41)] * 2
        assert person.does("transaction abort clicks") == (
            "clicks: aborted; readers of committed records go on\n"
        )
        assert listed_of(person, "clicks") == []
        with pytest.raises(RunFenced):
            one.commit(41, parts)
    with joint(cluster, "clicks", "second") as again:
        assert again.commit(41, [write(again, 41, 0, topic)]).last == 41
    values = [b"41.0.0", b"41.0.1"]
    until_seen(cluster.bootstrap, topic, lambda found: found == {0: values, 1: values})


# ---- kill -9 ----


class Writer:
    """A transactional producer in as many lives as it takes; a transaction that is in doubt is looked for."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.producer: Producer | None = None
        self.deadline = time.monotonic() + END_S

    def write(self, values: list[bytes], in_the_middle: Callable[[], None]) -> None:
        """Until these values are committed, once."""
        while True:
            assert time.monotonic() < self.deadline, f"{values} are not committed"
            try:
                self._try(values, in_the_middle)
                return
            except KafkaException:
                self.producer = None
                in_the_middle = _nothing
                self._begin()  # Whatever was open is aborted by that, or was committed.
                if values[0] in seen(self.bootstrap, self.topic)[0]:
                    return

    def _begin(self) -> Producer:
        while self.producer is None:
            assert time.monotonic() < self.deadline, "no coordinator lets a producer begin"
            settings = {"bootstrap.servers": self.bootstrap, "transactional.id": f"writer-{self.topic}"}
            producer = Producer(settings)
            try:
                producer.init_transactions(TIMEOUT_S)
                self.producer = producer
            except KafkaException:
                continue
        return self.producer

    def _try(self, values: list[bytes], in_the_middle: Callable[[], None]) -> None:
        producer = self._begin()
        producer.begin_transaction()
        for number, value in enumerate(values):
            producer.produce(self.topic, value, partition=number % 2)
            if number == 1:
                producer.poll(0)
                in_the_middle()
        producer.commit_transaction(TIMEOUT_S)


def _nothing() -> None:
    pass


def test_transactions_are_whole_whoever_is_killed(tmp_path: Path) -> None:
    """The leader of a partition, and the coordinator, are killed in the middle of transactions."""
    with KafkaCluster(tmp_path) as cluster:
        cluster.start()
        cluster.until_ready()
        Confluent(cluster.bootstrap).create("whole", partitions=2)
        writer = Writer(cluster.bootstrap, "whole")
        victims = {4: lambda: cluster.leader_of("whole"), 9: lambda: coordinator(cluster, 1, "writer-whole")}
        for number in range(14):
            down: list[int] = []

            def kill(number: int = number, down: list[int] = down) -> None:
                down.append(victims[number]())
                cluster.nodes[down[0]].kill()

            values = [b"%d.%d" % (number, each) for each in range(4)]
            writer.write(values, kill if number in victims else _nothing)
            for node in down:
                cluster.nodes[node].start()
        wanted = {
            part: [b"%d.%d" % (number, each) for number in range(14) for each in (part, part + 2)]
            for part in range(2)
        }
        until_seen(cluster.bootstrap, "whole", lambda found: found == wanted)
        expect_no_traceback(*cluster.nodes.values())


def test_positions_and_records_are_committed_together(cluster: KafkaCluster) -> None:
    """Read, transformed and written: where the transaction was aborted, the group is where it was."""
    client = Confluent(cluster.bootstrap)
    for topic in ("source", "target"):
        client.create(topic, partitions=2)
    client.produce("source", [b"%d" % number for number in range(20)], "none")
    consumer = client.consumer(group_id="transformers", isolation_level="read_committed")
    producer = client.producer(transactional_id="transformer")
    producer.init_transactions(TIMEOUT_S)
    for commit in (False, True):
        producer.begin_transaction()
        for number in range(20):
            producer.produce("target", b"%d" % (2 * number), partition=0)
        position = TopicPartition("source", 0, FIRST + 20)
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([position], group, TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S) if commit else producer.abort_transaction(TIMEOUT_S)
        until_position(consumer, FIRST + 20 if commit else -1001)
    consumer.close()
    wanted = [b"%d" % (2 * number) for number in range(20)]
    until_seen(cluster.bootstrap, "target", lambda found: found == {0: wanted, 1: []})


def until_position(consumer: Consumer, wanted: int) -> None:
    deadline = time.monotonic() + END_S
    while True:
        (found,) = consumer.committed([TopicPartition("source", 0)], TIMEOUT_S)
        if found.offset == wanted:
            return
        assert time.monotonic() < deadline, found
        time.sleep(POLL_S)


def coordinator(cluster: KafkaCluster, kind: int, name: str) -> int:
    """Who coordinates that, as the nodes say."""
    from quorate.client import Cluster
    from quorate.wire.entities import make
    from quorate.wire.messages import Api, request_class

    body = make(request_class(Api.FIND_COORDINATOR, 4), {"key_type": kind, "coordinator_keys": [name]})
    deadline = time.monotonic() + TIMEOUT_S
    with Cluster(cluster.bootstrap) as client:
        while True:
            answer = client.ask_anybody(Api.FIND_COORDINATOR, 4, body, deadline)
            node = int(answer.coordinators[0].node_id)
            if node in cluster.nodes and cluster.nodes[node].is_running:
                return node
            assert time.monotonic() < deadline
            time.sleep(POLL_S)


# ---- joint ----


def joint(cluster: KafkaCluster, app: str, run: str) -> Joint:
    return Joint(cluster.bootstrap, app, run, timeout_s=TIMEOUT_S)


def write(one: Joint, number: int, task: int, topic: str, *, attempt: int = 0) -> Part:
    writer = one.writer(one.open(number, task=task, attempt=attempt, timeout_s=60.0))
    for half in range(2):
        value = b"%d.%d.%d" % (number, task, half)
        writer.append(topic, {part: encode_records([(None, value)]) for part in range(2)})
    return writer.part()


def test_joint_commits_are_whole_whoever_is_killed(tmp_path: Path) -> None:
    """Of each number both tasks are there, once, whichever coordinator or leader died while it was committed."""
    with KafkaCluster(tmp_path) as cluster:
        cluster.start()
        cluster.until_ready()
        Confluent(cluster.bootstrap).create("joint", partitions=2)
        down: list[int] = []
        with joint(cluster, "app", "run") as one:
            for number in range(6):
                parts = [write(one, number, task, "joint") for task in range(2)]
                write(one, number, 1, "joint", attempt=1)  # A speculative one, which loses.
                if number in (2, 4):
                    for node in down:
                        cluster.nodes[node].start()
                    down = [coordinator(cluster, 1, "app") if number == 2 else cluster.leader_of("joint")]
                    cluster.nodes[down[0]].kill()
                one.commit(number, parts)
                assert one.commit(number, parts).already_in
        wanted = [
            b"%d.%d.%d" % (number, task, half) for number in range(6) for task in range(2) for half in (0, 1)
        ]
        until_seen(
            cluster.bootstrap, "joint", lambda found: all(sorted(each) == wanted for each in found.values())
        )
        expect_no_traceback(*cluster.nodes.values())


def test_a_new_run_fences_the_one_before_it(cluster: KafkaCluster) -> None:
    Confluent(cluster.bootstrap).create("runs", partitions=2)
    with joint(cluster, "restarted", "first") as old, joint(cluster, "restarted", "second") as new:
        stale = write(old, 0, 0, "runs")
        part = write(new, 0, 0, "runs")
        with pytest.raises(RunFenced):
            old.commit(0, [stale])
        with pytest.raises(CommitFailed):
            new.commit(0, [part, stale])
        new.commit(0, [part])
        with pytest.raises(NumberIn):
            new.open(0, task=1, attempt=0)
    values = [b"0.0.0", b"0.0.1"]
    until_seen(cluster.bootstrap, "runs", lambda found: found == {0: values, 1: values})


def test_a_topic_that_was_made_anew_fails_the_commit(cluster: KafkaCluster) -> None:
    client = Confluent(cluster.bootstrap)
    client.create("anew", partitions=2)
    with joint(cluster, "anew", "run") as one:
        part = write(one, 0, 0, "anew")
        client.delete("anew")
        cluster.until_gone("anew")
        client.create("anew", partitions=2)
        with pytest.raises(CommitFailed, match="created anew"):
            one.commit(0, [part])
    until_seen(cluster.bootstrap, "anew", lambda found: found == {0: [], 1: []})
