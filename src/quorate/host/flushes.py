"""Who waits only until a leader has its own log flushed up to a place: a producer that asks for no more (acks=1).

It hears then, if that leader still leads in the same epoch. Where it does not, whoever proposed is told what became
of it in the usual way, and this is forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from quorate.core.entry import Partition
from quorate.host.replicas import Hosted


class Waiter(NamedTuple):
    epoch: int
    first: int
    last: int
    tell: Callable[[int], None]


class Flushes:
    def __init__(self) -> None:
        self._waiting: dict[Partition, deque[Waiter]] = {}

    def wait(self, hosted: Hosted, first: int, last: int, tell: Callable[[int], None]) -> None:
        """For these offsets, that this leader has just appended; it is told the first of them."""
        waiter = Waiter(hosted.replica.epoch, first, last, tell)
        self._waiting.setdefault(hosted.partition, deque()).append(waiter)

    def look(self, hosted: Hosted) -> None:
        """More of this replica's log may be flushed."""
        waiting, replica = self._waiting.get(hosted.partition), hosted.replica
        while waiting and (waiting[0].epoch != replica.epoch or waiting[0].last <= replica.durable.offset):
            waiter = waiting.popleft()
            if waiter.epoch == replica.epoch and replica.role.name == "leader":
                waiter.tell(waiter.first)
        if waiting is not None and not waiting:
            del self._waiting[hosted.partition]

    def forget(self, partition: Partition) -> None:
        self._waiting.pop(partition, None)
