"""One connection of a Kafka client.

A stream of requests, each behind its size. Those that came in one chunk are one turn of the node, so that what
they write shares one flush. They are answered in the order in which they came, as clients expect, although
they are done in any order: a request that takes long holds back the answers behind it, nothing else.

Every request is copied out of the chunk into memory of its own, which is writable: the log stamps the batches in it
where they lie, and keeps nothing of the chunk alive. Only small ones are copied twice.

Whoever sends what cannot be read, or asks for what is not served, is disconnected, with a line in the log; so
is who takes too long for a first request, or, where passwords are asked for, to say who it is, or who begins a
request and does not end it.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from quorate.kafka.broker import Broker
from quorate.kafka.call import Call
from quorate.kafka.retrying import Retrying
from quorate.kafka.sasl import session as sasl
from quorate.kafka.sessions import Sessions
from quorate.node.config import BadConfig
from quorate.node.keepalive import keep_alive
from quorate.node.listeners import CLIENT, CONNECTIONS_MAX, ListenerConfig
from quorate.node.metrics import ClientCounts
from quorate.wire.cursor import BadMessage, Buffer
from quorate.wire.fetch import Requests as FetchRequests
from quorate.wire.messages import Api, RequestHead, read_head
from quorate.wire.produce import Requests as ProduceRequests
from quorate.wire.tables import TABLES_SCAN_API

if TYPE_CHECKING:
    from quorate.node import Node

REQUEST_BYTES_MAX = 100 << 20
"""As Kafka's socket.request.max.bytes. Nothing is allocated by a size alone."""
UNANSWERED_COUNT_MAX = 1000
"""A client with more requests under way than this is not listened to until some are answered."""
UNANSWERED_BYTES_MAX = 64 << 20
RECEIVING_BYTES_MAX = 512 << 20
"""Of requests that have not arrived wholly, over all connections; then who sent most of one is turned away."""
FIRST_REQUEST_TIMEOUT_S = 10.0
"""By then it must have arrived: it is a small one, whoever the client is."""
REQUEST_TIMEOUT_S = 60.0
"""From its first byte to its last; clients give a request up after half of that (`request.timeout.ms`)."""
WRITE_BUFFER_HIGH_BYTES = 256 << 10
"""Who has not taken so much of its answers is asked to take them before it is listened to again."""
UNTAKEN_BYTES_MAX = 512 << 20
"""Of answers to those, over all connections; then whoever has kept us waiting for longest is turned away."""
JOIN_BYTES_MAX = 4 << 10
"""Answers up to this size are written as one buffer: copying is cheaper than listing the pieces."""
SMALL_BYTES_MAX = 4 << 10
"""Requests out of chunks up to this size are cut twice: copying is cheaper than a view."""

FETCHES = frozenset(
    (
        Api.FETCH,
        Api.LIST_OFFSETS,
        Api.METADATA,
        Api.OFFSET_FETCH,
        Api.DESCRIBE_GROUPS,
        Api.LIST_GROUPS,
        Api.DESCRIBE_CONFIGS,
        Api.DESCRIBE_LOG_DIRS,
        Api.DESCRIBE_PRODUCERS,
        Api.DESCRIBE_TRANSACTIONS,
        Api.LIST_TRANSACTIONS,
        Api.LIST_PARTITION_REASSIGNMENTS,
        TABLES_SCAN_API,
    )
)
"""Small requests with large answers, or that read much: one of a connection at a time."""

_SIZE = struct.Struct(">i")
_SIZE_BYTES = _SIZE.size
NOBODYS = ClientCounts()
"""Of who has not said anything yet."""
_BARE = RequestHead(Api.SASL_AUTHENTICATE, 0, 0, None, 0)
"""In place of the header that a token does not have after the oldest handshake."""


def guests(node: Node) -> Callable[[str, ListenerConfig], asyncio.Protocol]:
    """What a node is given to serve Kafka clients: it makes a protocol for each of their connections.

    Raises BadConfig for a node without a metadata group, which is where topics are.
    """
    if not node.config.voters:
        raise BadConfig("voters: Kafka clients are served only where a metadata group is; name its voters")
    broker = Broker(node)
    return lambda name, listener: Door(broker, name, sasl_wanted=listener.sasl)


class Door(asyncio.Protocol):
    def __init__(self, broker: Broker, listener: str = CLIENT, *, sasl_wanted: bool = False) -> None:
        self.broker = broker
        self.listener = listener
        """The name of the one that the client connected to."""
        self.session = sasl.Session(broker) if sasl_wanted else None
        """Where passwords are asked for."""
        self._request_bytes_max = sasl.REQUEST_BYTES_MAX if sasl_wanted else REQUEST_BYTES_MAX
        """Less, until it is known who is there."""
        self.visitor = "somebody"
        self._patience: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        """A request of which not all is here yet, and its size in front."""
        self._pieces_bytes = 0
        self._wanted_bytes = 0
        self._calls: deque[Call] = deque()
        self._fetches: deque[Call] = deque()
        """Those of them that are fetches and have to wait."""
        self._is_fetching = False
        """One of them is under way, or its answer waits for the turn's end."""
        self._has_fetched = False
        self._unanswered_bytes = 0
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._held_back = False
        self._write_full = False
        self._client_id: str | None = None
        self._counts = NOBODYS
        self.retrying = Retrying()
        self.sessions = Sessions(broker.session_room)
        self.fetch_requests = FetchRequests()
        self.produce_requests = ProduceRequests()
        self._tasks: set[asyncio.Task[None]] = set()

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        keep_alive(self._transport)
        peer = transport.get_extra_info("peername")
        self.visitor = f"{peer[0]}:{peer[1]}" if peer else "somebody"
        self.broker.doors.add(self)
        patience_s = FIRST_REQUEST_TIMEOUT_S if self.session is None else sasl.TIMEOUT_S
        self._patience = asyncio.get_running_loop().call_later(patience_s, self._lose_patience)
        if len(self.broker.doors) > CONNECTIONS_MAX:
            what = f"Kafka client {self.visitor}: turned away, {CONNECTIONS_MAX} are connected"
            self.broker.node.log_offence(what)
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._be_patient()
        self.broker.doors.discard(self)
        self.broker.untaken.pop(self, None)
        for task in tuple(self._tasks):
            task.cancel()
        for call in self._calls:
            if call.abandon is not None:
                call.abandon()
        self._calls.clear()
        self.broker.unanswered_bytes -= self._unanswered_bytes
        self._unanswered_bytes = 0
        self._fetches.clear()
        self.sessions.end()
        self._drop_pieces()
        self._outgoing.clear()

    def data_received(self, data: bytes) -> None:
        node = self.broker.node
        node.begin_turn()
        try:
            self._split(data, self._complete(data) if self._pieces else 0)
        except BadMessage as bad:
            self.turn_away(str(bad))
        if self._calls:
            self._hold_back()
        node.end_turn()

    def pause_writing(self) -> None:
        self._write_full = True
        self._hold_back()
        waiting = self.broker.untaken
        waiting[self] = None
        if sum(door.untaken_bytes for door in waiting) > UNTAKEN_BYTES_MAX:
            next(iter(waiting)).lose_answers()

    def resume_writing(self) -> None:
        self._write_full = False
        self.broker.untaken.pop(self, None)
        self._hold_back()
        asyncio.get_running_loop().call_soon(self._fetch_on)

    # --- who is there ---

    @property
    def is_nobody(self) -> bool:
        """It has to say first who it is."""
        return self.session is not None and not self.session.is_authenticated

    def authenticated(self, user: str) -> None:
        self.visitor = f"{user} at {self.visitor}"
        self._request_bytes_max = REQUEST_BYTES_MAX
        self._be_patient()

    def _be_patient(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _lose_patience(self) -> None:
        if self._held_back:  # The rest of it may lie in the system's buffers, where we let it lie.
            self._patience = asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_S, self._lose_patience)
            return
        self.turn_away("did not say who it is in time" if self.is_nobody else "no whole request in time")

    # --- in ---

    def _complete(self, data: bytes) -> int:
        """Finish the request that is in pieces, if the rest is here; how much of the data that took."""
        missing = self._wanted_bytes - self._pieces_bytes
        if len(data) < missing:
            self._keep(data, self._wanted_bytes)
            return len(data)
        self._pieces.append(data[:missing])
        whole = bytearray().join(self._pieces)
        self._drop_pieces()
        if len(whole) > _SIZE_BYTES:
            if not self.is_nobody:
                self._be_patient()
            self._request(memoryview(whole)[_SIZE_BYTES:])
            return missing
        # Only now is it known how long the request is.
        size: int = _SIZE.unpack(whole)[0]
        if not 0 < size <= self._request_bytes_max:
            raise self._bad_size(size)
        self._keep(bytes(whole), _SIZE_BYTES + size)
        return missing + self._complete(data[missing:])

    def _split(self, data: bytes, at: int) -> None:
        end = len(data)
        view = data if end <= SMALL_BYTES_MAX else memoryview(data)
        while at < end and self._transport is not None and not self._transport.is_closing():
            start = stop = at + _SIZE_BYTES
            if start <= end:
                size: int = _SIZE.unpack_from(data, at)[0]
                if not 0 < size <= self._request_bytes_max:
                    raise self._bad_size(size)
                stop += size
            if stop > end:
                self._keep(data[at:], stop - at)
                return
            at = stop
            self._request(bytearray(view[start:at]))

    def _bad_size(self, size: int) -> BadMessage:
        return BadMessage(f"a request of {size} bytes; at most {self._request_bytes_max} are taken")

    def _keep(self, piece: bytes, wanted_bytes: int) -> None:
        self._pieces.append(piece)
        self._pieces_bytes += len(piece)
        self._wanted_bytes = wanted_bytes
        self.broker.receiving_bytes += len(piece)
        if self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_S, self._lose_patience)
        if self.broker.receiving_bytes > RECEIVING_BYTES_MAX:
            self._make_room()

    def _make_room(self) -> None:
        """Whoever holds most of it goes, so that nobody can keep others out by beginning large requests."""
        why = f"more than {RECEIVING_BYTES_MAX} bytes of unfinished requests are here, most of them from it"
        largest = max(self.broker.doors, key=lambda door: door._pieces_bytes)
        if largest is self:
            raise BadMessage(why)
        largest.turn_away(why)

    def _drop_pieces(self) -> None:
        self.broker.receiving_bytes -= self._pieces_bytes
        self._pieces.clear()
        self._pieces_bytes = 0

    def _request(self, frame: Buffer) -> None:
        session = self.session
        head = _BARE if session is not None and session.wants_bare else read_head(frame)
        if session is None:
            if self._patience is not None:
                self._be_patient()
        elif head.api not in sasl.BEFORE and self.is_nobody:
            raise BadMessage(f"request {head.api}: nobody has authenticated here; set SASL in the client")
        size = len(frame)
        call = Call(self, head, frame, size)
        self._calls.append(call)
        self._unanswered_bytes += size
        self.broker.unanswered_bytes += size
        if head.client_id != self._client_id or self._counts is NOBODYS:
            self._client_id = head.client_id
            self._counts = self.broker.node.metrics.client(self._client_id)
        self._counts.requests += 1
        self._counts.request_bytes += size
        if head.api not in FETCHES:
            self._handle(call)
        elif self._fetches or self._is_fetching or self._write_full:
            self._fetches.append(call)
        else:
            self._is_fetching = True
            self._handle(call)

    def _fetch_next(self) -> None:
        """One fetch at a time, and none while the answers before it are not taken.

        A few bytes ask for many megabytes: whoever sends a thousand of them and reads nothing must not get them
        all read into memory. Other requests carry what they cost.
        """
        if self._fetches and not self._is_fetching and not self._write_full:
            self._is_fetching = True
            self._handle(self._fetches.popleft())

    def _handle(self, call: Call) -> None:
        """What goes wrong with one request, by its fault or by ours, costs its connection and no more.

        Only an assertion that does not hold ends the node: then nothing that it knows can be trusted.
        """
        try:
            if call.head is _BARE:
                sasl.handle_bare(call)
            else:
                self.broker.handle(call)
        except BadMessage as bad:
            raise BadMessage(f"request {call.head.api} version {call.head.version}: {bad}") from None
        except AssertionError:
            raise
        except Exception as error:
            self._tell_bug(error)
            raise BadMessage(f"request {call.head.api} failed: {type(error).__name__}") from error

    def _tell_bug(self, error: BaseException) -> None:
        self.broker.node.log_bug(error)

    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def _hold_back(self) -> None:
        """Stop listening to a client that has too much under way, or does not take its answers."""
        hold_back = (
            self._write_full
            or len(self._calls) > UNANSWERED_COUNT_MAX
            or self._unanswered_bytes > UNANSWERED_BYTES_MAX
        )
        if hold_back == self._held_back or self._transport is None or self._transport.is_closing():
            return
        self._held_back = hold_back
        if hold_back:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """A request that takes several turns: cancelled when the client goes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, AssertionError):
            context = {"message": "a request failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        elif error is not None:
            self._tell_bug(error)
            self.turn_away(f"a request failed: {type(error).__name__}")

    # --- out ---

    def answered(self) -> None:
        """A call has its answer: let out all that nothing holds back any more, at the turn's end."""
        calls = self._calls
        if not calls or calls[0].buffers is None:
            return
        while calls and calls[0].buffers is not None:
            call = calls.popleft()
            assert call.buffers is not None
            self._unanswered_bytes -= call.request_bytes
            self.broker.unanswered_bytes -= call.request_bytes
            self._outgoing += call.buffers
            self._outgoing_bytes += call.answer_bytes
            self._counts.answer_bytes += call.answer_bytes
            self._has_fetched = self._has_fetched or call.head.api in FETCHES
        if self._held_back:
            self._hold_back()
        self.broker.node.unflushed(self)

    def flush(self) -> None:
        outgoing = self._outgoing
        if not outgoing:
            return
        if self._transport is not None and not self._transport.is_closing():
            if len(outgoing) == 1:
                self._transport.write(outgoing[0])
            elif self._outgoing_bytes <= JOIN_BYTES_MAX:
                self._transport.write(b"".join(outgoing))
            else:
                self._transport.writelines(outgoing)
        self._outgoing = []
        self._outgoing_bytes = 0
        if self._has_fetched:
            self._has_fetched = self._is_fetching = False
            if self._fetches:
                asyncio.get_running_loop().call_soon(self._fetch_on)

    def _fetch_on(self) -> None:
        """In a turn of its own: the last one is over, or the client has taken its answers."""
        try:
            self.broker.in_turn(self._fetch_next)
        except BadMessage as bad:
            self.turn_away(str(bad))

    def close(self) -> None:
        """The node stops: what was answered is still sent, if the client takes it."""
        if self._transport is not None:
            self.flush()
            self._transport.close()

    def abort(self) -> None:
        """The node failed: nothing is said any more."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def untaken_bytes(self) -> int:
        """Of answers that are written, and that the system has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def lose_answers(self) -> None:
        """It does not take them, and others want theirs."""
        why = f"more than {UNTAKEN_BYTES_MAX} bytes of answers wait to be taken, its own for longest"
        self.broker.node.log_offence(f"Kafka client {self.visitor}: {why}; disconnected")
        self.broker.untaken.pop(self, None)
        self.abort()

    def turn_away(self, why: str) -> None:
        """This client cannot be served further; what it was answered before is still sent."""
        if self._is_open():
            self.broker.node.log_offence(f"Kafka client {self.visitor}: {why}; disconnected")
            self._drop_pieces()
            self.flush()
            assert self._transport is not None
            self._transport.close()
