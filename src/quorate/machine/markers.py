"""Markers: how a transaction ends in a partition, as a control batch that every Kafka client knows (KIP-98).

    key    version i16 · type i16: 0 abort, 1 commit
    value  version i16 · epoch of the coordinator i32 · number of the transaction i64

The number is ours, behind what Kafka's clients look at. A producer's transactions are counted, so that a marker
that comes late, when the next transaction of the same producer is open, is not taken for the end of that one.
"""

from __future__ import annotations

from struct import Struct

import msgspec

from quorate import batch

ABORT, COMMIT = 0, 1
_VALUE = Struct(">hiq")
_VALUE_VERSION = 0
_EPOCH_MASK = 0x7FFF_FFFF


class Marker(msgspec.Struct, frozen=True, gc=False):
    producer_id: int
    epoch: int
    """Of the producer. Where the coordinator aborts on its own, the next one: it fences the producer here."""
    number: int
    commit: bool


def encode_marker(marker: Marker, *, coordinator_epoch: int, now_ms: int) -> bytes:
    key = (batch.CONTROL_VERSION).to_bytes(2, "big") + int(marker.commit).to_bytes(2, "big")
    value = _VALUE.pack(_VALUE_VERSION, coordinator_epoch & _EPOCH_MASK, marker.number)
    return batch.encode_records(
        [(key, value)],
        now_ms,
        attributes=batch.CONTROL | batch.TRANSACTIONAL,
        producer_id=marker.producer_id,
        producer_epoch=marker.epoch,
    )


def marker_of(payload: batch.Buffer) -> Marker:
    """Raises BadBatch for a control batch that is none."""
    header = batch.parse_batch_header(payload)
    kind, value = batch.decode_control(payload)
    if kind not in (ABORT, COMMIT) or not header.is_transactional or header.producer_id < 0:
        raise batch.BadBatch("a control batch that ends no transaction")
    if len(value) < _VALUE.size or header.producer_epoch < 0:
        raise batch.BadBatch("a marker that does not say of which transaction it is")
    _, _, number = _VALUE.unpack_from(value)
    return Marker(header.producer_id, header.producer_epoch, number, kind == COMMIT)
