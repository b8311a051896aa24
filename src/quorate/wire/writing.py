"""What the messages that are written by hand are made of; the counterpart of Cursor."""

from __future__ import annotations

import struct

NO_TAGS = b"\0"
"""The end of a structure of a flexible version, without tagged fields."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_SHORT = [bytes((number,)) for number in range(128)]


def uvarint(number: int) -> bytes:
    if number < 128:
        return _SHORT[number]
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def string(text: str | None, *, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    content = text.encode()
    return uvarint(len(content) + 1) + content if flexible else _I16.pack(len(content)) + content


def array(count: int, *, flexible: bool) -> bytes:
    """The head of a list, or of a byte string: the same two spellings."""
    return uvarint(count + 1) if flexible else _I32.pack(count)


def request_head(
    api: int, version: int, correlation: int, client_id: str | None, *, flexible: bool
) -> bytearray:
    """The start of a request, with four bytes left for its size: see `sealed`."""
    head = bytearray(4)
    head += struct.pack(">hhi", api, version, correlation)
    head += string(client_id, flexible=False)
    if flexible:
        head += NO_TAGS
    return head


def sealed(message: bytearray, more_bytes: int = 0) -> bytearray:
    """With its size filled in; `more_bytes` is what is sent behind it and belongs to it."""
    _I32.pack_into(message, 0, len(message) - 4 + more_bytes)
    return message
