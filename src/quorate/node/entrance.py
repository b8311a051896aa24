"""One listener's sockets: whoever connects is counted before anything is read or spoken.

Those who are still at their TLS handshake count, too, and have little time for it. Who speaks no TLS where it
is asked for, or shows no certificate where one must be shown, is disconnected and has not been told anything.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from quorate.node.codec import GREETING_TIMEOUT_S
from quorate.node.doors import Door
from quorate.node.listeners import ListenerConfig, takes_clients, takes_letters
from quorate.node.porch import MakeProtocol, Porch
from quorate.node.ports import naming_the_holder
from quorate.node.tls import why_failed

if TYPE_CHECKING:
    from quorate.node.node import Node

BACKLOG_COUNT = 128
AGAIN_S = 0.05
"""Where the system has no more descriptors, or the like: it may pass."""

Log = Callable[[str], None]
Guests = Callable[["Node"], Callable[[str, ListenerConfig], asyncio.Protocol]]
"""For a node: for each connection, on a listener of that name, a protocol."""


class Entrance:
    """Opened, run once, closed."""

    def __init__(
        self,
        name: str,
        listener: ListenerConfig,
        tls: ssl.SSLContext | None,
        waiting: set[asyncio.Transport],
        *,
        make: MakeProtocol,
        log: Log,
    ) -> None:
        """`make` makes a protocol for each connection, of which those that have not said anything are `waiting`;
        `log` hears what strangers do wrong."""
        self.name = name
        self.address = listener.bound
        self._connections_max = listener.connections_max
        self._tls = tls
        self._waiting = waiting
        self._make = make
        self._log = log
        self._sockets: list[socket.socket] = []
        self._open: list[asyncio.BaseTransport] = []
        self._arriving: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """From now on others can connect. Raises PortTaken and OSError."""
        host, port = self.address
        with naming_the_holder(self.address):
            try:
                found = await asyncio.get_running_loop().getaddrinfo(
                    host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )
                for family, place in dict.fromkeys((each[0], each[4]) for each in found):
                    self._sockets.append(_listening(family, place))
            except OSError as error:
                where = f"listener {self.name}: {self.address}"
                raise OSError(error.errno, f"{where}: {error.strerror}") from error

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for listening in self._sockets:
                    tasks.create_task(self._accept(listening, tasks), name=f"listener {self.name}")
        finally:
            self.close()

    def close(self) -> None:
        """Nobody comes in any more; those who are in stay, and those who were about to are turned away."""
        for listening in self._sockets:
            listening.close()
        for task in self._arriving:
            task.cancel()
        for transport in tuple(self._waiting):
            transport.abort()

    @property
    def connections_count(self) -> int:
        self._open = [transport for transport in self._open if not transport.is_closing()]
        return len(self._open) + len(self._arriving)

    async def _accept(self, listening: socket.socket, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listening)
            except OSError as error:
                self._log(f"listener {self.name}: nobody can connect: {error.strerror or error}")
                await asyncio.sleep(AGAIN_S)
                continue
            if self.connections_count >= self._connections_max:
                self._log(
                    f"listener {self.name}: {_named(peer)}: turned away, {self._connections_max} are connected"
                )
                connection.close()
                continue
            task = tasks.create_task(self._admit(connection, _named(peer)))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    async def _admit(self, connection: socket.socket, visitor: str) -> None:
        loop = asyncio.get_running_loop()
        patience_s = GREETING_TIMEOUT_S if self._tls is not None else None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport, _ = await loop.connect_accepted_socket(
                self._make, connection, ssl=self._tls, ssl_handshake_timeout=patience_s
            )
        except asyncio.CancelledError:
            connection.close()
            raise
        except Exception as error:  # Whatever a stranger brings about costs its connection, and no more.
            self._log(f"listener {self.name}: {visitor}: {why_failed(error)}; disconnected")
            connection.close()
        else:
            self._open.append(transport)


def _listening(family: int, place: Any) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(place)
        listening.listen(BACKLOG_COUNT)
    except OSError:
        listening.close()
        raise
    return listening


def _named(peer: Any) -> str:
    """Without the port: whoever tries again and again is not told of again and again."""
    return str(peer[0])


def made_entrances(node: Node, guests: Guests | None) -> list[Entrance]:
    """Of all listeners that a node is told of, each with what is served there."""
    listeners = node.config.all_listeners()
    serve = guests(node) if guests is not None else None
    made = []
    for name, listener in listeners.items():
        waiting: set[asyncio.Transport] = set()  # Its own: who crowds one listener crowds no other.
        porch = partial(
            Porch,
            waiting,
            letters=partial(Door, node) if takes_letters(name, listeners) else None,
            guests=partial(serve, name, listener) if serve is not None and takes_clients(name) else None,
        )
        tls = node.security.from_others.get(name)
        made.append(Entrance(name, listener, tls, waiting, make=porch, log=node.log_offence))
    return made
