"""The ways to look at tables: at one row, at a range, at everything, at what became of a transaction.

Each can be taken of a machine and of the plain dictionaries of the model, with the same outcome; and some show by
themselves, without any model, that what is seen cannot be the work of whole transactions (`flaw`).
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from quorate.machine.table import Tables
from quorate.sim.table_model import Rows, State
from quorate.tables import BadRead, Level, Values

ACCOUNTS = "accounts"
NOTES = "notes"
BANK = "bank"
TOTAL = 10_000
HALVES = ("left", "right")

Flaw = tuple[str, str]
"""The check that it violates, and how."""
Seen = tuple[int, Values]
"""A row: its version, and its values."""
ROWS_MAX = 10_000


class Look(Protocol):
    def of_machine(self, machine: Tables, level: Level) -> Any: ...

    def of_state(self, state: State) -> Any: ...

    def flaw(self, seen: Any) -> Flaw | None: ...


class Row(msgspec.Struct, frozen=True):
    table: str
    key: Values

    def of_machine(self, machine: Tables, level: Level) -> Seen | None:
        try:
            row = machine.get(self.table, self.key, level)
        except BadRead:
            return None
        return (row.version, tuple(row.values)) if row is not None else None

    def of_state(self, state: State) -> Seen | None:
        return state.tables.get(self.table, {}).get(self.key)

    def flaw(self, seen: Seen | None) -> Flaw | None:
        return None


class Range(msgspec.Struct, frozen=True):
    """Rows whose keys lie between two, both of them included."""

    table: str
    first: Values
    last: Values
    limit: int

    def of_machine(self, machine: Tables, level: Level) -> list[Seen] | None:
        try:
            rows = machine.scan(self.table, self.first, self.last, self.limit, level)
        except BadRead:
            return None
        return [(row.version, tuple(row.values)) for row in rows]

    def of_state(self, state: State) -> list[Seen] | None:
        rows = state.tables.get(self.table)
        if rows is None:
            return None
        return [row for key, row in _sorted(rows) if self.first <= key <= self.last][: self.limit]

    def flaw(self, seen: list[Seen] | None) -> Flaw | None:
        return None


class Everything(msgspec.Struct, frozen=True):
    """All accounts and all notes."""

    def of_machine(self, machine: Tables, level: Level) -> dict[str, list[Seen]]:
        found = {}
        for table in (ACCOUNTS, NOTES):
            try:
                rows = machine.scan(table, None, None, ROWS_MAX, level)
            except BadRead:
                continue
            found[table] = [(row.version, tuple(row.values)) for row in rows]
        return found

    def of_state(self, state: State) -> dict[str, list[Seen]]:
        return {
            table: [row for _, row in _sorted(state.tables[table])]
            for table in (ACCOUNTS, NOTES)
            if table in state.tables
        }

    def flaw(self, seen: dict[str, list[Seen]]) -> Flaw | None:
        balances: list[Any] = [values[1] for _, values in seen.get(ACCOUNTS, ())]
        if balances and sum(balances) != TOTAL:
            return "table-total", f"{sum(balances)} in {len(balances)} accounts, and {TOTAL} was put in"
        halves: dict[Any, dict[Any, Any]] = {}
        for version, (text, number, half) in seen.get(NOTES, ()):
            halves.setdefault(number, {})[half] = (version, text)
        for number, found in sorted(halves.items()):
            if len(found) != len(HALVES) or len(set(found.values())) != 1:
                return "table-torn", f"note {number} is {found}"
        return None


class ResultOf(msgspec.Struct, frozen=True):
    """What became of a transaction: how it ended, and where the log has it; None if nobody knows."""

    id: bytes

    def __str__(self) -> str:
        return f"the result of {int.from_bytes(self.id, 'big')}"

    def of_machine(self, machine: Tables, level: Level) -> Any:
        result = machine.result(self.id, level)
        return (result.outcome, result.offset) if result is not None else None

    def of_state(self, state: State) -> Any:
        return state.results.get(self.id)

    def flaw(self, seen: Any) -> Flaw | None:
        return None


def _sorted(rows: Rows) -> list[tuple[Values, Seen]]:
    return sorted(rows.items(), key=lambda row: row[0])
