"""What tables cost: single-row replaces with undo kept, taking transactions back, and writing during a snapshot.

The machine alone, on one core, with everything that a host would hand it: entries as they lie in the log, appended
and later settled. No protocol, no disk, no network. Seconds are of the processor, so that others who use it
meanwhile do not count; how long writers had to wait by the clock on the wall is shown as well.
"""

from __future__ import annotations

from random import Random
from statistics import median
from time import perf_counter, thread_time
from typing import NamedTuple

from quorate.bench import machine
from quorate.bench.report import Report, Say, at_least, at_most, figure, ratios
from quorate.core.entry import Header
from quorate.machine.table import Tables
from quorate.machine.table_wire import encode
from quorate.tables import Column, CreateTable, Operation, Replace, Table, Transaction, Type

ACCOUNTS = Table(
    "accounts",
    (Column("id", Type.INT), Column("owner", Type.STR), Column("balance", Type.INT)),
    ("id",),
)
ROWS = 10_000
TRANSACTIONS = 102_400
UNSETTLED = 256
"""Entries that wait for a quorum, when single rows are replaced."""
UNDONE = 2000
"""Transactions that are taken back at once."""
REPETITIONS = 11
UNDO_REPETITIONS = 41
SNAPSHOT_ROWS = 1_000_000
FILLING_ROWS = 1000
"""In one transaction, while a table is filled."""
WRITES_PER_PIECE = 20
"""Transactions between two pieces of a snapshot."""
SNAPSHOT_REPETITIONS = 3

Entry = tuple[Header, bytes]


class Log:
    """Makes entries for one group of tables, each under a fresh transaction id."""

    def __init__(self) -> None:
        self._random = Random(1)
        self._offset = 0

    def entry(self, *operations: Operation) -> Entry:
        offset = self._offset
        self._offset += 1
        payload = encode(Transaction(offset.to_bytes(16, "big"), operations))
        return Header(1, offset, size=len(payload)), payload

    def replaces(self, count: int, rows: int, *, each: int = 1) -> list[Entry]:
        """Transactions that replace some of so many rows."""
        below = self._random.randrange
        return [self.entry(*(account(below(rows)) for _ in range(each))) for _ in range(count)]

    def forget(self, count: int) -> None:
        """The last entries were cut: their offsets are free again."""
        self._offset -= count


def account(number: int) -> Replace:
    return Replace("accounts", (number, f"owner {number}", number % 1000))


def filled(log: Log, rows: int) -> Tables:
    tables = Tables()
    header, payload = log.entry(CreateTable(ACCOUNTS))
    tables.settle(header, 0, payload)
    for first in range(0, rows, FILLING_ROWS):
        some = range(first, min(first + FILLING_ROWS, rows))
        header, payload = log.entry(*map(account, some))
        tables.settle(header, 0, payload)
    return tables


def replaces(tables: Tables, entries: list[Entry]) -> float:
    """Seconds to append all of these, and then to settle them."""
    append, settle = tables.append, tables.settle
    began = thread_time()
    for header, payload in entries:
        append(header, payload)
    for header, payload in entries:
        settle(header, 0, payload)
    return thread_time() - began


def undo(tables: Tables, entries: list[Entry]) -> tuple[float, float]:
    """Seconds to append these, and to take them back again."""
    append, before = tables.append, tables.appended
    began = thread_time()
    for header, payload in entries:
        append(header, payload)
    appended = thread_time()
    tables.cut(before)
    return appended - began, thread_time() - appended


class Stop(NamedTuple):
    """How long one piece of a snapshot held up the writes."""

    busy: float
    """Seconds of the processor."""
    waited: float
    """Seconds on the wall."""


def snapshot(tables: Tables, log: Log, rows: int) -> list[Stop]:
    """A whole snapshot, with writes between its pieces."""
    stops: list[Stop] = []
    busy, wall = thread_time(), perf_counter()
    pieces = tables.snapshot_pieces()
    while True:
        piece = next(pieces, None)
        stops.append(Stop(thread_time() - busy, perf_counter() - wall))
        if piece is None:
            return stops
        replaces(tables, log.replaces(WRITES_PER_PIECE, rows))
        busy, wall = thread_time(), perf_counter()


def run(say: Say = lambda _: None, *, quick: bool = False) -> Report:
    transactions = TRANSACTIONS // 10 if quick else TRANSACTIONS
    large = SNAPSHOT_ROWS // 20 if quick else SNAPSHOT_ROWS
    rates = _rates(say, ROWS, transactions, 3 if quick else REPETITIONS)
    rates_of_large = _rates(say, large, transactions, 1 if quick else SNAPSHOT_REPETITIONS)
    repetitions = 5 if quick else UNDO_REPETITIONS
    one = _undo(say, ROWS, 1, repetitions)
    ten = _undo(say, ROWS, 10, repetitions)
    snapshots = _snapshots(say, large, 1 if quick else SNAPSHOT_REPETITIONS)
    longest = [1e3 * max(stop.busy for stop in stops) for stops in snapshots]
    waited = [1e3 * max(stop.waited for stop in stops) for stops in snapshots]
    typical = [1e3 * median(stop.busy for stop in stops) for stops in snapshots]
    whole = [sum(stop.busy for stop in stops) for stops in snapshots]
    return Report(
        bench="table",
        title="what tables cost, on one core",
        command="quorate bench table",
        machine=machine.describe(),
        figures=(
            figure(f"single-row replaces over {large:,} rows", "rows/s", rates_of_large),
            figure("one row: append", "µs", [1e6 * seconds for seconds in one[0]]),
            figure("one row: take back", "µs", [1e6 * seconds for seconds in one[1]]),
            figure("ten rows: append", "µs", [1e6 * seconds for seconds in ten[0]]),
            figure("ten rows: take back", "µs", [1e6 * seconds for seconds in ten[1]]),
            figure(f"a piece of a snapshot of {large:,} rows", "ms", typical),
            figure("all pieces of it", "s", whole),
            figure("the longest wait for one of them by the clock on the wall", "ms", waited),
        ),
        claims=(
            at_least(150_000, "single-row replaces, undo kept until settled", "rows/s", rates),
            at_most(2, "taking back one row beside applying it", "", ratios(one[1], one[0])),
            at_most(2, "taking back ten rows beside applying them", "", ratios(ten[1], ten[0])),
            at_most(20, f"longest stop of writes, snapshot of {large:,} rows", "ms", longest),
        ),
        notes=(
            f"transactions are entries as they lie in the log, {UNSETTLED} of them unsettled, over {ROWS:,} rows",
            f"{WRITES_PER_PIECE} transactions are appended and settled between two pieces of a snapshot",
            "seconds of the processor, on a machine that others may use; that slows it, too, by its caches",
            "by the clock on the wall the others' turns count, too: nothing is promised of that",
            "the collector of garbage is on, as in a node: its stops count",
        ),
    )


def _rates(say: Say, rows: int, transactions: int, repetitions: int) -> list[float]:
    log = Log()
    tables = filled(log, rows)

    def rate(number: int) -> float:
        say(f"single-row replaces over {rows:,} rows, {number + 1} of {repetitions}")
        return transactions / sum(
            replaces(tables, log.replaces(UNSETTLED, rows)) for _ in range(transactions // UNSETTLED)
        )

    return [rate(number) for number in range(repetitions)]


def _undo(say: Say, rows: int, each: int, repetitions: int) -> tuple[list[float], list[float]]:
    """Seconds for a transaction of so many rows: applied, and taken back; pairs."""
    say(f"taking back transactions of {each} row{'s' if each > 1 else ''}")
    log = Log()
    tables = filled(log, rows)

    def pair() -> tuple[float, float]:
        entries = log.replaces(UNDONE, rows, each=each)
        log.forget(UNDONE)
        return undo(tables, entries)

    pairs = [pair() for _ in range(repetitions)]
    return [applied / UNDONE for applied, _ in pairs], [taken / UNDONE for _, taken in pairs]


def _snapshots(say: Say, rows: int, repetitions: int) -> list[list[Stop]]:
    say(f"filling a table with {rows:,} rows")
    log = Log()
    tables = filled(log, rows)

    def stops(number: int) -> list[Stop]:
        say(f"snapshot of {rows:,} rows, {number + 1} of {repetitions}")
        return snapshot(tables, log, rows)

    return [stops(number) for number in range(repetitions)]
