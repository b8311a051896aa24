"""A whole table as it was at one moment, however long it takes to read it.

A copy keeps what it was for us while we read (`TableGroup.snapshot`). Where it is lost half-way, because the copy's
node has died, another one shows the same moment, from the key on that we had got to, as long as it keeps what has
changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quorate.client.errors import BadAnswer, ChangesGone, SnapshotLost, Unreachable
from quorate.client.tables import TableGroup
from quorate.tables import Table, Values
from quorate.wire.table_pieces import open_piece, values_of
from quorate.wire.tables import Consistency

ROUNDS = 2
"""So many times every copy is asked."""


def rows_of(
    group: TableGroup, table: str, at: int = -1, check: Callable[[Table], None] = lambda table: None
) -> Iterator[list[bytes]]:
    """Rows as they are kept, in the order of their keys, some at a time: all that was settled at that offset, or
    (-1) is settled now. `check` is told first what the table was then. Raises ChangesGone, and what calls raise."""
    described = group.describe(Consistency.LINEARIZABLE)  # No piece is from before that.
    copies = [described.leader, *described.copies] if described.leader else list(described.copies)
    after: Values | None = None
    gone: ChangesGone | None = None
    for node in ROUNDS * copies:
        try:
            for settled, key, rows in _rows(group, node, table, at, after, check):
                at = settled
                yield rows
                after = key or after
            return
        except ChangesGone as error:
            gone = error
        except (SnapshotLost, Unreachable):
            continue
    raise gone or Unreachable(f"{group.group}/{table}: no copy could show it to its end")


def _rows(
    group: TableGroup, node: int, table: str, at: int, after: Values | None, check: Callable[[Table], None]
) -> Iterator[tuple[int, Values | None, list[bytes]]]:
    """Each with the offset that they are of, and the last key."""
    settled = at
    description: Table | None = None
    rows_count = 0
    for piece in group.snapshot(node, table=table, at=at, after=after):
        opened = open_piece(piece)
        if opened.settled is not None:
            settled, description = opened.settled, opened.table
            if at not in (-1, settled) or description is None or description.name != table:
                raise BadAnswer(f"node {node} showed {group.group}/{table} at {settled}, not {at}")
            check(description)
        if description is None:
            raise BadAnswer(f"a snapshot of {group.group}/{table} does not begin as one")
        rows_count += len(opened.rows)
        if opened.rows:
            yield settled, _key(description, opened.rows[-1]), opened.rows
        if opened.ends_with is not None and opened.ends_with != rows_count:
            raise BadAnswer(f"a snapshot of {group.group}/{table} is not whole")


def _key(table: Table, kept: bytes) -> Values:
    names = [column.name for column in table.columns]
    values = values_of(kept)
    return tuple(values[names.index(name)] for name in table.key)
