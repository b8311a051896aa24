"""A small client of the nodes' own protocol: propose and order where the leader is, fetch, ask how it is.

What happened to a proposal is *settled*, *certainly not written*, or *unknown* (rule 9). Only the second is
tried again by itself. Orders (changes, transfers) and reads say what is to be, and are tried again in any case.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Sequence
from time import monotonic
from types import TracebackType
from typing import Self

import msgspec

from quorate.core.effects import Outcome
from quorate.core.entry import Partition
from quorate.core.events import ReadLevel
from quorate.machine.metadata import METADATA
from quorate.node import requests
from quorate.node.codec import Hello, Refused, Welcome, decode_greeting, encode_greeting
from quorate.node.config import Address
from quorate.node.letters import LETTER_BYTES_MAX, PREFACE, BadLetter, Letters
from quorate.node.requests import (
    Answer,
    Answered,
    AskImage,
    AskStatus,
    Change,
    Fetch,
    Fetched,
    Forget,
    Image,
    Propose,
    Read,
    Rejected,
    Request,
    Status,
    Transfer,
)
from quorate.node.tls import why_failed
from quorate.storage.disk import Buffer
from quorate.storage.frame import Frame

CONNECT_TIMEOUT_S = 5.0
RETRY_S = 0.02
OVERDUE_EVERY_S = 0.05
FETCH_BYTES = 1 << 20
SOON_S = 0.5
"""A node that is well answers an order by then, or takes its time: others are asked beside it."""


class Unreachable(Exception):
    """No such node answers; nothing was sent."""


class OutcomeUnknown(Exception):
    """The proposal may be settled, now or later, or never."""


class NotWritten(Exception):
    """The proposal was certainly not written."""


class BadRequest(NotWritten):
    """The node says that the request itself is wrong."""


class NotDone(Exception):
    """An order was refused or given up, and the text says why; nothing has changed."""


class NotInTime(NotDone):
    """An order was given up after a while; what it set going may yet come about."""


class Settled(msgspec.Struct, frozen=True, gc=False):
    """The first offset of what was proposed, and the epoch it was written in."""

    offset: int
    epoch: int
    node: int
    timestamp: int = 0
    """In milliseconds; 0 where leaders give out none."""


class Connection(Letters):
    """A connection to one node. Requests that gather in one turn of the loop go out together."""

    def __init__(self, hello: Hello) -> None:
        super().__init__()
        self._hello = hello
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, tuple[asyncio.Future[tuple[Answer, memoryview]], float]] = {}
        self._numbers = 0
        self._flushing = False
        self._greeted = False
        self.welcome: asyncio.Future[Welcome] = self._loop.create_future()

    @classmethod
    async def open(
        cls, cluster: str, node: int, address: Address, *, tls: ssl.SSLContext | None = None
    ) -> Connection:
        """Raises Unreachable. Node 0: whoever is there; cluster "": whichever it is (see `welcome`)."""
        connection = cls(Hello(cluster, to=node))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: connection, address.host, address.port, ssl=tls)
                await connection.welcome
        except TimeoutError as error:
            connection.abort("no answer")
            raise Unreachable(f"node {node} at {address}: no answer") from error
        except OSError as error:
            raise Unreachable(f"node {node} at {address}: {why_failed(error)}") from error
        except asyncio.CancelledError:
            connection.abort("nobody waits for it any more")
            raise
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._put(PREFACE + encode_greeting(self._hello))
        self._look_for_overdue()

    def request(
        self, request: Request, attachment: Sequence[Buffer] = (), deadline: float = math.inf
    ) -> asyncio.Future[tuple[Answer, memoryview]]:
        """The answer; or OutcomeUnknown where the deadline comes, or the connection ends, before it."""
        future: asyncio.Future[tuple[Answer, memoryview]] = self._loop.create_future()
        if not self.is_open:
            future.set_exception(Unreachable(f"node {self._hello.to}: {self.closed_because}"))
            return future
        self._numbers += 1
        self._waiting[self._numbers] = (future, deadline)
        self._put(requests.encode_request(self._numbers, request, sum(map(len, attachment))), *attachment)
        return future

    def _look_for_overdue(self) -> None:
        """One timer for all requests: a timer for each would cost more than the request."""
        now = monotonic()
        overdue = [number for number, (_, deadline) in self._waiting.items() if deadline <= now]
        for number in overdue:
            self._fail(self._waiting.pop(number)[0], "no answer in time")
        if self.is_open:
            self._loop.call_later(OVERDUE_EVERY_S, self._look_for_overdue)

    def _fail(self, future: asyncio.Future[tuple[Answer, memoryview]], why: str) -> None:
        if not future.done():
            future.set_exception(OutcomeUnknown(f"node {self._hello.to}: {why}"))

    def _put(self, *buffers: Buffer) -> None:
        self.put(buffers, sum(map(len, buffers)))
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._flushing = False
        self.flush()

    def letter_received(self, letter: Buffer) -> None:
        if not self._greeted:
            self._take_greeting(letter)
            return
        number, answer, attachment = requests.decode_answer(letter)
        waiting = self._waiting.pop(number, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result((answer, attachment))

    def _take_greeting(self, letter: Buffer) -> None:
        greeting = decode_greeting(letter)
        if isinstance(greeting, Refused):
            raise BadLetter(f"refused: {greeting.why}")
        if not isinstance(greeting, Welcome):
            raise BadLetter(f"somebody else answers there: {greeting}")
        self._greeted = True
        self.letter_bytes_max = LETTER_BYTES_MAX
        if not self.welcome.done():
            self.welcome.set_result(greeting)

    def closed(self) -> None:
        why = f"node {self._hello.to}: {self.closed_because}"
        if not self.welcome.done():
            self.welcome.set_exception(Unreachable(why))
        for future, _ in self._waiting.values():
            self._fail(future, self.closed_because)
        self._waiting.clear()


class Client:
    """All nodes of a cluster, by number. Use it in an `async with`."""

    def __init__(
        self, cluster: str, addresses: dict[int, Address], *, tls: ssl.SSLContext | None = None
    ) -> None:
        assert addresses
        self._cluster = cluster
        self._tls = tls
        self._addresses = dict(sorted(addresses.items()))
        self._connections: dict[int, Connection] = {}
        self._opening: dict[int, asyncio.Lock] = {}
        self._leaders: dict[Partition, int] = {}

    @property
    def cluster(self) -> str:
        return self._cluster

    @property
    def nodes(self) -> tuple[int, ...]:
        """Those whose addresses are known."""
        return tuple(self._addresses)

    @property
    def addresses(self) -> dict[int, Address]:
        return dict(self._addresses)

    def know(self, node: int, address: Address) -> None:
        """A node is, or has come to be, there."""
        if self._addresses.get(node) != address:
            self._addresses = dict(sorted({**self._addresses, node: address}.items()))

    def forget(self, node: int) -> None:
        """It is gone for good: nobody asks it any more."""
        self._addresses.pop(node, None)

    def expect_leader(self, partition: Partition, node: int) -> None:
        """A hint of whom to ask first."""
        if node in self._addresses:
            self._leaders[partition] = node

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections.values():
            connection.close("the client is closed")

    async def propose(
        self, partition: Partition, payloads: Sequence[Buffer], *, timeout_s: float = 10.0
    ) -> Settled:
        """Append these batches where the leader is; raises NotWritten or OutcomeUnknown."""
        deadline = monotonic() + timeout_s
        request = Propose(partition, tuple(map(len, payloads)))
        why = "no time was given"
        node = self._leaders.get(partition, 0) or self._after(0)
        while monotonic() < deadline:
            try:
                connection = self._connections.get(node)
                if connection is None or not connection.is_open:
                    connection = await self.connect(node)
                answer, _ = await connection.request(request, payloads, deadline)
            except Unreachable as error:
                why, node = str(error), self._after(node)
                await asyncio.sleep(RETRY_S)
                continue
            except OutcomeUnknown:
                self._leaders.pop(partition, None)
                raise
            if type(answer) is not Answered:
                assert isinstance(answer, Rejected)
                raise BadRequest(answer.why)
            if answer.outcome is Outcome.SETTLED:
                self._leaders[partition] = node
                return Settled(answer.offset, answer.epoch, node, answer.timestamp)
            if answer.outcome is Outcome.UNKNOWN:
                self._leaders.pop(partition, None)
                raise OutcomeUnknown(f"node {node} ceased to lead {partition.hex()}")
            why = f"node {node}: {answer.outcome}"
            node = await self._next_try(node, answer)
        raise NotWritten(f"{why}; {timeout_s:.1f} s are over")

    # --- orders and reads ---

    async def read(
        self,
        partition: Partition,
        level: ReadLevel = ReadLevel.LINEARIZABLE,
        offset: int = -1,
        *,
        timeout_s: float = 10.0,
    ) -> int:
        """Up to where may be read, as the leader says; raises NotDone, OutcomeUnknown and BadRequest."""
        request = Read(partition, level, offset)
        return (await self._order(partition, request, timeout_s)).offset

    async def change(
        self, partition: Partition, nodes: Sequence[int], *, seen: int | None = None, timeout_s: float = 10.0
    ) -> None:
        """Let these nodes copy it (see `Change`); raises NotDone, OutcomeUnknown and BadRequest."""
        await self._order(partition, Change(partition, tuple(nodes), seen), timeout_s)

    async def transfer(self, partition: Partition, to: int, *, timeout_s: float = 10.0) -> int:
        """Let that node lead, or, with 0, anybody else; who does. Raises NotDone, OutcomeUnknown and BadRequest."""
        leader = (await self._order(partition, Transfer(partition, to), timeout_s)).leader or to
        self.expect_leader(partition, leader)
        return leader

    async def forget_node(self, node: int, *, seen: int | None = None, timeout_s: float = 10.0) -> None:
        """That node is gone for good; raises NotDone, OutcomeUnknown and BadRequest."""
        await self._order(METADATA, Forget(node, seen), timeout_s)

    async def order(self, partition: Partition, request: Request, *, timeout_s: float = 10.0) -> Answered:
        """Ask something of whoever leads, as often as it takes; raises NotDone, OutcomeUnknown and BadRequest."""
        return await self._order(partition, request, timeout_s)

    async def _order(self, partition: Partition, request: Request, timeout_s: float) -> Answered:
        """Whoever does not answer soon may hang, or have much to do: it is not given up, and others are asked."""
        deadline = monotonic() + timeout_s
        why = "nobody answers"
        node = self._leaders.get(partition, 0) or self._after(0)
        asked: dict[int, asyncio.Task[Answer]] = {}
        try:
            while (left_s := deadline - monotonic()) > 0:
                if node not in asked:
                    asked[node] = self._ask_beside(node, request, deadline)
                await asyncio.wait(
                    asked.values(), timeout=min(SOON_S, left_s), return_when=asyncio.FIRST_COMPLETED
                )
                answered = next((each for each, task in asked.items() if task.done()), 0)
                if not answered:
                    node = self._after(node)
                    continue
                try:
                    answer = asked.pop(answered).result()
                except (Unreachable, OutcomeUnknown) as error:
                    why, node = str(error), self._after(answered)
                    await asyncio.sleep(RETRY_S)
                    continue
                if (done := _judged(answered, answer)) is not None:
                    return done
                assert isinstance(answer, Answered)
                leads = answer.outcome is not Outcome.NOT_LEADER or answer.leader
                why = f"node {answered}: {answer.outcome}" if leads else f"node {answered} knows of no leader"
                node = await self._next_try(answered, answer)
        finally:
            for task in asked.values():
                task.cancel()
        raise OutcomeUnknown(f"{why}; {timeout_s:.1f} s are over")

    def _ask_beside(self, node: int, request: Request, deadline: float) -> asyncio.Task[Answer]:
        """Whoever has its answer from another does not look at this one any more, whatever becomes of it."""
        task = asyncio.create_task(self._ask(node, request, deadline))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _ask(self, node: int, request: Request, deadline: float) -> Answer:
        answer, _ = await (await self.connect(node)).request(request, (), deadline)
        return answer

    async def _next_try(self, node: int, answer: Answered) -> int:
        if answer.outcome is not Outcome.NOT_LEADER:  # Busy, or full: it may pass.
            await asyncio.sleep(RETRY_S)
            return node
        if answer.leader in self._addresses and answer.leader != node:
            return answer.leader
        await asyncio.sleep(RETRY_S)
        return self._after(node)

    async def fetch(
        self, node: int, partition: Partition, offset: int, bytes_max: int = FETCH_BYTES
    ) -> tuple[list[Frame], int]:
        """Settled entries as this node has them, and its commit; raises Unreachable and BadRequest."""
        connection = await self.connect(node)
        try:
            answer, attachment = await connection.request(Fetch(partition, offset, bytes_max))
        except OutcomeUnknown as error:
            raise Unreachable(str(error)) from error
        if isinstance(answer, Rejected):
            raise BadRequest(answer.why)
        assert isinstance(answer, Fetched)
        return requests.attached_frames(answer, attachment), answer.commit

    async def status(self, node: int) -> Status:
        """Raises Unreachable."""
        connection = await self.connect(node)
        try:
            answer, _ = await connection.request(AskStatus())
        except OutcomeUnknown as error:
            raise Unreachable(str(error)) from error
        assert isinstance(answer, Status)
        return answer

    async def image(
        self, node: int, topics: tuple[str, ...] | None = None, *, current: bool = False
    ) -> Image:
        """What that node knows of the cluster, and of these topics, or all (see `AskImage`).

        Raises Unreachable, BadRequest.
        """
        connection = await self.connect(node)
        request = AskImage(topics, current)
        try:
            answer, _ = await connection.request(request, (), monotonic() + CONNECT_TIMEOUT_S)
        except OutcomeUnknown as error:
            raise Unreachable(str(error)) from error
        if isinstance(answer, Rejected):
            raise BadRequest(answer.why)
        assert isinstance(answer, Image)
        return answer

    async def connect(self, node: int) -> Connection:
        """The connection to a node; raises Unreachable."""
        async with self._opening.setdefault(node, asyncio.Lock()):
            connection = self._connections.get(node)
            if connection is None or not connection.is_open:
                if node not in self._addresses:
                    raise Unreachable(f"node {node} is not known")
                connection = await Connection.open(self._cluster, node, self._addresses[node], tls=self._tls)
                self._connections[node] = connection
            return connection

    def _after(self, node: int) -> int:
        """The next node in turn."""
        return next((other for other in self._addresses if other > node), next(iter(self._addresses)))


def _judged(node: int, answer: Answer) -> Answered | None:
    """What an order came to; None where it must be given again. Raises NotDone and BadRequest."""
    if isinstance(answer, Rejected):
        raise BadRequest(answer.why)
    assert isinstance(answer, Answered)
    if answer.outcome in (Outcome.REFUSED, Outcome.TIMED_OUT):
        kind = NotInTime if answer.outcome is Outcome.TIMED_OUT else NotDone
        raise kind(answer.why or f"node {node}: {answer.outcome}")
    return answer if answer.outcome is Outcome.SETTLED else None
