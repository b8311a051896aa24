"""docs/BACKUP.md shows what its commands print: they are typed here, into a directory and a store of moto's."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from confluent_kafka import Producer

from quorate.cli.demo_cluster import DemoCluster
from quorate.client import TableGroup, create_group
from quorate.tables import Column, CreateTable, Insert, Table, Type
from tests.cluster.kafka_clients import TIMEOUT_S, Confluent
from tests.cluster.typed_pages import DOCS, Block, Typist, blocks_of, expect_as_shown, rewritten
from tests.unit.backup.object_store import CREDENTIALS, object_store

pytestmark = [pytest.mark.cluster, pytest.mark.proof]

PAGE = DOCS / "BACKUP.md"
RECORDS_COUNT = 40
ROWS_COUNT = 100


@pytest.mark.skipif(find_spec("moto") is None, reason="moto is not installed")
def test_the_page_shows_what_commands_print(tmp_path: Path, rewrite: bool) -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = list(blocks_of(page))
    with DemoCluster(keep=False) as cluster, object_store() as endpoint:
        cluster.start()
        write(cluster.bootstrap)
        typist = Typist(tmp_path, lambda: cluster.bootstrap, **CREDENTIALS)
        typist.stands_for = {
            "/var/backups/quorate": str(tmp_path / "backups"),
            "http://10.0.0.9:9000": endpoint,
        }
        typed = [Block(block.scene, [typist.type(each) for each in block.typed]) for block in shown]
    if rewrite:
        PAGE.write_text(rewritten(page, typed), encoding="utf-8")
        return
    assert shown
    for wanted, found in zip(shown, typed, strict=True):
        expect_as_shown(wanted, found)


def write(bootstrap: str) -> None:
    """The same bytes each time: every record is a batch of its own."""
    Confluent(bootstrap).create("orders", partitions=2)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(RECORDS_COUNT):
        producer.produce("orders", b"%d" % number, partition=number % 2)
        assert producer.flush(TIMEOUT_S) == 0
    accounts = Table("accounts", (Column("id", Type.INT), Column("balance", Type.INT)), ("id",))
    create_group(bootstrap, "bank", replication="raft")
    with TableGroup(bootstrap, "bank") as bank:
        bank.execute(CreateTable(accounts))
        bank.execute(*(Insert("accounts", (number, 100)) for number in range(ROWS_COUNT)))
