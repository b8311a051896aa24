"""Backups of real clusters, as a person makes them and puts them back: every protocol, stopped, killed, gone on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from quorate.batch import encode_records, parse_batch_header
from quorate.cli.demo_cluster import DemoCluster
from quorate.client import (
    EARLIEST,
    LATEST,
    Cluster,
    Joint,
    OutcomeUnknown,
    RolledBack,
    TableGroup,
    UnknownTopic,
    Unreachable,
    create_group,
)
from quorate.client.ranges import Range, batches_between
from quorate.tables import Add, Column, CreateTable, Insert, Table, Type, Update
from tests.cluster.support import sampled
from tests.unit.backup.object_store import BUCKET, CREDENTIALS, object_store

pytestmark = pytest.mark.cluster

RECORDS_COUNT = 400
WAIT_S = 60.0
ACCOUNTS = Table("accounts", (Column("id", Type.INT), Column("balance", Type.INT)), ("id",))
LOOSE = Table("loose", (Column("id", Type.INT), Column("note", Type.STR)), ("id",), synchronous=False)
ACCOUNTS_COUNT = 1500
BALANCE = 100


class Person:
    def __init__(self, servers: str, **environment: str) -> None:
        self._servers = servers
        self._environment = os.environ | environment

    def begins(self, *words: str) -> subprocess.Popen[str]:
        cluster = [] if words[:2] in (("backup", "list"), ("backup", "verify")) else ["-b", self._servers]
        return subprocess.Popen(
            [sys.executable, "-m", "quorate", *words, *cluster],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def types(self, *words: str, expect: int = 0) -> str:
        """What it says: on stdout if all is well, else on stderr."""
        begun = self.begins(*words)
        try:
            out, complaint = begun.communicate(timeout=180)
        finally:
            begun.kill()
        assert begun.returncode == expect, f"{words}: {out} {complaint}"
        assert "Traceback" not in complaint
        return complaint if expect else out

    def shows(self, *words: str) -> Any:
        return json.loads(self.types(*words, "--json"))


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with DemoCluster(keep=False) as cluster:
        cluster.start()
        yield cluster.bootstrap


@pytest.fixture
def person(servers: str) -> Person:
    return Person(servers)


def produce(servers: str, topic: str, first: int, count: int, *, value_bytes: int = 0) -> None:
    """As an idempotent producer of its own; some wait, so that there is more than one batch."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "compression.type": "lz4"})
    failed: list[object] = []
    for number in range(first, first + count):
        value = b"%d" % number + os.urandom(value_bytes)
        producer.produce(
            topic,
            value,
            key=b"%d" % (number % 7),
            partition=number % 2,
            headers={"n": b"%d" % number},
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        if number % 50 == 0:
            producer.flush()
    assert producer.flush(WAIT_S) == 0
    assert failed == []


class Log:
    """Batches that readers see."""

    def __init__(self, servers: str, topic: str, number: int) -> None:
        with Cluster(servers) as cluster:
            first = cluster.offsets(topic, {number: EARLIEST})[number]
            self.end = cluster.offsets(topic, {number: LATEST})[number] or 0
            wanted = Range(topic, number, first or 0, self.end)
            found = [bytes(batch) for batch in batches_between(cluster, wanted)]
        seen = [(parse_batch_header(batch), batch) for batch in found]
        seen = [(header, batch) for header, batch in seen if header.record_count and not header.is_control]
        self.offsets = [header.base_offset for header, _ in seen]
        self.producers = {header.producer_id for header, _ in seen}
        self.records = [
            (header.attributes, header.base_timestamp, header.record_count, batch[61:])
            for header, batch in seen
        ]


def expect_same(servers: str, one: str, two: str, *, offsets: bool) -> None:
    for number in range(2):
        before, after = Log(servers, one, number), Log(servers, two, number)
        assert after.records == before.records
        assert before.records
        if offsets:
            assert after.offsets == before.offsets
            assert after.end >= before.end
        assert len(after.producers) == 1
        assert not after.producers & (before.producers | {-1})


@pytest.mark.parametrize("replication", sampled("raft"))
def test_a_topic_comes_back_as_it_was(person: Person, servers: str, tmp_path: Path, replication: str) -> None:
    name, other, place = f"t-{replication}", f"r-{replication}", str(tmp_path)
    settings = ("--config", "retention.ms=86400000", "--config", "max.message.bytes=2000000")
    person.types("topic", "create", name, "--partitions", "2", "--replication", replication, *settings)
    produce(servers, name, 0, RECORDS_COUNT)
    assert person.shows("backup", "create", name, place)["new_records"] == RECORDS_COUNT
    produce(servers, name, RECORDS_COUNT, 100)
    again = person.shows("backup", "create", name, place)
    assert (again["new_records"], again["lost"]) == (100, [])
    assert 0 < again["new_bytes"] < again["bytes"] / 2
    assert person.shows("backup", "create", name, place)["new_records"] == 0
    assert "every byte is as it was written" in person.types("backup", "verify", place)
    (listed,) = person.shows("backup", "list", place)["backups"]
    assert (listed["records"], listed["complete"]) == (RECORDS_COUNT + 100, True)

    restored = person.shows("backup", "restore", name, place, "--as", other)
    assert restored["records"] == RECORDS_COUNT + 100
    expect_same(servers, name, other, offsets=restored["offsets_kept"])
    if replication != "confirm":
        assert restored["offsets_kept"]
    told = person.shows("topic", "describe", other)
    assert told["config"]["retention.ms"] == "86400000"
    assert told["config"]["max.message.bytes"] == "2000000"
    assert told["replication"] == replication

    # Producers of the restored topic are nobody's double.
    before = sum(len(Log(servers, other, number).records) for number in range(2))
    produce(servers, other, 0, 10)
    assert sum(len(Log(servers, other, number).records) for number in range(2)) > before
    line = person.types("backup", "restore", name, place, "--as", other, "--resume", expect=2)
    assert "no restore has written that" in line or "is not what this backup holds" in line


@contextmanager
def transfers(servers: str, group: str) -> Iterator[list[int]]:
    """Money goes round from account to account all the time; how often it went."""
    counted = [0]
    is_over = threading.Event()

    def transfer() -> None:
        with TableGroup(servers, group) as bank:
            while not is_over.is_set():
                source, target = counted[0] % ACCOUNTS_COUNT, (counted[0] * 7 + 1) % ACCOUNTS_COUNT
                # A busy machine may be late; whether it was done or not, the sum is the same.
                with suppress(OutcomeUnknown, RolledBack, Unreachable):
                    bank.execute(
                        Update("accounts", (source,), (Add("balance", -1),)),
                        Update("accounts", (target,), (Add("balance", 1),)),
                    )
                counted[0] += 1

    thread = threading.Thread(target=transfer)
    thread.start()
    try:
        yield counted
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("replication", sampled("confirm"))
def test_tables_come_back_as_of_one_moment_while_they_are_written(
    person: Person, servers: str, tmp_path: Path, replication: str
) -> None:
    group, other, place = f"bank-{replication}", f"back-{replication}", str(tmp_path)
    create_group(servers, group, replication=replication)
    with TableGroup(servers, group) as bank:
        bank.execute(CreateTable(ACCOUNTS), CreateTable(LOOSE))
        for first in range(0, ACCOUNTS_COUNT, 500):
            bank.execute(
                *(Insert("accounts", (number, BALANCE)) for number in range(first, first + 500)),
                Insert("loose", (first, "é")),
            )
        with transfers(servers, group) as counted:
            deadline = monotonic() + WAIT_S
            while counted[0] < 20:
                assert monotonic() < deadline
                sleep(0.02)
            before = counted[0]
            saved = person.shows("backup", "create", group, place)
            assert counted[0] > before
        assert saved["new_records"] == ACCOUNTS_COUNT + ACCOUNTS_COUNT // 500
        person.types("backup", "create", group, place)
        now = [row.values for row in bank.iterate("accounts")]
    if replication != "confirm":  # There a CONFIRM may be late.
        assert "nothing is new" in person.types("backup", "create", group, place)
    next((tmp_path / group / "data").iterdir()).unlink()
    person.types("backup", "verify", group, place, expect=1)
    assert person.shows("backup", "create", group, place)["new_records"], "all of it anew"

    person.types("backup", "restore", group, place, "--as", other)
    with TableGroup(servers, other) as bank:
        assert [row.values for row in bank.iterate("accounts")] == now
        assert sum(int(str(values[1])) for values in now) == ACCOUNTS_COUNT * BALANCE
        assert len(list(bank.iterate("loose"))) == ACCOUNTS_COUNT // 500
        assert bank.describe().replication == replication
    assert "already" in person.types("backup", "restore", group, place, "--as", other, expect=2)
    assert person.shows("backup", "restore", group, place, "--as", other, "--resume")["rows"]


def test_a_snapshot_under_load_is_of_one_moment(person: Person, servers: str, tmp_path: Path) -> None:
    create_group(servers, "moment", replication="raft")
    with TableGroup(servers, "moment") as bank:
        bank.execute(CreateTable(ACCOUNTS))
        for first in range(0, ACCOUNTS_COUNT, 500):
            bank.execute(*(Insert("accounts", (number, BALANCE)) for number in range(first, first + 500)))
    with transfers(servers, "moment") as counted:
        before = counted[0]
        person.types("backup", "create", "moment", str(tmp_path), "--rate", "40k")
        assert counted[0] > before
    person.types("backup", "restore", "moment", str(tmp_path), "--as", "moment-2")
    with TableGroup(servers, "moment-2") as bank:
        balances = [int(str(row.values[1])) for row in bank.iterate("accounts")]
    assert (len(balances), sum(balances)) == (ACCOUNTS_COUNT, ACCOUNTS_COUNT * BALANCE)
    assert set(balances) != {BALANCE}


@pytest.mark.skipif(find_spec("moto") is None, reason="moto is not installed")
def test_an_object_store_is_a_place_too(servers: str) -> None:
    with object_store() as endpoint:
        person = Person(servers, **CREDENTIALS)
        place = (f"s3://{BUCKET}/all/of/it", "--endpoint", endpoint)
        person.types("topic", "create", "far", "--partitions", "2")
        produce(servers, "far", 0, 200)
        assert person.shows("backup", "create", "far", *place)["new_records"] == 200
        produce(servers, "far", 200, 10)
        assert person.shows("backup", "create", "far", *place)["new_records"] == 10
        assert "far" in person.types("backup", "list", *place)
        assert "every byte is as it was written" in person.types("backup", "verify", *place)
        restored = person.shows("backup", "restore", "far", *place, "--as", "near")
        assert restored["records"] == 210
        expect_same(servers, "far", "near", offsets=restored["offsets_kept"])


@pytest.mark.proof
def test_what_cannot_be_done_is_said_in_one_line(person: Person, servers: str, tmp_path: Path) -> None:
    place = str(tmp_path / "place")
    person.types("topic", "create", "lines", "--partitions", "2")
    produce(servers, "lines", 0, 10)
    person.types("backup", "create", "lines", place)
    for words, code, why in (
        (("create", "nothing", place), 2, "there is no topic 'nothing'"),
        (("create", "lines", "gs://x"), 2, "in a directory, or in s3://BUCKET/PREFIX"),
        (("create", "lines", place, "--rate", "fast"), 2, "write how much in a second"),
        (("restore", "line", place), 2, "there is no backup of 'line'; there are: lines"),
        (("restore", "lines", place), 2, "there is a topic 'lines' already"),
        (("restore", "lines", place, "--as", "x", "--replicas", "9"), 2, "there are 3 nodes"),
    ):
        complaint = person.types("backup", *words, expect=code)
        assert why in complaint, words
        assert complaint.count("\n") == 1
    person.types("topic", "delete", "lines")
    person.types("topic", "create", "lines")
    assert "of another one that had this name" in person.types("backup", "create", "lines", place, expect=2)
    (file, *_) = sorted((tmp_path / "place").rglob("*.batches"))
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes((content[-1] ^ 1,)))
    assert "is damaged" in person.types("backup", "verify", place, expect=1)
    complaint = person.types("backup", "restore", "lines", place, "--as", "y", expect=1)
    assert "is damaged: its SHA-256 is not what was written; nothing is changed" in complaint
    assert "y" not in [each["topic"] for each in person.shows("topic", "list")["topics"]]


# ---- transactions ----


def committed(servers: str, topic: str) -> list[tuple[int, int, bytes | None, bytes | None, int]]:
    """(partition, offset, key, value, timestamp) of all that a Kafka client sees of committed records."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"reader-of-{topic}",
            "log_level": 0,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
    found: list[tuple[int, int, bytes | None, bytes | None, int]] = []
    ended: set[int] = set()
    deadline = monotonic() + WAIT_S
    while len(ended) < 2:
        assert monotonic() < deadline, f"only {ended} of {topic} were read to their end"
        message = consumer.poll(0.2)
        if message is None:
            continue
        number, offset = message.partition() or 0, message.offset() or 0
        if message.error() is not None:
            ended.add(number)
            continue
        found.append((number, offset, message.key(), message.value(), message.timestamp()[1]))
    consumer.close()
    return sorted(found, key=lambda record: record[:2])


def begun(servers: str, topic: str, name: str, *values: str) -> Producer:
    """A producer whose transaction has written these to both partitions, and is open."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": f"{topic}-{name}", "log_level": 0})
    producer.init_transactions(WAIT_S)
    write_in_transaction(producer, topic, *values)
    return producer


def write_in_transaction(producer: Producer, topic: str, *values: str) -> None:
    producer.begin_transaction()
    for number in range(2):
        for value in values:
            producer.produce(topic, value.encode(), key=value[:1].encode(), partition=number)
        assert producer.flush(WAIT_S) == 0


def write_jointly(servers: str, topic: str) -> None:
    """As Spark's tasks do: of one task two attempts, one of which counts."""
    with Joint(servers, app=f"app-of-{topic}", run="1") as joint:
        writers = [joint.writer(joint.open(1, task=0, attempt=attempt)) for attempt in range(2)]
        for attempt, writer in enumerate(writers):
            batch = encode_records([(b"j", b"joint %d" % attempt)], 5)
            writer.append(topic, {0: batch, 1: batch})
        joint.commit(1, [writers[1].part()])


def until_stable(servers: str, topic: str) -> None:
    """Every transaction has ended, in both partitions."""
    deadline = monotonic() + WAIT_S
    with Cluster(servers) as cluster:
        both = {0: LATEST, 1: LATEST}
        while cluster.offsets(topic, both, committed=True) != cluster.offsets(topic, both):
            assert monotonic() < deadline, f"something is open in {topic}"
            sleep(0.05)


def expect_committed(servers: str, topic: str, values: list[str], like: str, *, offsets: bool) -> None:
    until_stable(servers, like)
    before, after = committed(servers, like), committed(servers, topic)
    assert [(value or b"").decode() for number, _, _, value, _ in after if number == 0] == values
    if offsets:
        assert after == before
    else:
        assert [(record[0], *record[2:]) for record in after] == [(each[0], *each[2:]) for each in before]
    with Cluster(servers) as cluster:
        both = {0: LATEST, 1: LATEST}
        assert cluster.offsets(topic, both, committed=True) == cluster.offsets(topic, both)


@pytest.mark.parametrize("replication", sampled("raft"))
def test_what_was_committed_comes_back_and_nothing_else(
    person: Person, servers: str, tmp_path: Path, replication: str
) -> None:
    name, place = f"tx-{replication}", str(tmp_path)
    person.types("topic", "create", name, "--partitions", "2", "--replication", replication)
    write_jointly(servers, name)
    one = begun(servers, name, "one", "a1", "a2")
    two = begun(servers, name, "two", "b1")
    one.commit_transaction(WAIT_S)
    two.abort_transaction(WAIT_S)
    write_in_transaction(one, name, "c1")
    write_in_transaction(two, name, "d1")
    one.abort_transaction(WAIT_S)
    two.commit_transaction(WAIT_S)
    left_open = begun(servers, name, "open", "o1", "o2")
    write_in_transaction(two, name, "e1")
    two.commit_transaction(WAIT_S)

    saved = person.shows("backup", "create", name, place)
    restored = person.shows("backup", "restore", name, place, "--as", f"{name}-open")
    assert (restored["records"], restored["not_committed"]) == (10, 10)
    assert restored["records"] + restored["not_committed"] == saved["new_records"]
    # What is open when it is saved may be committed later: then the next backup has it.
    left_open.commit_transaction(WAIT_S)
    until_stable(servers, name)
    person.types("backup", "create", name, place)
    again = person.shows("backup", "restore", name, place, "--as", f"{name}-all")
    assert (again["records"], again["not_committed"]) == (14, 6)
    all_of_it = ["joint 1", "a1", "a2", "d1", "o1", "o2", "e1"]
    expect_committed(servers, f"{name}-all", all_of_it, like=name, offsets=again["offsets_kept"])
    if replication != "confirm":
        assert again["offsets_kept"]
        assert restored["offsets_kept"]
    seen = [value for number, _, _, value, _ in committed(servers, f"{name}-open") if number == 0]
    assert seen == [b"joint 1", b"a1", b"a2", b"d1", b"e1"]
    until_stable(servers, f"{name}-open")


@pytest.mark.proof
def test_a_topic_that_was_replicated_in_another_way_comes_back(
    person: Person, servers: str, tmp_path: Path
) -> None:
    name, place = "turned", str(tmp_path)
    settings = ("--config", "cleanup.policy=compact")
    person.types("topic", "create", name, "--partitions", "2", "--replication", "confirm", *settings)
    one, two = begun(servers, name, "one", "a1"), begun(servers, name, "two", "b1")
    one.abort_transaction(WAIT_S)
    person.types("topic", "alter", name, "--replication", "raft")
    two.commit_transaction(WAIT_S)
    write_in_transaction(one, name, "c1")
    one.commit_transaction(WAIT_S)
    until_stable(servers, name)
    person.types("backup", "create", name, place)
    restored = person.shows("backup", "restore", name, place, "--as", f"{name}-2")
    assert (restored["records"], restored["not_committed"], restored["offsets_kept"]) == (4, 2, True)
    expect_committed(servers, f"{name}-2", ["b1", "c1"], like=name, offsets=True)
    told = person.shows("topic", "describe", f"{name}-2")
    assert (told["replication"], told["config"]["cleanup.policy"]) == ("raft", "compact")


# ---- stopped, killed, gone on ----


def until_there(servers: str, topic: str, count: int) -> None:
    """So many offsets, of all partitions."""
    deadline = monotonic() + WAIT_S
    while True:
        with Cluster(servers) as cluster, suppress(UnknownTopic, Unreachable):
            ends = cluster.offsets(topic, {0: LATEST, 1: LATEST})
            if sum(end or 0 for end in ends.values()) >= count:
                return
        assert monotonic() < deadline, f"waited {WAIT_S} s for {count} offsets of {topic}"
        sleep(0.05)


@pytest.mark.parametrize("end", [pytest.param(signal.SIGINT, marks=pytest.mark.proof), signal.SIGKILL])
def test_whoever_is_stopped_goes_on(
    person: Person, servers: str, tmp_path: Path, end: signal.Signals
) -> None:
    name, place = f"stop-{end.name.lower()}", str(tmp_path)
    person.types("topic", "create", name, "--partitions", "2")
    produce(servers, name, 0, 400, value_bytes=1000)

    saving = person.begins("backup", "create", name, place, "--rate", "100k")
    assert saving.stderr is not None
    assert re.match(rf"{name}: [0-9]+ %, .*/s\n", saving.stderr.readline()), "some of it is done"
    saving.send_signal(end)
    _, said = saving.communicate(timeout=WAIT_S)
    assert saving.returncode == (130 if end == signal.SIGINT else -end)
    if end == signal.SIGINT:
        assert said.splitlines()[-2:] == [
            "stopped: what is saved so far stands; the same command goes on from there",
            "quorate: interrupted",
        ]
        assert "is not complete" in person.types("backup", "restore", name, place, "--as", "no", expect=2)
        assert "is not complete" in person.types("backup", "verify", place, expect=1)
        (listed,) = person.shows("backup", "list", place)["backups"]
        assert 0 < listed["records"] < 400
    person.types("backup", "create", name, place)
    (listed,) = person.shows("backup", "list", place)["backups"]
    assert (listed["records"], listed["complete"]) == (400, True)

    other = f"{name}-2"
    restoring = person.begins("backup", "restore", name, place, "--as", other, "--rate", "100k")
    assert restoring.stderr is not None
    assert re.match(rf"{other}: [0-9]+ %, .*/s\n", restoring.stderr.readline()), "some of it is there"
    until_there(servers, other, 30)
    restoring.send_signal(end)
    _, said = restoring.communicate(timeout=WAIT_S)
    assert restoring.returncode == (130 if end == signal.SIGINT else -end)
    if end == signal.SIGINT:
        *_, stopped, interrupted = said.splitlines()
        assert "--resume" in stopped
        assert interrupted == "quorate: interrupted"
    assert "already" in person.types("backup", "restore", name, place, "--as", other, expect=2)
    went_on = person.shows("backup", "restore", name, place, "--as", other, "--resume")
    assert 0 < went_on["records"] < 400
    expect_same(servers, name, other, offsets=went_on["offsets_kept"])
