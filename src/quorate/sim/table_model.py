"""Tables as plain dictionaries, slowly: a copy of everything for every entry of the settled log.

Nothing here is shared with the machine but the types that clients speak in. What is modelled is what the simulated
clients do: rows always have the right types.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from quorate.tables import (
    Absent,
    Add,
    Change,
    Condition,
    CreateTable,
    Delete,
    DropTable,
    Insert,
    Operation,
    Outcome,
    Replace,
    Table,
    Transaction,
    Update,
    Upsert,
    Values,
)

Rows = dict[Values, tuple[int, Values]]
"""By key: the version and the values."""


class Refused(Exception):
    pass


class State:
    """What a log comes down to, up to somewhere."""

    def __init__(self) -> None:
        self.schemas: dict[str, Table] = {}
        self.tables: dict[str, Rows] = {}
        self.results: dict[bytes, tuple[Outcome, int]] = {}
        """By the id of a transaction: what became of it, and where the log has it first."""

    def copy(self) -> State:
        copied = State()
        copied.schemas = dict(self.schemas)
        copied.tables = {name: dict(rows) for name, rows in self.tables.items()}
        copied.results = dict(self.results)
        return copied

    def apply(self, offset: int, transaction: Transaction) -> None:
        if transaction.id in self.results:
            return  # Done before, or refused before: that is what became of it.
        trial = self.copy()
        try:
            for condition in transaction.conditions:
                self._insist(condition)
            for operation in transaction.operations:
                trial._operate(operation, offset)
        except Refused:
            self.results[transaction.id] = (Outcome.REFUSED, offset)
            return
        self.schemas, self.tables = trial.schemas, trial.tables
        self.results[transaction.id] = (Outcome.DONE, offset)

    def _rows(self, table: str) -> Rows:
        rows = self.tables.get(table)
        if rows is None:
            raise Refused(f"no table {table}")
        return rows

    def _insist(self, condition: Condition) -> None:
        row = self._rows(condition.table).get(condition.key)
        holds = (
            row is None if isinstance(condition, Absent) else row is not None and row[0] == condition.version
        )
        if not holds:
            raise Refused(str(condition))

    def _operate(self, operation: Operation, offset: int) -> None:
        match operation:
            case CreateTable(table):
                if table.name in self.tables:
                    raise Refused(f"{table.name} is there")
                self.schemas[table.name] = table
                self.tables[table.name] = {}
            case DropTable(name):
                self._rows(name)
                del self.tables[name], self.schemas[name]
            case Delete(table, key):
                self._rows(table).pop(key, None)
            case Insert(table, row):
                rows, key = self._rows(table), self._key(table, row)
                if key in rows:
                    raise Refused(f"{key} is taken")
                rows[key] = (offset, row)
            case Replace(table, row):
                self._rows(table)[self._key(table, row)] = (offset, row)
            case Update(table, key, changes):
                if key not in self._rows(table):
                    raise Refused(f"no row {key}")
                self._change(table, key, changes, offset)
            case Upsert(table, row, changes):
                rows, key = self._rows(table), self._key(table, row)
                if key in rows:
                    self._change(table, key, changes, offset)
                else:
                    rows[key] = (offset, row)

    def _key(self, table: str, row: Values) -> Values:
        if table not in self.schemas:
            raise Refused(f"no table {table}")
        schema = self.schemas[table]
        named = dict(zip((column.name for column in schema.columns), row, strict=True))
        return tuple(named[name] for name in schema.key)

    def _change(self, table: str, key: Values, changes: tuple[Change, ...], offset: int) -> None:
        schema, rows = self.schemas[table], self.tables[table]
        named: dict[str, Any] = dict(
            zip((column.name for column in schema.columns), rows[key][1], strict=True)
        )
        for change in changes:
            if isinstance(change, Add):
                named[change.column] += change.delta
            else:
                named[change.column] = change.value
        rows[key] = (offset, tuple(named.values()))


class Model:
    """The state after every prefix of the settled log."""

    def __init__(self) -> None:
        self._offsets = [-1]
        self._states = [State()]

    def settle(self, offset: int, transaction: Transaction) -> None:
        assert offset > self._offsets[-1]
        state = self._states[-1].copy()
        state.apply(offset, transaction)
        self._offsets.append(offset)
        self._states.append(state)

    def at(self, offset: int) -> State:
        return self._states[bisect_right(self._offsets, offset) - 1]
