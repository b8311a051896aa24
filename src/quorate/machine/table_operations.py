"""What each operation does to the tables, and each condition asks of them.

All are functions of the catalogue and the operation. What they change they add to a list, so that a transaction
that is refused half-way leaves nothing behind. A refusal depends on nothing but the log, and says why in one line
of our own words: it is remembered, and must be the same on every copy, whatever the libraries there say.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import msgspec

from quorate.machine.table_keys import Key
from quorate.machine.table_rows import UNFIT, VERSION_BYTES, Box, Changed, Rows, version_of
from quorate.machine.table_stages import Staged, fits, made_part, operations_of, overdue
from quorate.machine.table_wire import (
    RawAbsent,
    RawAdd,
    RawAt,
    RawChange,
    RawDelete,
    RawInsert,
    RawReplace,
    RawTransaction,
    RawUpdate,
    RawUpsert,
    decode_part,
)
from quorate.tables import (
    CHANGES_COUNT_MAX,
    INT_MAX,
    INT_MIN,
    NAME_CHARACTERS_MAX,
    ROW_BYTES_MAX,
    STAGED_BYTES_MAX,
    STAGED_OPERATIONS_MAX,
    TABLES_COUNT_MAX,
    CommitStaged,
    CreateTable,
    DiscardStaged,
    DropTable,
    Stage,
    Type,
    Value,
    Values,
    why_not_counts,
    why_not_staging,
    why_not_table,
)


class Catalogue(Box[Rows]):
    """Tables by name; and what is staged, by stage and part."""

    __slots__ = ("staged",)

    def __init__(self) -> None:
        super().__init__()
        self.staged: Staged = Box()


KEY_SHOWN_CHARACTERS = 80


class Refused(Exception):
    """The transaction changes nothing."""


def perform(catalogue: Catalogue, transaction: RawTransaction, offset: int, changes: list[Changed]) -> None:
    """Do all of it, or raise Refused with `changes` saying what was done until then."""
    version = offset.to_bytes(VERSION_BYTES, "big")
    operations = transaction.operations
    if len(operations) != 1 or transaction.conditions:
        _require_all(catalogue, transaction)
    for operation in operations:
        OPERATIONS[type(operation)](catalogue, operation, version, changes)


def is_synchronous(catalogue: Catalogue, transaction: RawTransaction) -> bool:
    for operation in transaction.operations:
        if isinstance(operation, CreateTable | DropTable | Stage | CommitStaged | DiscardStaged):
            return True
        table = catalogue.rows.get(operation.table)
        # One that is not there may be about to be created by what was proposed before this, and not applied yet.
        if table is None or table.table.synchronous:
            return True
    return False


# --- conditions ---


def _require_all(catalogue: Catalogue, transaction: RawTransaction) -> None:
    wrong = why_not_counts(len(transaction.operations), len(transaction.conditions))
    if wrong is not None:
        raise Refused(wrong)
    for condition in transaction.conditions:
        _require(catalogue, condition)


def _require(catalogue: Catalogue, condition: RawAbsent | RawAt) -> None:
    table = _table(catalogue, condition.table)
    key = _key(table, condition.key)
    row = table.rows.get(key)
    if isinstance(condition, RawAbsent):
        if row is not None:
            raise Refused(f"{_named(table, key)} is there, at version {version_of(row)}")
    elif row is None:
        raise Refused(f"{_named(table, key)} is not there, and not at version {condition.version}")
    elif version_of(row) != condition.version:
        raise Refused(f"{_named(table, key)} is at version {version_of(row)}, not {condition.version}")


# --- operations ---


def _insert(catalogue: Catalogue, operation: RawInsert, version: bytes, changes: list[Changed]) -> None:
    table = _table(catalogue, operation.table)
    values = _row(table, operation.row)
    key = table.key_of(values)
    if key in table.rows:
        raise Refused(f"{_named(table, key)} is there already")
    changes.append(table.change(key, table.kept(version, operation.row, values)))


def _replace(catalogue: Catalogue, operation: RawReplace, version: bytes, changes: list[Changed]) -> None:
    """The hot one: what the others do in steps is done in one go."""
    table = catalogue.rows.get(operation.table) or _table(catalogue, operation.table)
    values = _row(table, operation.row)
    key = table.key_of(values)
    rows = table.rows
    before = rows.get(key)
    rows[key] = after = table.kept(version, operation.row, values)
    changes.append((table, key, before, after))


def _update(catalogue: Catalogue, operation: RawUpdate, version: bytes, changes: list[Changed]) -> None:
    table = _table(catalogue, operation.table)
    key = _key(table, operation.key)
    row = table.rows.get(key)
    if row is None:
        raise Refused(f"{_named(table, key)} is not there")
    values = _changed(table, table.values(row), operation.changes)
    changes.append(table.change(key, table.kept_values(version, values)))


def _upsert(catalogue: Catalogue, operation: RawUpsert, version: bytes, changes: list[Changed]) -> None:
    table = _table(catalogue, operation.table)
    values = _row(table, operation.row)
    key = table.key_of(values)
    row = table.rows.get(key)
    if row is not None:
        values = _changed(table, table.values(row), operation.changes)
    changes.append(table.change(key, table.kept_values(version, values)))


def _delete(catalogue: Catalogue, operation: RawDelete, _: bytes, changes: list[Changed]) -> None:
    table = _table(catalogue, operation.table)
    key = _key(table, operation.key)
    if key in table.rows:
        changes.append(table.change(key, None))


def _create(catalogue: Catalogue, operation: CreateTable, _: bytes, changes: list[Changed]) -> None:
    table = operation.table
    wrong = why_not_table(table)
    if wrong is not None:
        raise Refused(wrong)
    if table.name in catalogue.rows:
        raise Refused(f"there is a table {table.name} already")
    if len(catalogue.rows) >= TABLES_COUNT_MAX:
        raise Refused(f"a group has {TABLES_COUNT_MAX:,} tables at most")
    changes.append(catalogue.change(table.name, Rows(table)))


def _drop(catalogue: Catalogue, operation: DropTable, _: bytes, changes: list[Changed]) -> None:
    _table(catalogue, operation.name)
    changes.append(catalogue.change(operation.name, None))


# --- staging ---


def _stage(catalogue: Catalogue, operation: Stage, version: bytes, changes: list[Changed]) -> None:
    wrong = why_not_staging(operation)
    if wrong is not None:
        raise Refused(wrong)
    try:
        count = len(decode_part(operation.operations))
    except ValueError as error:
        raise Refused(str(error)) from None
    key = operation.stage, operation.part
    staged = catalogue.staged
    if key in staged.rows:
        raise Refused(f"part {operation.part} of stage {operation.stage.hex()} is there already")
    changes.append(staged.change(key, made_part(version, count, operation.operations)))
    for stage in overdue(staged, operation.stage):
        _forget(staged, stage, changes)
    if not fits(staged):
        raise Refused(
            f"stage {operation.stage.hex()} is too large: {STAGED_OPERATIONS_MAX:,} operations and "
            f"{STAGED_BYTES_MAX:,} bytes are the most; write less at once"
        )


def _commit_staged(
    catalogue: Catalogue, operation: CommitStaged, version: bytes, changes: list[Changed]
) -> None:
    wrong = why_not_staging(operation)
    if wrong is not None:
        raise Refused(wrong)
    staged = catalogue.staged
    for stage, count in operation.stages:
        for part in range(count):
            kept = staged.rows.get((stage, part))
            if kept is None:
                raise Refused(f"part {part} of stage {stage.hex()} is gone, or was never there")
            for each in decode_part(operations_of(kept)):
                OPERATIONS[type(each)](catalogue, each, version, changes)
        _forget(staged, stage, changes)


def _discard_staged(catalogue: Catalogue, operation: DiscardStaged, _: bytes, changes: list[Changed]) -> None:
    wrong = why_not_staging(operation)
    if wrong is not None:
        raise Refused(wrong)
    _forget(catalogue.staged, operation.prefix, changes)


def _forget(staged: Staged, prefix: bytes, changes: list[Changed]) -> None:
    going = sorted(key for key in staged.rows if key[0].startswith(prefix))
    changes.extend(staged.change(key, None) for key in going)


OPERATIONS: dict[type, Any] = {
    RawInsert: _insert,
    RawReplace: _replace,
    RawUpdate: _update,
    RawUpsert: _upsert,
    RawDelete: _delete,
    CreateTable: _create,
    DropTable: _drop,
    Stage: _stage,
    CommitStaged: _commit_staged,
    DiscardStaged: _discard_staged,
}
"""By the type of the operation, which is the type of the function's second argument."""


# --- parts ---


def _table(catalogue: Catalogue, name: str) -> Rows:
    table = catalogue.rows.get(name)
    if table is None:
        raise Refused(f"there is no table {name[:NAME_CHARACTERS_MAX]!a}")
    return table


def _row(table: Rows, raw: msgspec.Raw) -> Values:
    if len(raw) > ROW_BYTES_MAX:
        raise Refused(f"a row of {table.table.name} has {ROW_BYTES_MAX:,} bytes at most, not {len(raw):,}")
    try:
        return table.decode_row(raw)
    except UNFIT:
        raise Refused(table.why_not_row(_anything(raw))) from None


def _key(table: Rows, raw: msgspec.Raw) -> Key:
    try:
        return table.key(table.decode_key(raw))
    except UNFIT:
        raise Refused(table.why_not_key(_anything(raw))) from None


def _anything(raw: msgspec.Raw) -> Values:
    """What is in there, whatever it is, to say what is wrong with it."""
    try:
        found = msgspec.msgpack.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refused("a row or key is no list of values") from None
    if not isinstance(found, list):
        raise Refused("a row or key is no list of values")
    return tuple(found)


def _changed(table: Rows, values: Values, changes: tuple[RawChange, ...]) -> Values:
    """The row after these changes, one after the other."""
    if len(changes) > CHANGES_COUNT_MAX:
        raise Refused(f"{len(changes)} changes of one row are too many; {CHANGES_COUNT_MAX} are the most")
    made = list(values)
    for change in changes:
        position = table.columns.get(change.column)
        if position is None:
            raise Refused(f"{table.table.name} has no column {change.column[:NAME_CHARACTERS_MAX]!a}")
        if position in table.key_positions:
            raise Refused(
                f"column {change.column} is part of the key of {table.table.name}: delete and insert"
            )
        value = _column_value(table, position, change.value)
        made[position] = _sum(table, position, made[position], value) if isinstance(change, RawAdd) else value
    length = sum(len(value) for value in made if isinstance(value, str | bytes))
    if length > ROW_BYTES_MAX:
        raise Refused(f"a row of {table.table.name} has {ROW_BYTES_MAX:,} bytes at most, not {length:,}")
    return tuple(made)


def _column_value(table: Rows, position: int, raw: msgspec.Raw) -> Value:
    try:
        value: Value = table.decode_values[position](raw)
    except UNFIT:
        values = _anything(msgspec.Raw(b"\x91" + bytes(raw)))  # As a list of one.
        raise Refused(table.why_not_value(position, values[0])) from None
    return value


def _sum(table: Rows, position: int, number: Value, delta: Value) -> Value:
    column = table.table.columns[position]
    if column.type not in (Type.INT, Type.FLOAT):
        raise Refused(f"column {column.name} of {table.table.name} is {column.type}, and cannot be added to")
    if number is None or delta is None:
        raise Refused(f"column {column.name} of {table.table.name} is null, and cannot be added to")
    assert isinstance(number, int | float)
    assert isinstance(delta, int | float)
    total = number + delta
    if not (INT_MIN <= total <= INT_MAX if column.type == Type.INT else isfinite(total)):
        raise Refused(f"column {column.name} of {table.table.name} would be too large")
    return total


def _named(table: Rows, key: Key) -> str:
    shown = ascii(key)
    if len(shown) > KEY_SHOWN_CHARACTERS:
        shown = shown[:KEY_SHOWN_CHARACTERS] + "…"
    return f"{table.table.name} {shown}"
