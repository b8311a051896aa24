"""The settled state of a group of tables as bytes, in pieces, and back.

A snapshot is of the moment in which it was asked for. Its pieces are made one at a time, and the tables go on
changing in between: whatever settles meanwhile leaves the row as it was to the snapshot (`Box.frozen`). Nothing
unsettled is ever in it, so a ROLLBACK is none of its business (TT-29, TT-30).

Format: msgpack objects, each behind its length in four bytes. First a `Begin`, then chunks of rows, table by table
in the order of their names and keys; chunks of results; parts that are staged, if there are any; at last an `End`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from quorate.machine.table_keys import Key
from quorate.machine.table_memory import Known
from quorate.machine.table_rows import Frozen, Rows
from quorate.machine.table_stages import Staged, StageKey
from quorate.tables import Level, Table

FORMAT = 1
LENGTH_BYTES = 4
PIECE_BYTES = 256 << 10
"""About so many, where rows are of one size."""
PIECE_ROWS_MIN = 16
"""Until it is known how large they are."""
PIECE_ROWS_MAX = 1000
"""A few milliseconds of work, at most."""
PIECE_RESULTS_MAX = 1000


class Begin(msgspec.Struct, frozen=True, tag=0, array_like=True):
    format: int
    settled: int
    tables: tuple[Table, ...]


class RowsChunk(msgspec.Struct, frozen=True, tag=1, array_like=True):
    table: int
    """Which one of `Begin.tables`."""
    rows: list[bytes]
    """As they are kept."""


class ResultsChunk(msgspec.Struct, frozen=True, tag=2, array_like=True):
    results: list[Known]


class StagedChunk(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """Parts that wait for their commit. Only where somebody stages: older versions do not know them."""

    parts: list[tuple[bytes, int, bytes]]
    """Stage, number, and the part as it is kept."""


class End(msgspec.Struct, frozen=True, tag=3, array_like=True):
    rows: int
    """And staged parts."""
    results: int


class DamagedSnapshot(Exception):
    """These bytes are no whole snapshot of tables."""


_encode = msgspec.msgpack.Encoder().encode
Chunk = Begin | RowsChunk | ResultsChunk | StagedChunk | End
_decode = msgspec.msgpack.Decoder(Chunk).decode


def pieces(
    settled: int, tables: list[Rows], results: Iterator[Known], staged: Staged | None = None
) -> Generator[bytes, None, None]:
    """`tables`: the settled ones in the order of their names. The first piece must be taken at once."""
    open_tables = [(table, table.freeze()) for table in tables]
    parts = _staged(staged)
    try:
        yield _piece(Begin(FORMAT, settled, tuple(table.table for table in tables)))
        rows_count = 0
        for number in range(len(tables)):
            table, frozen = open_tables[0]
            for piece, count in _row_pieces(number, table, frozen):
                rows_count += count
                yield piece
            del open_tables[0]
            table.thaw(frozen)
        results_count = 0
        while some := list(islice(results, PIECE_RESULTS_MAX)):
            results_count += len(some)
            yield _piece(ResultsChunk(some))
        for stage, number, kept in parts:
            rows_count += 1
            yield _piece(StagedChunk([(stage, number, kept)]))
        yield _piece(End(rows_count, results_count))
    finally:
        for table, frozen in open_tables:
            table.thaw(frozen)


def past_pieces(
    at: int, table: Rows, was: dict[Key, bytes | None], behind: Key | None
) -> Generator[bytes, None, None]:
    """One table alone, as it was when that offset was settled, behind that key. The first piece at once, too."""
    frozen = table.freeze()
    table.rewind(frozen, was, behind)
    try:
        yield _piece(Begin(FORMAT, at, (table.table,)))
        rows_count = 0
        for piece, count in _row_pieces(0, table, frozen):
            rows_count += count
            yield piece
        yield _piece(End(rows_count, 0))
    finally:
        table.thaw(frozen)


def _staged(staged: Staged | None) -> list[tuple[bytes, int, bytes]]:
    """There are few, and what is kept of each does not change: no copy is made of it."""
    if staged is None:
        return []
    keys = sorted(staged.rows.keys() | staged.beneath.keys())
    found = [(stage, number, staged.get((stage, number), Level.COMMITTED)) for stage, number in keys]
    return [(stage, number, kept) for stage, number, kept in found if kept is not None]


def _row_pieces(number: int, table: Rows, frozen: Frozen[bytes]) -> Iterator[tuple[bytes, int]]:
    """Each with the count of its rows: fewer the larger the last ones were."""
    count = PIECE_ROWS_MIN
    while True:
        rows = table.next_frozen(frozen, count)
        if rows is None:
            return
        piece = _piece(RowsChunk(number, rows))
        yield piece, len(rows)
        count = min(PIECE_ROWS_MAX, max(1, PIECE_BYTES * len(rows) // len(piece)))


def _piece(part: Chunk) -> bytes:
    encoded = _encode(part)
    return len(encoded).to_bytes(LENGTH_BYTES, "big") + encoded


class Contents(NamedTuple):
    settled: int
    tables: list[Rows]
    results: list[Known]
    staged: dict[StageKey, bytes]


def read(data: bytes) -> Contents:
    """What the joined pieces say; raises DamagedSnapshot."""
    try:
        parts = list(parts_of(data))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedSnapshot(f"a snapshot of tables cannot be read: {error}") from error
    if not parts or not isinstance(parts[0], Begin) or parts[0].format != FORMAT:
        raise DamagedSnapshot(f"a snapshot of tables does not begin as one of format {FORMAT} does")
    begin = parts[0]
    rows: list[list[bytes]] = [[] for _ in begin.tables]
    results: list[Known] = []
    staged: dict[StageKey, bytes] = {}
    for part in parts:
        if isinstance(part, RowsChunk):
            rows[part.table] += part.rows
        elif isinstance(part, ResultsChunk):
            results += part.results
        elif isinstance(part, StagedChunk):
            staged |= {(stage, number): kept for stage, number, kept in part.parts}
    if parts[-1] != End(sum(map(len, rows)) + len(staged), len(results)):
        raise DamagedSnapshot("a snapshot of tables is not whole")
    return Contents(begin.settled, list(map(_filled, begin.tables, rows)), results, staged)


def parts_of(data: bytes) -> Iterator[Chunk]:
    """Of one piece or more; raises what msgspec does."""
    view = memoryview(data)
    at = 0
    while at < len(view):
        end = at + LENGTH_BYTES + int.from_bytes(view[at : at + LENGTH_BYTES], "big")
        yield _decode(view[at + LENGTH_BYTES : end])
        at = end


def _filled(table: Table, rows: list[bytes]) -> Rows:
    filled = Rows(table)
    key_of, values = filled.key_of, filled.values
    filled.fill({key_of(values(row)): row for row in rows})
    return filled
