"""One real node: staging, what has changed, a table as it was; and what the driver of a Spark job does with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from quorate.client import ChangesGone, CommitFailed, Refused, RunFenced, TableGroup
from quorate.client.table_reading import rows_of
from quorate.spark.options import TableOptions
from quorate.spark.staging import Transaction
from quorate.spark.table_writing import Written, commit, discard, stage_of, stage_parts
from quorate.spark.tables import TableDropped, TableReader, TableStreamReader, schema_of
from quorate.tables import (
    Column,
    CommitStaged,
    CreateTable,
    Delete,
    DropTable,
    Replace,
    RowOperation,
    Stage,
    Table,
    Type,
    Values,
    encode_part,
)
from quorate.wire.table_pieces import values_of
from tests.unit.kafka.harness import TIMEOUT_S, Served, serve
from tests.unit.kafka.test_tables import create

STOCK = Table("stock", (Column("id", Type.INT), Column("count", Type.INT, nullable=True)), ("id",))
STAGE = b"s" * 16


def with_group(tmp_path: Path, look: Callable[[TableGroup, Served], None]) -> None:
    """`look` asks from a thread of its own, as any program does."""

    async def test(served: Served) -> None:
        await create(served, "shop")

        def ask() -> None:
            with TableGroup(f"127.0.0.1:{served.port}", "shop", timeout_s=TIMEOUT_S) as group:
                group.execute(CreateTable(STOCK))
                look(group, served)

        await asyncio.to_thread(ask)

    serve(tmp_path, test)


def put(*numbers: int) -> bytes:
    operations: list[RowOperation] = [Replace("stock", (number, number)) for number in numbers]
    return encode_part(operations)


def rows(group: TableGroup) -> list[Values]:
    return [row.values for row in group.iterate("stock")]


def test_staged_parts_are_shown_by_one_entry_and_told_as_changes_of_it(tmp_path: Path) -> None:
    def look(group: TableGroup, served: Served) -> None:
        group.execute(Replace("stock", (1, None)), Replace("stock", (9, 9)))
        at = group.offset
        group.execute(Stage(STAGE, 0, put(1, 2)))
        group.execute(Stage(STAGE, 1, put(3)))
        assert rows(group) == [(1, None), (9, 9)]
        done = group.execute(CommitStaged(((STAGE, 2),)), Delete("stock", (9,)))
        assert rows(group) == [(1, 1), (2, 2), (3, 3)]
        found = [change for page in group.changes("stock", first=at + 1, last=done.offset) for change in page]
        assert {change.offset for change in found} == {done.offset}
        assert all(change.timestamp > 0 for change in found)
        told = [
            (change.before and values_of(change.before), change.after and values_of(change.after))
            for change in found
        ]
        assert told == [((1, None), (1, 1)), (None, (2, 2)), (None, (3, 3)), ((9, 9), None)]
        was = [values_of(kept) for some in rows_of(group, "stock", at) for kept in some]
        assert was == [(1, None), (9, 9)]
        now = [values_of(kept) for some in rows_of(group, "stock") for kept in some]
        assert now == rows(group)
        assert group.kept_from("stock") == 0
        with pytest.raises(ChangesGone, match="wanted from offset -1 on, and are kept from 0 on"):
            list(group.changes("stock", first=-1, last=done.offset))

    with_group(tmp_path, look)


def test_staging_waits_for_the_feature_level(tmp_path: Path) -> None:
    def look(group: TableGroup, served: Served) -> None:
        served.node.metadata.image.cluster.level = 2
        with pytest.raises(Refused, match="staging needs feature level 3, and the cluster is at 2"):
            group.execute(Stage(STAGE, 0, put(1)))
        group.execute(Replace("stock", (1, 1)))

    with_group(tmp_path, look)


def test_a_number_is_put_in_once_and_an_older_run_is_fenced(tmp_path: Path) -> None:
    def look(group: TableGroup, served: Served) -> None:
        options = TableOptions(f"127.0.0.1:{served.port}", "shop", "stock", TIMEOUT_S)
        first = Transaction("app", 0, "run-1")
        commit(options, [Written(first, 2, [put(1)]), Written(first, 1, [put(2)]), None])
        commit(options, [Written(first, 1, [put(3)])])
        assert rows(group) == [(1, 1), (2, 2)], "number 0 is in"
        newer = Transaction("app", 1, "run-2")
        stage = stage_of(newer, "task 0")
        staged = Written(newer, 2, [], (stage, stage_parts(group, stage, [put(4), put(5)], 0)))
        loser = stage_of(newer, "task 0, once more")
        stage_parts(group, loser, [put(4)], 0)
        commit(options, [staged, Written(newer, 1, [put(6)])])
        assert [number for number, _ in rows(group)] == [1, 2, 4, 5, 6]
        assert len({row.version for row in group.scan("stock", (4,))}) == 1
        with pytest.raises(RunFenced):
            commit(options, [Written(first._replace(number=2), 1, [put(7)])])
        with pytest.raises(CommitFailed, match="is gone, or was never there"):
            commit(options, [Written(newer._replace(number=2), 1, [], (loser, 1))])
        stage_parts(group, loser, [put(8)], 0)
        discard(options, newer)
        with pytest.raises(CommitFailed, match="is gone, or was never there"):
            commit(options, [Written(newer._replace(number=2), 1, [], (loser, 1))])
        assert [number for number, _ in rows(group)] == [1, 2, 4, 5, 6]

    with_group(tmp_path, look)


def told(reader: TableStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What the tasks of a batch give: id, change type, offset."""
    found = [
        row
        for task in reader.partitions(start, end)
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]
    return [(row["id"], row["_change_type"], row["_commit_offset"]) for row in found]


def test_a_stream_begins_with_a_snapshot_and_goes_on_behind_it(tmp_path: Path) -> None:
    def look(group: TableGroup, served: Served) -> None:
        options = TableOptions(f"127.0.0.1:{served.port}", "shop", "stock", TIMEOUT_S, changes=True)
        whole = ReadAllAvailable()
        first = group.execute(Replace("stock", (1, 1)), Replace("stock", (2, 2))).offset
        reader = TableStreamReader(options, schema_of(options))
        begin = reader.initialOffset()
        end = reader.latestOffset(begin, whole)
        second = group.execute(Replace("stock", (1, 5)), Delete("stock", (2,))).offset
        snapshot = [(1, "insert", first), (2, "insert", first)]
        assert told(reader, begin, end) == snapshot
        third = group.execute(Replace("stock", (3, 3))).offset
        later = reader.latestOffset(end, whole)
        assert told(reader, end, later) == [
            (1, "update", second),
            (2, "delete", second),
            (3, "insert", third),
        ]
        assert reader.latestOffset(later, whole) == later, "nothing is new"
        assert reader.latestOffset(end, ReadMaxRows(1))["next"] == end["next"] + 1
        reader.stop()
        again = TableStreamReader(options, schema_of(options))
        assert told(again, again.initialOffset(), end) == snapshot, "the first batch, repeated"
        again.stop()
        plain = TableOptions(f"127.0.0.1:{served.port}", "shop", "stock", TIMEOUT_S)
        batch = TableReader(plain, schema_of(plain))
        (task,) = batch.partitions()
        assert [row for some in batch.read(task) for row in some.to_pylist()] == [
            {"id": 1, "count": 5},
            {"id": 3, "count": 3},
        ]
        group.execute(DropTable("stock"))
        group.execute(CreateTable(STOCK))
        with pytest.raises(TableDropped, match="was dropped at offset"):
            told(again, later, again.latestOffset(later, whole))
        again.stop()

    with_group(tmp_path, look)
