"""Which open transactions hold readers of committed records back, since when, and whose they are.

A partition knows the producer whose transaction is open first, and that readers get no further. Whose it is, and
when it ends by itself, its coordinator knows, on whichever node. `quorate doctor` puts both together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import msgspec

from quorate.core.entry import Partition
from quorate.machine.producers import Producers
from quorate.machine.purpose import TRANSACTIONS
from quorate.machine.transaction_words import Phase
from quorate.machine.transactions import Transactions

if TYPE_CHECKING:
    from quorate.node.node import Node

LOOK_EVERY_S = 1.0
TOLD_COUNT_MAX = 100
"""Of the transactions that a node coordinates, so many are told, those that are open for longest."""


class HoldsBack(msgspec.Struct, frozen=True, gc=False):
    """The transaction that is open first in a partition."""

    producer_id: int
    first: int
    """Readers of committed records see nothing from this offset on."""
    age_s: float
    """How long that has been so, as far as was seen here."""


class OpenTransaction(msgspec.Struct, frozen=True, gc=False):
    """As its coordinator knows it."""

    producer_id: int
    name: str
    """The transactional id; of joint ones, the app."""
    began_ms: int
    timeout_ms: int
    """It is aborted when it is open for longer."""
    decided: str = ""
    """`committed` or `aborted`, and not every partition has its marker; empty: it is open."""
    number: int = -1
    """Of the joint commit that it is for; -1: it is a plain one."""


class HeldBack:
    """Looked at now and then, so ages are too little, by LOOK_EVERY_S at most."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._seen: dict[Partition, tuple[int, int, float]] = {}
        """By partition: the producer whose transaction is open first, where it begins, and since when."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look(time.monotonic())
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self, now: float) -> None:
        seen: dict[Partition, tuple[int, int, float]] = {}
        for partition, hosted in self._node.host.hosted.items():
            if isinstance(hosted.machine, Producers) and (first := _first_open(hosted.machine)):
                before = self._seen.get(partition)
                seen[partition] = before if before is not None and before[:2] == first else (*first, now)
        self._seen = seen

    def of(self, partition: Partition, now: float) -> HoldsBack | None:
        """None: nothing is open there, as far as was seen."""
        seen, hosted = self._seen.get(partition), self._node.host.hosted.get(partition)
        if seen is None or hosted is None or not isinstance(hosted.machine, Producers):
            return None
        producer_id, first, since = seen
        if _first_open(hosted.machine) != (producer_id, first):
            return None
        return HoldsBack(producer_id, first, now - since)


def _first_open(machine: Producers) -> tuple[int, int] | None:
    """The producer, and the offset."""
    return next(iter(machine.open_transactions().items()), None)


def coordinated_by(node: Node) -> tuple[OpenTransaction, ...]:
    """What is not over of the homes that are led here, oldest first."""
    found = [
        each
        for partition, hosted in node.host.hosted.items()
        if hosted.record.purpose == TRANSACTIONS and node.leads_with_all(partition)
        for each in _not_over(cast(Transactions, hosted.machine))
    ]
    return tuple(sorted(found, key=lambda each: (each.began_ms, each.producer_id))[:TOLD_COUNT_MAX])


def _not_over(machine: Transactions) -> Iterator[OpenTransaction]:
    for name, plain in machine.all_plain():
        if plain.phase is Phase.ONGOING:
            yield OpenTransaction(plain.producer_id, name, plain.began_ms, plain.timeout_ms)
        elif plain.phase in (Phase.COMMITTING, Phase.ABORTING):
            decided = "committed" if plain.phase is Phase.COMMITTING else "aborted"
            yield OpenTransaction(plain.producer_id, name, plain.began_ms, plain.timeout_ms, decided)
    for name, app in machine.all_apps():
        for producer_id, attempt in app.attempts.items():
            yield OpenTransaction(
                producer_id, name, attempt.began_ms, attempt.timeout_ms, number=attempt.number
            )
    for producer_id, ending in machine.endings():
        if not ending.name:
            decided = "committed" if ending.commit else "aborted"
            yield OpenTransaction(producer_id, "", 0, 0, decided)
