"""What one client knows of one group of tables, and the calls it makes: the same for both kinds of client.

A client sees at least what it has seen before, wherever it asks: with each request for what is settled goes the
offset up to which this client has written or read. `local` reads are left out of that, since what they see may be
taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from quorate.client.cluster import parse_bootstrap
from quorate.client.errors import Refused
from quorate.client.table_calls import Call, Nodes, new_id
from quorate.tables import Condition, Operation, Result, Row, Transaction, Values, why_not, why_not_values
from quorate.wire import tables as wire
from quorate.wire.tables import PAGE_ROWS_MAX, Consistency

LIMIT = 1000
"""Rows that a scan gives, where nobody says how many."""

Found = TypeVar("Found")


class Executed(NamedTuple):
    """A transaction that was done."""

    id: bytes
    offset: int
    """Its entry's, and the version of every row that it changed."""
    settled: bool
    """False: it changed asynchronous tables only, and is on the leader's disk; it may be taken back yet."""


class Session:
    def __init__(self, bootstrap: str, group: str, timeout_s: float) -> None:
        """Raises ValueError for a bootstrap that is none."""
        self.group = group
        self.timeout_s = timeout_s
        self.nodes = Nodes(parse_bootstrap(bootstrap))
        self.offset = -1
        """Up to here this client has written, or seen what is settled."""

    # --- calls ---

    def execute(
        self, operations: Sequence[Operation], conditions: Sequence[Condition], id_: bytes | None
    ) -> Call[Executed]:
        """Raises Refused for what no table could do."""
        transaction = Transaction(id_ or new_id(), tuple(operations), tuple(conditions))
        wrong = why_not(transaction)
        if wrong is not None:
            raise Refused(wrong)

        def judge(done: wire.Done) -> Executed:
            assert done.result is not None
            if done.settled:
                self.offset = max(self.offset, done.result.offset)
            return Executed(transaction.id, done.result.offset, done.settled)

        request = wire.Execute(self.group, transaction, group_id=self._group_id)
        return self._call(request, judge, size=wire.size_of(request))

    def get(self, table: str, key: Values, consistency: Consistency, node: int) -> Call[Row | None]:
        def judge(found: wire.Rows) -> Row | None:
            self._looked(consistency, found.offset)
            return found.rows[0] if found.rows else None

        request = wire.Get(
            self.group, table, _key(key), consistency, self._from(consistency), group_id=self._group_id
        )
        return self._call(request, judge, node=_at(node, consistency))

    def scan(
        self,
        table: str,
        first: Values | None,
        last: Values | None,
        after: Values | None,
        limit: int,
        consistency: Consistency,
        node: int,
        judge: Callable[[wire.Rows], Found],
    ) -> Call[Found]:
        """One page; `judge` makes of it what is wanted."""

        def looked(page: wire.Rows) -> Found:
            self._looked(consistency, page.offset)
            return judge(page)

        first, last = (None if end is None else _key(end) for end in (first, last))
        offset = self._from(consistency)
        request = wire.Scan(
            self.group, table, first, last, after, limit, consistency, offset, group_id=self._group_id
        )
        return self._call(request, looked, node=_at(node, consistency))

    def result(self, id_: bytes) -> Call[Result | None]:
        def judge(done: wire.Done) -> Result | None:
            return done.result

        return self._call(wire.AskResult(self.group, id_, group_id=self._group_id), judge)

    def describe(self, consistency: Consistency, node: int) -> Call[wire.Described]:
        def judge(described: wire.Described) -> wire.Described:
            self._looked(consistency, described.offset)
            return described

        request = wire.AskTables(self.group, consistency, self._from(consistency), group_id=self._group_id)
        return self._call(request, judge, node=_at(node, consistency))

    def piece(
        self,
        snapshot: bytes,
        number: int,
        node: int,
        *,
        table: str = "",
        at: int = -1,
        after: Values | None = None,
    ) -> Call[wire.Piece]:
        def judge(piece: wire.Piece) -> wire.Piece:
            return piece

        request = wire.AskPiece(
            self.group,
            snapshot,
            number,
            offset=max(at, self._from(Consistency.COMMITTED)),
            group_id=self._group_id,
            table=table,
            at=at,
            after=after,
        )
        return self._call(request, judge, node=node)

    def changes(self, table: str, *, first: int, last: int, skip: int, node: int) -> Call[wire.Changes]:
        def judge(changes: wire.Changes) -> wire.Changes:
            return changes

        request = wire.AskChanges(self.group, table, first, last, skip, offset=last, group_id=self._group_id)
        return self._call(request, judge, node=node)

    def promote(self, node: int, *, roll_back: bool) -> Call[int]:
        return self._call(wire.Promote(self.group, roll_back, self._group_id), _leader, node=node)

    def demote(self) -> Call[int]:
        return self._call(wire.Demote(self.group, self._group_id), _leader)

    # --- what they have in common ---

    def _call(
        self, request: wire.Request, judge: Callable[[Any], Found], *, node: int = 0, size: int = 0
    ) -> Call[Found]:
        now = monotonic()
        return Call(self.nodes, request, judge, now=now, timeout_s=self.timeout_s, node=node, size=size)

    @property
    def _group_id(self) -> bytes:
        return self.nodes.group_ids.get(self.group, b"")

    def _from(self, consistency: Consistency) -> int:
        return self.offset if consistency is Consistency.COMMITTED else -1

    def _looked(self, consistency: Consistency, offset: int) -> None:
        if consistency is not Consistency.LOCAL:
            self.offset = max(self.offset, offset)


class Pages:
    """A scan as calls for one page after the other. Each page is of one moment, and none is older than the last."""

    def __init__(
        self,
        session: Session,
        table: str,
        first: Values | None,
        last: Values | None,
        *,
        limit: int | None,
        consistency: Consistency,
        node: int,
    ) -> None:
        self._session = session
        self._what = table, first, last
        self._how = consistency, node
        self._left = limit
        self._after: Values | None = None
        self._is_over = limit is not None and limit <= 0

    def next(self) -> Call[tuple[Row, ...]] | None:
        """None: that was all. What a call has found is to be there before the next one is made."""
        if self._is_over:
            return None
        limit = PAGE_ROWS_MAX if self._left is None else min(self._left, PAGE_ROWS_MAX)

        def judge(page: wire.Rows) -> tuple[Row, ...]:
            self._after = page.after
            if self._left is not None:
                self._left -= len(page.rows)
            self._is_over = page.after is None or self._left == 0
            return page.rows

        return self._session.scan(*self._what, self._after, limit, *self._how, judge)


def _key(values: Values | Sequence[Any]) -> Values:
    """Raises Refused for what is no key, or part of one."""
    if not isinstance(values, tuple | list):
        raise Refused(f"a key is a tuple of values, as in (1,), not {values!r:.40}")
    key = tuple(values)
    wrong = why_not_values(key)
    if wrong is not None:
        raise Refused(wrong)
    return key


def _at(node: int, consistency: Consistency) -> int:
    if node and consistency is Consistency.LINEARIZABLE:
        raise Refused(
            "a linearizable read is answered by whoever leads; leave the node out, or read `committed`"
        )
    return node


def _leader(ordered: wire.Ordered) -> int:
    return ordered.leader
