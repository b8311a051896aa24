"""Who has written to a partition with a producer id, and how far: what makes a repeated batch harmless.

A producer numbers its records (KIP-98): a batch carries the producer's id, its epoch, and the sequence of its
first record, and sequences go round at 2^31. Of each producer the last few batches are remembered, so that
one that arrives again is answered with the offset it has, and is not appended again.

This changes when entries are settled, and only then. A replica whose log is cut has nothing to undo here,
and every replica that has settled the same entries remembers the same, also about whom to forget. What a
leader has in its log and not yet settled is its own affair: host/producing.py.

Transactions, too: the first batch of one opens it here, a marker ends it (machine/markers.py). Everything below the
first open one is *stable*; readers of committed records see no further, and are told which of the records before
that were aborted.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct

import msgspec

from quorate.batch import CONTROL, TRANSACTIONAL, BatchHeader
from quorate.core.entry import Header, Kind
from quorate.machine.markers import Marker, marker_of

SEQUENCES_COUNT = 1 << 31
"""Sequences are below this, and go on with 0."""
BATCHES_REMEMBERED = 5
"""As many as a Kafka producer has under way at most: each of them may come again."""
PRODUCERS_COUNT_MAX = 10_000
"""Of one partition. Whoever has settled nothing for the longest time is forgotten first."""

_FIELDS = Struct(">qhi")
_ATTRIBUTES_AT = 22
"""The lower byte of a batch's attributes."""
_FIELDS_AT = 43
"""Producer id, producer epoch and base sequence, in a record batch."""
_NEGATIVE = 0x80
"""In the first byte of a producer id: a batch without one."""


class Numbered(msgspec.Struct, frozen=True, gc=False):
    """What a batch says of its place among the batches of its producer."""

    producer_id: int
    epoch: int
    first: int
    last: int
    """Sequences of its first and last record."""
    is_transactional: bool = False

    @property
    def count(self) -> int:
        return (self.last - self.first) % SEQUENCES_COUNT + 1

    def follows(self, last: int) -> bool:
        """Whether it goes on right behind that sequence."""
        return self.first == (last + 1) % SEQUENCES_COUNT

    def is_before(self, first: int) -> bool:
        """Whether all of it is older than that sequence: round the circle, by the shorter way."""
        return (first - 1 - self.last) % SEQUENCES_COUNT < SEQUENCES_COUNT // 2


def numbered(header: BatchHeader) -> Numbered | None:
    """None where its numbers make no sense: no producer has sent that."""
    first = header.base_sequence
    if header.producer_epoch < 0 or first < 0:
        return None
    last = (first + header.last_offset_delta) % SEQUENCES_COUNT
    return Numbered(header.producer_id, header.producer_epoch, first, last, header.is_transactional)


class Producer(msgspec.Struct, gc=False, omit_defaults=True):
    """What is remembered of one producer, in its newest epoch."""

    epoch: int
    batches: list[tuple[int, int, int]]
    """(first sequence, last sequence, first offset) of the last few, oldest first; none where a marker began the
    epoch."""
    marked: int = -1
    """The number of its last transaction that ended here."""
    records: int = 0
    """Of the open transaction."""
    is_lost: bool = False
    """Nothing of its sequences is known: it was forgotten, and a marker came."""

    @property
    def last(self) -> int:
        return self.batches[-1][1] if self.batches else -1

    def offset_of(self, batch: Numbered) -> int | None:
        """Where exactly this batch was settled, if it is remembered."""
        if batch.epoch == self.epoch:
            for first, last, offset in self.batches:
                if first == batch.first and last == batch.last:
                    return offset
        return None

    def has_forgotten(self, batch: Numbered) -> bool:
        """Whether it is older than all that is remembered, and so was settled once.

        While there are fewer than are remembered, nothing of this epoch was dropped yet.
        """
        full = len(self.batches) == BATCHES_REMEMBERED
        return full and batch.epoch == self.epoch and batch.is_before(self.batches[0][0])


class Aborted(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An aborted transaction: its records from `first` on are none, up to its marker."""

    producer_id: int
    first: int
    marker: int
    """The marker's offset."""
    stable: int
    """What was first not stable behind it: all that are aborted later begin there or above."""


class _State(msgspec.Struct, omit_defaults=True):
    """As it stands in snapshots: whoever settled something longest ago comes first."""

    producers: dict[int, Producer] = {}
    forgotten_max: int = -1
    open: dict[int, int] = {}
    """The first offset of each open transaction, by producer, in the order of the log."""
    aborted: list[Aborted] = []
    """In the order of their markers."""


_encode = msgspec.msgpack.Encoder().encode
_decode: msgspec.msgpack.Decoder[_State] = msgspec.msgpack.Decoder(_State)


class Producers:
    __slots__ = ("_count_max", "_state")

    def __init__(self, count_max: int = PRODUCERS_COUNT_MAX) -> None:
        self._count_max = count_max
        self._state = _State()

    def __len__(self) -> int:
        return len(self._state.producers)

    def get(self, producer_id: int) -> Producer | None:
        return self._state.producers.get(producer_id)

    def may_have_forgotten(self, producer_id: int) -> bool:
        """Ids are given out in ascending order: one above all that were forgotten was never known here."""
        return producer_id <= self._state.forgotten_max and producer_id not in self._state.producers

    # --- transactions ---

    def stable_end(self, end: int) -> int:
        """The first offset that readers of committed records do not see; everything below `end` is applied."""
        first = next(iter(self._state.open.values()), end)
        return min(first, end)

    def is_open(self, producer_id: int) -> bool:
        return producer_id in self._state.open

    def open_transactions(self) -> dict[int, int]:
        """First offsets, by producer."""
        return dict(self._state.open)

    def all(self) -> dict[int, Producer]:
        return dict(self._state.producers)

    def aborted(self, *, first: int, end: int) -> list[Aborted]:
        """Transactions with aborted records between these offsets, `end` left out."""
        aborted = self._state.aborted
        found = []
        for each in aborted[bisect_left(aborted, first, key=lambda each: each.marker) :]:
            if each.first < end:
                found.append(each)
            if each.stable >= end:
                break
        return found

    def expire(self, upto: int) -> None:
        """Nothing up to this offset is in the log any more: what was aborted there need not be known."""
        aborted = self._state.aborted
        if aborted and aborted[0].marker <= upto:
            del aborted[: bisect_left(aborted, upto + 1, key=lambda each: each.marker)]

    # --- as a machine ---

    def settle(self, header: Header, checksum: int, payload: bytes | bytearray | memoryview) -> None:
        if payload[_FIELDS_AT] & _NEGATIVE or header.kind != Kind.RECORDS:
            return
        attributes = payload[_ATTRIBUTES_AT]
        if attributes & CONTROL:
            self._settle_marker(header.offset, marker_of(payload))
            return
        producer_id, epoch, first = _FIELDS.unpack_from(payload, _FIELDS_AT)
        last = (first + header.count - 1) % SEQUENCES_COUNT
        batch = (first, last, header.offset)
        producers = self._state.producers
        producer = producers.pop(producer_id, None)
        if producer is None:
            self._make_room()
            producer = Producer(epoch, [batch])
        elif producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches = [batch]
        else:
            producer.batches.append(batch)
            if len(producer.batches) > BATCHES_REMEMBERED:
                del producer.batches[0]
        producer.is_lost = False
        producers[producer_id] = producer  # Last in the order of the dictionary: last to be forgotten.
        if attributes & TRANSACTIONAL:
            self._state.open.setdefault(producer_id, header.offset)
            producer.records += header.count

    def _settle_marker(self, offset: int, marker: Marker) -> None:
        state = self._state
        producer = state.producers.pop(marker.producer_id, None)
        if producer is None:
            is_lost = marker.producer_id <= state.forgotten_max
            self._make_room()
            producer = Producer(marker.epoch, [], is_lost=is_lost)
        state.producers[marker.producer_id] = producer
        if marker.number <= producer.marked:
            return
        producer.marked = marker.number
        producer.records = 0
        if marker.epoch > producer.epoch:
            producer.epoch = marker.epoch
            producer.batches = []
            producer.is_lost = False
        first = state.open.pop(marker.producer_id, None)
        if first is not None and not marker.commit:
            stable = self.stable_end(offset + 1)
            state.aborted.append(Aborted(marker.producer_id, first, offset, stable))

    def snapshot(self) -> bytes:
        return _encode(self._state)

    def restore(self, data: bytes) -> None:
        self._state = _decode.decode(data)

    def _make_room(self) -> None:
        """Whoever has a transaction open stays, however many there are: its end must be known for one."""
        state = self._state
        while len(state.producers) - len(state.open) >= self._count_max:
            oldest = next(each for each in state.producers if each not in state.open)
            del state.producers[oldest]
            state.forgotten_max = max(state.forgotten_max, oldest)
