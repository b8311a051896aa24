"""Reads everything that this node keeps, again and again, so that damage is found while others can mend it.

A node that starts does not read its sealed segments, and clients mostly read what is new: damage of what is old
would be noticed when it is needed, and perhaps too late. Whatever is found is fetched from peers (core/keeping.py).
One partition at a time, and with rests that are far longer than the work: clients come first.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from quorate.core.entry import Partition, Span

if TYPE_CHECKING:
    from quorate.node.node import Node

FIRST_S = 60.0
"""A node that has just started has other things to do."""
REST = 9.0
"""How much longer than the work the rest after it is."""


class Scrubber:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def run(self) -> None:
        """Until cancelled."""
        every_s = self._node.config.scrub_every_s
        if every_s <= 0:
            return
        await asyncio.sleep(min(FIRST_S, every_s))
        while True:
            began = time.monotonic()
            for partition in tuple(self._node.host.hosted):
                if self._node.holds(partition):
                    await asyncio.sleep(REST * await self._check(partition))
            await asyncio.sleep(max(every_s - (time.monotonic() - began), 0.0))

    async def _check(self, partition: Partition) -> float:
        """How many seconds it took. What is found is told (reports.py), and mended by its replica."""
        loop, began = asyncio.get_running_loop(), time.monotonic()
        checked: asyncio.Future[None] = loop.create_future()

        def done(_: list[Span]) -> None:
            self._node.metrics.scrubs += 1
            if not checked.done():
                checked.set_result(None)

        self._node.check(partition, done)
        await checked
        return time.monotonic() - began
