"""One table's rows, as applied, and beneath them what is settled of those that have unsettled changes on top.

`rows` is what the log says up to its last appended entry. Where some of that is unsettled, `beneath` has the
settled row. A change remembers the row before it and the row after it, and is later either settled or taken back;
both find exactly what the change left, or the state is wrong, which is asserted.

The same kind of box holds the catalogue: the "rows" are then tables, and their keys are names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from types import GenericAlias
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Raw

from quorate.batch import Buffer
from quorate.machine.table_keys import NOTED_MAX, Key, SortedKeys
from quorate.tables import (
    INT_MAX,
    INT_MIN,
    KEY_LENGTH_MAX,
    ROW_BYTES_MAX,
    Column,
    Level,
    Row,
    Table,
    Type,
    Value,
    Values,
)

VERSION_BYTES = 8
FLOAT_MAX = 1.7976931348623157e308
UNFIT = (msgspec.DecodeError, OverflowError, TypeError, UnicodeError)
"""What is raised where a value does not fit its column, or no column at all."""

Kept = TypeVar("Kept")

_encode = msgspec.msgpack.Encoder().encode


class Frozen(Generic[Kept]):
    """What one snapshot has to see otherwise than it is."""

    __slots__ = ("behind", "rows")

    def __init__(self) -> None:
        self.behind: Key | None = None
        """Keys up to this one are in the snapshot. None: none so far."""
        self.rows: dict[Key, Kept | None] = {}
        """Above: what was settled when the snapshot began, of all that has settled since."""


class Box(Generic[Kept]):
    """Things by key, with unsettled changes on top of settled ones."""

    __slots__ = ("_keys", "_noted", "_stacked", "beneath", "frozen", "rows")

    def __init__(self) -> None:
        self.rows: dict[Key, Kept] = {}
        self.beneath: dict[Key, Kept | None] = {}
        """What is settled, under each key that has unsettled changes; None: nothing."""
        self._stacked: dict[Key, int] = {}
        """How many unsettled changes a key has, if it has several."""
        self.frozen: list[Frozen[Kept]] = []
        """For each snapshot that is being taken."""
        self._keys = SortedKeys()
        self._noted: set[Key] = set()

    # --- writing: `change`, then `hold` and later `settle` or `take_back`; or `stand` at once; or `revert` ---

    def change(self, key: Key, after: Kept | None) -> Changed:
        """Make it so; None: delete. Whoever calls says next what is to become of the change."""
        rows = self.rows
        before = rows.get(key)
        if after is None:
            rows.pop(key, None)
        else:
            rows[key] = after
        return (self, key, before, after)

    def revert(self, changed: Changed) -> None:
        """The newest change of its key never was."""
        _, key, before, after = changed
        assert self.rows.get(key) is after, "an undo finds what the change left"
        if before is not None:
            self.rows[key] = before
        elif after is not None:
            del self.rows[key]

    def stand(self, changed: Changed) -> None:
        """A change that was just made is settled at once."""
        _, key, before, after = changed
        if self.frozen:
            self._freeze(key, before)
        if before is None or after is None:
            self._note(key)

    def hold(self, changed: Changed) -> None:
        """A change that was just made is unsettled."""
        _, key, before, after = changed
        if key in self.beneath:
            self._stacked[key] = self._stacked.get(key, 1) + 1
        else:
            self.beneath[key] = before
        if before is None or after is None:
            self._note(key)

    def take_back(self, changed: Changed) -> None:
        """The newest change of its key, which was held, never was."""
        self.revert(changed)
        _, key, before, after = changed
        if key in self._stacked:
            self._unstack(key)
        else:
            settled = self.beneath.pop(key)
            assert settled is before, "below the last undo is what is settled"
        if before is None or after is None:
            self._note(key)

    def settle(self, changed: Changed) -> None:
        """The oldest change of its key that is held stands."""
        _, key, before, after = changed
        settled = self.beneath.pop(key)
        assert settled is before, "changes of a row are settled in order"
        if key in self._stacked:
            self._unstack(key)
            self.beneath[key] = after
        if self.frozen:
            self._freeze(key, before)
        if after is None:
            self._note(key)

    def _unstack(self, key: Key) -> None:
        """One unsettled change less, of several."""
        if self._stacked[key] == 2:
            del self._stacked[key]
        else:
            self._stacked[key] -= 1

    def _freeze(self, key: Key, before: Kept | None) -> None:
        """The settled row changes: snapshots that have begun see the one before."""
        for frozen in self.frozen:
            if frozen.behind is None or key > frozen.behind:
                frozen.rows.setdefault(key, before)

    # --- reading ---

    def get(self, key: Key, level: Level) -> Kept | None:
        if level == Level.COMMITTED and key in self.beneath:
            return self.beneath[key]
        return self.rows.get(key)

    def scan(self, first: Key | None, last: Key | None, level: Level) -> Iterator[Kept]:
        """In order, both ends included. To be used up before anything changes."""
        self._put_in_order()
        for key in self._keys.between(first, last):
            kept = self.get(key, level)
            if kept is not None:
                yield kept

    def freeze(self) -> Frozen[Kept]:
        """A snapshot begins. It gets what is settled now, whatever settles until it is done with."""
        frozen: Frozen[Kept] = Frozen()
        self.frozen.append(frozen)
        return frozen

    def next_frozen(self, frozen: Frozen[Kept], count: int) -> list[Kept] | None:
        """What that snapshot gets next: up to so many, in order, and perhaps none; None: it has everything."""
        self._put_in_order()
        keys = self._keys.behind(frozen.behind, count)
        if not keys:
            assert not frozen.rows, "a snapshot has seen every row that it began with"
            return None
        frozen.behind = keys[-1]
        if not frozen.rows and not self.beneath and len(self.frozen) == 1:
            rows = self.rows
            return [rows[key] for key in keys]
        found = []
        for key in keys:
            if key in frozen.rows:
                kept = frozen.rows.pop(key)
                if key not in self.rows:
                    self._note(key)  # It may have been in order for this snapshot only.
            else:
                kept = self.get(key, Level.COMMITTED)
            if kept is not None:
                found.append(kept)
        return found

    def rewind(self, frozen: Frozen[Kept], was: dict[Key, Kept | None], behind: Key | None) -> None:
        """That snapshot, which has just begun, is of an earlier moment, and of what is behind that key."""
        frozen.behind = behind
        frozen.rows = {key: kept for key, kept in was.items() if behind is None or key > behind}
        for key in frozen.rows:
            self._note(key)

    def thaw(self, frozen: Frozen[Kept]) -> None:
        """That snapshot is done with, or given up."""
        self.frozen = [other for other in self.frozen if other is not frozen]
        for key in frozen.rows:
            self._note(key)

    def fill(self, rows: dict[Key, Kept]) -> None:
        """Settled rows in the order of their keys, from a snapshot."""
        self.rows = rows
        self._keys = SortedKeys(rows)

    # --- order ---

    def _note(self, key: Key) -> None:
        noted = self._noted
        noted.add(key)
        if len(noted) >= NOTED_MAX:
            self._put_in_order()

    def _put_in_order(self) -> None:
        if self._noted:
            self._keys.reconcile(self._noted, self._is_wanted)
            self._noted.clear()

    def _is_wanted(self, key: Key) -> bool:
        """Somebody may have to see something under this key: a reader of either level, or a snapshot."""
        return key in self.rows or key in self.beneath or any(key in frozen.rows for frozen in self.frozen)


Changed = tuple[Box[Any], Key, Any, Any]
"""One change: where, which key, what was there before (None: nothing), what is there now."""


class Rows(Box[bytes]):
    """One table: its rows, and what reads and checks rows and keys in the form of the log.

    A row is kept as one piece of bytes: its version, then its values as they lie in the log. That is half the
    memory of values in Python, and a fraction of the objects: most of what a change costs is fetching what it
    replaces.
    """

    __slots__ = (
        "columns",
        "decode_key",
        "decode_row",
        "decode_values",
        "has_floats",
        "key_of",
        "key_positions",
        "table",
    )

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = table
        self.columns = {column.name: number for number, column in enumerate(table.columns)}
        positions = [self.columns[name] for name in table.key]
        self.key_positions = frozenset(positions)
        self.key_of = itemgetter(*positions)
        """The key of a row's values: one value, or a tuple of several."""
        self.has_floats = any(column.type == Type.FLOAT for column in table.columns)
        types = [_type_of(column, is_key=column.name in table.key) for column in table.columns]
        self.decode_row = _decoder_of(types)
        self.decode_key = _decoder_of([types[at] for at in positions])
        self.decode_values = [msgspec.msgpack.Decoder(kind).decode for kind in types]
        """Of each column."""

    def kept(self, version: bytes, raw: Raw, values: Values) -> bytes:
        """A row to be kept; `raw` says the same as `values`, but that integers may stand for floats."""
        if self.has_floats:
            return version + _encode(values)
        return b"".join((version, raw))

    def kept_values(self, version: bytes, values: Values) -> bytes:
        return version + _encode(values)

    def values(self, kept: bytes) -> Values:
        return self.decode_row(memoryview(kept)[VERSION_BYTES:])

    def read(self, kept: bytes) -> Row:
        return Row(version_of(kept), self.values(kept))

    def key(self, values: Values) -> Key:
        """A whole key as rows are kept under it."""
        return values if len(self.key_positions) > 1 else values[0]

    def why_not_row(self, values: Values) -> str:
        """Which column a row does not fit that `decode_row` refuses."""
        name = self.table.name
        if len(values) != len(self.table.columns):
            return f"a row of {name} has {len(self.table.columns)} columns, not {len(values)}"
        return self._why_not(values, list(range(len(values))))

    def why_not_key(self, values: Values) -> str:
        names = self.table.key
        if len(values) != len(names):
            return f"the key of {self.table.name} has {len(names)} columns, not {len(values)}"
        return self._why_not(values, [self.columns[name] for name in names])

    def why_not_value(self, position: int, value: Value) -> str:
        return self._why_not((value,), [position])

    def _why_not(self, values: Values, positions: list[int]) -> str:
        for value, position in zip(values, positions, strict=True):
            try:
                self.decode_values[position](_encode(value))
            except UNFIT:
                column = self.table.columns[position]
                wanted = f"{column.type}{' or null' if column.nullable else ''}"
                given = "null" if value is None else type(value).__name__
                if given == column.type:
                    given += " that is too large"
                return f"column {column.name} of {self.table.name} is {wanted}, not {given}"
        return f"{self.table.name} cannot hold that"


def version_of(kept: bytes) -> int:
    return int.from_bytes(kept[:VERSION_BYTES], "big")


def _decoder_of(types: list[Any]) -> Callable[[Buffer | Raw], Values]:
    decoder: msgspec.msgpack.Decoder[Values] = msgspec.msgpack.Decoder(GenericAlias(tuple, tuple(types)))
    return decoder.decode


def _type_of(column: Column, *, is_key: bool) -> Any:
    longest = KEY_LENGTH_MAX if is_key else ROW_BYTES_MAX
    kind: Any = {
        Type.INT: Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)],
        Type.FLOAT: Annotated[float, msgspec.Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)],
        Type.STR: Annotated[str, msgspec.Meta(max_length=longest)],
        Type.BYTES: Annotated[bytes, msgspec.Meta(max_length=longest)],
        Type.BOOL: bool,
    }[column.type]
    return kind | None if column.nullable else kind
