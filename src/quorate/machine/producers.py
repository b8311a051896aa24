"""Who has written to a partition with a producer id, and how far: what makes a repeated batch harmless.

A producer numbers its records (KIP-98): a batch carries the producer's id, its epoch, and the sequence of its
first record, and sequences go round at 2^31. Of each producer the last few batches are remembered, so that
one that arrives again is answered with the offset it has, and is not appended again.

This changes when entries are settled, and only then. A replica whose log is cut has nothing to undo here,
and every replica that has settled the same entries remembers the same, also about whom to forget. What a
leader has in its log and not yet settled is its own affair: host/producing.py.
"""

from __future__ import annotations

from struct import Struct

import msgspec

from quorate.batch import BatchHeader
from quorate.core.entry import Header, Kind

SEQUENCES_COUNT = 1 << 31
"""Sequences are below this, and go on with 0."""
BATCHES_REMEMBERED = 5
"""As many as a Kafka producer has under way at most: each of them may come again."""
PRODUCERS_COUNT_MAX = 10_000
"""Of one partition. Whoever has settled nothing for the longest time is forgotten first."""

_FIELDS = Struct(">qhi")
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
    return Numbered(header.producer_id, header.producer_epoch, first, last)


class Producer(msgspec.Struct, gc=False):
    """What is remembered of one producer, in its newest epoch."""

    epoch: int
    batches: list[tuple[int, int, int]]
    """(first sequence, last sequence, first offset) of the last few, oldest first; never empty."""

    @property
    def last(self) -> int:
        return self.batches[-1][1]

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


class _State(msgspec.Struct):
    """As it stands in snapshots: whoever settled something longest ago comes first."""

    producers: dict[int, Producer] = {}
    forgotten_max: int = -1


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

    # --- as a machine ---

    def settle(self, header: Header, checksum: int, payload: bytes | bytearray | memoryview) -> None:
        if payload[_FIELDS_AT] & _NEGATIVE or header.kind != Kind.RECORDS:
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
        producers[producer_id] = producer  # Last in the order of the dictionary: last to be forgotten.

    def snapshot(self) -> bytes:
        return _encode(self._state)

    def restore(self, data: bytes) -> None:
        self._state = _decode.decode(data)

    def _make_room(self) -> None:
        state = self._state
        while len(state.producers) >= self._count_max:
            oldest = next(iter(state.producers))
            del state.producers[oldest]
            state.forgotten_max = max(state.forgotten_max, oldest)
