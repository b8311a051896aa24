"""Pieces of a table's snapshot, and rows as they are kept, for whoever reads them far from any table.

machine/table_snapshot.py writes them: msgpack lists, each behind its length in four bytes, whose first element says
what they are. A row is its version in eight bytes, and its values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from quorate.tables import Table, Values
from quorate.wire.cursor import BadMessage

LENGTH_BYTES = 4
VERSION_BYTES = 8
FORMAT = 1
BEGIN, ROWS, END = 0, 1, 3

_decode = msgspec.msgpack.Decoder().decode


class Opened(NamedTuple):
    """What a piece says."""

    settled: int | None
    """In the first piece: up to where entries are seen."""
    table: Table | None
    """In the first piece: the one that it is of."""
    rows: list[bytes]
    ends_with: int | None
    """In the last piece: how many rows there were in all."""


def open_piece(piece: bytes) -> Opened:
    """Of a snapshot of one table; raises BadMessage."""
    settled: int | None = None
    table: Table | None = None
    rows: list[bytes] = []
    ends_with: int | None = None
    try:
        for what, *rest in _frames(piece):
            if what == BEGIN:
                if rest[0] != FORMAT:
                    raise BadMessage(f"a snapshot of format {rest[0]}; this version reads {FORMAT}")
                settled = int(rest[1])
                (table,) = msgspec.convert(rest[2], tuple[Table, ...])
            elif what == ROWS:
                rows += rest[1]
            elif what == END:
                ends_with = int(rest[0])
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, IndexError) as error:
        raise BadMessage(f"a piece of a snapshot cannot be read: {error}") from error
    return Opened(settled, table, rows, ends_with)


def _frames(piece: bytes) -> Iterator[list[Any]]:
    view = memoryview(piece)
    at = 0
    while at < len(view):
        end = at + LENGTH_BYTES + int.from_bytes(view[at : at + LENGTH_BYTES], "big")
        yield _decode(view[at + LENGTH_BYTES : end])
        at = end


def version_of(kept: bytes) -> int:
    return int.from_bytes(kept[:VERSION_BYTES], "big")


def values_of(kept: bytes) -> Values:
    """In the order of the table's columns."""
    return tuple(_decode(memoryview(kept)[VERSION_BYTES:]))
