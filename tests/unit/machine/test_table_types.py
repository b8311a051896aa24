"""What a client is told before anything is proposed, and transactions as payloads."""

from __future__ import annotations

from typing import Any

import pytest

from quorate import batch
from quorate.machine.table_wire import decode, encode
from quorate.tables import (
    CHANGES_COUNT_MAX,
    COLUMNS_COUNT_MAX,
    CONDITIONS_COUNT_MAX,
    OPERATIONS_COUNT_MAX,
    ROW_BYTES_MAX,
    Absent,
    Add,
    At,
    Column,
    CreateTable,
    Delete,
    DropTable,
    Insert,
    Replace,
    Set,
    Table,
    Transaction,
    Type,
    Update,
    Upsert,
    why_not,
)

ID = bytes(range(16))
NO_VALUE: Any = []
KEY = Column("k", Type.INT)


def table(*columns: Column, key: tuple[str, ...] = ("k",), name: str = "t") -> CreateTable:
    return CreateTable(Table(name, columns, key))


EVERYTHING = Transaction(
    ID,
    (
        table(KEY, Column("v", Type.FLOAT, nullable=True)),
        Insert("t", (1, 0.5, "ü", b"\xff", True, None)),
        Replace("t", (-1,)),
        Update("t", (1,), (Set("v", None), Add("v", -1.5))),
        Upsert("t", (1, 2), (Add("v", 1),)),
        Delete("t", (1, "a")),
        DropTable("t"),
    ),
    (Absent("t", (1,)), At("t", (2,), 77)),
)


def test_a_transaction_is_a_record_batch_of_one_record() -> None:
    payload = encode(EVERYTHING, timestamp=1234)
    assert batch.verify(payload).record_count == 1
    (record,) = batch.decode_records(payload)
    assert record.timestamp == 1234
    assert record.key is None


@pytest.mark.parametrize("length", [0, 1, 50, 64, 100, 127, 128, 8000, 8192, 20_000, 3_000_000])
def test_payloads_of_every_length_come_back(length: int) -> None:
    transaction = Transaction(ID, (Insert("t", ("x" * length,)),))
    stamped = batch.stamp(encode(transaction), offset=1 << 40, epoch=7)
    for payload in (stamped, bytearray(stamped), memoryview(stamped)):
        assert decode(payload) == transaction


def test_everything_comes_back() -> None:
    assert why_not(EVERYTHING) is None
    assert decode(encode(EVERYTHING)) == EVERYTHING


def many(count: int) -> tuple[Any, ...]:
    return (Delete("t", (1,)),) * count


BAD: list[tuple[Transaction, str]] = [
    (Transaction(b"short", many(1)), "a transaction's id has 16 bytes, not 5"),
    (Transaction(ID, ()), "a transaction has at least one operation"),
    (Transaction(ID, many(OPERATIONS_COUNT_MAX + 1)), "10,001 operations are too many; 10,000 are the most"),
    (
        Transaction(ID, many(1), (Absent("t", (1,)),) * (CONDITIONS_COUNT_MAX + 1)),
        "10,001 conditions are too many; 10,000 are the most",
    ),
    (
        Transaction(ID, (Insert("t", (b"x" * (ROW_BYTES_MAX - 20),)),) * 17),
        "17,825,",  # And some bytes of names.
    ),
    (Transaction(ID, (Delete("", (1,)),)), "Delete: '' is no name: 1 to 64 of"),
    (Transaction(ID, (Delete("ü", (1,)),)), "Delete: '\\xfc' is no name"),
    (Transaction(ID, (DropTable("x" * 65),)), "DropTable: 'xxx"),
    (Transaction(ID, (Insert("t", ()),)), "Insert: a row or key has 1 to 64 values, not 0"),
    (
        Transaction(ID, (Insert("t", (1,) * (COLUMNS_COUNT_MAX + 1)),)),
        "Insert: a row or key has 1 to 64 values",
    ),
    (
        Transaction(ID, (Insert("t", (b"x" * (ROW_BYTES_MAX + 1),)),)),
        "Insert: 1,048,577 bytes are too many for a row",
    ),
    (Transaction(ID, (Replace("t", (1 << 63,)),)), "Replace: an integer has 64 bits"),
    (Transaction(ID, (Replace("t", (float("inf"),)),)), "Replace: inf is no finite number"),
    (Transaction(ID, (Replace("t", ("\ud800",)),)), "Replace: '\\ud800' is no text"),
    (Transaction(ID, (Replace("t", (NO_VALUE,)),)), "Replace: a value of type list fits no column"),
    (Transaction(ID, (Update("t", (1,), (Set("v", 1 << 70),)),)), "Update: an integer has 64 bits"),
    (Transaction(ID, (Update("t", (1,), (Add("", 1),)),)), "Update: '' is no name"),
    (
        Transaction(ID, (Upsert("t", (1,), (Add("v", 1),) * (CHANGES_COUNT_MAX + 1)),)),
        "Upsert: 129 changes of one row are too many; 128 are the most",
    ),
    (Transaction(ID, many(1), (At("t", (), 1),)), "At: a row or key has 1 to 64 values, not 0"),
    (Transaction(ID, many(1), (At("t", (1,), 1 << 70),)), "At: an integer has 64 bits"),
    (Transaction(ID, (table(),)), "CreateTable: a table has 1 to 64 columns, not 0"),
    (Transaction(ID, (table(KEY, name="a b"),)), "CreateTable: 'a b' is no name"),
    (Transaction(ID, (table(Column("", Type.INT)),)), "CreateTable: '' is no name"),
    (Transaction(ID, (table(KEY, KEY),)), "CreateTable: table t has two columns of one name"),
    (Transaction(ID, (table(KEY, key=()),)), "CreateTable: table t needs a key"),
    (Transaction(ID, (table(KEY, key=("k", "k")),)), "CreateTable: table t needs a key"),
    (
        Transaction(ID, (table(KEY, key=("x",)),)),
        "CreateTable: table t has no column 'x' to be part of its key",
    ),
    (Transaction(ID, (table(Column("k", Type.FLOAT)),)), "CreateTable: column k is nullable or a float"),
    (Transaction(ID, (table(Column("k", Type.INT, nullable=True)),)), "CreateTable: column k is nullable or"),
]


@pytest.mark.parametrize(("transaction", "why"), BAD, ids=[why for _, why in BAD])
def test_a_bad_transaction_is_told_why_in_one_line(transaction: Transaction, why: str) -> None:
    said = why_not(transaction)
    assert said is not None
    assert said.startswith(why)
    assert "\n" not in said
