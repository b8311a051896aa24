"""A small window for whoever watches a node: HTTP on a port of its own, for reading only.

    /health    200 while the process lives
    /ready     200 when clients can be sent here; otherwise 503, and why
    /metrics   what Prometheus collects
    /state     the cluster as this node sees it, as JSON

One request a connection. A request is a few lines: whoever sends more than that, or takes too long, is cut off.
There are no secrets here, and no passwords either: name an address that only those reach who may know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, cast

from quorate.node.address import Address, parse_address
from quorate.node.exposition import exposition
from quorate.node.ports import naming_the_holder
from quorate.node.state import state, why_not_ready

if TYPE_CHECKING:
    from quorate.node.node import Node

HEAD_BYTES_MAX = 8 << 10
REQUEST_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
"""In which a client takes its answer, however slow it is."""
CONNECTIONS_COUNT_MAX = 50
SERVER = "quorate"
TEXT = "text/plain; charset=utf-8"
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"


class Answer(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes


class BadHttp(Exception):
    """What came is no request that is answered here."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


@asynccontextmanager
async def watched_over_http(node: Node) -> AsyncIterator[None]:
    """While this lasts, where the configuration says where."""
    if not node.config.http:
        yield
        return
    address = parse_address(node.config.http)
    connections: set[Connection] = set()
    loop = asyncio.get_running_loop()
    with naming_the_holder(address, "http"):
        server = await loop.create_server(lambda: Connection(node, connections), address.host, address.port)
    bound = Address(*server.sockets[0].getsockname()[:2])
    node.metrics.connections["http"] = lambda: len(connections)
    node.log(f"HTTP on {bound}: /health /ready /metrics /state")
    try:
        yield
    finally:
        server.close()
        for connection in tuple(connections):
            connection.abort()


class Connection(asyncio.Protocol):
    """Somebody who asks one thing."""

    def __init__(self, node: Node, connections: set[Connection]) -> None:
        """`connections`: all of this node."""
        self._node = node
        self._connections = connections
        self._head = b""
        self._is_answered = False
        self._transport: asyncio.Transport
        self._patience: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        self._patience = asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_S, self._late)
        if len(self._connections) > CONNECTIONS_COUNT_MAX:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._patience.cancel()
        self._connections.discard(self)

    def abort(self) -> None:
        self._transport.abort()

    def _late(self) -> None:
        if self._is_answered:
            self.abort()
        else:
            self._refuse(BadHttp(HTTPStatus.REQUEST_TIMEOUT, f"no whole request in {REQUEST_TIMEOUT_S:g} s"))

    def data_received(self, data: bytes) -> None:
        if self._is_answered:
            return  # A body that nobody wanted.
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        try:
            if end > HEAD_BYTES_MAX or (end < 0 and len(self._head) > HEAD_BYTES_MAX):
                raise BadHttp(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"at most {HEAD_BYTES_MAX} bytes are read"
                )
            if end >= 0:
                method, path = parse_head(self._head[:end])
                self._write(answer_to(self._node, path), has_body=method == "GET")
        except BadHttp as bad:
            self._refuse(bad)

    def _refuse(self, bad: BadHttp) -> None:
        self._write(Answer(bad.status, TEXT, f"{bad}\n".encode()), has_body=True)

    def _write(self, answer: Answer, *, has_body: bool) -> None:
        """And wait until the client has taken it: closed at once, what it still sends could cost it the answer."""
        self._is_answered = True
        self._head = b""
        head = [
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
            f"Server: {SERVER}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(answer.body)}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
            head.append("Allow: GET, HEAD")
        self._transport.write("\r\n".join([*head, "", ""]).encode() + (answer.body if has_body else b""))
        self._transport.write_eof()
        self._patience.cancel()
        self._patience = asyncio.get_running_loop().call_later(ANSWER_TIMEOUT_S, self.abort)


def parse_head(head: bytes) -> tuple[str, str]:
    """Method and path; raises BadHttp. Nothing that headers say makes a difference here."""
    try:
        words = head.split(b"\r\n")[0].decode("ascii").split(" ")
    except UnicodeDecodeError:
        words = []
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadHttp(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request")
    method, target, _ = words
    if method not in ("GET", "HEAD"):
        raise BadHttp(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered here")
    return method, target.partition("?")[0]


def answer_to(node: Node, path: str) -> Answer:
    """Raises BadHttp."""
    made = _ANSWERS.get(path)
    if made is None:
        raise BadHttp(HTTPStatus.NOT_FOUND, f"there are: {' '.join(_ANSWERS)}")
    try:
        return made(node)
    except Exception as error:  # Whoever only looks must not be the end of a node.
        node.log_bug(error)
        raise BadHttp(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug of ours; the node's log says more") from error


def _health(node: Node) -> Answer:
    return Answer(HTTPStatus.OK, TEXT, b"alive\n")


def _ready(node: Node) -> Answer:
    why_not = why_not_ready(node)
    if why_not:
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, f"{why_not}\n".encode())
    return Answer(HTTPStatus.OK, TEXT, b"ready\n")


def _metrics(node: Node) -> Answer:
    return Answer(HTTPStatus.OK, EXPOSITION, exposition(node).encode())


def _state(node: Node) -> Answer:
    return Answer(HTTPStatus.OK, JSON, state(node))


_ANSWERS: dict[str, Callable[[Node], Answer]] = {
    "/health": _health,
    "/ready": _ready,
    "/metrics": _metrics,
    "/state": _state,
}
