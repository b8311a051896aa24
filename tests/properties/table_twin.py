"""A group of tables, deliberately dumb: plain dictionaries, and a copy of everything for every entry of the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec.msgpack import decode

from quorate.tables import (
    Absent,
    Add,
    Change,
    Column,
    CommitStaged,
    Condition,
    CreateTable,
    Delete,
    DiscardStaged,
    DropTable,
    Insert,
    Replace,
    RowOperation,
    Stage,
    StageOperation,
    Table,
    Transaction,
    Type,
    Update,
    Upsert,
    Values,
)

STAGED_MAX = 5
"""Operations that are staged, at most."""
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
    staged: dict[tuple[bytes, int], tuple[int, tuple[RowOperation, ...]]] = field(default_factory=dict)
    """By stage and part: offset and operations."""

    def copy(self) -> State:
        rows = {name: dict(rows) for name, rows in self.rows.items()}
        return State(dict(self.tables), rows, list(self.results), dict(self.staged))

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
            if isinstance(operation, Stage | CommitStaged | DiscardStaged):
                perform_staging(made, operation, offset)
            else:
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


def perform_staging(state: State, operation: StageOperation, offset: int) -> None:
    if isinstance(operation, Stage):
        key = operation.stage, operation.part
        if key in state.staged:
            raise No
        state.staged[key] = offset, decode(operation.operations, type=tuple[RowOperation, ...])
        while sum(len(operations) for _, operations in state.staged.values()) > STAGED_MAX:
            others = [(begun, stage) for (stage, _), (begun, _) in state.staged.items() if stage != key[0]]
            if not others:
                raise No
            forget(state, min(others)[1])
    elif isinstance(operation, CommitStaged):
        for stage, count in operation.stages:
            for part in range(count):
                if (stage, part) not in state.staged:
                    raise No
                for each in state.staged[stage, part][1]:
                    perform(state, each, offset)
            forget(state, stage)
    else:
        forget(state, operation.prefix)


def forget(state: State, prefix: bytes) -> None:
    state.staged = {key: kept for key, kept in state.staged.items() if not key[0].startswith(prefix)}


def perform(state: State, operation: RowOperation | CreateTable | DropTable, offset: int) -> None:
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
