"""A group of tables, deliberately dumb: plain dictionaries, and a copy of everything for every entry of the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from quorate.tables import (
    Absent,
    Add,
    Change,
    Column,
    Condition,
    CreateTable,
    Delete,
    DropTable,
    Insert,
    Operation,
    Replace,
    Table,
    Transaction,
    Type,
    Update,
    Upsert,
    Values,
)

TYPES: dict[Type, Any] = {
    Type.INT: int,
    Type.FLOAT: float,
    Type.STR: str,
    Type.BYTES: bytes,
    Type.BOOL: bool,
}


class No(Exception):
    """The transaction is refused."""


@dataclass
class State:
    tables: dict[str, Table] = field(default_factory=dict)
    rows: dict[str, dict[Values, tuple[int, Values]]] = field(default_factory=dict)
    """By table and key: version and values."""
    results: list[tuple[bytes, bool, int]] = field(default_factory=list)
    """Id, whether it was done, offset; oldest first."""

    def copy(self) -> State:
        rows = {name: dict(rows) for name, rows in self.rows.items()}
        return State(dict(self.tables), rows, list(self.results))

    def result(self, id_: bytes) -> tuple[bool, int] | None:
        return next(((done, offset) for known, done, offset in self.results if known == id_), None)


def after(state: State, transaction: Transaction, offset: int, *, remembered_max: int) -> State:
    """A new state; the old one is as it was."""
    if state.result(transaction.id) is not None:
        return state
    made = state.copy()
    done = True
    try:
        for condition in transaction.conditions:
            check(made, condition)
        for operation in transaction.operations:
            perform(made, operation, offset)
    except No:
        made = state.copy()
        done = False
    made.results = [*made.results, (transaction.id, done, offset)][-remembered_max:]
    return made


def check(state: State, condition: Condition) -> None:
    key = fitting(key_columns(table_of(state, condition.table)), condition.key)
    row = state.rows[condition.table].get(key)
    if isinstance(condition, Absent):
        if row is not None:
            raise No
    elif row is None or row[0] != condition.version:
        raise No


def perform(state: State, operation: Operation, offset: int) -> None:
    if isinstance(operation, CreateTable):
        if operation.table.name in state.tables:
            raise No
        state.tables[operation.table.name] = operation.table
        state.rows[operation.table.name] = {}
        return
    if isinstance(operation, DropTable):
        table_of(state, operation.name)
        del state.tables[operation.name], state.rows[operation.name]
        return
    table = table_of(state, operation.table)
    rows = state.rows[operation.table]
    if isinstance(operation, Update | Delete):
        key = fitting(key_columns(table), operation.key)
        if isinstance(operation, Delete):
            rows.pop(key, None)
        elif key not in rows:
            raise No
        else:
            rows[key] = offset, changed(table, rows[key][1], operation.changes)
        return
    values = fitting(table.columns, operation.row)
    key = tuple(values[names(table).index(name)] for name in table.key)
    if isinstance(operation, Replace) or key not in rows:
        rows[key] = offset, values
    elif isinstance(operation, Upsert):
        rows[key] = offset, changed(table, rows[key][1], operation.changes)
    else:
        assert isinstance(operation, Insert)
        raise No


def changed(table: Table, values: Values, changes: tuple[Change, ...]) -> Values:
    made = list(values)
    for change in changes:
        if change.column not in names(table) or change.column in table.key:
            raise No
        at = names(table).index(change.column)
        given = change.delta if isinstance(change, Add) else change.value
        (value,) = fitting((table.columns[at],), (given,))
        if isinstance(change, Add):
            number = made[at]
            if isinstance(number, bool) or not isinstance(number, int | float) or value is None:
                raise No
            assert isinstance(value, int | float)
            value = number + value
        made[at] = value
    return tuple(made)


def fitting(columns: tuple[Column, ...], values: Values) -> Values:
    """The values as the columns hold them."""
    if len(columns) != len(values):
        raise No
    made: list[Any] = []
    for column, value in zip(columns, values, strict=True):
        if column.type == Type.FLOAT and type(value) is int:
            value = float(value)
        if type(value) is not TYPES[column.type] and not (value is None and column.nullable):
            raise No
        made.append(value)
    return tuple(made)


def table_of(state: State, name: str) -> Table:
    if name not in state.tables:
        raise No
    return state.tables[name]


def names(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def key_columns(table: Table) -> tuple[Column, ...]:
    return tuple(table.columns[names(table).index(name)] for name in table.key)
