"""Consumer groups with the clients that people have, against three real processes, one of which is killed."""

from __future__ import annotations

import gc
import logging
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition

from quorate.cli.entry import run
from quorate.client import Cluster as Asking
from quorate.client.cluster import NO_LEADER
from quorate.core.entry import Partition, partition_of
from quorate.machine.cluster import home_number
from quorate.node.client import Unreachable
from quorate.node.homes import HOME_PARTITIONS_COUNT
from quorate.node.requests import Image
from tests.cluster.group_support import (
    POSITION_KEPT,
    READERS,
    AiokafkaReader,
    ConfluentReader,
    KafkaConsumer,
    KafkaPythonReader,
    PythonError,
    PythonTopicPartition,
    Reader,
    have_shared,
    until,
)
from tests.cluster.kafka_clients import TIMEOUT_S, Confluent
from tests.cluster.support import expect_no_traceback, sampled
from tests.cluster.support import run as run_async
from tests.cluster.test_kafka_clients import KafkaCluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PARTITIONS_COUNT = 4
SAMPLED_READERS = [READERS[0], *(pytest.param(each, marks=pytest.mark.proof) for each in READERS[1:])]
"""One client in every run, all of them in a proof."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("groups")) as cluster:
        cluster.start()
        cluster.until_ready()
        yield cluster
        expect_no_traceback(*cluster.nodes.values())


@pytest.fixture(autouse=True)
def _collected(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What a client leaves to the garbage collector is collected while its test is responsible for it.

    A record of the log would hold on to it: clients tell at length of a node that is down.
    """
    for name in ("kafka", "aiokafka"):
        caplog.set_level(logging.CRITICAL, name)
    yield
    gc.collect()


def values_of(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def write(cluster: KafkaCluster, topic: str, values: list[bytes]) -> None:
    producer = Confluent(cluster.bootstrap).producer()
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS_COUNT)
    assert producer.flush(TIMEOUT_S) == 0


def positions(cluster: KafkaCluster, group: str, topic: str) -> dict[int, tuple[int, str]]:
    """As the coordinator says, with what was noted."""
    asker = KafkaConsumer(bootstrap_servers=cluster.bootstrap.split(","), group_id=group)
    found: dict[int, Any] = {}

    def is_answered() -> bool:
        for number in range(PARTITIONS_COUNT):
            try:
                found[number] = asker.committed(PythonTopicPartition(topic, number), metadata=True)
            except PythonError:  # Of a node that is not back yet.
                return False
        return True

    until(is_answered, "an answer")
    asker.close()
    # confluent-kafka sends the byte behind its text, too.
    return {
        number: (each.offset, each.metadata.rstrip("\0"))
        for number, each in found.items()
        if each is not None
    }


# ---- sharing ----


@pytest.mark.parametrize("kind", SAMPLED_READERS)
def test_members_share_and_take_over_and_the_next_one_goes_on(
    cluster: KafkaCluster, kind: type[Reader]
) -> None:
    topic = group = f"shared-{kind.kind}"
    Confluent(cluster.bootstrap).create(topic, partitions=PARTITIONS_COUNT)
    with kind(cluster.bootstrap, group, topic) as one:
        until(lambda: have_shared(PARTITIONS_COUNT, one), "the first has all", one)
        with kind(cluster.bootstrap, group, topic) as two:
            until(lambda: have_shared(PARTITIONS_COUNT, one, two), "both have some", one, two)
            values = values_of(0, 400)
            write(cluster, topic, values)
            until(lambda: len(one.values) + len(two.values) >= 400, "all is read", one, two)
            assert sorted(one.values + two.values) == sorted(values), "each by one of them, once"
        until(lambda: have_shared(PARTITIONS_COUNT, one), "the other one's are taken over", one)
        write(cluster, topic, values_of(400, 40))
        until(lambda: len(one.values) + len(two.values) >= 440, "all is read", one)
    kept = positions(cluster, group, topic)
    assert {note for _, note in kept.values()} == {POSITION_KEPT}
    write(cluster, topic, values_of(440, 40))
    with kind(cluster.bootstrap, group, topic) as three:
        until(lambda: len(three.values) >= 40, "the next one goes on", three)
    assert sorted(three.values) == sorted(values_of(440, 40)), "nothing is read again"


def test_clients_of_three_kinds_share_one_topic(cluster: KafkaCluster) -> None:
    topic = group = "mixed"
    Confluent(cluster.bootstrap).create(topic, partitions=PARTITIONS_COUNT)
    range_only = {"partition_assignment_strategy": "range"}
    with (
        ConfluentReader(cluster.bootstrap, group, topic, **range_only) as one,
        KafkaPythonReader(cluster.bootstrap, group, topic) as two,
        AiokafkaReader(cluster.bootstrap, group, topic) as three,
    ):
        until(lambda: have_shared(PARTITIONS_COUNT, one, two, three), "all have some", one, two, three)
        values = values_of(0, 400)
        write(cluster, topic, values)
        readers = (one, two, three)
        until(lambda: sum(len(each.values) for each in readers) >= 400, "all is read", *readers)
        assert sorted(value for each in readers for value in each.values) == sorted(values)


@pytest.mark.proof
def test_kcat_goes_on_where_its_group_was(cluster: KafkaCluster) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not on the PATH; on Debian: apt-get install kcat")
    topic = "for-kcat"
    Confluent(cluster.bootstrap).create(topic, partitions=PARTITIONS_COUNT)
    for first in (0, 40):
        write(cluster, topic, values_of(first, 40))
        command = ["kcat", "-q", "-b", cluster.bootstrap, "-X", "auto.offset.reset=earliest"]
        said = subprocess.run(
            [*command, "-c", "40", "-G", "cats", topic],
            check=True,
            capture_output=True,
            timeout=2 * TIMEOUT_S,
        )
        assert sorted(said.stdout.split()) == sorted(values_of(first, 40))


def test_cooperative_members_keep_what_they_need_not_give_away(cluster: KafkaCluster) -> None:
    topic = group = "cooperative"
    Confluent(cluster.bootstrap).create(topic, partitions=PARTITIONS_COUNT)
    settings = {"partition_assignment_strategy": "cooperative-sticky"}
    with ConfluentReader(cluster.bootstrap, group, topic, **settings) as one:
        until(lambda: have_shared(PARTITIONS_COUNT, one), "the first has all", one)
        with ConfluentReader(cluster.bootstrap, group, topic, **settings) as two:
            until(lambda: have_shared(PARTITIONS_COUNT, one, two), "both have some", one, two)
            assert [len(gone) for gone in one.revoked] == [PARTITIONS_COUNT // 2]
            assert two.revoked == []
            values = values_of(0, 40)
            write(cluster, topic, values)
            until(lambda: len(one.values) + len(two.values) >= 40, "all is read", one, two)
            assert sorted(one.values + two.values) == sorted(values)


def test_a_static_member_that_is_started_anew_disturbs_nobody(cluster: KafkaCluster) -> None:
    topic = group = "static"
    Confluent(cluster.bootstrap).create(topic, partitions=PARTITIONS_COUNT)
    with ConfluentReader(cluster.bootstrap, group, topic, group_instance_id="one") as one:
        until(lambda: have_shared(PARTITIONS_COUNT, one), "the first has all", one)
        with ConfluentReader(cluster.bootstrap, group, topic, group_instance_id="two") as two:
            until(lambda: have_shared(PARTITIONS_COUNT, one, two), "both have some", one, two)
            had, disturbed = two.assigned, len(one.revoked)
        with ConfluentReader(cluster.bootstrap, group, topic, group_instance_id="two") as again:
            until(lambda: have_shared(PARTITIONS_COUNT, one, again), "it is back", one, again)
            assert again.assigned == had
            assert len(one.revoked) == disturbed
            values = values_of(0, 40)
            write(cluster, topic, values)
            until(lambda: len(one.values) + len(again.values) >= 40, "all is read", one, again)


def test_people_see_and_delete_groups(cluster: KafkaCluster) -> None:
    client = Confluent(cluster.bootstrap)
    topic = group = "seen"
    client.create(topic, partitions=PARTITIONS_COUNT)
    with ConfluentReader(cluster.bootstrap, group, topic) as one:
        until(lambda: have_shared(PARTITIONS_COUNT, one), "it has all", one)
        listed = client.admin.list_consumer_groups(request_timeout=TIMEOUT_S).result(TIMEOUT_S)
        assert group in {each.group_id for each in listed.valid}
        assert listed.errors == []
        described = client.admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
        assert described.state.name == "STABLE"
        (member,) = described.members
        assert {each.partition for each in member.assignment.topic_partitions} == set(range(PARTITIONS_COUNT))
        with pytest.raises(Exception, match=r"NON_EMPTY_GROUP|not empty"):
            client.admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    moved = [TopicPartition(topic, 0, 7)]
    altered = client.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, moved)])
    altered[group].result(TIMEOUT_S)
    assert positions(cluster, group, topic)[0] == (7, "")
    client.admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    gone = client.admin.list_consumer_groups(request_timeout=TIMEOUT_S).result(TIMEOUT_S)
    assert group not in {each.group_id for each in gone.valid}


def test_a_person_looks_after_groups(cluster: KafkaCluster, capsys: pytest.CaptureFixture[str]) -> None:
    def quorate(*words: str) -> Any:
        """What a command says to programs, or what went wrong."""
        status = run(["group", *words, "--json", "--bootstrap", cluster.bootstrap])
        said = capsys.readouterr()
        return msgspec.json.decode(said.out) if status == 0 else said.err.strip()

    topic, group = "looked-at", "lookers"
    client = Confluent(cluster.bootstrap)
    client.create(topic, partitions=PARTITIONS_COUNT)
    write(cluster, topic, values_of(0, 40))
    assert quorate("describe", group) == (
        f"quorate: there is no consumer group '{group}'; `quorate group list` shows those there are"
    )
    with ConfluentReader(cluster.bootstrap, group, topic, client_id="reader") as one:
        until(lambda: len(one.committed) == PARTITIONS_COUNT and len(one.values) == 40, "all is read", one)
        assert {"group": group, "state": "Stable"} in quorate("list")["groups"]
        described = quorate("describe", group)
        (member,) = described["members"]
        assert (member["client_id"], member["host"]) == ("reader", "127.0.0.1")
        assert member["partitions"] == {topic: list(range(PARTITIONS_COUNT))}
        assert described["lag"] == 0
        stop = f"quorate: group {group}: somebody is in it; stop its members first"
        assert quorate("delete", group) == stop
        assert quorate("reset-offsets", group, "--to-earliest") == stop
    write(cluster, topic, values_of(40, 40))
    assert quorate("describe", group)["lag"] == 40
    before = {each["partition"]: each["offset"] for each in quorate("describe", group)["positions"]}
    shown = quorate("reset-offsets", group, "--topic", f"{topic}:1", "--shift-by", "-5", "--dry-run")
    assert shown["positions"] == [
        {"topic": topic, "partition": 1, "before": before[1], "offset": before[1] - 5}
    ]
    assert quorate("describe", group)["lag"] == 40
    assert "where to: one of --to-earliest" in quorate("reset-offsets", group)
    assert "has partitions 0 to 3, not 9" in quorate(
        "reset-offsets", group, "-t", f"{topic}:9", "--to-latest"
    )
    quorate("reset-offsets", group, "--to-offset", "1000000", "--topic", f"{topic}:0,1")
    assert quorate("describe", group)["lag"] == 20, "two of the four are at their ends"
    quorate("reset-offsets", group, "--to-earliest")
    with ConfluentReader(cluster.bootstrap, group, topic) as one:
        until(lambda: len(one.values) == 80, "everything is read again", one)
    quorate("delete-offsets", group, "--topic", f"{topic}:0")
    assert [each["partition"] for each in quorate("describe", group)["positions"]] == [1, 2, 3]
    assert quorate("delete", group) == {"deleted": [group]}
    assert group not in {each["group"] for each in quorate("list")["groups"]}
    assert run(["group", "list", "--bootstrap", cluster.bootstrap]) == 0
    assert "group" in capsys.readouterr().out


# ---- the coordinator is killed ----


def coordinator_of(cluster: KafkaCluster, group: str) -> int:
    """The node that leads the partition in which a group lives, as a node that runs says."""
    running = ",".join(str(node.address) for node in cluster.nodes.values() if node.is_running)
    number = home_number(group, HOME_PARTITIONS_COUNT)
    with Asking(running, timeout_s=TIMEOUT_S) as asking:
        found = [NO_LEADER]

        def is_led() -> bool:
            found[0] = asking.topics(["__consumer_offsets"])["__consumer_offsets"].partitions[number].leader
            return found[0] != NO_LEADER

        until(is_led, "a coordinator")
    return found[0]


class Writing:
    """Writes numbers, on and on, until it is told to end; then everything is acknowledged."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self.values: list[bytes] = []
        self._producer = Confluent(cluster.bootstrap).producer(linger_ms=5)
        self._topic = topic
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(0.01):
            for _ in range(10):
                value = b"%d" % len(self.values)
                self._producer.produce(self._topic, value, partition=len(self.values) % PARTITIONS_COUNT)
                self.values.append(value)
            self._producer.poll(0)

    def end(self) -> list[bytes]:
        self._ending.set()
        self._thread.join(TIMEOUT_S)
        assert self._producer.flush(2 * TIMEOUT_S) == 0
        return self.values


@pytest.mark.parametrize("replication", sampled("isr"))
@pytest.mark.parametrize("kind", SAMPLED_READERS)
def test_members_go_on_when_their_coordinator_is_killed(
    tmp_path: Path, replication: str, kind: type[Reader]
) -> None:
    topic, group = "t", "readers"
    with KafkaCluster(tmp_path) as cluster:
        cluster.start()
        cluster.until_ready()
        client = Confluent(cluster.bootstrap)
        client.create(topic, partitions=PARTITIONS_COUNT, quorate_replication=replication)
        with kind(cluster.bootstrap, group, topic) as one, kind(cluster.bootstrap, group, topic) as two:
            until(lambda: have_shared(PARTITIONS_COUNT, one, two), "both have some", one, two)
            shares, disturbed = (one.assigned, two.assigned), len(one.revoked) + len(two.revoked)
            writing = Writing(cluster, topic)
            until(lambda: all(len(each.committed) == 2 for each in (one, two)), "positions", one, two)
            killed = coordinator_of(cluster, group)
            cluster.nodes[killed].kill()
            known = {**one.committed, **two.committed}
            until(
                lambda: all(
                    offset > known[number] + 100
                    for number, offset in {**one.committed, **two.committed}.items()
                ),
                "positions that were taken by another coordinator",
                one,
                two,
            )
            assert coordinator_of(cluster, group) != killed
            cluster.nodes[killed].start()
            values = writing.end()
            until(lambda: len({*one.values, *two.values}) == len(values), "all is read", one, two)
            assert (one.assigned, two.assigned) == shares, "members go on with what they had"
            assert len(one.revoked) + len(two.revoked) == disturbed
        assert {*one.values, *two.values} == {*values}
        kept = positions(cluster, group, topic)
        for reader in (one, two):
            for number, offset in reader.committed.items():
                assert kept[number][0] >= offset, "no acknowledged position is forgotten"
        expect_no_traceback(*cluster.nodes.values())


def base_of(cluster: KafkaCluster, node: int, partition: Partition) -> int:
    """Up to where the log of a replica was cut behind a snapshot."""

    async def ask() -> int:
        async with cluster.client() as client:
            status = await client.status(node)
        return next(each.base for each in status.replicas if each.partition == partition)

    try:
        return run_async(ask())
    except (Unreachable, StopIteration):
        return NO_LEADER


@pytest.mark.proof
def test_positions_outlive_the_log_that_they_were_written_to(tmp_path: Path) -> None:
    """Whoever was away gets a snapshot of the groups, coordinates with it, and all come back from their disks."""
    topic, group = "t", "committers"
    with KafkaCluster(tmp_path) as cluster:
        for node in cluster.nodes.values():
            config = msgspec.json.decode(node.config.read_bytes())
            config["raft"]["snapshot_every"] = 200
            node.config.write_bytes(msgspec.json.encode(config))
        cluster.start()
        cluster.until_ready()
        Confluent(cluster.bootstrap).create(topic, partitions=PARTITIONS_COUNT)
        committer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
        last = {}
        committer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        coordinator = coordinator_of(cluster, group)
        away = next(node for node in cluster.nodes if node != coordinator)
        cluster.nodes[away].kill()
        for offset in range(1, 2500):
            last[offset % PARTITIONS_COUNT] = (offset, "")
            place = TopicPartition(topic, offset % PARTITIONS_COUNT, offset)
            committer.commit(offsets=[place], asynchronous=False)
        committer.close()
        (home,) = {
            partition_of(each.id, home_number(group, HOME_PARTITIONS_COUNT))
            for each in run_async(image_of(cluster, coordinator)).topics
            if each.is_internal
        }
        assert base_of(cluster, coordinator, home) > 0
        cluster.nodes[away].start()
        until(lambda: base_of(cluster, away, home) > 0, "a snapshot for who was away")
        cluster.nodes[coordinator].kill()
        assert positions(cluster, group, topic) == last
        for node in cluster.nodes.values():
            if node.is_running:
                node.kill()
        for node in cluster.nodes.values():
            node.start()
        cluster.until_ready()
        assert positions(cluster, group, topic) == last
        expect_no_traceback(*cluster.nodes.values())


async def image_of(cluster: KafkaCluster, node: int) -> Image:
    async with cluster.client() as client:
        return await client.image(node)
