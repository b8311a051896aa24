"""What clients say of tables: columns, operations, conditions, transactions, and what became of them.

A group of tables shares one log, and a transaction is one entry of it. Everything here is plain data. `why_not` is
the check that needs no tables: whoever takes a transaction from a client calls it before anything is proposed. What
depends on the tables' state (a key that is taken, a column of another type) is decided where the transaction is
applied, in the order of the log, alike on every copy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum, StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

ID_BYTES = 16
NAME_CHARACTERS_MAX = 64
"""Of tables and of columns: letters, digits, `_`, `-` and `.`."""
COLUMNS_COUNT_MAX = 64
TABLES_COUNT_MAX = 1000
"""Of one group."""
OPERATIONS_COUNT_MAX = 10_000
CONDITIONS_COUNT_MAX = 10_000
CHANGES_COUNT_MAX = 2 * COLUMNS_COUNT_MAX
"""Of one update."""
TRANSACTION_BYTES_MAX = 16 << 20
"""Of the rows, keys and changes of a transaction, encoded."""
ROW_BYTES_MAX = 1 << 20
"""Of one row, encoded; and of the characters and bytes in it once it was updated."""
KEY_LENGTH_MAX = 1024
"""Characters or bytes of a column that is part of a key."""
RESULTS_REMEMBERED_MAX = 100_000
"""Transactions of which a group still knows what became of them, the last ones."""
STAGED_BYTES_MAX = 64 << 20
"""Of all parts that a group holds until they are committed; beyond, the oldest stages are forgotten."""
STAGED_OPERATIONS_MAX = 200_000
"""Of all these parts together: no commit does more at once."""
STAGED_PARTS_MAX = 1024
PART_BYTES_MAX = 4 << 20
"""Of one part's operations, encoded."""
SCAN_ROWS_MAX = 10_000
"""That one scan gives."""
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1

if TYPE_CHECKING:
    Value = int | float | str | bytes | bool | None
    """What a column of a row can hold."""
else:
    Value = Any  # No decoder tells `str` from `bytes` in a union; tables have decoders that know which it is.
# Whoever decodes stops at these counts before anything is made: a few megabytes hold millions of small things.
Values = Annotated[tuple[Value, ...], msgspec.Meta(max_length=COLUMNS_COUNT_MAX)]

_NAME = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)


class Type(StrEnum):
    INT = "int"
    FLOAT = "float"
    STR = "str"
    BYTES = "bytes"
    BOOL = "bool"


class Column(msgspec.Struct, frozen=True, array_like=True):
    name: str
    type: Type
    nullable: bool = False


class Table(msgspec.Struct, frozen=True, array_like=True):
    """`key` names the columns of the primary key, in the order that scans follow."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    synchronous: bool = True


# --- operations ---


class Set(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    column: str
    value: Value


class Add(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """The number in a column becomes greater by `delta`, which may be negative."""

    column: str
    delta: int | float


Change = Set | Add


class Insert(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    """Refused if there is a row with that key."""

    table: str
    row: Values


class Replace(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """Whatever was there under that key, if anything."""

    table: str
    row: Values


class Update(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """Refused if there is no row with that key. Columns of the key cannot be changed."""

    table: str
    key: Values
    changes: tuple[Change, ...]


class Upsert(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """Insert the row, or, where its key is taken, make these changes to the row that is there."""

    table: str
    row: Values
    changes: tuple[Change, ...]


class Delete(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    """Does nothing where there is no such row."""

    table: str
    key: Values


class CreateTable(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=5):
    table: Table


class DropTable(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=6):
    name: str


class Stage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=7):
    """Keep these operations, and do nothing: part of something larger, which is done by one `CommitStaged`.

    Where a group holds too much (`STAGED_BYTES_MAX`), the stages that were begun first are forgotten.
    """

    stage: bytes
    """Made up by whoever stages: `ID_BYTES`."""
    part: int
    """From 0 on."""
    operations: bytes
    """As `encode_part` makes them."""


class CommitStaged(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=8):
    """Do the operations of these stages, part after part, and forget them; refused unless every part is there."""

    stages: Annotated[tuple[tuple[bytes, int], ...], msgspec.Meta(min_length=1, max_length=STAGED_PARTS_MAX)]
    """Each with the count of its parts."""


class DiscardStaged(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=9):
    """Forget every stage whose name begins so."""

    prefix: bytes


RowOperation = Insert | Replace | Update | Upsert | Delete
StageOperation = Stage | CommitStaged | DiscardStaged
Operation = RowOperation | CreateTable | DropTable | StageOperation


# --- conditions ---


class Absent(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    """There is no row with that key before the transaction."""

    table: str
    key: Values


class At(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """The row with that key is there, as the entry at offset `version` left it."""

    table: str
    key: Values
    version: int


Condition = Absent | At


class Transaction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All of it is done, or nothing. Its id makes a repetition harmless."""

    id: bytes
    operations: Annotated[tuple[Operation, ...], msgspec.Meta(max_length=OPERATIONS_COUNT_MAX)]
    conditions: Annotated[tuple[Condition, ...], msgspec.Meta(max_length=CONDITIONS_COUNT_MAX)] = ()


# --- answers ---


class Outcome(IntEnum):
    DONE = 0
    REFUSED = 1


class Result(msgspec.Struct, frozen=True, gc=False):
    """What became of a transaction: `offset` is its entry's, and the version of every row it changed."""

    outcome: Outcome
    offset: int
    why: str = ""
    """Of a refusal, in one line."""


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row as it stands: `version` is the offset of the entry that changed it last."""

    version: int
    values: Values
    """In the order of the columns."""


class Level(IntEnum):
    """What a reader sees: only what is settled, or all that this copy has applied."""

    COMMITTED = 0
    LOCAL = 1


class CannotApply(Exception):
    """An entry that no copy can apply, because it is no transaction. A refusal is no such thing."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BadRead(Exception):
    """What was asked for cannot be looked up: there is no such table, or the key is not one of it."""


Part = Annotated[tuple[RowOperation, ...], msgspec.Meta(max_length=OPERATIONS_COUNT_MAX)]
_decode_part = msgspec.msgpack.Decoder(Part).decode


# --- what can be said without the tables ---


def why_not(transaction: Transaction) -> str | None:
    """What is wrong with it, in one line, or None."""
    try:  # Structs take what they are given: only whoever decodes them looks at types.
        wrong = _why_not(transaction)
        if wrong is None:
            msgspec.msgpack.decode(msgspec.msgpack.encode(transaction), type=Transaction)
    except (msgspec.MsgspecError, TypeError, AttributeError, ValueError, OverflowError) as error:
        return f"a transaction of the wrong types: {error}"
    return wrong


def _why_not(transaction: Transaction) -> str | None:
    if len(transaction.id) != ID_BYTES:
        return f"a transaction's id has {ID_BYTES} bytes, not {len(transaction.id)}"
    wrong = why_not_counts(len(transaction.operations), len(transaction.conditions))
    if wrong is not None:
        return wrong
    for part in (*transaction.operations, *transaction.conditions):
        wrong = _why_not_part(part)
        if wrong is not None:
            return f"{type(part).__name__}: {wrong}"
    size = len(msgspec.msgpack.encode(transaction))
    if size > TRANSACTION_BYTES_MAX:
        return f"{size:,} bytes are too many for a transaction; {TRANSACTION_BYTES_MAX:,} are the most"
    return None


def encode_part(operations: Sequence[RowOperation]) -> bytes:
    """What a `Stage` keeps."""
    return msgspec.msgpack.encode(operations)


def why_not_counts(operations: int, conditions: int) -> str | None:
    if not operations:
        return "a transaction has at least one operation"
    if operations > OPERATIONS_COUNT_MAX:
        return f"{operations:,} operations are too many; {OPERATIONS_COUNT_MAX:,} are the most"
    if conditions > CONDITIONS_COUNT_MAX:
        return f"{conditions:,} conditions are too many; {CONDITIONS_COUNT_MAX:,} are the most"
    return None


def why_not_table(table: Table) -> str | None:
    """What is wrong with a table that is to be created."""
    names = [column.name for column in table.columns]
    wrong = next(filter(None, map(_why_not_name, (table.name, *names))), None)
    if wrong is not None:
        return wrong
    if not 1 <= len(names) <= COLUMNS_COUNT_MAX:
        return f"a table has 1 to {COLUMNS_COUNT_MAX} columns, not {len(names)}"
    if len(set(names)) != len(names):
        return f"table {table.name} has two columns of one name"
    if not table.key or len(set(table.key)) != len(table.key):
        return f"table {table.name} needs a key of one or more columns, each named once"
    columns = {column.name: column for column in table.columns}
    for name in table.key:
        column = columns.get(name)
        if column is None:
            return f"table {table.name} has no column {_shown(name)} to be part of its key"
        if column.nullable or column.type == Type.FLOAT:
            return f"column {name} is nullable or a float, and cannot be part of a key"
    return None


def _why_not_name(name: str) -> str | None:
    if len(name) > NAME_CHARACTERS_MAX or not _NAME.fullmatch(name):
        return f"{_shown(name)} is no name: 1 to {NAME_CHARACTERS_MAX} of A-Z a-z 0-9 _ - ."
    return None


def _why_not_part(part: Operation | Condition) -> str | None:
    if isinstance(part, CreateTable):
        return why_not_table(part.table)
    if isinstance(part, DropTable):
        return _why_not_name(part.name)
    if isinstance(part, Stage | CommitStaged | DiscardStaged):
        return why_not_staging(part) or (_why_not_part_of(part) if isinstance(part, Stage) else None)
    wrong = _why_not_name(part.table) or why_not_values(
        part.row if isinstance(part, Insert | Replace | Upsert) else part.key
    )
    if wrong is None and isinstance(part, Update | Upsert):
        wrong = _why_not_changes(part.changes)
    if wrong is None and isinstance(part, At):
        wrong = _why_not_value(part.version)
    return wrong


def why_not_staging(part: StageOperation) -> str | None:
    """What is wrong with it, but for the operations inside."""
    if isinstance(part, DiscardStaged):
        return None if 0 < len(part.prefix) <= ID_BYTES else f"a stage's id has {ID_BYTES} bytes"
    stages = ((part.stage, part.part + 1),) if isinstance(part, Stage) else part.stages
    if not all(len(stage) == ID_BYTES and 0 < count <= STAGED_PARTS_MAX for stage, count in stages):
        return f"a stage's id has {ID_BYTES} bytes, and a stage has 1 to {STAGED_PARTS_MAX:,} parts"
    if len(set(stages)) != len(stages):
        return "a stage is committed once"
    if isinstance(part, Stage) and len(part.operations) > PART_BYTES_MAX:
        size = len(part.operations)
        return f"{size:,} bytes are too many for a part; {PART_BYTES_MAX:,} are the most"
    return None


def _why_not_part_of(stage: Stage) -> str | None:
    try:
        operations = _decode_part(stage.operations)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return f"its operations cannot be read: {error}"
    if not operations:
        return "a part has at least one operation"
    return next(filter(None, map(_why_not_part, operations)), None)


def _why_not_changes(changes: tuple[Change, ...]) -> str | None:
    if len(changes) > CHANGES_COUNT_MAX:
        return f"{len(changes)} changes of one row are too many; {CHANGES_COUNT_MAX} are the most"
    for change in changes:
        value = change.value if isinstance(change, Set) else change.delta
        wrong = _why_not_name(change.column) or why_not_values((value,))
        if wrong is not None:
            return wrong
    return None


def why_not_values(values: Values) -> str | None:
    if not 1 <= len(values) <= COLUMNS_COUNT_MAX:
        return f"a row or key has 1 to {COLUMNS_COUNT_MAX} values, not {len(values)}"
    length = 0
    for value in values:
        wrong = _why_not_value(value)
        if wrong is not None:
            return wrong
        length += len(value) if isinstance(value, str | bytes) else 9
    if length > ROW_BYTES_MAX:
        return f"{length:,} bytes are too many for a row; {ROW_BYTES_MAX:,} are the most"
    return None


def _why_not_value(value: Any) -> str | None:
    if isinstance(value, bool | bytes) or value is None:
        return None
    if isinstance(value, int):
        return None if INT_MIN <= value <= INT_MAX else "an integer has 64 bits, and this one needs more"
    if isinstance(value, float):
        return None if isfinite(value) else f"{value} is no finite number"
    if isinstance(value, str):
        return None if value.isascii() or _is_utf8(value) else f"{_shown(value)} is no text in UTF-8"
    return f"a value of type {type(value).__name__} fits no column"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(text: str) -> str:
    return ascii(text if len(text) <= NAME_CHARACTERS_MAX else text[:NAME_CHARACTERS_MAX] + "…")
