"""Transactions as payloads of a log, and back.

A payload is a Kafka record batch, as everywhere, of one record whose value is the transaction in msgpack. There are
two ways back. `decode` gives what was encoded. `decode_value` leaves rows, keys and values as bytes: a table has
decoders of its own, which read and check them in one go, in C; nothing else is fast enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Raw

from quorate import batch
from quorate.batch import BATCH_MIN, Buffer
from quorate.tables import (
    ID_BYTES,
    OPERATIONS_COUNT_MAX,
    CannotApply,
    CommitStaged,
    CreateTable,
    DiscardStaged,
    DropTable,
    Stage,
    Transaction,
)

_BEFORE_VALUE = b"\0\0\0\1"
"""Of a record as `encode` makes it, behind its length: no attributes, both deltas 0, no key."""
_LENGTH_AT = BATCH_MIN
"""The record's length: one byte, or two, or more in a record of another shape."""
_ONE_RECORD = b"\0\0\0\1"
"""The last field of the batch's header."""


class RawSet(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    column: str
    value: Raw


class RawAdd(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    column: str
    value: Raw


RawChange = RawSet | RawAdd


class RawInsert(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    table: str
    row: Raw


class RawReplace(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    table: str
    row: Raw


class RawUpdate(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    table: str
    key: Raw
    changes: tuple[RawChange, ...]


class RawUpsert(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    table: str
    row: Raw
    changes: tuple[RawChange, ...]


class RawDelete(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    table: str
    key: Raw


RawRowOperation = RawInsert | RawReplace | RawUpdate | RawUpsert | RawDelete
RawOperation = RawRowOperation | CreateTable | DropTable | Stage | CommitStaged | DiscardStaged


class RawAbsent(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    table: str
    key: Raw


class RawAt(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    table: str
    key: Raw
    version: int


RawCondition = RawAbsent | RawAt


class RawTransaction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A transaction as it lies in the log."""

    id: Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
    operations: tuple[RawOperation, ...]
    conditions: tuple[RawCondition, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Transaction).decode
_decode_raw = msgspec.msgpack.Decoder(RawTransaction).decode
_decode_part: Callable[[Buffer], tuple[RawRowOperation, ...]] = msgspec.msgpack.Decoder(
    Annotated[tuple[RawRowOperation, ...], msgspec.Meta(min_length=1, max_length=OPERATIONS_COUNT_MAX)]
).decode


def encode(transaction: Transaction, timestamp: int = batch.NO_TIMESTAMP) -> bytes:
    """A batch of one record. Whether the transaction makes sense, `why_not` says."""
    return batch.encode_records([(None, _encode(transaction))], timestamp)


def decode(payload: Buffer) -> Transaction:
    """What `encode` was given; raises CannotApply."""
    try:
        return _decode(value_of(payload))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CannotApply(f"the record is no transaction: {error}") from error


def decode_value(value: bytes) -> RawTransaction:
    """The same of a record's value, with rows, keys and values still in msgpack; raises CannotApply."""
    try:
        return _decode_raw(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CannotApply(f"the record is no transaction: {error}") from error


def decode_part(operations: bytes | memoryview) -> tuple[RawRowOperation, ...]:
    """What a part has staged; raises ValueError."""
    try:
        return _decode_part(operations)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("a part's operations cannot be read") from error


def value_of(payload: Buffer) -> bytes:
    """The value of the batch's one record, as bytes of its own: who gave the payload may use its memory again."""
    try:
        at = _LENGTH_AT + 1 if payload[_LENGTH_AT] < 128 else _LENGTH_AT + 2
        if payload[at : at + 4] == _BEFORE_VALUE and payload[57:61] == _ONE_RECORD:
            at += 4
            while payload[at] > 127:
                at += 1
            return bytes(payload[at + 1 : -1])
        return _value_of_another_shape(payload)
    except IndexError as error:
        raise CannotApply("the payload is too short for a record batch") from error


def _value_of_another_shape(payload: Buffer) -> bytes:
    try:
        records = batch.decode_records(payload)
    except batch.BadBatch as error:
        raise CannotApply(str(error)) from error
    if len(records) != 1 or records[0].value is None:
        raise CannotApply(f"a transaction is a batch of one record with a value, not of {len(records)}")
    return records[0].value
