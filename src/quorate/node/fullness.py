"""Whether a node's disk is full: said to people, and to whoever decides by it."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from quorate.node.logs import WARNING

if TYPE_CHECKING:
    from quorate.node.node import Node

DISK_FULL = (
    "the disk is full: nothing is lost, but little can be written; make room, and it goes on by itself"
)
DISK_HAS_ROOM = "the disk has room again"
LATELY_S = 3.0


class Fullness:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_full = False
        """It was, when it was last looked at."""
        self._seen_at = -math.inf

    def look(self, now: float) -> None:
        """Something was written, or was not."""
        is_full = self._node.host.store.is_full
        if is_full:
            self._seen_at = now
        if is_full != self._is_full:
            self._is_full = is_full
            self._node.log(DISK_FULL if is_full else DISK_HAS_ROOM, level=WARNING)

    @property
    def lately(self) -> bool:
        """Whether the disk has refused something lately; now and then it is tried whether it still does."""
        return self._is_full or time.monotonic() < self._seen_at + LATELY_S
