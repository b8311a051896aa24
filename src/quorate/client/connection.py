"""One connection to one node: requests go out, answers come back in the same order.

Every wait has a deadline. Whatever goes wrong is an OSError (a time-out too) or a BadMessage; the connection
is then of no use any more, and its owner drops it.
"""

from __future__ import annotations

import socket
import struct
from time import monotonic
from typing import Any

from quorate.client.introduction import Introduction, after, introduction
from quorate.client.security import Security
from quorate.wire import fetch, joint, tables
from quorate.wire.cursor import BadMessage
from quorate.wire.fetch import FetchedTopic, FetchRequest
from quorate.wire.messages import Api, decode_response, encode_request

CONNECT_S = 3.0
"""A node that is up answers at once; one that is down should not hold up those that are not."""
ANSWER_BYTES_MAX = 256 << 20
_SIZE = struct.Struct(">i")
_CORRELATIONS = 1 << 31


class Connection:
    """For one request at a time: `ask`, or `send` and later `receive`."""

    def __init__(
        self, host: str, port: int, *, client_id: str, deadline: float, security: Security | None = None
    ) -> None:
        """Raises NotLetIn, too."""
        self._client_id = client_id
        self._correlation = 0
        self._socket = socket.create_connection((host, port), timeout=min(CONNECT_S, left(deadline)))
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if security is not None:
                self._socket = security.wrapped(self._socket, host)
                self._introduce(introduction(security, f"{host}:{port}"), deadline)
        except BaseException:
            self._socket.close()
            raise

    def _introduce(self, introduction: Introduction, deadline: float) -> None:
        said = next(introduction, None)
        while said is not None:
            said = after(introduction, self.ask(*said, deadline=deadline))

    def ask(self, api: Api, version: int, body: Any, *, deadline: float) -> Any:
        """The body of the answer."""
        self.send(api, version, body, deadline=deadline)
        return self.receive(api, version, deadline=deadline)

    def send(self, api: Api, version: int, body: Any, *, deadline: float) -> None:
        number = self._next_correlation()
        self._send(encode_request(api, version, number, self._client_id, body), deadline)

    def receive(self, api: Api, version: int, *, deadline: float) -> Any:
        """The body of the answer to what was sent last."""
        correlation, answer = decode_response(api, version, self._answer(deadline))
        self._check(correlation)
        return answer

    def fetch(
        self, version: int, request: FetchRequest, *, deadline: float
    ) -> tuple[int, list[FetchedTopic]]:
        """An error of the whole answer, and its topics; batches are views of the bytes received."""
        number = self._next_correlation()
        frame = self._exchange(fetch.encode_request(version, number, self._client_id, request), deadline)
        correlation, error, topics = fetch.parse_response(frame, version)
        self._check(correlation)
        return error, topics

    def ask_tables(self, request: tables.Request, *, deadline: float) -> tables.Answer:
        number = self._next_correlation()
        frame = self._exchange(tables.encode_request(request, number, self._client_id), deadline)
        correlation, answer = tables.decode_answer(frame)
        self._check(correlation)
        return answer

    def ask_joint(self, request: joint.Request, *, deadline: float) -> joint.Answer:
        number = self._next_correlation()
        frame = self._exchange(joint.encode_request(request, number, self._client_id), deadline)
        correlation, answer = joint.decode_answer(frame)
        self._check(correlation)
        return answer

    def _next_correlation(self) -> int:
        self._correlation = (self._correlation + 1) % _CORRELATIONS
        return self._correlation

    def _check(self, correlation: int) -> None:
        if correlation != self._correlation:
            raise BadMessage(f"request {self._correlation} was answered with {correlation}")

    def _exchange(self, message: bytes | bytearray, deadline: float) -> bytearray:
        self._send(message, deadline)
        return self._answer(deadline)

    def _send(self, message: bytes | bytearray, deadline: float) -> None:
        self._socket.settimeout(left(deadline))
        self._socket.sendall(message)

    def _answer(self, deadline: float) -> bytearray:
        """Its bytes behind its size."""
        (size,) = _SIZE.unpack(self._receive(_SIZE.size, deadline))
        if not 0 < size <= ANSWER_BYTES_MAX:
            raise BadMessage(f"an answer says {size} bytes, and has at most {ANSWER_BYTES_MAX}")
        return self._receive(size, deadline)

    def close(self) -> None:
        self._socket.close()

    def _receive(self, size: int, deadline: float) -> bytearray:
        content = bytearray(size)
        view, got = memoryview(content), 0
        while got < size:
            self._socket.settimeout(left(deadline))
            count = self._socket.recv_into(view[got:])
            if not count:
                raise ConnectionResetError("the node closed the connection")
            got += count
        return content


def left(deadline: float) -> float:
    """Seconds until then; raises TimeoutError if there are none."""
    seconds = deadline - monotonic()
    if seconds <= 0:
        raise TimeoutError("no answer in time")
    return seconds
