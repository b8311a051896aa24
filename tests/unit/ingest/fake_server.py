"""As much of a NATS server as a client needs, on a real socket; whatever else it says, the test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

TURNS_MAX = 5000
TLS_HANDSHAKE = b"\x16"
"""What it begins with."""


async def until(holds: Callable[[], bool], what: str) -> None:
    for _ in range(TURNS_MAX):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"waited in vain: {what}")


class FakeServer:
    def __init__(self, **info: Any) -> None:
        self.connects: list[dict[str, Any]] = []
        """What each client said of itself."""
        self.subscriptions: dict[int, str] = {}
        """Of the last connection, by their numbers there."""
        self.published: list[tuple[str, bytes]] = []
        self.first_bytes: list[bytes] = []
        """That each connection said; none where it said nothing."""
        self.forbidden = ""
        """Whoever subscribes to that is told that they must not."""
        self._info = {
            "server_id": "fake",
            "version": "2.10.0",
            "headers": True,
            "max_payload": 1 << 20,
        } | info
        self._server: asyncio.Server
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang_up()
        self._server.close()
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def say(self, words: bytes) -> None:
        assert self._writer is not None
        self._writer.write(words)

    def deliver(self, subject: str, content: bytes, reply: str = "") -> None:
        """To whoever is subscribed to exactly that."""
        for number, wanted in self.subscriptions.items():
            if wanted == subject:
                self.say(b"MSG %s %d %s %d\r\n" % (subject.encode(), number, reply.encode(), len(content)))
                self.say(content + b"\r\n")

    def hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.subscriptions.clear()
        self.say(b"INFO %s\r\n" % json.dumps(self._info).encode())
        first = await reader.read(1)
        self.first_bytes.append(first)
        line = first and first != TLS_HANDSHAKE and first + await reader.readline()
        while line and self._writer is writer:
            command, _, rest = line.strip().partition(b" ")
            words = rest.decode(errors="replace").split()
            if command == b"CONNECT":
                self.connects.append(json.loads(rest))
            elif command == b"PING":
                writer.write(b"PONG\r\n")
            elif command == b"SUB" and words[0] == self.forbidden:
                writer.write(
                    b"-ERR 'Permissions Violation for Subscription to \"%s\"'\r\n" % words[0].encode()
                )
            elif command == b"SUB":
                self.subscriptions[int(words[-1])] = words[0]
            elif command == b"UNSUB":
                self.subscriptions.pop(int(words[0]), None)
            elif command == b"PUB":
                self.published.append((words[0], (await reader.readexactly(int(words[-1]) + 2))[:-2]))
            line = await reader.readline()
        writer.close()
