"""Tables on a command line: what a person writes is understood, or said to be wrong in one line."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.cli.entry import run
from quorate.cli.table_words import (
    SHOWN_MAX,
    group_and_table,
    parse_column,
    parse_key,
    parse_row,
    row_json,
    table_of,
    value_text,
)
from quorate.cli.wrong import WrongUsage
from quorate.tables import Column, Row, Table, Type

EVERYTHING = Table(
    "everything",
    (
        Column("i", Type.INT),
        Column("f", Type.FLOAT),
        Column("s", Type.STR, nullable=True),
        Column("b", Type.BYTES),
        Column("t", Type.BOOL),
    ),
    ("s", "i"),
)


def test_names() -> None:
    assert group_and_table("bank/accounts") == ("bank", "accounts")
    for wrong in ("accounts", "/accounts", "bank/", "a/b/c", ""):
        with pytest.raises(WrongUsage, match="write GROUP/TABLE"):
            group_and_table(wrong)


def test_columns() -> None:
    assert parse_column("id:int") == Column("id", Type.INT)
    assert parse_column("owner:str?") == Column("owner", Type.STR, nullable=True)
    for wrong in ("id", "id:", ":int", "id:integer", "id:int??", "id:INT"):
        with pytest.raises(WrongUsage, match="types: int, float, str, bytes, bool"):
            parse_column(wrong)


def test_values_are_parsed_by_the_types_of_their_columns() -> None:
    words = ["-7", "1e3", "null", "0x00ff", "true"]
    assert parse_row(EVERYTHING, words, "null") == (-7, 1000.0, None, b"\0\xff", True)
    words = ["+7", "2", "null", "", "false"]
    assert parse_row(EVERYTHING, words, "-") == (7, 2.0, "null", b"", False)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["1"], r"5 values \(i:int f:float s:str\? b:bytes t:bool\), not 1"),
        (["x", "1", "a", "00", "true"], "column i of everything is int: 'x' is no integer of 64 bits"),
        (["9" * 19, "1", "a", "00", "true"], "is no integer of 64 bits"),
        (["1_0", "1", "a", "00", "true"], "is no integer of 64 bits"),
        (["null", "1", "a", "00", "true"], "'null' is no integer of 64 bits"),
        (["1", "many", "a", "00", "true"], "column f of everything is float: 'many' is no number"),
        (["1", "inf", "a", "00", "true"], "is no finite number"),
        (["1", "1", "\udcff", "00", "true"], "is no text in UTF-8"),
        (["1", "1", "a", "0", "true"], "write them in hexadecimal, as in 0x00ff"),
        (["1", "1", "a", "00", "yes"], "column t of everything is bool: 'yes' is neither true nor false"),
    ],
)
def test_what_does_not_fit_is_said_with_its_column(words: list[str], why: str) -> None:
    with pytest.raises(WrongUsage, match=why):
        parse_row(EVERYTHING, words, "null")


def test_keys_are_in_the_order_of_the_key() -> None:
    assert parse_key(EVERYTHING, ["a", "7"]) == ("a", 7)
    assert parse_key(EVERYTHING, ["a"], whole=False) == ("a",)
    with pytest.raises(WrongUsage, match=r"has 2 values \(s, i\), not 1"):
        parse_key(EVERYTHING, ["a"])
    with pytest.raises(WrongUsage, match="not 3"):
        parse_key(EVERYTHING, ["a", "7", "8"], whole=False)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        (-5, "-5"),
        (1.5, "1.5"),
        (b"\0\xff", "0x00ff"),
        ("é", "é"),
        ("a\x1b[2J\nb", r"a\x1b[2J\nb"),
        ("x" * 1000, "x" * SHOWN_MAX + "…"),
    ],
)
def test_values_are_shown_without_harm(value: Any, shown: str) -> None:
    assert value_text(value) == shown


def test_rows_for_programs_name_their_columns() -> None:
    row = Row(9, (1, 2.0, None, b"\xff", False))
    values = {"i": 1, "f": 2.0, "s": None, "b": "0xff", "t": False}
    assert row_json(EVERYTHING, row) == {"version": 9, "row": values}


# ---- command lines that need no cluster ----


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["create", "bank", "id:int", "--key", "id"], "'bank' is no table: write GROUP/TABLE"),
        (["create", "bank/a", "id", "--key", "id"], "'id' is no column"),
        (["create", "bank/a", "id:int", "--key", "no"], "table a has no column 'no' to be part of its key"),
        (["create", "bank/a", "id:int?", "--key", "id"], "cannot be part of a key"),
        (["create", "bank/a", "id:int", "id:str", "--key", "id"], "two columns of one name"),
        (["create", "bank/a b", "id:int", "--key", "id"], "is no name"),
        (["create", "bank/a", "id:int"], "'--key'"),
        (["put", "bank/a", "1", "--if", "3", "--if-absent"], "give one of them"),
        (["get", "bank/a", "1", "--read", "dirty"], "write linearizable, committed or local"),
        (["txn", "bank", "/there/is/none.json"], "cannot read '/there/is/none.json': no such file"),
        (["result", "bank", "xyz"], "write 32 hexadecimal digits"),
        (["drop", "bank"], "'bank' is a group"),
        (["promote", "bank"], "'--node'"),
        (["list", "-b", "127.0.0.1:1"], "connection refused"),
        (["get", "bank/a", "1", "-b", "127.0.0.1:1"], "nobody listens at 127.0.0.1:1"),
        (["put", "bank/a", "-1", "-b", "nowhere"], "'nowhere' is no address of a node"),
    ],
)
def test_wrong_usage_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
) -> None:
    assert run(["table", *arguments]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert why in said.err


class Bank:
    """As much of a group as whoever names one of its tables sees."""

    group = "bank"

    def tables(self) -> list[Table]:
        return [Table("accounts", (Column("id", Type.INT),), ("id",))]


def test_a_table_that_is_not_there_is_told_with_its_group_and_those_that_are() -> None:
    with pytest.raises(WrongUsage) as refused:
        table_of(Bank(), "nope")  # type: ignore[arg-type]
    assert str(refused.value) == "there is no table 'nope' in group 'bank'; there is: accounts"
