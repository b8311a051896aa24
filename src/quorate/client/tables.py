"""Tables of a cluster, from a program: `with TableGroup("127.0.0.1:9092", "bank") as bank: bank.execute(…)`.

Transactions are operations and conditions (`quorate.tables`). Reads choose what they see: `committed`, the default,
is what is settled where it is asked, and at least everything that this client has written; `linearizable` is what
is settled anywhere; `local` is whatever that copy has applied, and may be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import sleep
from types import TracebackType
from typing import Any, Self

from quorate.client import admin
from quorate.client.cluster import Cluster, in_words, parse_bootstrap
from quorate.client.connection import Connection
from quorate.client.security import Security
from quorate.client.table_calls import Call, Nodes, new_id
from quorate.tables import Condition, Operation, Result, Row, Table, Transaction, Values
from quorate.wire import tables as wire
from quorate.wire.cursor import BadMessage
from quorate.wire.tables import Consistency

LIMIT = 1000
"""Rows that a scan gives, where nobody says how many."""


def create_group(
    cluster: Cluster, group: str, *, replicas_count: int = -1, replication: str = "confirm"
) -> None:
    """A group of tables, empty; raises Refused."""
    config = {"quorate.kind": "tables", "quorate.replication": replication}
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
        self._security = security
        self.group = group
        self.timeout_s = timeout_s
        self.offset = -1
        """Of the last transaction that this client has written: committed reads see it."""
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._nodes = Nodes(parse_bootstrap(bootstrap))
        self._connections: dict[tuple[str, int], Connection] = {}

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

    # --- what can be asked ---

    def execute(
        self, *operations: Operation, conditions: Sequence[Condition] = (), id_: bytes | None = None
    ) -> Result:
        """All of it, or nothing. Raises TransactionRefused, RolledBack, OutcomeUnknown, Refused, Unreachable.

        `id_`: the one of an earlier try; under one id something is done once.
        """
        transaction = Transaction(id_ or new_id(), operations, tuple(conditions))
        done: wire.Done = self._ask(
            wire.Execute(self.group, transaction, timeout_ms=round(self.timeout_s * 1000))
        )
        assert done.result is not None
        if done.settled:
            self.offset = max(self.offset, done.result.offset)
        return done.result

    def get(self, table: str, key: Values, consistency: Consistency = Consistency.COMMITTED) -> Row | None:
        """The row with that key."""
        found: wire.Rows = self._ask(wire.Get(self.group, table, key, consistency, self.offset))
        return found.rows[0] if found.rows else None

    def scan(
        self,
        table: str,
        first: Values | None = None,
        last: Values | None = None,
        *,
        limit: int = LIMIT,
        consistency: Consistency = Consistency.COMMITTED,
    ) -> tuple[Row, ...]:
        """Rows in the order of their keys, both ends included; the first columns of a key stand for the rest."""
        request = wire.Scan(self.group, table, first, last, limit, consistency, self.offset)
        found: wire.Rows = self._ask(request)
        return found.rows

    def result(self, id_: bytes) -> Result | None:
        """What became of a transaction; None: nothing has, so far, or it is long ago."""
        done: wire.Done = self._ask(wire.AskResult(self.group, id_))
        return done.result

    def tables(self, consistency: Consistency = Consistency.COMMITTED) -> tuple[Table, ...]:
        return self.describe(consistency).tables

    def describe(self, consistency: Consistency = Consistency.COMMITTED) -> wire.Described:
        described: wire.Described = self._ask(wire.AskTables(self.group, consistency, self.offset))
        return described

    def promote(self, node: int, *, roll_back: bool = False) -> int:
        """Let that node lead (`confirm`); who leads now."""
        ordered: wire.Ordered = self._ask(wire.Promote(self.group, roll_back), node=node)
        return ordered.leader

    def demote(self) -> int:
        """Let whoever leads stop, once everything is settled (`confirm`)."""
        ordered: wire.Ordered = self._ask(wire.Demote(self.group))
        return ordered.leader

    # --- asking ---

    def _ask(self, request: wire.Request, *, node: int = 0) -> Any:
        call = Call(self._nodes, request, self.timeout_s, node=node)
        if not self._nodes.addresses:
            self._look_around()
        while not call.is_over:
            address = call.address()
            was_sent = False
            try:
                connection = self._connect(address, call.try_deadline())
                was_sent = True
                answer = connection.ask_tables(request, deadline=call.deadline)
            except (OSError, BadMessage) as error:
                broken = self._connections.pop(address, None)
                if broken is not None:
                    broken.close()
                call.failed(in_words(error), was_sent=was_sent)
            else:
                call.answered(answer)
            if not call.is_over:
                sleep(call.pause_s())
        return call.found

    def _connect(self, address: tuple[str, int], deadline: float) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(
                *address, client_id=self._client_id, deadline=deadline, security=self._security
            )
        return self._connections[address]

    def _look_around(self) -> None:
        """Where the nodes are, by any of those that were named."""
        with Cluster(
            self._bootstrap,
            client_id=self._client_id,
            timeout_s=self.timeout_s,
            security=self._security,
        ) as cluster:
            _, self._nodes.addresses = admin.find_nodes(cluster)
