"""Tables beside a dumb twin, over any sequence of appending, cutting, settling, rolling back and snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.core.entry import Header, Kind, NoOp, Rollback
from quorate.machine import table_keys, table_snapshot, table_stages
from quorate.machine.table import Tables
from quorate.machine.table_changes import Gone
from quorate.machine.table_wire import decode, encode
from quorate.tables import (
    Absent,
    Add,
    At,
    BadRead,
    Column,
    CommitStaged,
    CreateTable,
    Delete,
    DiscardStaged,
    DropTable,
    Insert,
    Level,
    Outcome,
    Replace,
    Set,
    Stage,
    Table,
    Transaction,
    Type,
    Update,
    Upsert,
    encode_part,
)
from quorate.wire.table_pieces import open_piece, values_of, version_of
from tests.properties.table_twin import STAGED_MAX, State, after

REMEMBERED = 4
"""So few that some are forgotten."""
IDS = [number.to_bytes(16, "big") for number in range(12)]

NARROW = Table("narrow", (Column("id", Type.INT), Column("sum", Type.INT, nullable=True)), ("id",))
WIDE = Table(
    "wide",
    (
        Column("note", Type.STR, nullable=True),
        Column("b", Type.STR),
        Column("a", Type.INT),
        Column("ratio", Type.FLOAT),
        Column("is", Type.BOOL),
        Column("blob", Type.BYTES),
    ),
    ("a", "b"),
    synchronous=False,
)

small = st.integers(0, 5)
letter = st.sampled_from(["", "a", "b"])
narrow_row = st.tuples(small, st.none() | small)
wide_row = st.tuples(
    st.none() | letter, letter, small, st.sampled_from([0.5, 2, -1.0]), st.booleans(), st.just(b"x")
)
misfit = st.sampled_from([(), (1,), ("a", 1), (None, None), (1, 2, 3), (True, 1), (1, b"x")])
narrow_change = (
    st.builds(Add, st.just("sum"), small)
    | st.builds(Set, st.just("sum"), st.none() | small | letter)
    | st.builds(Set, st.sampled_from(["id", "nothing"]), small)
)
wide_change = (
    st.builds(Add, st.just("ratio"), st.sampled_from([1, 0.5]))
    | st.builds(Add, st.just("note"), small)
    | st.builds(Set, st.just("note"), st.none() | letter)
    | st.builds(Set, st.just("ratio"), small)
)


def operations_of(name: str, row: Any, key: Any, change: Any) -> Any:
    table = st.just(name)
    changes = st.lists(change, max_size=2).map(tuple)
    return (
        st.builds(Insert, table, row)
        | st.builds(Replace, table, row)
        | st.builds(Update, table, key, changes)
        | st.builds(Upsert, table, row, changes)
        | st.builds(Delete, table, key)
    )


narrow_key = st.tuples(small)
wide_key = st.tuples(small, letter)
operation = (
    operations_of("narrow", narrow_row, narrow_key, narrow_change)
    | operations_of("narrow", narrow_row, narrow_key, narrow_change)
    | operations_of("wide", wide_row, wide_key, wide_change)
    | st.builds(Replace, st.sampled_from(["narrow", "wide", "none"]), misfit)
    | st.builds(Delete, st.sampled_from(["narrow", "wide", "none"]), misfit)
    | st.builds(CreateTable, st.sampled_from([NARROW, WIDE]))
    | st.builds(DropTable, st.sampled_from(["narrow", "wide"]))
)
row_operation = operations_of("narrow", narrow_row, narrow_key, narrow_change) | operations_of(
    "wide", wide_row, wide_key, wide_change
)
stage = st.sampled_from([b"a" * 16, b"b" * 16])
staging = (
    st.builds(
        Stage, stage, st.integers(0, 1), st.lists(row_operation, min_size=1, max_size=3).map(encode_part)
    )
    | st.builds(
        CommitStaged, st.lists(st.tuples(stage, st.integers(1, 2)), min_size=1, max_size=2).map(tuple)
    )
    | st.builds(DiscardStaged, st.sampled_from([b"a", b"b" * 16]))
)
condition = (
    st.builds(Absent, st.just("narrow"), narrow_key)
    | st.builds(At, st.just("narrow"), narrow_key, st.integers(0, 20))
    | st.builds(Absent, st.just("wide"), wide_key)
)
transaction = st.builds(
    Transaction,
    st.sampled_from(IDS),
    st.lists(operation | operation | staging, min_size=1, max_size=3).map(tuple),
    st.lists(condition, max_size=1).map(tuple),
)
step = (
    st.tuples(st.just("append"), transaction)
    | st.tuples(st.just("append"), transaction)
    | st.tuples(st.just("append"), transaction)
    | st.tuples(st.sampled_from(["noop", "rollback", "cut", "settle", "settle"]), st.integers(0, 30))
    | st.tuples(st.sampled_from(["begin", "piece", "piece", "abandon", "again"]), st.integers(0, 30))
)


@dataclass
class Entry:
    header: Header
    payload: bytes
    state: State
    """After it."""


@dataclass
class Pair:
    """The machine, one that is only told what is settled, and the log with a state for each entry."""

    tables: Tables = field(default_factory=lambda: Tables(remembered_max=REMEMBERED, changes_bytes_max=2000))
    only_settled: Tables = field(default_factory=lambda: Tables(remembered_max=REMEMBERED))
    log: list[Entry] = field(default_factory=list)
    settled: int = -1
    epoch: int = 1
    snapshots: list[tuple[Iterator[bytes], list[bytes], State, int]] = field(default_factory=list)
    moments: dict[int, State] = field(default_factory=lambda: {-1: State()})
    """What was settled, whenever something was."""

    def state(self, offset: int) -> State:
        return self.log[offset].state if offset >= 0 else State()

    @property
    def head(self) -> int:
        return len(self.log) - 1

    def add(self, header: Header, payload: bytes, state: State) -> None:
        self.log.append(Entry(header, payload, state))
        self.tables.append(header, payload)

    def append(self, wanted: Transaction) -> None:
        header = Header(self.epoch, self.head + 1)
        state = after(self.state(self.head), wanted, header.offset, remembered_max=REMEMBERED)
        self.add(header, encode(wanted), state)

    def noop(self, _: int) -> None:
        header = Header(self.epoch, self.head + 1, kind=Kind.CONTROL, control=NoOp(1))
        self.add(header, b"", self.state(self.head))

    def rollback(self, number: int) -> None:
        first = self.settled + 1 + number % (self.head + 1 - self.settled)
        header = Header(self.epoch, self.head + 1, kind=Kind.CONTROL, control=Rollback(first))
        self.add(header, b"", self.replayed([*self.log, Entry(header, b"", State())]))

    def replayed(self, log: list[Entry]) -> State:
        """From the beginning, without what is void."""
        void = void_in(log)
        state = State()
        for entry in log:
            if entry.header.kind == Kind.RECORDS and entry.header.offset not in void:
                offset = entry.header.offset
                state = after(state, decode(entry.payload), offset, remembered_max=REMEMBERED)
        return state

    def cut(self, number: int) -> None:
        to_offset = self.settled + number % (self.head + 1 - self.settled)
        del self.log[to_offset + 1 :]
        self.epoch += 1
        self.tables.cut(to_offset)

    def settle(self, number: int) -> None:
        """As far as that, but not between a ROLLBACK and what it rolls back."""
        to_offset = self.settled + number % (self.head + 1 - self.settled)
        above = [entry.header.control for entry in self.log[to_offset + 1 :]]
        if any(type(control) is Rollback and control.first <= to_offset for control in above):
            return
        part = self.log[self.settled + 1 : to_offset + 1]
        void = void_in(part)
        for entry in part:
            if entry.header.kind == Kind.CONTROL or entry.header.offset not in void:
                self.tables.settle(entry.header, 0, entry.payload)
                self.only_settled.settle(entry.header, 0, entry.payload)
        self.settled = to_offset
        self.moments[to_offset] = self.state(to_offset)

    def begin(self, _: int) -> None:
        self.snapshots.append((self.tables.snapshot_pieces(), [], self.state(self.settled), self.settled))

    def piece(self, number: int) -> None:
        if not self.snapshots:
            return
        pieces, so_far, state, settled = self.snapshots[number % len(self.snapshots)]
        piece = next(pieces, None)
        if piece is not None:
            so_far.append(piece)
            return
        del self.snapshots[number % len(self.snapshots)]
        restored = Tables(remembered_max=REMEMBERED)
        restored.restore(b"".join(so_far))
        assert restored.settled == restored.appended == settled
        expect(restored, Level.COMMITTED, state)
        expect(restored, Level.LOCAL, state)

    def abandon(self, number: int) -> None:
        if self.snapshots:
            del self.snapshots[number % len(self.snapshots)]

    def again(self, _: int) -> None:
        """Restart: from a snapshot, then what is in the log behind it."""
        data = self.tables.snapshot()
        assert data == self.tables.snapshot()
        self.tables = Tables(remembered_max=REMEMBERED)
        self.tables.restore(data)
        self.snapshots.clear()
        for entry in self.log[self.settled + 1 :]:
            self.tables.append(entry.header, entry.payload)

    def check(self) -> None:
        assert self.tables.appended == self.head
        assert self.tables.settled == self.settled
        expect(self.tables, Level.COMMITTED, self.state(self.settled))
        expect(self.tables, Level.LOCAL, self.state(self.head))
        expect(self.only_settled, Level.LOCAL, self.state(self.settled))
        assert self.tables.digest() == self.only_settled.digest()
        expect_past(self.tables, self.moments, self.settled)
        expect_past(self.only_settled, self.moments, self.settled)


def void_in(log: list[Entry]) -> set[int]:
    """Offsets that a ROLLBACK names; those of control entries mean nothing."""
    void: set[int] = set()
    for entry in log:
        if type(entry.header.control) is Rollback:
            void |= set(range(entry.header.control.first, entry.header.offset))
    return void


def expect(tables: Tables, level: Level, state: State) -> None:
    assert tables.tables(level) == tuple(table for _, table in sorted(state.tables.items()))
    for name, rows in state.rows.items():
        found = [(row.version, row.values) for row in tables.scan(name, level=level)]
        assert found == [row for _, row in sorted(rows.items())]
        for key, (version, values) in rows.items():
            row = tables.get(name, key, level)
            assert row is not None
            assert (row.version, row.values) == (version, values)
            assert list(map(type, row.values)) == list(map(type, values))
    for id_ in IDS:
        result = tables.result(id_, level)
        known = None if result is None else (result.outcome == Outcome.DONE, result.offset)
        assert known == state.result(id_)


def expect_past(tables: Tables, moments: dict[int, State], settled: int) -> None:
    """A table as it was at any moment that is kept, and what has changed since, make what it is."""
    for at, state in moments.items():
        try:
            was = read_pieces(tables.past("narrow", at))
        except (Gone, BadRead):
            continue  # Too long ago, or another table, or none now.
        assert was == {key: row for (key,), row in state.rows["narrow"].items()}
        skip, first = 0, at + 1
        while True:
            page, _ = tables.changes("narrow", first=first, last=settled, skip=skip, limit=1, bytes_max=1)
            for change in page.changes:
                if change.after is None:
                    assert was.pop(change.key) == opened(change.before)
                else:
                    before = None if change.before is None else opened(change.before)
                    assert was.get(change.key) == before
                    was[change.key] = opened(change.after)
            if page.resume is None:
                break
            first, skip = page.resume
        now = moments[settled].rows["narrow"]
        assert was == {key: row for (key,), row in now.items()}


def read_pieces(pieces: Iterator[bytes]) -> dict[Any, tuple[int, tuple[Any, ...]]]:
    rows = [opened(kept) for piece in pieces for kept in open_piece(piece).rows]
    return {values[0]: (version, values) for version, values in rows}


def opened(kept: bytes | None) -> tuple[int, tuple[Any, ...]]:
    assert kept is not None
    return version_of(kept), values_of(kept)


@contextmanager
def everything_small() -> Iterator[None]:
    """Chunks and pieces of a few rows, so that few rows have many of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_keys, "CHUNK_MAX", 4)
        patch.setattr("quorate.machine.table_rows.NOTED_MAX", 3)
        patch.setattr(table_stages, "STAGED_OPERATIONS_MAX", STAGED_MAX)
        patch.setattr(table_snapshot, "PIECE_ROWS_MIN", 1)
        patch.setattr(table_snapshot, "PIECE_ROWS_MAX", 2)
        patch.setattr(table_snapshot, "PIECE_RESULTS_MAX", 2)
        yield


@pytest.mark.behaviour("TT-3", "TT-22", "TT-29", "TT-30", "TT-38")
@settings(deadline=None, max_examples=200)
@given(st.lists(step, min_size=25, max_size=60))
def test_tables_are_as_their_dumb_twin(steps: list[tuple[str, Any]]) -> None:
    with everything_small():
        pair = Pair()
        created = (Transaction(bytes(15) + b"n", (CreateTable(NARROW), CreateTable(WIDE))),)
        for wanted in created:
            pair.append(wanted)
        for what, argument in steps:
            getattr(pair, what)(argument)
            pair.check()
        for number in range(200):
            pair.piece(number)


@given(transaction)
def test_a_transaction_comes_back_as_it_was(wanted: Transaction) -> None:
    assert decode(encode(wanted)) == wanted
