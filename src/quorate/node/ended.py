"""Nodes whose processes are gone, as their machines say: nobody listens where they should."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorate.node.node import Node


class Ended:
    """Replicas need not wait until such a node has been silent for long."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_telling = False

    def heard(self, peer: int) -> None:
        if not self._node.is_over:
            self._node.begin_turn()
            self._node.host.suspect(peer, ended=True)
            self._node.end_turn()

    def led(self) -> None:
        """Another replica leads, and was told before, perhaps, when that meant nothing to it: it is not to wait
        for a node that is gone until somebody tries once more to reach it."""
        if self._node.links.ended and not self._is_telling:
            self._is_telling = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._is_telling = False
        for peer in sorted(self._node.links.ended):
            self.heard(peer)
