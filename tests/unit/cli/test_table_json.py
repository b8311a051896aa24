"""Transactions as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from quorate.cli.table_json import parse_transaction
from quorate.cli.wrong import WrongUsage
from quorate.tables import (
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

ACCOUNTS = Table(
    "accounts",
    (Column("id", Type.INT), Column("owner", Type.STR, nullable=True), Column("balance", Type.INT)),
    ("id",),
)
BLOBS = Table("blobs", (Column("name", Type.BYTES), Column("data", Type.BYTES)), ("name",))
NEW_ID = b"n" * 16


def parse(said: Any) -> Transaction:
    text = said if isinstance(said, bytes) else json.dumps(said).encode()
    return parse_transaction(text, [ACCOUNTS, BLOBS], lambda: NEW_ID)


def test_every_operation_and_condition() -> None:
    transaction = parse(
        {
            "id": "00" * 16,
            "operations": [
                {"create": "t", "columns": ["a:bytes", "b:int?"], "key": ["a"], "async": True},
                {"insert": "accounts", "row": [1, "Ann", 100]},
                {"replace": "accounts", "row": {"balance": 5, "id": 2}},
                {"update": "accounts", "key": 1, "set": {"owner": None}, "add": {"balance": -30}},
                {"upsert": "accounts", "row": [3, "Cid", 0], "add": {"balance": 1}},
                {"delete": "accounts", "key": [2]},
                {"insert": "t", "row": ["0xff", 1]},
                {"drop": "old"},
            ],
            "conditions": [
                {"at": "accounts", "key": 1, "version": 7},
                {"absent": "blobs", "key": "0x00ff"},
            ],
        }
    )
    made = Table("t", (Column("a", Type.BYTES), Column("b", Type.INT, nullable=True)), ("a",), False)
    assert transaction == Transaction(
        bytes(16),
        (
            CreateTable(made),
            Insert("accounts", (1, "Ann", 100)),
            Replace("accounts", (2, None, 5)),
            Update("accounts", (1,), (Set("owner", None), Add("balance", -30))),
            Upsert("accounts", (3, "Cid", 0), (Add("balance", 1),)),
            Delete("accounts", (2,)),
            Insert("t", (b"\xff", 1)),
            DropTable("old"),
        ),
        (At("accounts", (1,), 7), Absent("blobs", (b"\0\xff",))),
    )
    assert why_not(transaction) is None


def test_an_id_is_made_up_where_none_is_given() -> None:
    assert parse({"operations": [{"drop": "t"}]}).id == NEW_ID


def test_what_only_the_tables_can_judge_is_left_to_them() -> None:
    transaction = parse({"operations": [{"insert": "unknown", "row": [1, "x"]}]})
    assert transaction.operations == (Insert("unknown", (1, "x")),)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"{", "the transaction is no JSON"),
        (b"\xff", "the transaction is no JSON"),
        (b"[" * 100_000, "the transaction is no JSON"),
        ([], "a transaction is a JSON object with operations, conditions, id"),
        ({"operation": []}, "a transaction is a JSON object with"),
        ({}, "operations: write a list, of at least one"),
        ({"operations": []}, "operations: write a list, of at least one"),
        ({"operations": [{"drop": "t"}], "conditions": 5}, "conditions: write a list"),
        ({"operations": [{"drop": "t"}], "id": "abc"}, "write 32 hexadecimal digits"),
        ({"operations": [5]}, r"operations\[0\]: write an object with one of insert, replace"),
        ({"operations": [{"drop": "t"}, {}]}, r"operations\[1\]: write an object"),
        ({"operations": [{"drop": "t", "delete": "t"}]}, "with one of"),
        ({"operations": [{"drop": 5}]}, "drop: write the table's name"),
        ({"operations": [{"insert": "accounts"}]}, r"operations\[0\]: insert needs 'row'"),
        (
            {"operations": [{"update": "accounts", "key": 1, "addd": {}}]},
            "update does not take 'addd'; it takes key, set, add",
        ),
        ({"operations": [{"update": "accounts", "key": 1, "add": 5}]}, "add: write an object"),
        ({"operations": [{"insert": "accounts", "row": 5}]}, "write a list of values, or an object"),
        ({"operations": [{"insert": "accounts", "row": {"id": 1}}]}, "'balance' of accounts cannot be left"),
        (
            {"operations": [{"insert": "accounts", "row": {"id": 1, "balance": 1, "x": 1}}]},
            "accounts has no column 'x'; it has id, owner, balance",
        ),
        ({"operations": [{"insert": "unknown", "row": {"id": 1}}]}, "write the row as a list"),
        ({"operations": [{"insert": "accounts", "row": [1, [2], 3]}]}, "is no value of a column"),
        ({"operations": [{"delete": "blobs", "key": "xyz"}]}, "column name holds bytes"),
        ({"operations": [{"create": "t", "columns": "a:int", "key": ["a"]}]}, "columns: write a list"),
        ({"operations": [{"create": "t", "columns": ["a"], "key": ["a"]}]}, "'a' is no column"),
        (
            {"operations": [{"create": "t", "columns": ["a:int"], "key": ["a"], "async": 1}]},
            "async is true or false",
        ),
        (
            {"operations": [{"drop": "t"}], "conditions": [{"at": "accounts", "key": 1, "version": "x"}]},
            r"conditions\[0\]: a version is an integer",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(said: Any, why: str) -> None:
    with pytest.raises(WrongUsage, match=why):
        parse(said)


def test_the_examples_of_the_page_are_transactions() -> None:
    page = (Path(__file__).parents[3] / "docs" / "TABLES.md").read_text(encoding="utf-8")
    examples = re.findall(r"```json\n(.*?)```", page, flags=re.DOTALL)
    assert examples
    for example in examples:
        assert why_not(parse(example.encode())) is None
