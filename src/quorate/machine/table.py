"""A group of tables: the machine whose entries are transactions.

Where entries can be taken back (`confirm`), the host tells it of every entry twice: `append` applies it on top of
what is unsettled and keeps undo, `settle` makes it stand. `cut` takes back the newest ones. A ROLLBACK, when it is
appended, takes back the transactions that it names, and keeps them: if it is cut itself, they are done again.
Elsewhere the host calls `settle` alone. Both ways lead to the same state, results and refusals included, because a
transaction is decided by nothing but the entries before it.

Readers of `Level.COMMITTED` see what is settled, those of `Level.LOCAL` what is applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from itertools import islice
from zlib import crc32

import msgspec

from quorate.batch import Buffer
from quorate.core.entry import Header, Kind, Rollback
from quorate.machine import table_operations, table_snapshot
from quorate.machine.table_changes import CHANGES_BYTES_MAX, Changes, Page
from quorate.machine.table_keys import Key
from quorate.machine.table_memory import Memory, Remembered
from quorate.machine.table_operations import Catalogue, Refused, perform
from quorate.machine.table_rows import UNFIT, Changed, Rows
from quorate.machine.table_wire import RawTransaction, decode_value, value_of
from quorate.tables import (
    RESULTS_REMEMBERED_MAX,
    SCAN_ROWS_MAX,
    BadRead,
    CannotApply,
    Level,
    Result,
    Row,
    Table,
    Values,
)

RECORDS = int(Kind.RECORDS)  # A member of an enumeration is not found as fast.

_encode = msgspec.msgpack.Encoder().encode


class Unsettled(msgspec.Struct, gc=False):
    """An entry that was appended and is not settled, with all that is needed to take it back, or do it again."""

    epoch: int
    offset: int
    value: bytes | None = None
    """The transaction as it lies in the log. None: an entry of another kind, which changes no row."""
    remembered: Remembered | None = None
    """None: a repetition."""
    changes: Sequence[Changed] = ()
    is_taken_back: bool = False
    takes_back: Sequence[Unsettled] = ()
    """Of a ROLLBACK: those that it took back, newest first."""


class Tables:
    __slots__ = (
        "_catalogue",
        "_changes",
        "_changes_bytes_max",
        "_memory",
        "_remembered_max",
        "_unsettled",
        "appended",
        "settled",
    )

    def __init__(
        self,
        *,
        remembered_max: int = RESULTS_REMEMBERED_MAX,
        changes_bytes_max: int = CHANGES_BYTES_MAX,
    ) -> None:
        self._catalogue = Catalogue()
        self._changes = Changes(changes_bytes_max)
        self._changes_bytes_max = changes_bytes_max
        self._memory = Memory(remembered_max)
        self._remembered_max = remembered_max
        self._unsettled: deque[Unsettled] = deque()
        """What was appended above `settled`, in order, without a gap."""
        self.appended = -1
        """The last offset that is applied, settled or not."""
        self.settled = -1

    # --- changing ---

    def append(self, header: Header, payload: Buffer) -> None:
        """Apply the next entry, and keep undo; raises CannotApply. What became of it, `result` says."""
        offset = header.offset
        assert offset == self.appended + 1, "entries are appended in order, without a gap"
        if header.kind == RECORDS:
            value = _value(header, payload)
            entry = Unsettled(header.epoch, offset, value)
            self._apply(entry, decode_value(value))
        else:
            entry = Unsettled(header.epoch, offset)
            if type(header.control) is Rollback:
                self._roll_back(entry, header.control.first)
        self._unsettled.append(entry)
        self.appended = offset + header.count - 1

    def cut(self, to_offset: int) -> None:
        """Everything that was appended above never was."""
        assert to_offset >= self.settled, "nothing settled is cut"
        unsettled = self._unsettled
        while unsettled and unsettled[-1].offset > to_offset:
            entry = unsettled.pop()
            if entry.value is not None:
                if not entry.is_taken_back:
                    self._take_back(entry)
            else:
                for taken in reversed(entry.takes_back):
                    if taken.offset <= self.settled:
                        continue  # It was left out when something above was settled: it is void for good.
                    assert taken.value is not None
                    taken.is_taken_back = False
                    self._apply(taken, decode_value(taken.value))
            self.appended = entry.offset - 1

    def settle(self, header: Header, checksum: int, payload: Buffer) -> None:
        """The next entry stands. It is applied now if it was not appended; void ones are left out."""
        offset = header.offset
        assert offset > self.settled, "entries are settled once, in order"
        unsettled = self._unsettled
        if unsettled:
            entry = unsettled.popleft()
            while entry.offset < offset:
                assert entry.is_taken_back, "only what was rolled back is left out"
                entry = unsettled.popleft()
            assert entry.offset == offset, "what was appended is settled"
            assert entry.epoch == header.epoch, "what was appended is settled"
            assert not entry.is_taken_back, "nothing that was rolled back is settled"
            changes = entry.changes
            for changed in changes:
                changed[0].settle(changed)
            if changes:
                self._changes.add(offset, payload, changes)
            if entry.remembered is not None:
                self._memory.settle(entry.remembered)
        elif header.kind == RECORDS:
            self._settle_at_once(offset, decode_value(_value(header, payload)), payload)
        self.settled = offset + header.count - 1
        if not unsettled:
            self.appended = self.settled

    # --- reading ---

    def tables(self, level: Level = Level.COMMITTED) -> tuple[Table, ...]:
        """In the order of their names."""
        return tuple(rows.table for rows in self._catalogue.scan(None, None, level))

    def get(self, table: str, key: Values, level: Level = Level.COMMITTED) -> Row | None:
        """The row with that key; raises BadRead."""
        rows = self._rows(table, level)
        kept = rows.get(_key(rows, key), level)
        return None if kept is None else rows.read(kept)

    def scan(
        self,
        table: str,
        first: Values | None = None,
        last: Values | None = None,
        limit: int = SCAN_ROWS_MAX,
        level: Level = Level.COMMITTED,
    ) -> list[Row]:
        """Rows in the order of their keys, from `first` to `last`, both included; raises BadRead.

        The first columns of a key stand for all keys that begin with them.
        """
        rows = self._rows(table, level)
        low = None if first is None else _prefix(rows, first)
        high = None if last is None else _prefix(rows, last)
        some = islice(rows.scan(low, high, level), max(0, min(limit, SCAN_ROWS_MAX)))
        return [rows.read(kept) for kept in some]

    def page(
        self,
        table: str,
        first: Values | None,
        last: Values | None,
        *,
        after: Values | None,
        limit: int,
        bytes_max: int,
        level: Level = Level.COMMITTED,
    ) -> tuple[list[Row], Values | None]:
        """A scan in pieces: rows from `first` on, or behind the key `after`; and behind which key there are more.

        A piece has one row at least, if there is one, however large that is.
        """
        rows = self._rows(table, level)
        behind = None if after is None else _key(rows, after)
        low = behind if first is None or behind is not None else _prefix(rows, first)
        high = None if last is None else _prefix(rows, last)
        found: list[Row] = []
        left_bytes = bytes_max
        for kept in rows.scan(low, high, level):
            row = rows.read(kept)
            if behind is not None and rows.key_of(row.values) == behind:
                continue
            if found and (len(found) >= limit or left_bytes < len(kept)):
                return found, tuple(found[-1].values[rows.columns[name]] for name in rows.table.key)
            found.append(row)
            left_bytes -= len(kept)
        return found, None

    def changes(
        self, table: str, *, first: int, last: int, skip: int, limit: int, bytes_max: int
    ) -> tuple[Page, int]:
        """What settled entries from `first` to `last` have changed there, a page of it, and from which offset on
        changes are kept; raises BadRead, and Gone where that is above `first`.

        `skip`: so many changes of the entry at `first` were seen.
        """
        self._rows(table, Level.COMMITTED)
        last = min(last, self.settled)
        page = self._changes.page(table, first=first, last=last, skip=skip, limit=limit, bytes_max=bytes_max)
        return page, self._changes.first

    def past(
        self, table: str, at: int | None = None, after: Values | None = None
    ) -> Generator[bytes, None, None]:
        """A snapshot of that table alone, as it was when `at` was settled (None: now), behind the key `after`.

        Raises BadRead, and Gone where changes behind `at` are not all kept.
        """
        rows = self._rows(table, Level.COMMITTED)
        at = self.settled if at is None else at
        if at > self.settled:
            raise BadRead(f"offset {at} is not settled here yet")
        behind = None if after is None else _key(rows, after)
        made = table_snapshot.past_pieces(at, rows, self._changes.past(table, at), behind)
        return _with(next(made), made)

    def result(self, id_: bytes, level: Level = Level.COMMITTED) -> Result | None:
        """What became of a transaction; None: nothing is known of it at that level, or no longer."""
        return self._memory.result(id_, level)

    def is_synchronous(self, payload: Buffer) -> bool:
        """Whether it changes a synchronous table, by what is applied now, or which tables there are (TT-36)."""
        return table_operations.is_synchronous(self._catalogue, decode_value(value_of(payload)))

    def digest(self, level: Level = Level.COMMITTED) -> int:
        """Equal for equal tables and rows. Looks at every row."""
        digest = 0
        for rows in self._catalogue.scan(None, None, level):
            digest = crc32(_encode(rows.table), digest)
            for kept in rows.scan(None, None, level):
                digest = crc32(kept, digest)
        for part in self._catalogue.staged.scan(None, None, level):
            digest = crc32(part, digest)
        return digest

    def __str__(self) -> str:
        return f"{len(self._catalogue.rows)} tables, settled {self.settled}, appended {self.appended}"

    # --- snapshots ---

    def snapshot_pieces(self) -> Generator[bytes, None, None]:
        """What is settled now, in pieces that are made one by one; joined, they are what `restore` takes."""
        made = table_snapshot.pieces(
            self.settled,
            list(self._catalogue.scan(None, None, Level.COMMITTED)),
            self._memory.settled(),
            self._catalogue.staged,
        )
        return _with(next(made), made)

    def snapshot(self) -> bytes:
        return b"".join(self.snapshot_pieces())

    def restore(self, data: bytes) -> None:
        """Be as if everything up to that snapshot had been settled here, and nothing was appended."""
        contents = table_snapshot.read(data)
        self._catalogue = Catalogue()
        self._catalogue.staged.fill(dict(sorted(contents.staged.items())))
        self._catalogue.fill({rows.table.name: rows for rows in contents.tables})
        self._memory = Memory(self._remembered_max, contents.results)
        self._unsettled.clear()
        self.settled = self.appended = contents.settled
        self._changes = Changes(self._changes_bytes_max, contents.settled + 1)

    # --- applying ---

    def _apply(self, entry: Unsettled, transaction: RawTransaction) -> None:
        if self._memory.knows(transaction.id):
            return
        remembered = Remembered(transaction.id, entry.offset)
        changes: list[Changed] = []
        try:
            perform(self._catalogue, transaction, entry.offset, changes)
        except Refused as refused:
            remembered.why = _reverted(changes, refused)
        for changed in changes:
            changed[0].hold(changed)
        entry.changes = changes
        entry.remembered = remembered
        self._memory.add(remembered)

    def _settle_at_once(self, offset: int, transaction: RawTransaction, payload: Buffer) -> None:
        if self._memory.knows(transaction.id):
            return
        changes: list[Changed] = []
        why = ""
        try:
            perform(self._catalogue, transaction, offset, changes)
        except Refused as refused:
            why = _reverted(changes, refused)
        for changed in changes:
            changed[0].stand(changed)
        if changes:
            self._changes.add(offset, payload, changes)
        self._memory.settle_at_once(transaction.id, offset, why)

    def _take_back(self, entry: Unsettled) -> None:
        for changed in reversed(entry.changes):
            changed[0].take_back(changed)
        if entry.remembered is not None:
            self._memory.take_back(entry.remembered)
        entry.changes = ()
        entry.remembered = None

    def _roll_back(self, rollback: Unsettled, first: int) -> None:
        """Take back every transaction from `first` on that still stands (TT-38), newest first."""
        assert first > self.settled, "nothing settled is rolled back"
        taken: list[Unsettled] = []
        for entry in reversed(self._unsettled):
            if entry.offset < first:
                break
            if entry.value is not None and not entry.is_taken_back:
                self._take_back(entry)
                entry.is_taken_back = True
                taken.append(entry)
        rollback.takes_back = taken

    def _rows(self, table: str, level: Level) -> Rows:
        rows = self._catalogue.get(table, level)
        if rows is None:
            raise BadRead(f"there is no table {table!r}")
        return rows


def _reverted(changes: list[Changed], refused: Refused) -> str:
    """A refused transaction leaves nothing behind but the reason."""
    while changes:
        changed = changes.pop()
        changed[0].revert(changed)
    return str(refused)


def _value(header: Header, payload: Buffer) -> bytes:
    if header.count != 1:
        raise CannotApply(f"entry {header.id} has {header.count} records; a transaction is one")
    return value_of(payload)


def _with(first: bytes, rest: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    yield first
    yield from rest


def _key(rows: Rows, key: Values) -> Key:
    """A whole key, checked."""
    if not isinstance(key, tuple):
        raise BadRead(f"a key is a tuple of values, as in (1,), not {key!r:.40}")
    try:
        return rows.key(rows.decode_key(_encode(key)))
    except UNFIT:
        raise BadRead(rows.why_not_key(key)) from None


def _prefix(rows: Rows, key: Values) -> Key:
    """The first columns of a key, or all of them, checked."""
    columns = len(rows.table.key)
    if len(key) == columns:
        return _key(rows, key)
    if not 0 < len(key) < columns:
        raise BadRead(f"the key of {rows.table.name} has {columns} columns, not {len(key)}")
    for value, name in zip(key, rows.table.key, strict=False):
        position = rows.columns[name]
        try:
            rows.decode_values[position](_encode(value))
        except UNFIT:
            raise BadRead(rows.why_not_value(position, value)) from None
    return key
