"""Examples of docs/SPARK.md, as they are written there, with a cluster and a directory of the test's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from quorate.cli.demo_cluster import DemoCluster
from quorate.client import TableGroup, create_group
from quorate.tables import Column, CreateTable, Delete, Insert, Table, Type, Values
from tests.spark.conftest import TIMEOUT_S, Topic

pytestmark = pytest.mark.cluster

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "SPARK.md"
ACCOUNTS = Column("id", Type.INT), Column("owner", Type.STR, nullable=True), Column("balance", Type.INT)
TOTALS = Column("owner", Type.STR), Column("paid", Type.INT)


class Example:
    """The code of one section, block by block; what one block has made is there for the next."""

    def __init__(self, section: str, **names: object) -> None:
        text = DOCUMENT.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
        self.blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        self.names = names

    def run(self, number: int, **put_in_place: str) -> None:
        code = self.blocks[number]
        for written, meant in put_in_place.items():
            code = code.replace(written, meant)
        exec(compile(code, f"block {number}", "exec"), self.names)

    def query(self) -> StreamingQuery:
        query = self.names["query"]
        assert isinstance(query, StreamingQuery)
        return query


@pytest.fixture
def bank(cluster: DemoCluster) -> Iterator[TableGroup]:
    create_group(cluster.bootstrap, "bank")
    with TableGroup(cluster.bootstrap, "bank", timeout_s=TIMEOUT_S) as group:
        for name, columns in (("accounts", ACCOUNTS), ("copy", ACCOUNTS), ("totals", TOTALS)):
            group.execute(CreateTable(Table(name, columns, key=(columns[0].name,))))
        group.execute(Insert("accounts", (1, "Ann", 100)), Insert("accounts", (2, None, 20)))
        yield group


def rows(group: TableGroup, table: str) -> list[Values]:
    return [row.values for row in group.iterate(table)]


def test_the_examples_of_tables_run_as_they_are_written(
    spark: SparkSession,
    cluster: DemoCluster,
    bank: TableGroup,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"localhost:9092": cluster.bootstrap, "checkpoints/": f"{tmp_path}/"}
    payments = Topic(cluster.bootstrap, "payments", 1)
    payments.produce([b'{"owner": "Ann", "amount": 3}', b'{"owner": "Bob", "amount": 4}'])
    example = Example("Tables", spark=spark)
    snapshot, changes, complete, updates = range(len(example.blocks))
    example.run(snapshot, **places)
    assert re.search(r"Ann\| +100\|", capsys.readouterr().out)

    example.run(changes, **places)
    with_query(example, lambda: bank.execute(Delete("accounts", (2,)), Insert("accounts", (3, "Cid", 5))))
    assert rows(bank, "copy") == rows(bank, "accounts") == [(1, "Ann", 100), (3, "Cid", 5)]
    accounts = example.names["accounts"]
    assert isinstance(accounts, DataFrame)
    assert accounts.orderBy("id").collect() == rows(bank, "accounts"), "a table is read anew at each action"

    example.run(complete, **places)
    with_query(example, lambda: payments.produce([b'{"owner": "Ann", "amount": 10}']))
    assert rows(bank, "totals") == [("Ann", 13), ("Bob", 4)]

    bank.execute(Delete("totals", ("Ann",)), Delete("totals", ("Bob",)))
    example.run(updates, **places)
    with_query(example, lambda: payments.produce([b'{"owner": "Ann", "amount": 1}']))
    assert rows(bank, "totals") == [("Ann", 14), ("Bob", 4)]
    last_batch_is_not_written_down(tmp_path / "totals-2")
    bank.execute(Delete("totals", ("Ann",)))
    example.run(updates, **places)
    with_query(example, lambda: None)
    assert rows(bank, "totals") == [("Bob", 4)], (
        "Spark repeats its last batch, which is in, and is not written again"
    )


def with_query(example: Example, change: Callable[[], object]) -> None:
    """What is there before it begins, and what comes then."""
    query = example.query()
    try:
        query.processAllAvailable()
        change()
        query.processAllAvailable()
    finally:
        query.stop()


def last_batch_is_not_written_down(checkpoint: Path) -> None:
    """As if the driver had died between the sink's commit and its own."""
    commits = checkpoint / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()
