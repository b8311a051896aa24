"""The audit on Spark: clusters' directories are clean, running or not; what is planted is found, and only that."""

from __future__ import annotations

import time
from pathlib import Path
from shutil import copytree

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from quorate.audit.findings import Finding
from quorate.audit.replica import Place, places_in
from quorate.cli.demo_cluster import DemoCluster
from quorate.cli.entry import run
from quorate.core.entry import Header, Kind
from quorate.host.manifest import Manifest, encode_manifest
from quorate.machine.metadata import REPLICATIONS
from quorate.machine.table import Tables
from quorate.machine.table_wire import encode
from quorate.machine.tally import Tally
from quorate.spark.audit import Report, audit
from quorate.tables import CreateTable, Insert, Transaction
from tests.unit.audit.stores import Batch, Made, bare, change, frames, number, records, segments, usual
from tests.unit.machine.table_support import ACCOUNTS, id_of

pytestmark = pytest.mark.cluster

TIMEOUT_S = 60.0
DIFFERS, VALUE, DUPLICATE, SEQUENCE, TABLE, FRAME, PAYLOAD, MISSING, CLEAN = map(number, range(9))


def audited(spark: SparkSession, places: list[Place]) -> Report:
    return audit(spark, places, lambda said: None)


# ---- as the store makes them ----


def transactions() -> list[Batch]:
    created = Transaction(id_of(1), (CreateTable(ACCOUNTS),))
    inserted = [Transaction(id_of(2 + n), (Insert("accounts", (n, "ann", n)),)) for n in range(30)]
    return [Batch(1, encode(each)) for each in (created, *inserted)]


def with_sequences(*sequences: int) -> list[Batch]:
    return [records(n, producer=7, sequence=sequence) for n, sequence in enumerate(sequences)]


def other_tables(batches: list[Batch], last: int) -> tuple[bytes, bytes]:
    """Of a snapshot as it would be if the last transactions up to it had not been."""
    tables, tally = Tables(), Tally()
    for offset, batch in enumerate(batches[: last + 1]):
        header = Header(1, offset, 1, len(batch.payload), Kind.RECORDS)
        tally.settle(header, 0, batch.payload)
        if offset < last - 2:
            tables.settle(header, 0, batch.payload)
    return tally.snapshot(), b"".join(tables.snapshot_pieces())


def made(directory: Path, *, alone: bool) -> Place:
    """One of three copies; the one that stands alone has settled something else here and there."""
    store = Made()
    middle = usual()
    middle[20:] = [records(n, epoch=3) for n in range(20, 40)]
    if alone:
        middle[18:] = [records(n, epoch=2) for n in range(18, 40)]
    store.add(DIFFERS, middle)
    values = usual()
    if alone:
        values[30] = records(99)
    store.add(VALUE, values, protocol="isr")
    store.add(DUPLICATE, with_sequences(0, 1, 2, 2, 3, 4), protocol="coordinated")
    store.add(SEQUENCE, with_sequences(0, 1, 2, 5, 6), protocol="confirm")
    batches = transactions()
    store.add(TABLE, batches, purpose="tables")
    for partition in (FRAME, PAYLOAD, MISSING, CLEAN):
        store.add(partition, usual())
    if alone:
        inner = store.world.store
        entry = store.world.read(20, 20, TABLE)
        tally, tables = other_tables(batches, 20)
        data = encode_manifest(Manifest(entry[0].header.id, entry[0].checksum, tally, tables))
        inner.save_snapshot(TABLE, entry[0].header.id, entry[0].checksum, data, lambda error: None)
    store.rest()
    return store.write(directory)


def test_what_is_planted_is_found_and_only_that(spark: SparkSession, tmp_path: Path) -> None:
    places = [made(tmp_path / f"n{n}", alone=n == 2) for n in (1, 2, 3)]
    change(segments(places[0], FRAME)[1], lambda content: content.__setitem__(40, content[40] ^ 1))
    first = int(segments(places[0], FRAME)[1].stem)
    change(segments(places[2], PAYLOAD)[0], lambda c: c.__setitem__(frames(c)[2] + 300, 7))
    gone, following = segments(places[2], MISSING)[1:3]
    gone.unlink()
    report = audited(spark, places)
    last = int(following.stem) - 1

    def finding(replica: str, partition: bytes, kind: str, low: int, high: int) -> Finding:
        return Finding(replica, partition.hex(), kind, low, high)

    assert bare(report.findings) == sorted(
        [
            finding("n2", DIFFERS, "differs", 18, 39),
            finding("", VALUE, "value", 30, 39),
            finding("", DUPLICATE, "duplicate", 3, 3),
            finding("", SEQUENCE, "sequence", 3, 3),
            finding("n2", TABLE, "table", 20, 20),
            finding("n2", TABLE, "table", 30, 30),
            finding("n1", FRAME, "frame", first, first),
            finding("n3", PAYLOAD, "payload", 2, 2),
            finding("n3", MISSING, "missing", int(gone.stem), last),
        ]
    )
    assert report.protocols == {"confirm": 1, "coordinated": 1, "isr": 1, "raft": 7}
    assert report.copies_count == 30


# ---- as clusters make them ----


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    """A cluster with a topic of each kind that was audited while it was written to, and stopped."""
    directory = tmp_path_factory.mktemp("lived") / "data"
    with DemoCluster(keep=False) as cluster:
        cluster.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for name in REPLICATIONS:
            topic = NewTopic(name, 1, 3, config={"quorate.replication": name})
            admin.create_topics([topic])[name].result(TIMEOUT_S)
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 1}
        )
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            _produce(producer)
        report = audited(spark, places_in(cluster.directory))
        _produce(producer)
        assert producer.flush(TIMEOUT_S) == 0
        assert report.findings == []
        assert report.entries_count > 0
        cluster._stop()
        copytree(cluster.directory, directory)
    return directory


def _produce(producer: Producer) -> None:
    for name in REPLICATIONS:
        for _ in range(20):
            producer.produce(name, bytes(1000))
    producer.poll(0.01)


def test_a_cluster_of_all_protocols_is_clean(spark: SparkSession, lived: Path) -> None:
    report = audited(spark, places_in(lived))
    assert report.findings == []
    assert report.replicas == ["n1", "n2", "n3"]
    assert set(report.names.values()) == {f"{name}-0" for name in REPLICATIONS}
    assert report.protocols == {"confirm": 1, "coordinated": 1, "isr": 1, "raft": 2}
    assert report.states_count == 3, "the image was built again from each copy"


def test_the_command_says_what_and_what_to_do(lived: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the session that is there already: Spark is started once in a process."""
    from quorate.cli import audit as command

    report = Report(["n1", "n2"], 1, 2, 10, 1000, findings=[Finding("n2", "00ff", "payload", 3, 4, "x.log")])
    report.names["00ff"] = "events-0"
    command._show(report, 1.0)
    said = capsys.readouterr().out
    assert "n2" in said
    assert "events-0" in said
    assert "3–4" in said
    assert "the records of an entry" in said
    told = command._object(report, 1.0)
    assert msgspec.json.decode(msgspec.json.encode(told))["findings"][0]["kind"] == "payload"
    assert run(["audit", str(lived / "nowhere")]) == 2
    assert "is not a directory" in capsys.readouterr().err
    assert run(["audit", str(lived), str(lived / "n1")]) == 2
    assert "name each node once" in capsys.readouterr().err
