"""Snapshots of tables for clients, one piece after the other: what backups are made of.

A snapshot is of one moment, and the tables go on changing meanwhile: what changes leaves its former self to the
snapshot, for as long as that is open. So there are few at a time, and one that nobody asks for any more is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from quorate.core.entry import Partition
from quorate.machine.table import Tables
from quorate.machine.table_changes import Gone
from quorate.tables import ID_BYTES, BadRead, Level
from quorate.wire.tables import AskPiece, Piece

OPEN_COUNT_MAX = 4
"""On one node."""
IDLE_S = 60.0
"""After so long a client is believed to be gone."""

Which = tuple[Partition, bytes]


class Open:
    """One snapshot, with the piece that was given out last: it may be asked for again."""

    __slots__ = ("_ahead", "_pieces", "is_over", "number", "piece", "timer")

    def __init__(self, pieces: Generator[bytes, None, None]) -> None:
        self._pieces = pieces
        self._ahead: bytes | None = next(pieces)
        self.number = -1
        self.piece = Piece(b"")
        self.is_over = False
        self.timer: asyncio.TimerHandle | None = None

    def go_on(self) -> None:
        assert self._ahead is not None, "nothing comes behind the last piece"
        content, self._ahead = self._ahead, next(self._pieces, None)
        self.is_over = self._ahead is None
        self.piece = Piece(content, is_last=self.is_over)
        self.number += 1

    def close(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self._pieces.close()


class Snapshots:
    """All that are open on a node."""

    __slots__ = ("_idle_s", "_open")

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._open: dict[Which, Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    def piece(self, partition: Partition, asked: AskPiece, tables: Tables, level: Level) -> Piece:
        """Raises BadRead. What is settled is in there, at whatever level it is asked for."""
        if len(asked.snapshot) != ID_BYTES:
            raise BadRead(f"a snapshot's id has {ID_BYTES} bytes, not {len(asked.snapshot)}")
        which = partition, asked.snapshot
        found = self._open.get(which)
        if found is None and asked.number == 0:
            self._make_room()
            if len(self._open) >= OPEN_COUNT_MAX:
                raise BadRead(f"{OPEN_COUNT_MAX} snapshots are being read here already; try again later")
            try:
                found = self._open[which] = Open(_pieces(asked, tables))
            except Gone as gone:
                return Piece(b"", kept_from=gone.first)
        if found is None or asked.number not in (found.number, found.number + 1):
            return Piece(b"", is_lost=True)
        if asked.number > found.number:
            if found.is_over:
                return Piece(b"", is_lost=True)
            found.go_on()
        self._expect_more(which, found)
        return found.piece

    def _make_room(self) -> None:
        """Those of which the last piece was given out hold nothing back, and are there to repeat it only."""
        over = [which for which, each in self._open.items() if each.is_over]
        for which in over[: max(0, len(self._open) + 1 - OPEN_COUNT_MAX)]:
            self.forget(which)

    def _expect_more(self, which: Which, found: Open) -> None:
        if found.timer is not None:
            found.timer.cancel()
        found.timer = asyncio.get_running_loop().call_later(self._idle_s, self.forget, which)

    def forget(self, which: Which) -> None:
        self._open.pop(which).close()


def _pieces(asked: AskPiece, tables: Tables) -> Generator[bytes, None, None]:
    if not asked.table:
        return tables.snapshot_pieces()
    return tables.past(asked.table, asked.at if asked.at >= 0 else None, asked.after)
