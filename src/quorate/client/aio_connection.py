"""One connection of an asyncio program to one node, for many requests at once.

Requests go out as they come, and the node answers in the same order. Each waits for its own answer. Whoever stops
waiting, because its time is over or because its task was cancelled, leaves its place in the row behind: the answer
that comes for it is dropped, and no other request gets it.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, cast

from quorate.client.cluster import in_words
from quorate.client.connection import ANSWER_BYTES_MAX, CONNECT_S
from quorate.client.introduction import Introduction, after, introduction
from quorate.client.security import Security, untrusted
from quorate.wire.cursor import BadMessage
from quorate.wire.messages import Api, decode_response, encode_request

UNANSWERED_COUNT_MAX = 500
"""Requests beyond this many wait until some are answered; a node listens to no more than twice as many."""
INTRODUCTION_S = 10.0
"""A node disconnects whoever has not shown by then who it is."""
_CORRELATIONS = 1 << 31
_SIZE = struct.Struct(">i")


class AsyncConnection(asyncio.Protocol):
    """Made by `connect`. Whatever goes wrong is an OSError or a BadMessage, and ends it for everybody."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[int, float, asyncio.Future[bytes]]] = deque()
        """(correlation, deadline, answer), in the order in which they were sent."""
        self._buffer = bytearray()
        self._correlation = 0
        self._is_full = False
        self._room = asyncio.Event()
        self._why_lost = "the node closed the connection"

    @classmethod
    async def connect(
        cls, host: str, port: int, *, client_id: str, security: Security | None = None
    ) -> AsyncConnection:
        """Raises OSError, also when that takes too long, BadMessage and NotLetIn."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_S):
            if security is None or not security.tls:
                _, made = await loop.create_connection(cls, host, port)
            else:
                tls = await asyncio.to_thread(security.context)  # It reads files.
                try:
                    _, made = await loop.create_connection(cls, host, port, ssl=tls, server_hostname=host)
                except ssl.SSLCertVerificationError as error:
                    raise untrusted(host, error) from error
        if security is None:
            return made
        try:
            async with asyncio.timeout(INTRODUCTION_S):
                await made._introduce(introduction(security, f"{host}:{port}"), client_id)
        except BaseException:
            made.abort("nobody is let in here")
            raise
        return made

    async def _introduce(self, introduction: Introduction, client_id: str) -> None:
        said = next(introduction, None)
        while said is not None:
            if not self.is_open:
                raise ConnectionResetError(self._why_lost)
            encode = partial(_encoded, *said, client_id=client_id)
            _, answer = decode_response(*said[:2], await self.send(encode, monotonic() + INTRODUCTION_S))
            # A password is hashed many thousand times, and other tasks do not wait for that.
            said = await asyncio.to_thread(after, introduction, answer)

    # --- asking ---

    async def room(self) -> None:
        """Until a request can be sent; raises what ended the connection."""
        while self.is_open and (self._is_full or len(self._waiting) >= UNANSWERED_COUNT_MAX):
            self._room.clear()
            await self._room.wait()
        if not self.is_open:
            raise ConnectionResetError(self._why_lost)

    def send(self, encode: Callable[[int], bytes], deadline: float) -> asyncio.Future[bytes]:
        """The answer's bytes behind its size, which should be here by then. `encode` gets a correlation id."""
        assert self._transport is not None
        self._correlation = (self._correlation + 1) % _CORRELATIONS
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        message = encode(self._correlation)
        self._waiting.append((self._correlation, deadline, answer))
        self._transport.write(message)
        return answer

    def is_hung(self, now: float) -> bool:
        """The next answer should have come by now: one behind it that is late says nothing of the node."""
        return bool(self._waiting) and now >= self._waiting[0][1]

    def abort(self, why: str) -> None:
        """Nothing more is expected of it: everybody who waits hears why."""
        if self.is_open:
            self._why_lost = why
            self._end()
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        self.is_open = False
        waiting, self._waiting = self._waiting, deque()
        for _, _, answer in waiting:
            if not answer.done():
                answer.set_exception(ConnectionResetError(self._why_lost))
        self._room.set()

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_open:
            self._why_lost = in_words(error) if error else self._why_lost
            self._end()
        self._transport = None

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._room.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            self._split()
        except BadMessage as bad:
            self.abort(str(bad))

    def _split(self) -> None:
        buffer, at = self._buffer, 0
        while self.is_open and len(buffer) - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(buffer, at)
            if not _SIZE.size <= size <= ANSWER_BYTES_MAX:
                raise BadMessage(f"an answer says {size} bytes, and has at most {ANSWER_BYTES_MAX}")
            start = at + _SIZE.size
            if len(buffer) - start < size:
                break
            at = start + size
            self._answered(bytes(memoryview(buffer)[start:at]))
        del buffer[:at]

    def _answered(self, frame: bytes) -> None:
        correlation = int.from_bytes(frame[:4], "big")
        if not self._waiting or self._waiting[0][0] != correlation:
            raise BadMessage(f"an answer to {correlation}, which is not the next request")
        _, _, answer = self._waiting.popleft()
        if not answer.done():  # Otherwise nobody waits for it any more.
            answer.set_result(frame)
        self._room.set()


def _encoded(api: Api, version: int, body: Any, correlation: int, *, client_id: str) -> bytes:
    return encode_request(api, version, correlation, client_id, body)
