"""Requests of our own in Kafka's framing: a body of msgpack behind the head that every request has."""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec

from quorate.wire.cursor import BadMessage, Buffer

_HEAD = struct.Struct(">ihhi")
_CORRELATION = struct.Struct(">ii")
_LENGTH = struct.Struct(">h")

Body = TypeVar("Body")

encode_body = msgspec.msgpack.Encoder().encode


def frame_request(api: int, version: int, correlation: int, client_id: str, body: bytes) -> bytes:
    name = client_id.encode()
    size = _HEAD.size - 4 + _LENGTH.size + len(name) + len(body)
    head = _HEAD.pack(size, api, version, correlation)
    return b"".join((head, _LENGTH.pack(len(name)), name, body))


def frame_answer(body: bytes, correlation: int) -> bytes:
    return _CORRELATION.pack(4 + len(body), correlation) + body


def decode_body(decoder: msgspec.msgpack.Decoder[Body], body: Buffer, what: str) -> Body:
    """Raises BadMessage, which says that this is no `what`."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"no {what}: {error}") from error


def split_answer(frame: Buffer) -> tuple[int, memoryview]:
    """(correlation, body), of a frame without its size; raises BadMessage."""
    if len(frame) < 4:
        raise BadMessage("an answer without a correlation id")
    return int.from_bytes(frame[:4], "big"), memoryview(frame)[4:]
