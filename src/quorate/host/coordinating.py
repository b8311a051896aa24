"""What whoever leads a home does besides answering: markers are sent until every partition has its own.

A transaction is decided when its end is settled in the home. From then on its markers are written by whoever leads,
as often as it takes: a partition takes each of them once (machine/producers.py), so that nothing is lost when a
leader dies in the middle, and nothing is done twice when two believe to lead.

A chaser is of one leadership of one home, and holds nothing that must not be forgotten.
"""

from __future__ import annotations

import msgspec

from quorate.core.entry import Partition
from quorate.machine.markers import Marker
from quorate.machine.transaction_words import Mark
from quorate.machine.transactions import Transactions

AGAIN_S = 0.5
"""A marker that could not be written is tried again after so long."""
ON_THE_WAY_MAX = 1000
"""Markers that are on their way at a time."""


class Order(msgspec.Struct, frozen=True, gc=False):
    """Let this marker be written there."""

    partition: Partition
    marker: Marker

    @property
    def mark(self) -> Mark:
        return Mark(self.marker.producer_id, self.marker.number, self.partition)


class Chaser:
    __slots__ = ("_on_the_way", "_resting", "_settled")

    def __init__(self) -> None:
        self._on_the_way: set[Mark] = set()
        self._resting: dict[Mark, float] = {}
        """When to try again."""
        self._settled: dict[Mark, None] = {}
        """Written; the home does not know it yet."""

    def due(self, now: float, transactions: Transactions) -> list[Order]:
        """Markers to be sent now. Each is to be answered for: `written` or `failed`."""
        orders: list[Order] = []
        for producer_id, ending in transactions.endings():
            marker = Marker(producer_id, ending.epoch, ending.number, ending.commit)
            for partition in ending.partitions:
                order = Order(Partition(partition), marker)
                mark = order.mark
                if mark in self._on_the_way or mark in self._settled or self._resting.get(mark, now) > now:
                    continue
                if len(self._on_the_way) >= ON_THE_WAY_MAX:
                    return orders
                self._resting.pop(mark, None)
                self._on_the_way.add(mark)
                orders.append(order)
        return orders

    def written(self, order: Order) -> None:
        self._on_the_way.discard(order.mark)
        self._settled[order.mark] = None

    def failed(self, now: float, order: Order) -> None:
        self._on_the_way.discard(order.mark)
        self._resting[order.mark] = now + AGAIN_S

    def news(self) -> tuple[Mark, ...]:
        """Markers that are written, and that the home is to hear of: until `heard`."""
        return tuple(self._settled)

    def heard(self, marks: tuple[Mark, ...]) -> None:
        """The home has settled them."""
        for mark in marks:
            self._settled.pop(mark, None)

    def next_try(self) -> float | None:
        return min(self._resting.values(), default=None)
