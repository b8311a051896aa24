"""Snapshots that clients read piece by piece: of one moment, few at a time, and not for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quorate.client import TableGroup
from quorate.client.table_calls import new_id
from quorate.core.entry import Header, partition_of
from quorate.kafka.table_snapshots import OPEN_COUNT_MAX, Snapshots
from quorate.machine.table import Tables
from quorate.machine.table_wire import encode
from quorate.tables import (
    Add,
    BadRead,
    Column,
    CreateTable,
    Delete,
    Insert,
    Level,
    Replace,
    Table,
    Transaction,
    Type,
    Update,
)
from quorate.wire.tables import AskPiece, Piece
from tests.unit.kafka.harness import TIMEOUT_S, Served, serve, until
from tests.unit.kafka.test_tables import create

COUNTERS = Table("counters", (Column("id", Type.INT), Column("value", Type.INT)), ("id",))
ROWS_COUNT = 3000
HERE = partition_of(bytes(16), 0)
SOON_S = 0.05


def filled() -> Tables:
    tables = Tables()
    rows = (Insert("counters", (number, 0)) for number in range(100))
    tables.settle(Header(1, 0), 0, encode(Transaction(new_id(), (CreateTable(COUNTERS), *rows))))
    return tables


def test_a_snapshot_is_of_one_moment_while_every_row_changes(tmp_path: Path) -> None:
    def read(bootstrap: str) -> None:
        with TableGroup(bootstrap, "bank", timeout_s=TIMEOUT_S) as bank:
            bank.execute(CreateTable(COUNTERS))
            for first in range(0, ROWS_COUNT, 500):
                bank.execute(*(Insert("counters", (number, 0)) for number in range(first, first + 500)))
            pieces: list[bytes] = []
            for piece in bank.snapshot(1):
                pieces.append(piece)
                if len(pieces) == 1:
                    for first in range(0, ROWS_COUNT, 500):
                        numbers = range(first, first + 500)
                        bank.execute(
                            *(Update("counters", (number,), (Add("value", 1),)) for number in numbers)
                        )
                    bank.execute(Delete("counters", (ROWS_COUNT - 1,)), Replace("counters", (-1, 5)))
            assert len(pieces) > 3
            tables = Tables()
            tables.restore(b"".join(pieces))
            rows = tables.scan("counters")
            assert [row.values for row in rows] == [(number, 0) for number in range(ROWS_COUNT)]
            again = Tables()
            again.restore(b"".join(bank.snapshot(1)))
            assert again.get("counters", (-1,)) == bank.get("counters", (-1,))
            assert again.get("counters", (ROWS_COUNT - 1,)) is None
            assert len(again.scan("counters")) == ROWS_COUNT

    async def test(served: Served) -> None:
        await create(served)
        await asyncio.to_thread(read, f"127.0.0.1:{served.port}")

    serve(tmp_path, test)


def test_a_client_that_asks_for_a_piece_of_nothing_hears_that_it_is_lost(tmp_path: Path) -> None:
    def read(bootstrap: str) -> None:
        with TableGroup(bootstrap, "bank", timeout_s=TIMEOUT_S) as bank:
            first = bank._session.piece(new_id(), 3, 1)
            assert bank._ask(first).is_lost

    async def test(served: Served) -> None:
        await create(served)
        await asyncio.to_thread(read, f"127.0.0.1:{served.port}")

    serve(tmp_path, test)


def pieces_of(snapshots: Snapshots, tables: Tables, id_: bytes, number: int) -> Piece:
    return snapshots.piece(HERE, AskPiece("bank", id_, number), tables, Level.COMMITTED)


def test_the_last_piece_can_be_asked_for_again_and_others_cannot() -> None:
    async def main() -> None:
        snapshots, tables, id_ = Snapshots(), filled(), new_id()
        got = [pieces_of(snapshots, tables, id_, 0)]
        while not got[-1].is_last:
            assert pieces_of(snapshots, tables, id_, len(got) - 1) == got[-1]
            got.append(pieces_of(snapshots, tables, id_, len(got)))
        assert b"".join(piece.content for piece in got) == tables.snapshot()
        assert pieces_of(snapshots, tables, id_, len(got) - 1) == got[-1]
        for number in (0, len(got), 99, -1):
            assert pieces_of(snapshots, tables, id_, number).is_lost
        assert pieces_of(snapshots, tables, new_id(), 1).is_lost

    asyncio.run(main())


def test_few_are_open_at_a_time_and_one_that_nobody_asks_for_is_closed() -> None:
    async def main() -> None:
        snapshots, tables = Snapshots(idle_s=SOON_S), filled()
        for _ in range(OPEN_COUNT_MAX):
            assert pieces_of(snapshots, tables, new_id(), 0).content
        with pytest.raises(BadRead, match="try again later"):
            pieces_of(snapshots, tables, new_id(), 0)
        await until(lambda: not len(snapshots))
        assert pieces_of(snapshots, tables, new_id(), 0).content

    asyncio.run(main())


def test_those_that_were_read_to_the_end_are_in_nobodys_way() -> None:
    async def main() -> None:
        snapshots, tables = Snapshots(), filled()
        for _ in range(3 * OPEN_COUNT_MAX):
            id_, number = new_id(), 0
            while not pieces_of(snapshots, tables, id_, number).is_last:
                number += 1
        assert len(snapshots) <= OPEN_COUNT_MAX

    asyncio.run(main())


def test_an_id_that_is_none_is_refused() -> None:
    with pytest.raises(BadRead, match="has 16 bytes, not 1"):
        pieces_of(Snapshots(), filled(), b"x", 0)
