"""The previous releases, for tests: their code, and small files that stand for what they wrote.

There is no release yet. The place of each takes a commit: the last before nodes hosted more than `raft`, and before
there were feature levels; and the last that knew feature level 2, with all four protocols, tables, consumer groups
and transactions. What their nodes wrote and said is read from then on:

    python tools/previous.py      make the files of the newest of them anew, with the code of that commit

Each has a directory below tests/data/previous. `cluster.tar.xz` are the directories of three nodes: two were
stopped, one was killed. `expected.json` says what is in them. `letters.json` has one of each message, greeting,
request, answer and command, with what it says. They are made once for a release, and kept.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Release:
    """A commit that stands for one."""

    commit: str
    level: int
    """What it knows; no two know the same here."""

    @property
    def data(self) -> Path:
        return ROOT / "tests" / "data" / "previous" / f"level-{self.level}"

    @property
    def directories(self) -> Path:
        return self.data / "cluster.tar.xz"

    @property
    def expected(self) -> Path:
        return self.data / "expected.json"

    @property
    def letters(self) -> Path:
        return self.data / "letters.json"


ONLY_RAFT = Release("a5c0356f1d26a020977f83c8dc9de8592181a4d5", level=1)
ALL_PROTOCOLS = Release("b3fdca62a123f5ad772f5a66f76959b02a3ed76b", level=2)
RELEASES = (ONLY_RAFT, ALL_PROTOCOLS)
NEWEST = RELEASES[-1]

CLUSTER = "previous"
DELETED = [f"gone-{number}" for number in range(25)]
"""Made and deleted, so that the metadata group has a snapshot."""
PARTITIONS_COUNT = 2
RECORDS_COUNT = 300
LARGE_EVERY, LARGE_BYTES = 50, 20_000
"""Now and then a record is too large for the journal, and goes straight to its segment."""
GROUP, TABLES, TRANSACTED, TRANSACTIONAL_ID = "readers", "bank", "transacted", "pump"
TRANSACTIONS_COUNT = 60
ROWS_COUNT = 40
STORE = {"journal_bytes": 1 << 18, "marks_bytes": 1 << 16, "segment_bytes": 1 << 15, "index_bytes": 1 << 12}
RAFT = {"election_timeout_s": 0.5, "heartbeat_s": 0.1, "snapshot_every": 40}
_RUN = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


class NotThere(Exception):
    """This copy of the project has no history that goes back to that release."""


def source_in(directory: Path, release: Release) -> Path:
    """The packages of that release, unpacked there; raises NotThere."""
    asked = ["git", "-C", str(ROOT), "archive", "--format=tar", release.commit, "src"]
    try:
        archived = subprocess.run(asked, check=False, capture_output=True, timeout=60)
    except OSError as error:
        raise NotThere(f"git: {error.strerror}") from error
    if archived.returncode:
        raise NotThere(f"commit {release.commit[:7]} is not in this copy: {archived.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory / "src"


def command(source: Path, module: str = "quorate.kafka") -> tuple[str, ...]:
    """What runs a module of that code, in this environment, whatever is installed there."""
    return (sys.executable, "-c", _RUN, str(source), module)


def value_of(number: int) -> bytes:
    return b"%d " % number + bytes(LARGE_BYTES if number % LARGE_EVERY == 0 else 0)


# ---- making them ----


def main() -> None:
    NEWEST.data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="quorate-previous-") as scratch:
        source = source_in(Path(scratch) / "source", NEWEST)
        samples = str(Path(__file__).with_name("previous_samples.py"))
        run_file = _RUN.replace("run_module", "run_path").replace(", alter_sys=True", "")
        said = subprocess.run(
            [sys.executable, "-c", run_file, str(source), samples], check=True, capture_output=True
        )
        NEWEST.letters.write_bytes(said.stdout)
        directory = Path(scratch) / "cluster"
        directory.mkdir()
        make_directories(source, directory)
    for file in (NEWEST.directories, NEWEST.expected, NEWEST.letters):
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size} bytes")


def make_directories(source: Path, directory: Path) -> None:
    from quorate.bench.cluster_processes import Cluster

    with Cluster(directory, partitions=0, metadata_voters=3, raft=RAFT) as cluster:
        rewrite(cluster.nodes.values(), cluster=CLUSTER, store=STORE)
        for node in cluster.nodes.values():
            node.command = command(source)
        cluster.start()
        expected = write(",".join(str(node.address) for node in cluster.nodes.values()))
        *others, last = cluster.nodes.values()
        last.kill()
        for node in others:
            assert node.stop() == 0, node.said()
    NEWEST.expected.write_text(json.dumps(expected) + "\n", encoding="utf-8")
    with tarfile.open(NEWEST.directories, "w:xz") as archive:
        for node in cluster.nodes.values():
            archive.add(node.directory, node.directory.name, filter=plain)


def plain(file: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without what says who made it, and when; and without what a process holds while it runs."""
    if Path(file.name).name == "lock":
        return None
    file.uid = file.gid = file.mtime = 0
    file.uname = file.gname = ""
    return file


def rewrite(nodes: Iterable[Any], **told: object) -> None:
    """Let their configurations say this."""
    for node in nodes:
        config = json.loads(node.config.read_text(encoding="utf-8"))
        node.config.write_text(json.dumps(config | told), encoding="utf-8")


def write(bootstrap: str) -> dict[str, Any]:
    """What must be found there: by topic and partition the numbers that were acknowledged, in their order, how far
    the group has got, and the rows of the tables."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    from quorate.machine.metadata import REPLICATIONS

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + 30
    while len(admin.list_topics(timeout=30).brokers) < 3:
        assert time.monotonic() < deadline, "not every node has registered"
        time.sleep(0.05)
    told = {kind: {"quorate.replication": kind} for kind in REPLICATIONS}
    wanted = [
        *(NewTopic(name, PARTITIONS_COUNT, 3, config=config) for name, config in told.items()),
        NewTopic(TRANSACTED, PARTITIONS_COUNT, 3),
        *(NewTopic(name, 1, 3) for name in DELETED),
    ]
    for made in admin.create_topics(wanted, operation_timeout=30).values():
        made.result()
    for removed in admin.delete_topics(DELETED, operation_timeout=30).values():
        removed.result()
    topics = {kind: write_records(bootstrap, kind) for kind in REPLICATIONS}
    topics[TRANSACTED] = write_transactions(bootstrap)
    return {"topics": topics, "positions": commit_positions(bootstrap), "rows": write_rows(bootstrap)}


def write_records(bootstrap: str, topic: str) -> dict[int, list[int]]:
    from confluent_kafka import KafkaError, Message, Producer

    acknowledged: dict[int, list[int]] = {number: [] for number in range(PARTITIONS_COUNT)}

    def told(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        value = message.value()
        assert value is not None
        acknowledged[message.partition() or 0].append(int(value.split(b" ")[0]))

    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
    )
    for number in range(RECORDS_COUNT):
        producer.produce(topic, value_of(number), partition=number % PARTITIONS_COUNT, on_delivery=told)
        if number % 5 == 4:  # Entries of a few records each.
            producer.flush(30)
    assert producer.flush(30) == 0
    return acknowledged


def write_transactions(bootstrap: str) -> dict[int, list[int]]:
    """One number into each partition; every third one is aborted, and the last is left open."""
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": TRANSACTIONAL_ID, "log_level": 0}
    )
    producer.init_transactions(30)
    committed: dict[int, list[int]] = {number: [] for number in range(PARTITIONS_COUNT)}
    for number in range(TRANSACTIONS_COUNT):
        producer.begin_transaction()
        for partition in committed:
            producer.produce(TRANSACTED, value_of(number), partition=partition)
        assert producer.flush(30) == 0
        if number == TRANSACTIONS_COUNT - 1:
            break
        if number % 3 == 2:
            producer.abort_transaction(30)
            continue
        producer.commit_transaction(30)
        for numbers in committed.values():
            numbers.append(number)
    return committed


def commit_positions(bootstrap: str) -> dict[int, int]:
    """Of a group, in a topic that is there: many times, so that its home has a snapshot."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    position = 0
    deadline = time.monotonic() + 30
    while position < RECORDS_COUNT // PARTITIONS_COUNT:
        assert time.monotonic() < deadline, "no positions are committed"
        with suppress(KafkaException):  # Until the group has a home.
            consumer.commit(offsets=[TopicPartition("raft", 0, position + 1)], asynchronous=False)
            position += 1
    consumer.close()
    return {0: position}


def write_rows(bootstrap: str) -> dict[str, list[tuple[int, int]]]:
    """By the protocol of their group; each row is written twice."""
    from quorate.client import TableGroup, create_group
    from quorate.machine.metadata import REPLICATIONS
    from quorate.tables import Add, Column, CreateTable, Insert, Table, Type, Update

    accounts = Table("accounts", (Column("id", Type.INT), Column("balance", Type.INT)), ("id",))
    for kind in REPLICATIONS:
        create_group(bootstrap, f"{TABLES}-{kind}", replication=kind)
        with TableGroup(bootstrap, f"{TABLES}-{kind}") as group:
            group.execute(CreateTable(accounts))
            for number in range(ROWS_COUNT):
                group.execute(Insert("accounts", (number, 0)))
                group.execute(Update("accounts", (number,), (Add("balance", number),)))
    return {kind: [(number, number) for number in range(ROWS_COUNT)] for kind in REPLICATIONS}


if __name__ == "__main__":
    main()
