"""The previous release, for tests: its code, and small files that stand for what it wrote.

There is no release yet. Its place takes the last commit before nodes hosted more than `raft`, and before there were
feature levels. What its nodes wrote and said is read from then on:

    python tools/previous.py      make tests/data/previous anew, with the code of that commit

`cluster.tar.xz` are the directories of three nodes: two were stopped, one was killed. `letters.json` has one of
each message, greeting, request, answer and command, with what it says. They are made once for a release, and kept.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PREVIOUS = "a5c0356f1d26a020977f83c8dc9de8592181a4d5"
DATA = ROOT / "tests" / "data" / "previous"
DIRECTORIES = DATA / "cluster.tar.xz"
EXPECTED = DATA / "expected.json"
LETTERS = DATA / "letters.json"

CLUSTER = "previous"
TOPIC = "events"
DELETED = [f"gone-{number}" for number in range(25)]
"""Made and deleted, so that the metadata group has a snapshot."""
PARTITIONS_COUNT = 2
RECORDS_COUNT = 300
LARGE_EVERY, LARGE_BYTES = 50, 20_000
"""Now and then a record is too large for the journal, and goes straight to its segment."""
STORE = {"journal_bytes": 1 << 18, "marks_bytes": 1 << 16, "segment_bytes": 1 << 15, "index_bytes": 1 << 12}
RAFT = {"election_timeout_s": 0.5, "heartbeat_s": 0.1, "snapshot_every": 40}
_RUN = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


class NotThere(Exception):
    """This copy of the project has no history that goes back to the previous release."""


def source_in(directory: Path) -> Path:
    """The packages of the previous release, unpacked there; raises NotThere."""
    asked = ["git", "-C", str(ROOT), "archive", "--format=tar", PREVIOUS, "src"]
    try:
        archived = subprocess.run(asked, check=False, capture_output=True, timeout=60)
    except OSError as error:
        raise NotThere(f"git: {error.strerror}") from error
    if archived.returncode:
        raise NotThere(f"commit {PREVIOUS[:7]} is not in this copy: {archived.stderr.decode().strip()}")
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
    DATA.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="quorate-previous-") as scratch:
        source = source_in(Path(scratch) / "source")
        samples = str(Path(__file__).with_name("previous_samples.py"))
        run_file = _RUN.replace("run_module", "run_path").replace(", alter_sys=True", "")
        said = subprocess.run(
            [sys.executable, "-c", run_file, str(source), samples], check=True, capture_output=True
        )
        LETTERS.write_bytes(said.stdout)
        directory = Path(scratch) / "cluster"
        directory.mkdir()
        make_directories(source, directory)
    for file in (DIRECTORIES, EXPECTED, LETTERS):
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size} bytes")


def make_directories(source: Path, directory: Path) -> None:
    from quorate.bench.cluster_processes import Cluster

    with Cluster(directory, partitions=0, metadata_voters=3, raft=RAFT) as cluster:
        rewrite(cluster.nodes.values(), cluster=CLUSTER, store=STORE)
        for node in cluster.nodes.values():
            node.command = command(source)
        cluster.start()
        acknowledged = write(",".join(str(node.address) for node in cluster.nodes.values()))
        *others, last = cluster.nodes.values()
        last.kill()
        for node in others:
            assert node.stop() == 0, node.said()
    EXPECTED.write_text(json.dumps({"topic": TOPIC, "partitions": acknowledged}) + "\n", encoding="utf-8")
    with tarfile.open(DIRECTORIES, "w:xz") as archive:
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


def write(bootstrap: str) -> dict[int, list[int]]:
    """The numbers that each partition acknowledged, in their order."""
    from confluent_kafka import KafkaError, Message, Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + 30
    while len(admin.list_topics(timeout=30).brokers) < 3:
        assert time.monotonic() < deadline, "not every node has registered"
        time.sleep(0.05)
    wanted = [NewTopic(TOPIC, PARTITIONS_COUNT, 3), *(NewTopic(name, 1, 3) for name in DELETED)]
    for made in admin.create_topics(wanted, operation_timeout=30).values():
        made.result()
    for removed in admin.delete_topics(DELETED, operation_timeout=30).values():
        removed.result()
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
        producer.produce(TOPIC, value_of(number), partition=number % PARTITIONS_COUNT, on_delivery=told)
        if number % 5 == 4:  # Entries of a few records each.
            producer.flush(30)
    assert producer.flush(30) == 0
    return acknowledged


if __name__ == "__main__":
    main()
