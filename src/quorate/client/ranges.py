"""Exactly what lies between two offsets of a partition, or an error: never silently less.

Leaders move and nodes restart meanwhile. Each answer is settled data, so that an answer of an old leader is
true and at worst short; a short one is asked for again until no batch has come for the cluster's time-out.
Control batches take offsets and are handed on like any other: whoever opens the batches skips them. Where only what
is committed is asked for, batches of aborted transactions are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic, sleep
from typing import NamedTuple

from quorate.batch import BadBatch, BatchHeader, verify
from quorate.client.cluster import EARLIEST, Cluster, Fetched
from quorate.client.errors import BadAnswer, OffsetOutOfRange, OffsetsMissing, Unreachable

FETCH_BYTES_MAX = 4 << 20
"""Of one answer; a batch that is larger comes alone."""
WAIT_S = 0.5
"""How long a leader holds a request that it cannot answer yet."""

PAUSE_S = 0.02
"""After an answer that brought nothing: not every node waits before it gives one."""


NOTHING = Fetched([], -1, -1)


class Range(NamedTuple):
    """The offsets from `first` to the one before `end`."""

    topic: str
    partition: int
    first: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.first} to {self.end - 1}"


def batches_between(
    cluster: Cluster,
    wanted: Range,
    *,
    committed: bool = False,
    missing_is_error: bool = True,
) -> Iterator[memoryview]:
    """Intact record batches that together hold every offset of the range, and around its ends perhaps more.

    Offsets that are not in the log any more are an OffsetsMissing, or passed over.
    """

    def pass_over(first: int, end: int) -> int:
        end = min(end, wanted.end)
        if missing_is_error:
            raise OffsetsMissing(wanted.topic, wanted.partition, first=first, end=end)
        return end

    position = wanted.first
    deadline = monotonic() + cluster.timeout_s
    while position < wanted.end:
        asked = position
        fetched = NOTHING
        try:
            fetched = cluster.fetch(
                wanted.topic,
                wanted.partition,
                position,
                bytes_max=FETCH_BYTES_MAX,
                wait_s=WAIT_S,
                committed=committed,
            )
        except OffsetOutOfRange:
            kept_from = _first_kept(cluster, wanted)
            if kept_from > position:
                position = pass_over(position, kept_from)
            # Otherwise it is not settled there yet: a new leader, or an old one that is behind.
        aborted = _Aborted(fetched.aborted)
        for batch in fetched.batches:
            header = _verified(batch, wanted)
            first, end = header.base_offset, header.base_offset + header.offsets_count
            is_aborted = aborted.is_of(header)
            if position < min(first, wanted.end):
                position = pass_over(position, first)
            if position >= wanted.end:
                return
            if end > position:
                if not is_aborted:
                    yield batch
                position = end
                deadline = monotonic() + cluster.timeout_s
        if position == asked:
            if monotonic() > deadline:
                raise Unreachable(
                    f"{wanted}: nothing more came at offset {position} within {cluster.timeout_s:g} s; "
                    f"is a majority of the nodes up?"
                )
            sleep(PAUSE_S)


class _Aborted:
    """Whose batches are of an aborted transaction, as one goes through the batches of one answer."""

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._coming = sorted(aborted, key=lambda each: each[1], reverse=True)
        self._open: set[int] = set()

    def is_of(self, header: BatchHeader) -> bool:
        last = header.base_offset + header.last_offset_delta
        while self._coming and self._coming[-1][1] <= last:
            self._open.add(self._coming.pop()[0])
        if header.producer_id not in self._open or not header.is_transactional:
            return False
        if header.is_control:
            # It ends the transaction: what this producer writes behind it is of another one.
            self._open.discard(header.producer_id)
            return False
        return True


def _verified(batch: memoryview, wanted: Range) -> BatchHeader:
    """A batch's header, after its checksum was compared."""
    try:
        return verify(batch)
    except BadBatch as error:
        raise BadAnswer(f"{wanted}: a batch came damaged: {error}") from error


def _first_kept(cluster: Cluster, wanted: Range) -> int:
    return cluster.offsets(wanted.topic, {wanted.partition: EARLIEST})[wanted.partition] or 0
