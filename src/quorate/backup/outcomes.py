"""What became of the transactions in a backup of a partition: which batches a restore must leave out.

A backup holds the batches of all transactions as they lay in the log, and the markers that ended them. They are
told apart by the very machine by which a node knows what to show to readers of committed records
(docs/decisions/026-a-restored-topic-has-no-transactions.md).

What has no marker is not committed: it was open when it was saved, or its end lies in a gap. A marker behind a gap
may be of another transaction of the same producer, and says nothing about what lies before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from quorate.backup.batches import Batch
from quorate.backup.errors import Damaged
from quorate.batch import BadBatch
from quorate.core.entry import Header
from quorate.machine.producers import Producers


class Span(NamedTuple):
    """Batches of this producer in a transaction, from `first` on and below `end`, are not committed."""

    producer_id: int
    first: int
    end: int


def _first(span: Span) -> int:
    return span.first


class Uncommitted:
    """What of a partition is not committed."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans: dict[int, list[Span]] = {}
        """By producer, in the order of the log: it has one transaction at a time."""
        for span in sorted(spans, key=_first):
            self._spans.setdefault(span.producer_id, []).append(span)

    def holds(self, batch: Batch) -> bool:
        if not batch.header.is_transactional:
            return False
        spans = self._spans.get(batch.header.producer_id, [])
        at = bisect_right(spans, batch.first, key=_first) - 1
        return at >= 0 and batch.first < spans[at].end


class Outcomes:
    """Hears of every batch of a partition, in the order of the log."""

    def __init__(self) -> None:
        self._known = Producers()
        self._spans: list[Span] = []
        self._end: int | None = None
        """Behind the last batch."""

    def add(self, batch: Batch, where: str) -> None:
        """Raises Damaged."""
        if self._end is not None and batch.first > self._end:
            self._close(self._end)
        self._end = batch.end if self._end is None else max(batch.end, self._end)
        header = batch.header
        if header.is_control and not header.is_transactional:
            return  # The log's own.
        entry = Header(header.leader_epoch, batch.first, header.offsets_count)
        try:
            self._known.settle(entry, 0, batch.content)
        except BadBatch as bad:
            raise Damaged(f"{where}, offset {batch.first}: {bad}") from bad

    def uncommitted(self) -> Uncommitted:
        """After the last one."""
        if self._end is not None:
            self._close(self._end)
        return Uncommitted(self._spans)

    def _close(self, end: int) -> None:
        """Nothing that comes behind this offset says anything about what lies before it."""
        known, self._known = self._known, Producers()
        self._spans += [
            Span(each.producer_id, each.first, each.marker) for each in known.aborted(first=0, end=end)
        ]
        self._spans += [
            Span(producer_id, first, end) for producer_id, first in known.open_transactions().items()
        ]
