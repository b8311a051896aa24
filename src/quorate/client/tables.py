"""Tables of a cluster, from a program: `with TableGroup("127.0.0.1:9092", "bank") as bank: bank.execute(…)`.

Transactions are operations and conditions (`quorate.tables`). Reads choose what they see: `committed`, the default,
is what is settled where it is asked, and at least everything that this client has written or seen; `linearizable`
is what is settled anywhere; `local` is whatever that copy has applied, and may be taken back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Self, TypeVar

from quorate.client import admin
from quorate.client.cluster import Cluster, in_words
from quorate.client.connection import Connection
from quorate.client.errors import ChangesGone, SnapshotLost
from quorate.client.looking_around import METADATA_VERSION, question, seen_in
from quorate.client.security import Security
from quorate.client.table_calls import Address, Call, Step, new_id
from quorate.client.table_session import LIMIT, Executed, Pages, Session
from quorate.tables import Condition, Operation, Result, Row, Table, Values
from quorate.wire import tables as wire
from quorate.wire.cursor import BadMessage
from quorate.wire.messages import Api
from quorate.wire.tables import Consistency

Found = TypeVar("Found")


def create_group(
    cluster: Cluster | str, group: str, *, replicas_count: int = -1, replication: str = "confirm"
) -> None:
    """A group of tables, empty; raises Refused, and Unreachable where nobody knows whether it is there now."""
    config = {"quorate.kind": "tables", "quorate.replication": replication}
    if isinstance(cluster, str):
        with Cluster(cluster) as opened:
            admin.create_topic(
                opened, group, partitions_count=1, replicas_count=replicas_count, config=config
            )
    else:
        admin.create_topic(cluster, group, partitions_count=1, replicas_count=replicas_count, config=config)


class TableGroup:
    """One group of tables. For one thread."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        *,
        client_id: str = "quorate",
        timeout_s: float = 30.0,
        security: Security | None = None,
    ) -> None:
        self._session = Session(bootstrap, group, timeout_s)
        self._security = security
        self._client_id = client_id
        self._connections: dict[Address, Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    @property
    def group(self) -> str:
        return self._session.group

    def expect(self, group_id: bytes) -> None:
        """From now on, whatever else bears its name is not this group: calls raise GroupReplaced."""
        self._session.nodes.group_ids[self.group] = group_id

    @property
    def offset(self) -> int:
        """Up to here this client has written, or seen what is settled: committed reads see at least that."""
        return self._session.offset

    # --- what can be asked ---

    def execute(
        self, *operations: Operation, conditions: Sequence[Condition] = (), id_: bytes | None = None
    ) -> Executed:
        """All of it, or nothing. Raises TransactionRefused, RolledBack, OutcomeUnknown, Refused, Unreachable.

        `id_`: the one of an earlier try; under one id something is done once.
        """
        return self._ask(self._session.execute(operations, conditions, id_))

    def get(
        self, table: str, key: Values, consistency: Consistency = Consistency.COMMITTED, *, node: int = 0
    ) -> Row | None:
        """The row with that key, as the leader has it, or that node."""
        return self._ask(self._session.get(table, key, Consistency(consistency), node))

    def scan(
        self,
        table: str,
        first: Values | None = None,
        last: Values | None = None,
        *,
        limit: int = LIMIT,
        consistency: Consistency = Consistency.COMMITTED,
        node: int = 0,
    ) -> tuple[Row, ...]:
        """Rows in the order of their keys, both ends included; the first columns of a key stand for the rest."""
        rows: list[Row] = []
        for page in self._pages(table, first, last, limit, consistency, node):
            rows += page
        return tuple(rows)

    def iterate(
        self,
        table: str,
        first: Values | None = None,
        last: Values | None = None,
        *,
        consistency: Consistency = Consistency.COMMITTED,
        node: int = 0,
    ) -> Iterator[Row]:
        """The same without a limit, fetched in pages: each is of one moment, and later ones of later moments."""
        for page in self._pages(table, first, last, None, consistency, node):
            yield from page

    def result(self, id_: bytes) -> Result | None:
        """What became of a transaction; None: nothing has, so far, or it is long ago."""
        return self._ask(self._session.result(id_))

    def tables(self, consistency: Consistency = Consistency.COMMITTED) -> tuple[Table, ...]:
        return self.describe(consistency).tables

    def describe(self, consistency: Consistency = Consistency.COMMITTED, *, node: int = 0) -> wire.Described:
        """Its tables, its protocol, who leads and who has copies."""
        return self._ask(self._session.describe(Consistency(consistency), node))

    def snapshot(
        self, node: int, *, table: str = "", at: int = -1, after: Values | None = None
    ) -> Iterator[bytes]:
        """Everything that is settled on that node when the first piece is taken, all of one moment.

        Or of one table alone, also as it was when the offset `at` was settled, and only what is behind a key.
        Raises SnapshotLost where the node has forgotten it half-way: begin again; and ChangesGone where it is too
        long ago.
        """
        id_ = new_id()
        for number in count():
            piece = self._ask(self._session.piece(id_, number, node, table=table, at=at, after=after))
            if piece.kept_from >= 0:
                raise ChangesGone(self.group, table, at + 1, piece.kept_from)
            if piece.is_lost:
                raise SnapshotLost(self.group, node)
            yield piece.content
            if piece.is_last:
                return

    def changes(self, table: str, *, first: int, last: int) -> Iterator[tuple[wire.Change, ...]]:
        """What settled entries from `first` to `last` have changed in that table, in order, some at a time.

        The leader is asked, and where it does not keep them any more, the other copies. Raises ChangesGone.
        """
        node, skip = 0, 0
        others: list[int] | None = None
        while True:
            page = self._ask(self._session.changes(table, first=first, last=last, skip=skip, node=node))
            if page.kept_from > first:
                if others is None:
                    others = list(self.describe().copies)
                if not others:
                    raise ChangesGone(self.group, table, first, page.kept_from)
                node = others.pop(0)
                continue
            if page.changes:
                yield page.changes
            if page.next is None:
                return
            first, skip = page.next

    def kept_from(self, table: str) -> int:
        """The first offset from which on whoever leads has all changes of that table."""
        return self._ask(self._session.changes(table, first=-1, last=-1, skip=0, node=0)).kept_from

    def promote(self, node: int, *, roll_back: bool = False) -> int:
        """Let that node lead (`confirm`); who leads now."""
        return self._ask(self._session.promote(node, roll_back=roll_back))

    def demote(self) -> int:
        """Let whoever leads stop, once everything is settled (`confirm`)."""
        return self._ask(self._session.demote())

    # --- asking ---

    def _pages(
        self,
        table: str,
        first: Values | None,
        last: Values | None,
        limit: int | None,
        consistency: Consistency,
        node: int,
    ) -> Iterator[tuple[Row, ...]]:
        how = Consistency(consistency)
        pages = Pages(self._session, table, first, last, limit=limit, consistency=how, node=node)
        while (call := pages.next()) is not None:
            yield self._ask(call)

    def _ask(self, call: Call[Found]) -> Found:
        while not call.is_over:
            step = call.next(monotonic())
            sleep(step.pause_s)
            self._take(call, step)
        return call.found

    def _take(self, call: Call[Any], step: Step) -> None:
        was_sent = False
        deadline = monotonic() + step.patience_s
        try:
            connection = self._connect(step.address, deadline)
            was_sent = True
            if step.looks_around:
                body = connection.ask(Api.METADATA, METADATA_VERSION, question(call.group), deadline=deadline)
            else:
                answer = connection.ask_tables(call.request(), deadline=deadline)
        except (OSError, BadMessage) as error:
            self._drop(step.address)
            call.failed(monotonic(), error, in_words(error), was_sent=was_sent)
            return
        except BaseException:
            # Also when interrupted: an answer that nobody waited for must not answer the next request.
            self._drop(step.address)
            raise
        if step.looks_around:
            call.saw(*seen_in(body))
        else:
            call.answered(answer)

    def _connect(self, address: Address, deadline: float) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(
                *address, client_id=self._client_id, deadline=deadline, security=self._security
            )
        return self._connections[address]

    def _drop(self, address: Address) -> None:
        broken = self._connections.pop(address, None)
        if broken is not None:
            broken.close()
