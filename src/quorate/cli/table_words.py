"""Tables on a command line: names, columns and values as a person writes them, and rows as one reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING, Any

from quorate.cli.orders import TIMEOUT_S
from quorate.cli.wrong import NotDone, NotYet, WrongUsage, no_such
from quorate.tables import INT_MAX, INT_MIN, Column, Row, Table, Type, Value, Values

if TYPE_CHECKING:
    from quorate.client import TableGroup

NULL = "null"
BOOLS = {"true": True, "false": False}
TYPES = ", ".join(Type)
SHOWN_MAX = 200
"""Characters of one value in a terminal."""


@contextmanager
def opened(servers: str, group: str, *, timeout_s: float = TIMEOUT_S) -> Iterator[TableGroup]:
    """A group of tables; what becomes of what is asked is told in one line."""
    from quorate.cli.access import access
    from quorate.client import (
        ClientError,
        NobodyThere,
        OutcomeUnknown,
        RolledBack,
        TableGroup,
        TransactionRefused,
    )

    try:
        made = TableGroup(
            servers, group, client_id="quorate-cli", timeout_s=timeout_s, security=access().security
        )
    except ValueError as wrong:
        raise WrongUsage(f"--bootstrap: {wrong}") from wrong
    try:
        with made as tables:
            yield tables
    except NobodyThere as nobody:
        raise WrongUsage(f"{nobody}; is the cluster up? Name its nodes with -b HOST:PORT,…") from nobody
    except TransactionRefused as refused:
        raise NotDone(f"{group}: refused, nothing is changed: {refused}") from refused
    except RolledBack as error:
        raise NotDone(f"{group}: {error}; nothing is changed") from error
    except OutcomeUnknown as unknown:
        raise NotYet(f"{unknown}: `quorate table result {group} {unknown.id.hex()}`") from unknown
    except ClientError as error:
        raise WrongUsage(str(error)) from error


# ---- names ----


def group_and_table(text: str) -> tuple[str, str]:
    """`bank/accounts`"""
    group, slash, table = text.partition("/")
    if not slash or not group or not table or "/" in table:
        raise WrongUsage(f"{text!r} is no table: write GROUP/TABLE, as in bank/accounts")
    return group, table


def table_of(tables: TableGroup, name: str) -> Table:
    found = {table.name: table for table in tables.tables()}
    if name not in found:
        raise no_such("table", name, found, where=f"in group {tables.group!r}")
    return found[name]


# ---- columns ----


def parse_columns(words: Sequence[str]) -> tuple[Column, ...]:
    """`id:int`, `owner:str?`"""
    return tuple(map(parse_column, words))


def parse_column(word: str) -> Column:
    name, colon, kind = word.partition(":")
    nullable = kind.endswith("?")
    kind = kind.removesuffix("?")
    if not colon or not name or kind not in list(Type):
        raise WrongUsage(
            f"{word!r} is no column: write NAME:TYPE, or NAME:TYPE? if it may be null; types: {TYPES}"
        )
    return Column(name, Type(kind), nullable)


def column_text(column: Column) -> str:
    return f"{column.name}:{column.type}{'?' * column.nullable}"


# ---- values ----


def parse_row(table: Table, words: Sequence[str], null: str) -> Values:
    """The values of all columns."""
    if len(words) != len(table.columns):
        wanted = " ".join(map(column_text, table.columns))
        raise WrongUsage(
            f"a row of {table.name} has {len(table.columns)} values ({wanted}), not {len(words)}"
        )
    pairs = zip(table.columns, words, strict=True)
    return tuple(parse_value(table.name, column, word, null) for column, word in pairs)


def parse_key(table: Table, words: Sequence[str], *, whole: bool = True) -> Values:
    """The values of the key's columns, or of the first of them."""
    if len(words) > len(table.key) or (whole and len(words) != len(table.key)):
        names = ", ".join(table.key)
        raise WrongUsage(f"the key of {table.name} has {len(table.key)} values ({names}), not {len(words)}")
    columns = {column.name: column for column in table.columns}
    pairs = zip(table.key, words, strict=False)
    return tuple(parse_value(table.name, columns[name], word, NULL) for name, word in pairs)


def parse_value(table: str, column: Column, word: str, null: str) -> Value:
    if column.nullable and word == null:
        return None
    try:
        return _PARSERS[column.type](word)
    except ValueError as wrong:
        raise WrongUsage(f"column {column.name} of {table} is {column.type}: {word!r} {wrong}") from wrong


def _int(word: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", word) or not INT_MIN <= int(word) <= INT_MAX:
        raise ValueError("is no integer of 64 bits")
    return int(word)


def _float(word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        raise ValueError("is no number") from None
    if not isfinite(number):
        raise ValueError("is no finite number")
    return number


def _str(word: str) -> str:
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ValueError("is no text in UTF-8") from None
    return word


def _bytes(word: str) -> bytes:
    try:
        return bytes.fromhex(word.removeprefix("0x"))
    except ValueError:
        raise ValueError("is no bytes: write them in hexadecimal, as in 0x00ff") from None


def _bool(word: str) -> bool:
    if word not in BOOLS:
        raise ValueError("is neither true nor false")
    return BOOLS[word]


_PARSERS: dict[Type, Callable[[str], Value]] = {
    Type.INT: _int,
    Type.FLOAT: _float,
    Type.STR: _str,
    Type.BYTES: _bytes,
    Type.BOOL: _bool,
}


# ---- rows ----


def value_text(value: Value) -> str:
    """For a terminal: whatever is in there moves no cursor and hides nothing."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        text = f"0x{value[:SHOWN_MAX].hex()}"
    elif isinstance(value, str):
        text = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in value[: SHOWN_MAX + 1])
    else:
        return str(value)
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…"


def value_json(value: Value) -> Any:
    """JSON has no bytes: they are written in hexadecimal, as on the command line."""
    return f"0x{value.hex()}" if isinstance(value, bytes) else value


def row_json(table: Table, row: Row) -> dict[str, Any]:
    names = (column.name for column in table.columns)
    values = dict(zip(names, map(value_json, row.values), strict=True))
    return {"version": row.version, "row": values}


def rows_table(table: Table, rows: Sequence[Row]) -> Any:
    from rich.markup import escape

    from quorate.cli import say

    numbers = [at for at, column in enumerate(table.columns) if column.type in (Type.INT, Type.FLOAT)]
    columns = [*(column.name for column in table.columns), "version"]
    lines = [[*(escape(value_text(value)) for value in row.values), str(row.version)] for row in rows]
    return say.table("", columns, lines, right=[*numbers, len(table.columns)])
