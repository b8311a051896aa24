"""Tables of a cluster, from an asyncio program: `async with AsyncTableGroup("127.0.0.1:9092", "bank") as bank: …`.

The same as `TableGroup` (tables.py), for many tasks at once: they share one connection to each node, and what one
of them has written or seen all of them see.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeVar

from quorate.client.aio_connection import AsyncConnection
from quorate.client.cluster import in_words
from quorate.client.looking_around import METADATA_VERSION, question, seen_in
from quorate.client.security import Security
from quorate.client.table_calls import Address, Call, Step
from quorate.client.table_session import LIMIT, Executed, Pages, Session
from quorate.tables import Condition, Operation, Result, Row, Table, Values
from quorate.wire import tables as wire
from quorate.wire.cursor import BadMessage
from quorate.wire.messages import Api, decode_response, encode_request
from quorate.wire.tables import Consistency

CLOSED = "before the client was closed"
Found = TypeVar("Found")


class AsyncTableGroup:
    """One group of tables. For any number of tasks of one event loop."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        *,
        client_id: str = "quorate",
        timeout_s: float = 30.0,
        security: Security | None = None,
    ) -> None:
        """`security`: where nodes speak TLS, or ask for a password. Calls raise NotLetIn, then, too."""
        self._session = Session(bootstrap, group, timeout_s)
        self._security = security
        self._client_id = client_id
        self._connections: dict[Address, AsyncConnection] = {}
        self._connecting: dict[Address, asyncio.Task[AsyncConnection]] = {}
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Whoever still waits for an answer hears that there will be none."""
        self._is_closed = True
        connecting, self._connecting = self._connecting, {}
        for task in connecting.values():
            task.cancel()
        await asyncio.gather(*connecting.values(), return_exceptions=True)
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.abort(CLOSED)

    @property
    def group(self) -> str:
        return self._session.group

    @property
    def offset(self) -> int:
        """Up to here this client has written, or seen what is settled: committed reads see at least that."""
        return self._session.offset

    # --- what can be asked ---

    async def execute(
        self, *operations: Operation, conditions: Sequence[Condition] = (), id_: bytes | None = None
    ) -> Executed:
        """All of it, or nothing. Raises TransactionRefused, RolledBack, OutcomeUnknown, Refused, Unreachable.

        `id_`: the one of an earlier try; under one id something is done once. Where the task is cancelled, it may
        have been done: with an id of your own you can ask later.
        """
        return await self._ask(self._session.execute(operations, conditions, id_))

    async def get(
        self, table: str, key: Values, consistency: Consistency = Consistency.COMMITTED, *, node: int = 0
    ) -> Row | None:
        """The row with that key, as the leader has it, or that node."""
        return await self._ask(self._session.get(table, key, Consistency(consistency), node))

    async def scan(
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
        how = Consistency(consistency)
        pages = Pages(self._session, table, first, last, limit=limit, consistency=how, node=node)
        while (call := pages.next()) is not None:
            page = await self._ask(call)
            rows += page
        return tuple(rows)

    async def iterate(
        self,
        table: str,
        first: Values | None = None,
        last: Values | None = None,
        *,
        consistency: Consistency = Consistency.COMMITTED,
        node: int = 0,
    ) -> AsyncIterator[Row]:
        """The same without a limit, fetched in pages: each is of one moment, and later ones of later moments."""
        how = Consistency(consistency)
        pages = Pages(self._session, table, first, last, limit=None, consistency=how, node=node)
        while (call := pages.next()) is not None:
            for row in await self._ask(call):
                yield row

    async def result(self, id_: bytes) -> Result | None:
        """What became of a transaction; None: nothing has, so far, or it is long ago."""
        return await self._ask(self._session.result(id_))

    async def tables(self, consistency: Consistency = Consistency.COMMITTED) -> tuple[Table, ...]:
        return (await self.describe(consistency)).tables

    async def describe(
        self, consistency: Consistency = Consistency.COMMITTED, *, node: int = 0
    ) -> wire.Described:
        """Its tables, its protocol, who leads and who has copies."""
        return await self._ask(self._session.describe(Consistency(consistency), node))

    async def promote(self, node: int, *, roll_back: bool = False) -> int:
        """Let that node lead (`confirm`); who leads now."""
        return await self._ask(self._session.promote(node, roll_back=roll_back))

    async def demote(self) -> int:
        """Let whoever leads stop, once everything is settled (`confirm`)."""
        return await self._ask(self._session.demote())

    # --- asking ---

    async def _ask(self, call: Call[Found]) -> Found:
        while not call.is_over:
            if self._is_closed:
                raise call.given_up(CLOSED)
            step = call.next(monotonic())
            if step.pause_s:
                await asyncio.sleep(step.pause_s)
            await self._take(call, step)
        return call.found

    async def _take(self, call: Call[Any], step: Step) -> None:
        was_sent = False
        deadline = monotonic() + step.patience_s
        connection: AsyncConnection | None = None
        answer: Any
        try:
            async with asyncio.timeout(step.patience_s):
                connection = await self._connect(step.address)
                await connection.room()
                was_sent = True
                frame = await connection.send(partial(self._encoded, call, step), deadline)
            if step.looks_around:
                answer = decode_response(Api.METADATA, METADATA_VERSION, frame)[1]
            else:
                answer = wire.decode_answer(frame)[1]
        except (OSError, BadMessage) as error:
            now = monotonic()
            why = "no answer in time" if isinstance(error, TimeoutError) else in_words(error)
            if connection is not None and (isinstance(error, BadMessage) or connection.is_hung(now)):
                connection.abort(why)
            call.failed(now, error, why, was_sent=was_sent)
            return
        if step.looks_around:
            call.saw(*seen_in(answer))
        else:
            call.answered(answer)

    def _encoded(self, call: Call[Any], step: Step, correlation: int) -> bytes:
        if step.looks_around:
            body = question(call.group)
            return encode_request(Api.METADATA, METADATA_VERSION, correlation, self._client_id, body)
        return wire.encode_request(call.request(), correlation, self._client_id)

    async def _connect(self, address: Address) -> AsyncConnection:
        """The one connection to that node; whoever is cancelled while it is made leaves it to the others."""
        if self._is_closed:
            raise ConnectionAbortedError(CLOSED)
        found = self._connections.get(address)
        if found is not None and found.is_open:
            return found
        if address not in self._connecting:
            task = asyncio.create_task(
                AsyncConnection.connect(*address, client_id=self._client_id, security=self._security)
            )
            task.add_done_callback(partial(self._connected, address))
            self._connecting[address] = task
        connecting = self._connecting[address]
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if connecting.cancelled() and own is not None and not own.cancelling():
                raise ConnectionAbortedError(CLOSED) from None  # By `close`, and nobody has cancelled us.
            raise

    def _connected(self, address: Address, task: asyncio.Task[AsyncConnection]) -> None:
        if self._connecting.get(address) is task:
            del self._connecting[address]
        if task.cancelled() or task.exception() is not None:
            return
        self._connections[address] = task.result()
