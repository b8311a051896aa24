"""Which batches the producers of one connection must send again: what follows them is not out of order.

A producer with an id has up to five batches under way. Where the second is refused for a moment (the leader
is handing over, say), the third does not follow what is in the log any more. Called out of order, librdkafka
takes a new producer epoch and sends everything again that was not acknowledged; under the new epoch nobody
recognises the first batch, which may well be in the log, and it is there twice. Told to try again, a client
sends all of them again, under the same numbers, and each is recognised.

A connection is all that must be remembered. On a new one, to this node or another, a client begins with the
oldest batch that it has no good answer for. So whichever batch is missing before one that is out of order, it
came through the same connection, was judged before it, and its producer was told to try again.
"""

from __future__ import annotations

from quorate.core.effects import Outcome
from quorate.core.entry import Partition
from quorate.machine.producers import SEQUENCES_COUNT, Numbered

REMEMBERED_COUNT_MAX = 10_000
"""Partitions and producers; whoever was remembered first is forgotten first."""
_AGAIN = (
    Outcome.NOT_LEADER,
    Outcome.UNKNOWN,
    Outcome.BUSY,
    Outcome.FULL,
    Outcome.ROLLED_BACK,
    Outcome.NOT_OPEN,
)
"""After these a producer sends the batch again."""
_THERE = (Outcome.SETTLED, Outcome.DUPLICATE)
"""It is in the log, and with it all that was before it."""


class Retrying:
    __slots__ = ("_missing",)

    def __init__(self) -> None:
        self._missing: dict[tuple[Partition, int], Numbered] = {}
        """What a producer must send again, from the first batch to the last."""

    def judged(self, partition: Partition, batch: Numbered, outcome: Outcome) -> Outcome:
        """What its producer is told of a batch: `outcome`, or *busy* where it has only come too early."""
        missing = self._missing.get((partition, batch.producer_id))
        if missing is not None and missing.epoch != batch.epoch:
            missing = None
        is_early = missing is not None and _is_older(missing.first, batch.first)
        if outcome is Outcome.OUT_OF_ORDER and is_early:
            outcome = Outcome.BUSY
        if outcome in _AGAIN:
            self._remember(partition, batch if missing is None else _both(missing, batch))
        elif outcome in _THERE:
            self._is_there(partition, batch, missing)
        return outcome

    def _remember(self, partition: Partition, missing: Numbered) -> None:
        self._missing[partition, missing.producer_id] = missing
        if len(self._missing) > REMEMBERED_COUNT_MAX:
            del self._missing[next(iter(self._missing))]

    def _is_there(self, partition: Partition, batch: Numbered, missing: Numbered | None) -> None:
        if missing is None or not _is_older(batch.last, missing.last):
            self._missing.pop((partition, batch.producer_id), None)
        elif not _is_older(batch.last, missing.first):
            first = (batch.last + 1) % SEQUENCES_COUNT
            self._remember(partition, Numbered(batch.producer_id, batch.epoch, first, missing.last))


def _both(one: Numbered, two: Numbered) -> Numbered:
    """From the beginning of the older one to the end of the newer."""
    first = one.first if _is_older(one.first, two.first) else two.first
    last = two.last if _is_older(one.last, two.last) else one.last
    return Numbered(one.producer_id, one.epoch, first, last)


def _is_older(one: int, two: int) -> bool:
    """Of two sequences: round the circle, by the shorter way."""
    return 0 < (two - one) % SEQUENCES_COUNT < SEQUENCES_COUNT // 2
