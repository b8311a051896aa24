"""Which batches the producers of one connection must send again: what follows them is not out of order.

A producer with an id has up to five batches under way. Where the second is refused for a moment (the leader is
handing over, say), the third does not follow what is in the log any more. Called out of order, librdkafka takes a
new producer epoch and sends everything again that was not acknowledged; under the new epoch nobody recognises the
first batch, which may well be in the log, and it is there twice. Told to try again, a client sends all of them
again in order, under the same numbers, and each is recognised.

A connection is all that must be remembered: before clients send anything again, or elsewhere, they wait for the
answers to what is under way.
"""

from __future__ import annotations

from quorate.core.entry import Partition
from quorate.machine.producers import Numbered

REMEMBERED_COUNT_MAX = 10_000
"""Partitions and producers; whoever was remembered first is forgotten first."""


class Retrying:
    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: dict[tuple[Partition, int], Numbered] = {}
        """The first batch of a producer that must come again."""

    def must_come_again(self, partition: Partition, batch: Numbered | None) -> None:
        if batch is None:
            return
        key = partition, batch.producer_id
        known = self._first.get(key)
        if known is None or known.epoch != batch.epoch or batch.is_before(known.first):
            self._first[key] = batch
        if len(self._first) > REMEMBERED_COUNT_MAX:
            del self._first[next(iter(self._first))]

    def is_there(self, partition: Partition, batch: Numbered) -> None:
        """It is in the log, and with it all that was before it."""
        known = self._first.get((partition, batch.producer_id))
        if known is not None and not (known.epoch == batch.epoch and batch.is_before(known.first)):
            del self._first[partition, batch.producer_id]

    def is_behind(self, partition: Partition, batch: Numbered) -> bool:
        """Whether one that must come again belongs before it."""
        known = self._first.get((partition, batch.producer_id))
        return known is not None and known.epoch == batch.epoch and known.is_before(batch.first)
