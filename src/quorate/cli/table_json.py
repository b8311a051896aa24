"""Transactions as JSON: `{"operations": […], "conditions": […], "id": "…"}`, described in docs/TABLES.md.

Each operation or condition is an object with one verb, whose value is the table's name. Rows are lists in the order
of the columns, or objects by column; bytes are written in hexadecimal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from quorate.cli.table_words import parse_columns
from quorate.cli.wrong import WrongUsage
from quorate.tables import (
    ID_BYTES,
    Absent,
    Add,
    At,
    Change,
    Condition,
    CreateTable,
    Delete,
    DropTable,
    Insert,
    Operation,
    Replace,
    Set,
    Table,
    Transaction,
    Type,
    Update,
    Upsert,
    Value,
    Values,
)

Tables = dict[str, Table]
TOP = ("operations", "conditions", "id")


def parse_transaction(text: bytes, tables: Iterable[Table], new_id: Callable[[], bytes]) -> Transaction:
    """Raises WrongUsage with the place and what is wrong there."""
    try:
        said = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WrongUsage(f"the transaction is no JSON: {error}") from error
    if not isinstance(said, dict) or not set(said) <= set(TOP):
        raise WrongUsage(
            f"a transaction is a JSON object with {', '.join(TOP)}, of which the first is needed"
        )
    known = {table.name: table for table in tables}
    operations = []
    for where, part in _listed(said, "operations"):
        operation = _operation(where, part, known)
        if isinstance(operation, CreateTable):
            known[operation.table.name] = operation.table
        operations.append(operation)
    conditions = [_condition(where, part, known) for where, part in _listed(said, "conditions")]
    return Transaction(_id(said.get("id")) or new_id(), tuple(operations), tuple(conditions))


def parse_id(text: str) -> bytes:
    """Of a transaction, in hexadecimal."""
    found = _id(text)
    assert found is not None
    return found


def _id(text: Any) -> bytes | None:
    if text is None:
        return None
    try:
        id_ = bytes.fromhex(text)
    except (TypeError, ValueError):
        id_ = b""
    if len(id_) != ID_BYTES:
        raise WrongUsage(f"id: {text!r:.60} is none; write {2 * ID_BYTES} hexadecimal digits")
    return id_


def _listed(said: dict[str, Any], name: str) -> list[tuple[str, Any]]:
    parts = said.get(name, [])
    if not isinstance(parts, list) or (name == "operations" and not parts):
        raise WrongUsage(f"{name}: write a list{', of at least one' * (name == 'operations')}")
    return [(f"{name}[{number}]", part) for number, part in enumerate(parts)]


# ---- operations ----


def _operation(where: str, part: Any, known: Tables) -> Operation:
    verb, table, rest = _taken(where, part, _OPERATIONS)
    if verb == "create":
        return CreateTable(_table(where, table, rest))
    if verb == "drop":
        return DropTable(table)
    of = known.get(table)
    if verb == "delete":
        return Delete(table, _key(where, rest["key"], of))
    if verb == "update":
        return Update(table, _key(where, rest["key"], of), _changes(where, rest, of))
    row = _row(where, rest["row"], of)
    if verb == "upsert":
        return Upsert(table, row, _changes(where, rest, of))
    return Insert(table, row) if verb == "insert" else Replace(table, row)


_OPERATIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "insert": (("row",), ()),
    "replace": (("row",), ()),
    "update": (("key",), ("set", "add")),
    "upsert": (("row",), ("set", "add")),
    "delete": (("key",), ()),
    "create": (("columns", "key"), ("async",)),
    "drop": ((), ()),
}
_CONDITIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "absent": (("key",), ()),
    "at": (("key", "version"), ()),
}
"""By verb: what must stand beside it, and what may."""


def _taken(
    where: str, part: Any, verbs: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
) -> tuple[str, str, dict[str, Any]]:
    """(verb, table, what stands beside it)"""
    named = [verb for verb in verbs if isinstance(part, dict) and verb in part]
    if len(named) != 1:
        raise WrongUsage(
            f"{where}: write an object with one of {', '.join(verbs)}, and the table's name there"
        )
    verb = named[0]
    needed, possible = verbs[verb]
    rest = {name: value for name, value in part.items() if name != verb}
    missing = [name for name in needed if name not in rest]
    foreign = [name for name in rest if name not in needed + possible]
    if missing:
        raise WrongUsage(f"{where}: {verb} needs {missing[0]!r}")
    if foreign:
        takes = ", ".join(needed + possible) or "nothing else"
        raise WrongUsage(f"{where}: {verb} does not take {foreign[0]!r}; it takes {takes}")
    if not isinstance(part[verb], str):
        raise WrongUsage(f"{where}: {verb}: write the table's name")
    return verb, part[verb], rest


def _table(where: str, name: str, rest: dict[str, Any]) -> Table:
    columns, key, asynchronous = rest["columns"], rest["key"], rest.get("async", False)
    for what, words in (("columns", columns), ("key", key)):
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise WrongUsage(f"{where}: {what}: write a list of texts")
    if not isinstance(asynchronous, bool):
        raise WrongUsage(f"{where}: async is true or false")
    return Table(name, parse_columns(columns), tuple(key), synchronous=not asynchronous)


def _changes(where: str, rest: dict[str, Any], table: Table | None) -> tuple[Change, ...]:
    changes: list[Change] = []
    kinds: dict[str, Callable[[str, Any], Change]] = {"set": Set, "add": Add}
    for verb, kind in kinds.items():
        said = rest.get(verb, {})
        if not isinstance(said, dict):
            raise WrongUsage(f'{where}: {verb}: write an object, as in {{"balance": 5}}')
        changes += [kind(name, _value(where, name, value, table)) for name, value in said.items()]
    return tuple(changes)


# ---- conditions ----


def _condition(where: str, part: Any, known: Tables) -> Condition:
    verb, table, rest = _taken(where, part, _CONDITIONS)
    key = _key(where, rest["key"], known.get(table))
    if verb == "absent":
        return Absent(table, key)
    version = rest["version"]
    if not isinstance(version, int) or isinstance(version, bool):
        raise WrongUsage(f"{where}: a version is an integer, as it was read with the row")
    return At(table, key, version)


# ---- values ----


def _row(where: str, said: Any, table: Table | None) -> Values:
    if isinstance(said, list):
        names = [column.name for column in table.columns] if table is not None else []
        return _values(where, said, names, table)
    if not isinstance(said, dict):
        raise WrongUsage(f"{where}: row: write a list of values, or an object by column")
    if table is None:
        raise WrongUsage(f"{where}: there is no such table to take columns from; write the row as a list")
    columns = {column.name: column for column in table.columns}
    foreign = [name for name in said if name not in columns]
    missing = [name for name, column in columns.items() if name not in said and not column.nullable]
    if foreign:
        raise WrongUsage(f"{where}: {table.name} has no column {foreign[0]!r}; it has {', '.join(columns)}")
    if missing:
        raise WrongUsage(f"{where}: row: column {missing[0]!r} of {table.name} cannot be left out")
    return tuple(_value(where, name, said.get(name), table) for name in columns)


def _key(where: str, said: Any, table: Table | None) -> Values:
    values = said if isinstance(said, list) else [said]
    return _values(where, values, list(table.key) if table is not None else [], table)


def _values(where: str, said: list[Any], names: list[str], table: Table | None) -> Values:
    padded = [*names, *[""] * len(said)]
    return tuple(_value(where, name, value, table) for name, value in zip(padded, said, strict=False))


def _value(where: str, name: str, value: Any, table: Table | None) -> Value:
    """What the column says; whether it fits, the table decides."""
    if isinstance(value, list | dict):
        raise WrongUsage(f"{where}: {value!r:.40} is no value of a column")
    is_bytes = table is not None and any(
        column.name == name and column.type is Type.BYTES for column in table.columns
    )
    if is_bytes and isinstance(value, str):
        try:
            return bytes.fromhex(value.removeprefix("0x"))
        except ValueError:
            raise WrongUsage(f"{where}: column {name} holds bytes: write them in hexadecimal") from None
    found: Value = value
    return found
