"""Tables as a node serves them: one real node, our own clients, and whoever sends what cannot be read."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from quorate.client import (
    AsyncTableGroup,
    Consistency,
    GroupReplaced,
    Refused,
    TransactionRefused,
    UnknownGroup,
)
from quorate.machine.table import Tables
from quorate.tables import (
    Absent,
    Add,
    At,
    Column,
    CreateTable,
    Delete,
    DropTable,
    Insert,
    Operation,
    Outcome,
    Replace,
    Set,
    Table,
    Transaction,
    Type,
    Update,
    Upsert,
)
from quorate.wire import tables as wire
from quorate.wire.messages import Api
from tests.unit.kafka.harness import TIMEOUT_S, Connection, Served, serve, until

DOCUMENTS = Table("documents", (Column("id", Type.INT), Column("text", Type.STR, nullable=True)), ("id",))
TEXT = "x" * 100_000
SPOILED_COUNT = 800
ANSWER_S = 0.3


async def create(served: Served, name: str = "bank", **more: str) -> None:
    settings: dict[str, Any] = {"quorate_kind": "tables", "quorate_replication": "confirm", **more}
    async with await served.connect() as connection:
        assert (await connection.create(name, **settings)).error_message is None


def group_of(served: Served, name: str = "bank") -> AsyncTableGroup:
    return AsyncTableGroup(f"127.0.0.1:{served.port}", name, timeout_s=TIMEOUT_S)


async def say(connection: Connection, request: wire.Request, correlation: int = 1) -> wire.Answer:
    await connection.send(wire.encode_request(request, correlation, "test"))
    got, answer = wire.decode_answer(await connection.receive())
    assert got == correlation
    return answer


def test_tables_are_written_and_read(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        await create(served)
        async with group_of(served) as bank:
            await bank.execute(CreateTable(DOCUMENTS))
            done = await bank.execute(Insert("documents", (1, "a")), Insert("documents", (2, None)))
            row = await bank.get("documents", (1,), Consistency.LINEARIZABLE)
            assert row is not None
            assert (row.version, row.values) == (done.offset, (1, "a"))
            changed = await bank.execute(
                Update("documents", (1,), (Set("text", "b"),)),
                conditions=[At("documents", (1,), row.version)],
            )
            assert changed.offset > done.offset
            with pytest.raises(TransactionRefused, match="is at version"):
                await bank.execute(Delete("documents", (1,)), conditions=[At("documents", (1,), row.version)])
            with pytest.raises(Refused, match="there is no table 'nothing'"):
                await bank.get("nothing", (1,))
            found = await bank.result(changed.id)
            assert found is not None
            assert (found.outcome, found.offset) == (Outcome.DONE, changed.offset)
            assert await bank.result(bytes(16)) is None
            again = await bank.execute(Delete("documents", (1,)), id_=changed.id)
            assert again.offset == changed.offset, "under one id something is done once"
            described = await bank.describe()
            assert (described.tables, described.leader, described.copies) == ((DOCUMENTS,), 1, (1,))

    serve(tmp_path, test)


def test_a_group_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with group_of(served, "nothing") as nothing:
            with pytest.raises(UnknownGroup, match="'nothing'"):
                await nothing.tables()
        async with await served.connect() as connection:
            await connection.create("records")
        async with group_of(served, "records") as records:
            with pytest.raises(Refused, match="'records' is a topic of records, not a group of tables"):
                await records.tables()

    serve(tmp_path, test)


def test_a_group_that_was_made_anew_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        await create(served)
        async with group_of(served) as old, group_of(served) as new:
            await old.execute(CreateTable(DOCUMENTS))
            async with await served.connect() as connection:
                values = {"topics": [{"name": "bank", "topic_id": None}], "timeout": timedelta(seconds=5)}
                await connection.ask(Api.DELETE_TOPICS, values)
            await create(served)
            with pytest.raises(GroupReplaced, match="open it again"):
                await old.tables()
            with pytest.raises(GroupReplaced):
                await old.execute(CreateTable(DOCUMENTS))
            assert await new.tables() == ()

    serve(tmp_path, test)


def test_only_confirm_takes_orders(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        await create(served, quorate_replication="raft")
        async with group_of(served) as bank:
            with pytest.raises(Refused, match="agree by raft: only `confirm` has promote and demote"):
                await bank.demote()
        await create(served, "other")
        async with group_of(served, "other") as other:
            assert await other.promote(1) == 1

    serve(tmp_path, test)


# ---- bounds ----


def test_answers_are_pages_however_much_is_asked_for(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        await create(served)
        async with group_of(served) as bank:
            await bank.execute(CreateTable(DOCUMENTS))
            await bank.execute(*(Insert("documents", (number, TEXT)) for number in range(30)))
            await bank.execute(*(Insert("documents", (number, None)) for number in range(100, 3000)))
            numbers = [row.values[0] async for row in bank.iterate("documents")]
            assert numbers == [*range(30), *range(100, 3000)]
            some = await bank.scan("documents", (20,), (2000,), limit=1200)
            assert [row.values[0] for row in some] == [*range(20, 30), *range(100, 1290)]
        async with await served.connect() as connection:
            answer = await say(connection, wire.Scan("bank", "documents", limit=1_000_000))
            assert isinstance(answer, wire.Rows)
            assert [row.values[0] for row in answer.rows] == [*range(10)]
            assert answer.after == (9,)
            answer = await say(connection, wire.Scan("bank", "documents", (100,), limit=1_000_000))
            assert isinstance(answer, wire.Rows)
            assert len(answer.rows) == wire.PAGE_ROWS_MAX

    serve(tmp_path, test)


def test_whoever_asks_for_much_and_reads_nothing_gets_no_more_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages_count = 0
    page = Tables.page

    def counted(*arguments: object, **more: object) -> object:
        nonlocal pages_count
        pages_count += 1
        return page(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Tables, "page", counted)

    async def test(served: Served) -> None:
        await create(served)
        async with group_of(served) as bank:
            await bank.execute(CreateTable(DOCUMENTS))
            await bank.execute(*(Insert("documents", (number, TEXT)) for number in range(10)))
            async with await served.connect() as connection:
                for number in range(200):
                    scan = wire.Scan("bank", "documents")
                    await connection.send(wire.encode_request(scan, number, "test"))
                await until(lambda: pages_count > 3)
                for _ in range(100):  # The node has time for others, and for this one if it wanted.
                    await bank.get("documents", (1,))
                assert pages_count < 100
                for number in range(200):
                    correlation, answer = wire.decode_answer(await connection.receive())
                    assert correlation == number
                    assert isinstance(answer, wire.Rows)
                    assert len(answer.rows) == 10

    serve(tmp_path, test)


def test_a_request_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        await create(served)
        async with await served.connect() as connection:
            huge = wire.AskResult("bank", bytes(wire.TABLES_REQUEST_BYTES_MAX))
            answer = await say(connection, huge)
            assert isinstance(answer, wire.Refused)
            assert "too many for a request about tables" in answer.why
            assert isinstance(await say(connection, wire.AskTables("bank")), wire.Described)

    serve(tmp_path, test)


def test_what_cannot_be_answered_in_time_is_said_to_be_so(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        await create(served)
        async with await served.connect() as connection:
            began = monotonic()
            answer = await say(connection, wire.AskTables("bank", offset=1 << 40, timeout_ms=50))
            assert isinstance(answer, wire.Again)
            assert "not settled here yet" in answer.why
            assert monotonic() - began < TIMEOUT_S / 2

    serve(tmp_path, test)


def test_a_scan_is_asked_for_by_its_own_number(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        await create(served)
        async with await served.connect() as connection:
            message = bytearray(wire.encode_request(wire.Scan("bank", "t"), 1, "test"))
            message[4:6] = wire.TABLES_API.to_bytes(2, "big")
            await connection.send(message)
            assert await connection.is_closed()
        assert any("scans, snapshots and changes, and nothing else" in line for line in served.said)

    serve(tmp_path, test)


# ---- anything ----


class Maker:
    """Requests that are likely to hurt, and then spoiled."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)

    def message(self) -> bytes:
        message = bytearray(wire.encode_request(self.request(), 1, "any"))
        for _ in range(self.rng.choice((0, 0, 1, 4))):
            message[self.rng.randrange(12, len(message))] = self.rng.randrange(256)
        return bytes(message)

    def request(self) -> wire.Request:
        rng, group = self.rng, self.rng.choice(("bank", "bank", "bank", "records", "nothing", "", "é" * 999))
        key = self.values()
        limits: dict[str, Any] = {
            "consistency": rng.choice(list(wire.Consistency)),
            "offset": rng.choice((-1, 0, 1 << 62)),
        }
        kind = rng.randrange(8)
        if kind < 2:
            operations = tuple(self.operation() for _ in range(rng.choice((0, 1, 3))))
            conditions = (At("documents", key, rng.choice((-1, 1 << 62))), Absent("documents", key))
            transaction = Transaction(rng.randbytes(rng.choice((0, 16, 16))), operations, conditions[:kind])
            return wire.Execute(group, transaction, timeout_ms=rng.choice((-1, 1, 1 << 40)))
        if kind == 2:
            return wire.Get(group, self.table(), key, timeout_ms=1, **limits)
        if kind == 3:
            first, last, after = (rng.choice((None, self.values())) for _ in range(3))
            limits["limit"] = rng.choice((-1, 0, 1 << 60))
            return wire.Scan(group, self.table(), first, last, after, timeout_ms=1, **limits)
        if kind == 4:
            return wire.AskResult(group, rng.randbytes(rng.choice((0, 16, 99))))
        if kind == 5:
            return wire.AskTables(group, group_id=rng.choice((b"", b"x" * 16)), timeout_ms=1, **limits)
        if kind == 6:
            id_, number = rng.choice((b"", b"x" * 16, rng.randbytes(16))), rng.choice((0, 0, 1, -1, 1 << 60))
            return wire.AskPiece(group, id_, number, timeout_ms=1, **limits)
        return rng.choice((wire.Promote(group, True), wire.Demote(group)))

    def operation(self) -> Operation:
        rng, table, row = self.rng, self.table(), self.values()
        changes = (Set("text", self.value()), Add("id", rng.choice((1, 1.5, 1 << 62))))
        return rng.choice(
            (
                Insert(table, row),
                Replace(table, row),
                Update(table, row, changes),
                Upsert(table, row, changes),
                Delete(table, row),
                CreateTable(Table(table, (Column("id", Type.INT),), ("id",))),
                DropTable(table),
            )
        )

    def table(self) -> str:
        return self.rng.choice(("documents", "documents", "x", "", "\0", "a" * 99))

    def values(self) -> tuple[Any, ...]:
        return tuple(self.value() for _ in range(self.rng.choice((0, 1, 1, 2, 2, 99))))

    def value(self) -> Any:
        return self.rng.choice(
            (0, 1, -1, 1 << 63, 1.5, float("nan"), "a", "é", b"\xff", True, None, [1], {"a": 1}, "x" * 2000)
        )


@pytest.mark.parametrize("seed", range(2))
def test_a_node_outlives_whatever_is_sent(tmp_path: Path, seed: int) -> None:
    """Each is answered, or its connection is closed with a line that says why. A traceback is a bug of ours."""

    async def test(served: Served) -> None:
        await create(served)
        async with await served.connect() as connection:
            await connection.create("records")
        async with group_of(served) as bank:
            await bank.execute(CreateTable(DOCUMENTS))
            maker = Maker(seed)
            connection = await served.connect()
            answered_count = 0
            for _ in range(SPOILED_COUNT):
                try:
                    await connection.send(maker.message())
                    async with asyncio.timeout(ANSWER_S):
                        await connection.reader.readexactly(
                            int.from_bytes(await connection.reader.readexactly(4), "big")
                        )
                    answered_count += 1
                except (TimeoutError, OSError, asyncio.IncompleteReadError):
                    connection.writer.close()
                    connection = await served.connect()
            connection.writer.close()
            assert answered_count > SPOILED_COUNT / 10
            assert not [line for line in served.said if "Traceback" in line]
            await bank.tables()

    serve(tmp_path, test)
