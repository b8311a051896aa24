"""A group of tables into a place and back: one snapshot, all of one moment.

The pieces are a node's own (machine/table_snapshot.py), written as they came. They are put back by transactions
with ids that follow from the backup, so that one that is sent twice is done once. Rows get new versions by that: a
version is an offset, and these are new ones. What became of transactions before the backup is not known any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from time import monotonic, sleep, time
from typing import NamedTuple

import msgspec

from quorate.backup import manifest as manifests
from quorate.backup.batches import read_file
from quorate.backup.errors import BackupError, Damaged, Stopped, WrongBackup
from quorate.backup.manifest import (
    FILE_BYTES_MAX,
    FORMAT,
    TABLES,
    DataFile,
    Manifest,
    hashed,
    snapshot_name,
)
from quorate.backup.pace import Progress, Throttle
from quorate.backup.place import Place
from quorate.backup.saving import IsStopped, expect_same, pause
from quorate.backup.source import Source
from quorate.client.errors import OutcomeUnknown, RolledBack, SnapshotLost, TransactionRefused, Unreachable
from quorate.client.tables import TableGroup
from quorate.machine.table_rows import Rows
from quorate.machine.table_snapshot import FORMAT as SNAPSHOT_FORMAT
from quorate.machine.table_snapshot import Begin, Chunk, End, ResultsChunk, RowsChunk, StagedChunk, parts_of
from quorate.tables import ID_BYTES, CreateTable, Operation, Replace, Table
from quorate.wire.tables import Described

TRIES_COUNT = 5
"""Snapshots that are begun before it is given up: each was lost with its node, or its node was."""
PUT_BYTES_MAX = 1 << 20
"""Of rows in one transaction; one that is larger has one alone."""
UNSETTLED_COUNT_MAX = 16
SETTLED_S = 60.0
PAUSE_S = 0.05
NOT_SAVED = "stopped: nothing is changed; the same command begins again"
NOT_RESTORED = "stopped: what is restored so far stands; the same command with --resume goes on from there"

Went = Callable[[int], None]


class TablesSaved(NamedTuple):
    manifest: Manifest
    bytes_count: int
    is_new: bool
    """False: nothing was changed since the last time."""


# ---- saving ----


def save_tables(
    place: Place,
    tables: TableGroup,
    source: Source,
    *,
    rate: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
    is_stopped: IsStopped = lambda: False,
    file_bytes_max: int = FILE_BYTES_MAX,
) -> TablesSaved:
    """Raises Stopped, BackupError and ClientError; what was there before is then still there."""
    described = tables.describe()
    before = expect_same(place, source, TABLES)
    is_whole = before is not None and not manifests.missing(place, before)
    gone: list[int] = []
    for _ in range(TRIES_COUNT):
        if before is not None and is_whole and _is_same(before, source, described.offset):
            return TablesSaved(before, 0, is_new=False)
        node = _from_whom(described, gone)
        throttle, progress = Throttle(rate, monotonic()), Progress(source.name, tell)
        pieces = _paced(tables.snapshot(node), throttle, progress, is_stopped)
        try:
            return _save(place, source, before, pieces, file_bytes_max)
        except SnapshotLost as lost:
            tell(str(lost))
        except Unreachable as error:  # It may be gone for good, and others have copies, too.
            tell(f"{source.name}: node {node} does not answer ({error}); another copy is asked")
            gone.append(node)
        described = tables.describe()
    raise BackupError(f"{source.name}: {TRIES_COUNT} snapshots were lost with their nodes; try again later")


def _from_whom(described: Described, gone: list[int]) -> int:
    """Whoever leads, as long as it answers; of the others any that does."""
    there = [node for node in (described.leader, *described.copies) if node and node not in gone]
    return there[0] if there else described.leader or min(described.copies)


def _is_same(before: Manifest, source: Source, offset: int) -> bool:
    return before.offset == offset and before.config == source.config


def _paced(
    pieces: Iterator[bytes], throttle: Throttle, progress: Progress, is_stopped: IsStopped
) -> Iterator[bytes]:
    for piece in pieces:
        if is_stopped():
            raise Stopped(NOT_SAVED)
        yield piece
        progress.went(len(piece), done=0, whole=0)
        pause(throttle, len(piece), is_stopped)


def _save(
    place: Place, source: Source, before: Manifest | None, pieces: Iterator[bytes], file_bytes_max: int
) -> TablesSaved:
    first = next(pieces)
    (begin,) = parts_of(first)
    assert isinstance(begin, Begin), "a snapshot begins with its tables"
    files: list[DataFile] = []
    unwritten = bytearray(first)

    def close() -> None:
        name = snapshot_name(source.name, begin.settled, len(files))
        place.write(name, unwritten)
        files.append(DataFile(name, len(unwritten), hashed(unwritten), records=_rows_count(unwritten)))
        unwritten.clear()

    for piece in pieces:
        if len(unwritten) + len(piece) > file_bytes_max:
            close()
        unwritten += piece
    close()
    made = Manifest(
        FORMAT,
        TABLES,
        source.name,
        source.id.hex(),
        source.cluster,
        before.number + 1 if before is not None else 1,
        round(time() * 1000),
        source.replication,
        source.replicas,
        source.config,
        complete=True,
        offset=begin.settled,
        tables=tuple(table.name for table in begin.tables),
        snapshot=tuple(files),
    )
    manifests.write(place, made)
    return TablesSaved(made, made.size, is_new=True)


def _rows_count(content: bytes | bytearray) -> int:
    return sum(len(part.rows) for part in parts_of(bytes(content)) if isinstance(part, RowsChunk))


# ---- reading ----


def check(place: Place, manifest: Manifest, went: Went = lambda _: None) -> None:
    """Raises Damaged."""
    for _ in _rows(place, manifest, went):
        pass


def _rows(place: Place, manifest: Manifest, went: Went) -> Iterator[Begin | tuple[Table, list[bytes]]]:
    """How it begins, and then rows, some at a time; raises Damaged where it is no whole snapshot."""
    where = f"{place}: the snapshot of {manifest.name}"
    tables: tuple[Table, ...] | None = None
    rows_count = results_count = 0
    end: End | None = None
    for file in manifest.snapshot:
        content = read_file(place, file)
        went(file.size)
        for part in _parts(content, f"{place}: {file.name}"):
            if end is not None or (tables is None) != isinstance(part, Begin):
                raise Damaged(f"{where} is not in order")
            if isinstance(part, Begin):
                _expect_begin(part, manifest, where)
                tables = part.tables
                yield part
            elif isinstance(part, RowsChunk):
                assert tables is not None
                if not 0 <= part.table < len(tables):
                    raise Damaged(f"{where} has rows of no table")
                rows_count += len(part.rows)
                yield from ((tables[part.table], some) for some in _divided(part.rows))
            elif isinstance(part, ResultsChunk):
                results_count += len(part.results)
            elif isinstance(part, StagedChunk):
                rows_count += len(part.parts)  # Whoever staged them commits them there, or begins anew.
            else:
                end = part
    if end != End(rows_count, results_count):
        raise Damaged(f"{where} is not whole")


def _divided(rows: list[bytes]) -> Iterator[list[bytes]]:
    """In order, none too large for a transaction; the same whenever it is done."""
    some: list[bytes] = []
    size = 0
    for row in rows:
        if some and size + len(row) > PUT_BYTES_MAX:
            yield some
            some, size = [], 0
        some.append(row)
        size += len(row)
    if some:
        yield some


def _parts(content: bytes, where: str) -> Iterator[Chunk]:
    try:
        yield from parts_of(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"{where} cannot be read: {error}") from error


def _expect_begin(begin: Begin, manifest: Manifest, where: str) -> None:
    if begin.format != SNAPSHOT_FORMAT:
        raise WrongBackup(f"{where} is of format {begin.format}; this version reads {SNAPSHOT_FORMAT}")
    if begin.settled != manifest.offset:
        raise Damaged(f"{where} is of offset {begin.settled}, and its manifest says {manifest.offset}")


# ---- putting back ----


class _Unsettled(NamedTuple):
    id: bytes
    operations: list[Operation]


class TablesReturning:
    """Into a group that is empty, or that an earlier restore has begun to fill."""

    def __init__(
        self,
        place: Place,
        tables: TableGroup,
        manifest: Manifest,
        *,
        throttle: Throttle,
        progress: Progress,
        is_stopped: IsStopped,
    ) -> None:
        self._place = place
        self._tables = tables
        self._manifest = manifest
        self._throttle = throttle
        self._progress = progress
        self._is_stopped = is_stopped
        self._count = 0
        self._may_be_there = False
        self._unsettled: list[_Unsettled] = []

    def run(self, *, resume: bool) -> int:
        """Rows that the tables have now; raises Stopped, BackupError and ClientError."""
        rows_count = 0
        for found in _rows(self._place, self._manifest, lambda _: None):
            if isinstance(found, Begin):
                self._create(found.tables, resume=resume)
            else:
                self._put(*found)
                rows_count += len(found[1])
        self._expect_settled()
        return rows_count

    def _create(self, tables: tuple[Table, ...], *, resume: bool) -> None:
        there = {table.name for table in self._tables.tables()}
        self._may_be_there = resume
        if there and (not resume or self._tables.result(self._id()) is None):
            raise WrongBackup(
                f"group {self._tables.group!r} has tables that this restore has not made: "
                f"{', '.join(sorted(there))}; restore to another name (--as)"
            )
        if tables:
            self._do([CreateTable(table) for table in tables])

    def _put(self, table: Table, rows: list[bytes]) -> None:
        if self._is_stopped():
            self._expect_settled()
            raise Stopped(NOT_RESTORED)
        values_of = Rows(table).values
        self._do([Replace(table.name, values_of(row)) for row in rows])
        size = sum(map(len, rows))
        self._progress.went(size, done=self._progress.bytes_count + size, whole=self._manifest.size)
        pause(self._throttle, size, self._is_stopped)

    def _id(self) -> bytes:
        """Of the next transaction: the same whenever this backup is restored."""
        said = f"{self._manifest.id} {self._manifest.number} {self._manifest.offset} {self._count}"
        return sha256(said.encode()).digest()[:ID_BYTES]

    def _do(self, operations: list[Operation]) -> None:
        id_ = self._id()
        self._count += 1
        if self._may_be_there and self._tables.result(id_) is not None:
            return
        if not self._execute(id_, operations):
            self._unsettled.append(_Unsettled(id_, operations))
            if len(self._unsettled) >= UNSETTLED_COUNT_MAX:
                self._expect_settled()

    def _execute(self, id_: bytes, operations: list[Operation]) -> bool:
        """Whether it is settled."""
        deadline = monotonic() + SETTLED_S
        while True:
            try:
                return self._tables.execute(*operations, id_=id_).settled
            except TransactionRefused as refused:
                raise WrongBackup(
                    f"group {self._tables.group!r} refuses what is restored: {refused}"
                ) from refused
            except (OutcomeUnknown, RolledBack) as error:
                if monotonic() >= deadline:
                    raise BackupError(f"{error}; is a majority of the nodes up? Then: --resume") from error

    def _expect_settled(self) -> None:
        """What touches asynchronous tables only is answered before it is settled, and may be lost."""
        deadline = monotonic() + SETTLED_S
        while self._unsettled:
            waiting = self._unsettled[0]
            if self._tables.result(waiting.id) is not None:
                del self._unsettled[0]
            elif monotonic() >= deadline:
                raise BackupError(
                    f"group {self._tables.group!r} settles nothing within {SETTLED_S:g} s; is a majority of the "
                    f"nodes up? Then: --resume"
                )
            else:
                sleep(PAUSE_S)
                self._execute(waiting.id, waiting.operations)
