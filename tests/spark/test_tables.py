"""format("quorate") with a table: written by key, each batch once; read as it was at a moment, and followed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from quorate.cli.demo_cluster import DemoCluster
from quorate.client import TableGroup, create_group
from quorate.spark.staging import Transaction
from quorate.spark.table_writing import WRITERS, note
from quorate.tables import Column, CreateTable, Delete, DropTable, Insert, Replace, Row, Table, Type, Values
from tests.spark.conftest import TIMEOUT_S
from tests.spark.test_streaming import finish

pytestmark = pytest.mark.cluster

ACCOUNTS = Table(
    "accounts",
    (
        Column("id", Type.INT),
        Column("owner", Type.STR, nullable=True),
        Column("weight", Type.FLOAT, nullable=True),
        Column("photo", Type.BYTES, nullable=True),
        Column("open", Type.BOOL, nullable=True),
    ),
    ("id",),
)
BIG = 20_000
"""Rows: several parts for each task, and more than one entry takes."""
ACCOUNTS_COUNT = 20_000
"""A snapshot of them is many pieces."""
READS_COUNT = 5
_numbers = count()


class Bank:
    def __init__(self, cluster: DemoCluster, group: TableGroup) -> None:
        self.bootstrap = cluster.bootstrap
        self.group = group

    def options(self, **more: str) -> dict[str, str]:
        return {"bootstrap": self.bootstrap, "table": f"{self.group.group}/accounts", **more}

    def read(self, spark: SparkSession) -> DataFrame:
        return spark.read.format("quorate").options(**self.options()).load()

    def write(self, frame: DataFrame, **more: str) -> None:
        frame.write.format("quorate").options(**self.options(**more)).mode("append").save()

    def rows(self) -> list[Values]:
        return [row.values for row in self.group.iterate("accounts")]

    def follow(self, spark: SparkSession, checkpoint: Path, **more: str) -> list[tuple[object, ...]]:
        """What a query that reads what is there now has told so far."""
        given = self.options(readChangeFeed="true", **more)
        frame = spark.readStream.format("quorate").options(**given).load()
        kept = frame.selectExpr("id", "owner", "_change_type", "_commit_offset", "_commit_timestamp")
        target = str(checkpoint / "rows")
        writer = kept.writeStream.format("parquet").option(
            "checkpointLocation", str(checkpoint / "checkpoint")
        )
        finish(writer.trigger(availableNow=True).start(target))
        found = spark.read.parquet(target).orderBy("_commit_offset", "id").collect()
        return [tuple(row) for row in found]


@pytest.fixture
def bank(cluster: DemoCluster) -> Iterator[Bank]:
    name = f"bank-{next(_numbers)}"
    create_group(cluster.bootstrap, name)
    with TableGroup(cluster.bootstrap, name, timeout_s=TIMEOUT_S) as group:
        group.execute(CreateTable(ACCOUNTS))
        yield Bank(cluster, group)


def test_rows_come_back_as_they_went_in(spark: SparkSession, bank: Bank) -> None:
    rows: list[Values] = [(1, "Ann", 0.5, b"\x00", True), (2, None, None, None, None)]
    bank.write(
        spark.createDataFrame(rows, "id long, owner string, weight double, photo binary, open boolean")
    )
    assert bank.rows() == rows
    assert [tuple(row) for row in bank.read(spark).orderBy("id").collect()] == rows
    changes = spark.createDataFrame(
        [(1, None, "delete"), (2, "Bob", "update"), (3, "Cid", None)],
        "id int, owner string, _change_type string",
    )
    bank.write(changes.coalesce(1))
    assert [values[:2] for values in bank.rows()] == [(2, "Bob"), (3, "Cid")]
    with pytest.raises(PySparkException, match="has no column 'strange'"):
        bank.write(spark.range(1).selectExpr("id", "1 as strange"))
    with pytest.raises(PySparkException, match="must be bigint"):
        bank.write(spark.range(1).selectExpr("cast(id as string) as id"))
    for version in ("1", "1", "0"):
        bank.write(spark.range(10 + int(version)).select("id"), txnAppId="app", txnVersion=version)
        assert len(bank.rows()) == 11


def test_a_stream_writes_each_batch_once(spark: SparkSession, bank: Bank, tmp_path: Path) -> None:
    """Its last commit is taken out of the checkpoint, as if the driver had died before it wrote that down."""
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()

    def run(*ids: int) -> None:
        (source / f"{ids[0]}.json").write_text(
            "\n".join(f'{{"id": {each}, "owner": "Spark"}}' for each in ids)
        )
        frame = spark.readStream.schema("id long, owner string").json(str(source))
        writer = frame.writeStream.format("quorate").options(**bank.options())
        finish(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())

    run(1, 2)
    bank.group.execute(Replace("accounts", (1, "somebody else", None, None, None)), Delete("accounts", (2,)))
    for committed in (checkpoint / "commits").glob("*0*"):
        committed.unlink()
    run(3)
    assert [values[:2] for values in bank.rows()] == [(1, "somebody else"), (3, "Spark")]
    (writer,) = bank.group.scan(WRITERS.name)
    assert writer.values[1] == 1, "two batches are in, 0 and 1"


def test_a_batch_of_several_entries_is_seen_at_once_or_not_at_all(spark: SparkSession, bank: Bank) -> None:
    before = bank.group.describe().offset
    seen: set[tuple[bool, bool]] = set()
    is_over = Event()

    def watch() -> None:
        with TableGroup(bank.bootstrap, bank.group.group, timeout_s=TIMEOUT_S) as group:
            while not is_over.is_set():
                # The last is looked at first: it must not be there before the first.
                last = group.get("accounts", (BIG - 1,)) is not None
                seen.add((group.get("accounts", (0,)) is not None, last))

    watching = Thread(target=watch)
    watching.start()
    try:
        bank.write(spark.range(0, BIG, 1, 2).selectExpr("id", "repeat('x', 50) as owner"))
    finally:
        is_over.set()
        watching.join()
    assert bank.group.describe().offset > before + 4, "it took several entries"
    assert len({row.version for row in bank.group.iterate("accounts")}) == 1, "and one of them shows all"
    assert (False, True) not in seen
    assert bank.read(spark).selectExpr("count(*)", "sum(id)").first() == (BIG, BIG * (BIG - 1) // 2)


def test_what_is_read_while_it_is_written_to_is_of_one_moment(spark: SparkSession, bank: Bank) -> None:
    """Money goes from one account to another, and there is always as much of it."""
    for first in range(0, ACCOUNTS_COUNT, 5000):
        ids = range(first, first + 5000)
        bank.group.execute(*(Insert("accounts", (id_, "x" * 100, 100.0, None, None)) for id_ in ids))
    done: list[int] = []
    is_over = Event()

    def transfer() -> None:
        rng = Random(7)
        left = [100.0] * ACCOUNTS_COUNT
        with TableGroup(bank.bootstrap, bank.group.group, timeout_s=TIMEOUT_S) as group:
            while not is_over.is_set():
                # From the end of the table to its beginning: whoever reads on and on sees one without the other.
                giver, taker = rng.randrange(ACCOUNTS_COUNT // 2, ACCOUNTS_COUNT), rng.randrange(1000)
                left[giver] -= 1
                left[taker] += 1
                rows = [Replace("accounts", (id_, "", left[id_], None, None)) for id_ in (giver, taker)]
                done.append(group.execute(*rows).offset)

    transferring = Thread(target=transfer)
    transferring.start()
    try:
        for _ in range(READS_COUNT):
            before = len(done)
            total = bank.read(spark).selectExpr("count(*)", "sum(weight)").first()
            assert total == (ACCOUNTS_COUNT, 100.0 * ACCOUNTS_COUNT)
            assert len(done) > before, "it was written to meanwhile"
    finally:
        is_over.set()
        transferring.join()


@pytest.mark.proof
def test_a_frame_whose_table_is_another_one_by_now_is_an_error(spark: SparkSession, bank: Bank) -> None:
    """Spark plans a frame once, and values have no names: each would stand in another's column."""
    old = Table("accounts", (Column("id", Type.INT), Column("a", Type.STR), Column("b", Type.STR)), ("id",))
    bank.group.execute(DropTable("accounts"))
    bank.group.execute(CreateTable(old), Insert("accounts", (1, "a", "b")))
    frame = bank.read(spark)
    assert [tuple(row) for row in frame.collect()] == [(1, "a", "b")]
    id_, a, b = old.columns
    for columns, values in (((id_, b, a), (2, "b", "a")), ((id_,), (2,)), ((id_, a, b), (3, "a", "b"))):
        bank.group.execute(DropTable("accounts"))
        bank.group.execute(CreateTable(Table("accounts", columns, ("id",))), Insert("accounts", values))
        if columns == old.columns:
            assert [tuple(row) for row in frame.collect()] == [values]
        else:
            with pytest.raises(PySparkException, match="has other columns than it had when it was loaded"):
                frame.collect()


def test_changes_come_behind_a_snapshot_or_an_offset(spark: SparkSession, bank: Bank, tmp_path: Path) -> None:
    inserted = bank.group.execute(
        Insert("accounts", (1, "Ann", None, None, None)), Insert("accounts", (2, "Bob", None, None, None))
    ).offset
    first = bank.follow(spark, tmp_path / "a")
    expected: list[tuple[object, ...]] = [
        (1, "Ann", "insert", inserted, None),
        (2, "Bob", "insert", inserted, None),
    ]
    assert first == expected
    changed = bank.group.execute(
        Replace("accounts", (1, "Anna", None, None, None)), Delete("accounts", (2,))
    ).offset
    whole = bank.follow(spark, tmp_path / "a")
    assert whole[:2] == expected
    expected = [(1, "Anna", "update", changed), (2, "Bob", "delete", changed)]
    assert [row[:4] for row in whole[2:]] == expected
    assert None not in [row[4] for row in whole[2:]]
    by_offset = bank.follow(spark, tmp_path / "b", startingOffsets=str(changed))
    assert [row[:4] for row in by_offset] == expected
    # What is kept has a bound, and what lies below it is an error, and no gap.
    for number in range(45):
        bank.group.execute(Replace("accounts", (5, None, None, bytes([number]) * 900_000, None)))
    with pytest.raises(PySparkException, match=f"wanted from offset {changed} on, and are kept from"):
        bank.follow(spark, tmp_path / "c", startingOffsets=str(changed))


def test_an_older_run_is_fenced() -> None:
    mine = Transaction("app", 7, "mine")
    assert note(mine, None) is not None
    assert note(mine, Row(1, ("app", 7, "mine", ""))) is None, "it is in"
    noted = note(mine, Row(1, ("app", 6, "older", "oldest")))
    assert noted is not None
    assert noted[0] == Replace("_writers", ("app", 7, "mine", "oldest older"))
    with pytest.raises(Exception, match="newer run"):
        note(mine, Row(1, ("app", 6, "newer", "older mine")))
