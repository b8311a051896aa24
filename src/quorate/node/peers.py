"""Links to the other nodes: one outgoing connection to each, for the traffic of all replicas.

A node sends on the connection that it made and receives on those that the others made, so neither side
waits for the other. A link that is down, or that has more waiting than OUTBOUND_BYTES_MAX, loses what is
sent on it: a slow peer cannot exhaust this node's memory, and every protocol survives loss.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

from quorate.host import Parcel
from quorate.node.codec import (
    GREETING_TIMEOUT_S,
    Hello,
    Refused,
    Welcome,
    decode_greeting,
    encode_greeting,
    encode_parcel,
)
from quorate.node.config import Address
from quorate.node.letters import PREFACE, BadLetter, Letters
from quorate.node.logs import WARNING, Say
from quorate.node.tls import why_failed
from quorate.storage.disk import Buffer

OUTBOUND_BYTES_MAX = 64 << 20
OUTBOUND_RESERVE_BYTES = 1 << 20
"""Votes, answers and pings still go where entries no longer do."""
RECONNECT_FIRST_S = 0.02
RECONNECT_MAX_S = 1.0


class Link(Letters):
    """Our connection to a peer: after its welcome, only we speak."""

    def __init__(self, hello: Hello) -> None:
        super().__init__()
        self._hello = hello
        self.ready = False
        loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._write_now(PREFACE + encode_greeting(self._hello))

    def _write_now(self, letter: bytes) -> None:
        self.put((letter,), len(letter))
        self.flush()

    def letter_received(self, letter: Buffer) -> None:
        if self.ready:
            raise BadLetter("the peer spoke where only we do")
        greeting = decode_greeting(letter)
        if isinstance(greeting, Refused):
            raise BadLetter(f"refused: {greeting.why}")
        if not isinstance(greeting, Welcome) or greeting.node != self._hello.to:
            raise BadLetter(f"somebody else answers there: {greeting}")
        self.ready = True
        if not self.greeted.done():
            self.greeted.set_result(None)

    def closed(self) -> None:
        self.ready = False
        for waiter in (self.greeted, self.gone):
            if not waiter.done():
                waiter.set_result(None)


class Peers:
    """All links of a node. `run` keeps them up; `send` never blocks and never fails."""

    def __init__(
        self,
        cluster: str,
        node: int,
        addresses: dict[int, Address],
        *,
        rng: Random,
        log: Say,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: how the others are spoken to, where it is with TLS."""
        self.sent_count = 0
        self.dropped_count = 0
        self._cluster = cluster
        self._node = node
        self._addresses = dict(addresses)
        self._tasks: asyncio.TaskGroup | None = None
        self._keeping_up: dict[int, asyncio.Task[None]] = {}
        self._rng = rng
        self._log = log
        self._tls = tls
        self._links: dict[int, Link] = {}
        self._unflushed: list[Link] = []
        self._encoded: Parcel | None = None
        self._buffers: Sequence[Buffer] = ()
        self._bytes_count = 0
        """The last parcel of this turn, as a letter."""
        self._heard_of: dict[int, asyncio.Event] = {}
        self._incarnation = self._disk = 0
        self._refused: Callable[[int, str], bool] = lambda node, why: False
        self._nobody_there: Callable[[int], None] = lambda node: None
        self.ended: set[int] = set()
        """Nodes where nobody listens: their processes are gone, until something is heard of them again."""

    def introduce(
        self,
        *,
        incarnation: int,
        disk: int,
        refused: Callable[[int, str], bool],
        nobody_there: Callable[[int], None],
    ) -> None:
        """What this node says of itself when it connects, and who hears why somebody does not want it, and
        says whether that is for good; and who hears, each time, that nobody listens where a node should."""
        self._incarnation, self._disk = incarnation, disk
        self._refused, self._nobody_there = refused, nobody_there

    @property
    def known(self) -> tuple[int, ...]:
        return tuple(self._addresses)

    def know(self, node: int, address: Address) -> None:
        """There is another peer, or one has moved; that is noticed when its link is next made."""
        is_new = node not in self._addresses
        self._addresses[node] = address
        if is_new and self._tasks is not None:
            self._begin(self._tasks, node)

    def forget(self, node: int) -> None:
        """It is gone for good: nobody tries to reach it any more."""
        self._addresses.pop(node, None)
        self.ended.discard(node)
        keeping_up = self._keeping_up.pop(node, None)
        if keeping_up is not None:
            keeping_up.cancel()

    def _begin(self, tasks: asyncio.TaskGroup, node: int) -> None:
        self._keeping_up[node] = tasks.create_task(self._keep_up(node), name=f"peer {node}")

    def send(self, to: int, parcel: Parcel) -> None:
        link = self._links.get(to)
        if link is None or not link.ready:
            self.dropped_count += 1
            return
        if parcel != self._encoded:  # A leader says the same to several peers: it is encoded once.
            self._encoded = parcel
            self._buffers, self._bytes_count = encode_parcel(parcel)
        bytes_count = self._bytes_count
        has_entries = parcel.frames or parcel.chunk
        bound = OUTBOUND_BYTES_MAX if has_entries else OUTBOUND_BYTES_MAX + OUTBOUND_RESERVE_BYTES
        if link.unsent_bytes + bytes_count > bound:
            self.dropped_count += 1
            return
        self.sent_count += 1
        if link not in self._unflushed:
            self._unflushed.append(link)
        link.put(self._buffers, bytes_count)

    def flush(self) -> None:
        """One write per peer for everything that was sent in this turn."""
        if not self._unflushed:
            return
        for link in self._unflushed:
            link.flush()
        self._unflushed.clear()
        self._encoded = None

    def heard_of(self, node: int) -> None:
        """A peer has connected to us, so it is up: connect to it now, if we were about to later.

        A node that is back must hear its leaders before it stands for election in their place.
        """
        self.ended.discard(node)
        if node in self._heard_of:
            self._heard_of[node].set()

    @property
    def unsent_bytes(self) -> int:
        """What links hold that the peers have not taken yet."""
        return sum(link.unsent_bytes for link in self._links.values())

    @property
    def connected(self) -> tuple[int, ...]:
        return tuple(node for node, link in sorted(self._links.items()) if link.ready)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for node in self._addresses:
                self._begin(tasks, node)
            self._tasks = tasks
            try:
                await asyncio.get_running_loop().create_future()  # Others may come.
            finally:
                self._tasks = None

    async def _keep_up(self, node: int) -> None:
        delay_s = RECONNECT_FIRST_S
        heard_of = self._heard_of[node] = asyncio.Event()
        last_said = ""
        while True:
            address = self._addresses.get(node)
            if address is None:
                return  # Forgotten, just as it came.
            hello = Hello(self._cluster, self._node, node, incarnation=self._incarnation, disk=self._disk)
            link = Link(hello)
            was_up = False
            try:
                was_up = await self._hold(link, node, address)
                why = link.closed_because
            except OSError as error:
                why = why_failed(error)
                if isinstance(error, ConnectionRefusedError):
                    self.ended.add(node)
                    self._nobody_there(node)
            finally:
                self._links.pop(node, None)
                link.abort("this node stops")
            delay_s = RECONNECT_FIRST_S if was_up else min(2 * delay_s, RECONNECT_MAX_S)
            if self._refused(node, why):
                return
            if why != last_said:
                self._log(f"peer {node} at {address}: {why}; trying again", level=WARNING, peer=node)
            last_said = "" if was_up else why
            heard_of.clear()
            with suppress(TimeoutError):
                # Not `wait_for`: where both come at once, that returns and forgets that it was cancelled.
                async with asyncio.timeout(delay_s * (0.5 + self._rng.random())):
                    await heard_of.wait()

    async def _hold(self, link: Link, node: int, address: Address) -> bool:
        """Connect, and stay until the connection is gone; whether it was ever up."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                await loop.create_connection(lambda: link, address.host, address.port, ssl=self._tls)
                await link.greeted
        except TimeoutError:
            link.abort("no answer")
            return False
        if not link.ready:
            return False
        self._links[node] = link
        self.ended.discard(node)
        self._log(f"peer {node} at {address}: connected", peer=node)
        await link.gone
        return True
