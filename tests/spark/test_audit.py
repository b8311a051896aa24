"""The audit on Spark: clusters' directories are clean, running or not; what is planted is found, and only that."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree, rmtree
from threading import Event, Thread

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from quorate.audit.findings import KINDS, Finding
from quorate.audit.places import Place, places_in
from quorate.audit.rebuild import PURPOSES
from quorate.audit.replica import Looked
from quorate.cli import audit as command
from quorate.cli.demo_cluster import DemoCluster
from quorate.cli.entry import run
from quorate.core.entry import Header, Kind, Partition
from quorate.host.manifest import Manifest, encode_manifest
from quorate.machine.commanded import commands_batch
from quorate.machine.metadata import REPLICATIONS
from quorate.machine.purpose import HOMES, TRANSACTIONS
from quorate.machine.table import Tables
from quorate.machine.table_wire import encode
from quorate.machine.tally import Tally
from quorate.machine.transaction_words import AddPartitions, BeginProducer, EndPlain, Mark, Marked
from quorate.spark.audit import Report, audit
from quorate.tables import CreateTable, Insert, Transaction
from tests.cluster.person import Operator
from tests.unit.audit.harm import AT, HARMS, SAVED, change, flip, frames, of_before_it_was_cut, segments
from tests.unit.audit.stores import Batch, Made, bare, ended, keyed, number, records, transactional, usual
from tests.unit.machine.table_support import ACCOUNTS, id_of

pytestmark = pytest.mark.cluster

TIMEOUT_S = 60.0
COMMAND_S = 180.0
WRITING_PAUSE_S = 0.05
TOPICS = {name: name for name in REPLICATIONS} | {"turned": "raft"}
"""And how each is replicated at first."""
DIFFERS, VALUE, DUPLICATE, SEQUENCE, TABLE, FRAME, PAYLOAD, MISSING, CLEAN = map(number, range(9))
COMMITTED, ABORTED, OTHERWISE, TWICE, AGREED, HOME, COMPACTED, BEHIND = map(number, range(10, 18))
CHAIN, GAP, EPOCHS, SHORT, FOOTER, SNAPSHOT, STALE = map(number, range(18, 25))
LOST, STATE, KNOWN, STRANGER = map(number, range(4))


def finding(replica: str, partition: bytes, kind: str, first: int, last: int) -> Finding:
    return Finding(replica, partition.hex(), kind, first, last)


WRITTEN = (
    finding("n2", DIFFERS, "differs", 18, 39),
    finding("", VALUE, "value", 30, 39),
    finding("", DUPLICATE, "duplicate", 3, 3),
    finding("", SEQUENCE, "sequence", 3, 3),
    finding("n2", TABLE, "table", 20, 20),
    finding("n2", TABLE, "table", 30, 30),
    finding("n2", BEHIND, "table", 20, 20),
    finding("n2", BEHIND, "table", 30, 30),
    finding("", COMMITTED, "decided", 1, 1),
    finding("", ABORTED, "decided", 1, 1),
    finding("", OTHERWISE, "decided", 1, 1),
    finding("", TWICE, "marker", 3, 3),
)
"""What nodes have written wrongly, whole on their disks."""
HARMED = {
    "missing": (3, MISSING),
    "short": (2, SHORT),
    "frame": (1, FRAME),
    "payload": (3, PAYLOAD),
    "chain": (1, CHAIN),
    "gap": (2, GAP),
    "epochs": (3, EPOCHS),
    "footer": (1, FOOTER),
    "snapshot": (2, SNAPSHOT),
}
"""What happens to segments and snapshots: of which node, and which partition. All other copies are whole."""
PLANTED_STALE = (finding("n1", STALE, "chain", AT + 1, AT + 1), finding("n1", STALE, "differs", AT, AT))
"""The entry behind it tells that one does not fit; which of the two it is, the other copies tell. Of what it would
do to a table nothing is said: whoever heard that would look for a broken machine."""
BROKEN = {
    "lost": (1, LOST),
    "state": (1, STATE),
    "journal": (2, KNOWN),
    "stranger": (2, STRANGER),
    "store": (3, KNOWN),
}
"""What happens to directories as a whole."""
NOTICED = finding("n2", KNOWN, "known", AT, AT)


def harmed(places: list[Place], harms: dict[str, tuple[int, Partition]]) -> list[Finding]:
    return [HARMS[kind](places[node - 1], partition) for kind, (node, partition) in harms.items()]


def audited(spark: SparkSession, places: list[Place]) -> Report:
    return audit(spark, places, lambda said: None)


# ---- as the store makes them ----


def transactions() -> list[Batch]:
    created = Transaction(id_of(1), (CreateTable(ACCOUNTS),))
    inserted = [Transaction(id_of(2 + n), (Insert("accounts", (n, "ann", n)),)) for n in range(30)]
    return [Batch(1, encode(each)) for each in (created, *inserted)]


def with_sequences(*sequences: int) -> list[Batch]:
    return [records(n, producer=7, sequence=sequence) for n, sequence in enumerate(sequences)]


def tables_at(batches: list[Batch], last: int, *, forgotten_count: int) -> tuple[bytes, bytes]:
    """Of a snapshot: as it would be if the last transactions had not been, or, if none is forgotten, as it is."""
    tables, tally = Tables(), Tally()
    for offset, batch in enumerate(batches[: last + 1]):
        header = Header(1, offset, 1, len(batch.payload), Kind.RECORDS)
        tally.settle(header, 0, batch.payload)
        if offset <= last - forgotten_count:
            tables.settle(header, 0, batch.payload)
    return tally.snapshot(), b"".join(tables.snapshot_pieces())


def save_tables(
    store: Made, partition: Partition, batches: list[Batch], last: int, *, forgotten_count: int = 0
) -> None:
    (entry,) = store.world.read(last, last, partition)
    tally, tables = tables_at(batches, last, forgotten_count=forgotten_count)
    data = encode_manifest(Manifest(entry.header.id, entry.checksum, tally, tables))
    store.save_snapshot(partition, entry.header.id, entry.checksum, data)


def decisions() -> list[Batch]:
    """Of a home: producers 23 and 24 commit their first transaction, 24 aborts another."""
    commands: list[object] = []
    for producer, name, ends in ((23, "a", (True,)), (24, "b", (True, False))):
        commands.append(BeginProducer(name, 1000, 60_000, producer))
        for commit in ends:
            commands.append(AddPartitions(name, producer, 0, (OTHERWISE, AGREED), 1000))
            commands.append(EndPlain(name, producer, 0, commit, 1000))
            number_ = 1 if commit else 2
            commands.append(Marked(tuple(Mark(producer, number_, each) for each in (OTHERWISE, AGREED))))
    return [Batch(1, commands_batch([command])) for command in commands]


def transacted(producer: int, *ends: tuple[int, bool]) -> list[Batch]:
    """Batches of a producer, each followed by the end of a transaction: its number, and whether it is committed."""
    return [
        batch
        for sequence, (number_, commit) in enumerate(ends)
        for batch in (transactional(producer, sequence), ended(producer, number_, commit=commit))
    ]


def add_transactions(store: Made) -> None:
    store.add(COMMITTED, transacted(21, (1, True), (2, False)))
    store.add(ABORTED, transacted(21, (1, False), (2, False)), protocol="isr")
    store.add(OTHERWISE, transacted(23, (1, False)))
    store.add(AGREED, transacted(23, (1, True)) + transacted(24, (1, True), (2, False)))
    store.add(TWICE, transacted(22, (1, True), (1, True), (2, True)))
    store.add(HOME, decisions(), purpose="transactions")


def add_what_is_to_be_harmed(store: Made, batches: list[Batch]) -> None:
    """More is asked of these logs than that they are alike: what is harmed must not be missed there, too."""
    store.add(CHAIN, batches, purpose="tables")
    store.add(GAP, transacted(25, *((number_, True) for number_ in range(1, 21))))
    for partition in (EPOCHS, SHORT, FOOTER):
        store.add(partition, with_sequences(*range(40)))
    store.add(SNAPSHOT, batches, purpose="tables")
    save_tables(store, SNAPSHOT, batches, 25)
    later = [batch._replace(epoch=2) for batch in batches[AT:]]
    store.add(STALE, batches[:AT] + later, purpose="tables")


def made(directory: Path, node: int) -> Place:
    """One of three copies; the second stands alone: it has settled something else here and there."""
    store = Made()
    middle = usual()
    middle[20:] = [records(n, epoch=3) for n in range(20, 40)]
    if node == 2:
        middle[18:] = [records(n, epoch=2) for n in range(18, 40)]
    store.add(DIFFERS, middle)
    values = usual()
    if node == 2:
        values[30] = records(99)
    store.add(VALUE, values, protocol="isr")
    store.add(DUPLICATE, with_sequences(0, 1, 2, 2, 3, 4), protocol="coordinated")
    store.add(SEQUENCE, with_sequences(0, 1, 2, 5, 6), protocol="confirm")
    batches = transactions()
    store.add(TABLE, batches, purpose="tables")
    # The third has all of it, too, and its disk does not say that anything is settled.
    store.add(BEHIND, batches, purpose="tables", settles=node != 3)
    for partition in (FRAME, PAYLOAD, MISSING, CLEAN):
        store.add(partition, usual())
    add_transactions(store)
    add_what_is_to_be_harmed(store, batches)
    store.add(COMPACTED, keyed())
    if node == 2:
        for partition in (TABLE, BEHIND):
            save_tables(store, partition, batches, 20, forgotten_count=3)
    if node == 3:  # Copies are compacted each at its own time.
        store.compact(COMPACTED)
    store.rest()
    return store.write(directory)


def test_what_is_planted_is_found_and_only_that(spark: SparkSession, tmp_path: Path) -> None:
    places = [made(tmp_path / f"n{n}", n) for n in (1, 2, 3)]
    change(segments(places[0], COMPACTED)[0], lambda c: c.__setitem__(frames(c)[3] + 300, 77))
    change(segments(places[0], STALE)[0], of_before_it_was_cut)
    planted = [*WRITTEN, finding("n1", COMPACTED, "payload", 3, 3), *PLANTED_STALE, *harmed(places, HARMED)]
    report = audited(spark, places)
    assert bare(report.findings) == sorted(planted)
    (contrary,) = [each for each in report.findings if each.partition == OTHERWISE.hex()]
    assert contrary.detail == "transaction 1 of producer 23 is aborted here, and committed by its coordinator"
    assert report.protocols == {"confirm": 1, "coordinated": 1, "isr": 2, "raft": 21}
    assert report.copies_count == 75
    assert report.states_count == 15, (
        "of five tables and a home, all copies but one that has settled nothing, and two whose chains are broken"
    )
    assert report.entries_count > 1500


def made_to_break(directory: Path, node: int) -> Place:
    """One of three copies, the second of which has come upon damage. Some of the last is in the journal alone."""
    store = Made()
    store.add(STATE, transactions(), purpose="tables")
    for partition in (LOST, KNOWN):
        store.add(partition, with_sequences(*range(40)))
    store.rest()
    if node == 2:
        store.learn_of_damage(KNOWN, flip(AT, 30))
    for sequence in range(40, 43):
        store.append(LOST, records(sequence, producer=7, sequence=sequence))
    store.save(STATE, SAVED)
    return store.write(directory)


def test_what_happens_to_directories_is_found_and_only_that(spark: SparkSession, tmp_path: Path) -> None:
    """Of one nothing is left; the others have lost something each, and agree."""
    places = [made_to_break(tmp_path / f"n{n}", n) for n in (1, 2, 3)]
    planted = [NOTICED, *harmed(places, BROKEN)]
    report = audited(spark, places)
    assert bare(report.findings) == sorted(planted)
    assert report.replicas == ["n1", "n2", "n3"]
    assert report.copies_count == 8
    assert report.protocols == {"raft": 4}


def test_every_kind_is_planted() -> None:
    """And so it goes through the whole audit: those who plant them ask for exactly these."""
    planted = {NOTICED.kind, *(each.kind for each in WRITTEN), *HARMED, *BROKEN}
    assert planted == set(KINDS)


# ---- what comes to the driver ----

RESULT_BYTES_MAX = 256 << 10
LONG = 10_000
"""Entries."""


@contextmanager
def result_limit(spark: SparkSession, bytes_max: int) -> Iterator[None]:
    """Spark refuses to hand more than this to its driver. It looks at the setting whenever a job begins."""
    settings = spark.sparkContext._jsc.sc().conf()
    name = "spark.driver.maxResultSize"
    settings.set(name, str(bytes_max))
    try:
        yield
    finally:
        settings.remove(name)


@pytest.mark.proof
def test_copies_are_compared_without_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    """One entry differs in the middle of long logs: all entries of all copies are compared, and one line comes."""
    places = []
    for node in (1, 2, 3):
        store = Made()
        batches = usual(LONG)
        if node == 2:
            batches[LONG // 2] = records(99)
        store.add(VALUE, batches)
        store.rest()
        places.append(store.write(tmp_path / f"n{node}"))
    with result_limit(spark, RESULT_BYTES_MAX):
        report = audited(spark, places)
        with pytest.raises(Exception, match=r"bigger than spark\.driver\.maxResultSize"):
            spark.range(LONG * 3).selectExpr("id", "xxhash64(id) as value").collect()
    assert report.entries_count >= 3 * LONG
    assert report.bytes_count > 10 * RESULT_BYTES_MAX
    assert bare(report.findings) == [Finding("", VALUE.hex(), "value", LONG // 2, LONG - 1)]


# ---- as clusters make them ----


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    """A cluster with a topic of each kind and one that turned, with transactions, that was audited while it was
    written to, and stopped."""
    directory = tmp_path_factory.mktemp("lived") / "data"
    with DemoCluster(keep=False) as cluster:
        cluster.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for name, kind in TOPICS.items():
            topic = NewTopic(name, 1, 3, config={"quorate.replication": kind})
            admin.create_topics([topic])[name].result(TIMEOUT_S)
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 1}
        )
        _produce(producer)
        Operator(cluster.bootstrap).brings_about("topic alter turned --replication isr")
        _transact(cluster.bootstrap)
        _produce(producer)
        with writing(producer):
            report = audited(spark, places_in(cluster.directory))
        assert producer.flush(TIMEOUT_S) == 0
        assert report.findings == []
        assert report.entries_count > 0
        cluster._stop()
        copytree(cluster.directory, directory)
    return directory


def _transact(bootstrap: str) -> None:
    """In two topics at once: committed, aborted, committed."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "audited"})
    producer.init_transactions(TIMEOUT_S)
    for commit in (True, False, True):
        producer.begin_transaction()
        for name in ("raft", "turned"):
            producer.produce(name, b"transacted")
        producer.flush(TIMEOUT_S)
        (producer.commit_transaction if commit else producer.abort_transaction)(TIMEOUT_S)


@contextmanager
def writing(producer: Producer) -> Iterator[None]:
    """To all topics, all the time that the block takes."""
    is_over = Event()

    def write() -> None:
        while not is_over.wait(WRITING_PAUSE_S):
            _produce(producer)

    writer = Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        is_over.set()
        writer.join()


def _produce(producer: Producer) -> None:
    for name in TOPICS:
        for _ in range(20):
            producer.produce(name, bytes(1000))
    producer.poll(0.01)


def test_a_cluster_of_all_protocols_is_clean(spark: SparkSession, lived: Path) -> None:
    places = places_in(lived)
    report = audited(spark, places)
    assert report.findings == []
    assert report.replicas == ["n1", "n2", "n3"]
    homes = {f"{HOMES[TRANSACTIONS]}-{n}" for n in range(8)}
    assert set(report.names.values()) == {f"{name}-0" for name in TOPICS} | homes
    assert report.protocols == {"confirm": 1, "coordinated": 1, "isr": 2, "raft": 2 + len(homes)}
    # What is settled is on a disk with whatever is written next: of homes that rest, some disks have not heard.
    settled = [
        facts
        for place in places
        for facts in Looked(place).facts.values()
        if facts.purpose in PURPOSES and facts.commit >= 0
    ]
    assert {facts.purpose for facts in settled} == {"metadata", "transactions"}
    assert report.states_count == len(settled), "each copy that has settled anything was built again"


@pytest.mark.proof
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_the_command_on_what_is_whole(lived: Path, master: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quorate", "audit", str(lived), "--master", master],
        check=False,
        text=True,
        capture_output=True,
        timeout=COMMAND_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every frame is whole, every chain unbroken, and all copies agree." in done.stdout
    assert "3 replicas" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_command_says_what_and_what_to_do(
    spark: SparkSession, lived: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the session that is there already: Spark is started once in a process."""
    monkeypatch.setattr(command, "_run", lambda places, master: audited(spark, places))
    stranger = Path(places_in(lived)[1].store) / "partitions" / f"{bytes(16).hex()}-9"
    stranger.mkdir()
    (stranger / "00000000000000000000.log").write_bytes(b"x")
    assert run(["audit", str(lived), "--json"]) == 1
    (told,) = msgspec.json.decode(capsys.readouterr().out)["findings"]
    assert (told["replica"], told["kind"], told["first"]) == ("n2", "stranger", None)
    assert told["do"] == "move them away; the node never touches them"
    rmtree(stranger)
    report = Report(["n1", "n2"], 1, 2, 10, 1000, findings=[Finding("n2", "00ff", "payload", 3, 4, "x.log")])
    report.names["00ff"] = "events-0"
    report.untold_count = 5
    command._show(report, 1.0)
    said = capsys.readouterr().out
    assert "n2" in said
    assert "events-0" in said
    assert "3–4" in said
    assert "the records of an entry" in said
    assert "5 more pieces of damage" in said
    assert run(["audit", str(lived / "nowhere")]) == 2
    assert "is not a directory" in capsys.readouterr().err
    assert run(["audit", str(lived), str(lived / "n1")]) == 2
    assert "name each node once" in capsys.readouterr().err
