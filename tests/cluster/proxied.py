"""A cluster whose nodes reach each other through proxies of ours: cut, cut one way, or slow, and whole again.

A node speaks on the connections that it made and listens on those that others made (node/peers.py). So the link
from one node to another is one proxy, and cutting it is a cut one way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from quorate.bench.cluster_processes import NodeProcess, free_ports
from quorate.node.client import Client
from quorate.node.config import Address
from tests.cluster.growing import FIRST, GrowingCluster

CHUNK_BYTES = 1 << 16


class Link:
    """What one node says to another goes through here."""

    def __init__(self, target: Address | None) -> None:
        """None: it is not there yet."""
        self.target = target
        self.delay_s = 0.0
        self.is_cut = False
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, port: int) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", port)

    def set(self, *, cut: bool = False, delay_s: float = 0.0) -> None:
        """What is on its way while it is cut stays there, as in a network that loses nothing and delivers late."""
        self.is_cut, self.delay_s = cut, delay_s
        self._changed.set()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [writer]
        try:
            await self._passable()
            if self.target is None:
                raise ConnectionRefusedError
            answers, onwards = await asyncio.open_connection(self.target.host, self.target.port)
            writers.append(onwards)
            await asyncio.gather(self._pass_on(reader, onwards), self._pass_on(answers, writer))
        except (OSError, asyncio.CancelledError):  # Cancelled only when all is over.
            pass
        finally:
            self._tasks.discard(task)
            for each in writers:
                each.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._passable()
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _passable(self) -> None:
        while self.is_cut:
            self._changed.clear()
            await self._changed.wait()


class ProxiedCluster(GrowingCluster):
    """Use it in an `async with`, inside of the loop that the proxies run in."""

    def __init__(self, directory: Path, *, later: Sequence[int] = (), **settings: object) -> None:
        """`settings` are told to every node, and what is said to nodes that join `later` can be cut, too."""
        super().__init__(directory)
        self.links: dict[tuple[int, int], Link] = {}
        self._ports: dict[tuple[int, int], int] = {}
        pairs = list(permutations(self.nodes, 2)) + [(first, joins) for first in FIRST for joins in later]
        for pair, port in zip(pairs, free_ports(len(pairs)), strict=True):
            self._ports[pair] = port
            self.links[pair] = Link(self.nodes[pair[1]].address if pair[1] in self.nodes else None)
        for number, node in self.nodes.items():
            config = msgspec.json.decode(node.config.read_bytes()) | settings
            config["peers"] = {
                str(other): f"127.0.0.1:{self._ports[number, other]}"
                for other in (*self.nodes, *later)
                if other != number
            }
            node.config.write_bytes(msgspec.json.encode(config))

    async def __aenter__(self) -> Self:
        for pair, link in self.links.items():
            await link.listen(self._ports[pair])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)
        for link in self.links.values():
            await link.close()

    def join(self, node: int, client: Client, *, contacts: Sequence[int] = FIRST) -> NodeProcess:
        made = super().join(node, client, contacts=contacts)
        for first in FIRST:
            if (first, node) in self.links:
                self.links[first, node].target = made.address
        return made

    def cut_off(self, node: int, *, to: bool = True, of: bool = True) -> None:
        """Nobody hears this node (`of`), and it hears nobody (`to`)."""
        for (sender, receiver), link in self.links.items():
            if (sender == node and of) or (receiver == node and to):
                link.set(cut=True)

    def slow_down(self, node: int, delay_s: float) -> None:
        for pair, link in self.links.items():
            if node in pair:
                link.set(delay_s=delay_s)

    def heal(self) -> None:
        for link in self.links.values():
            link.set()
