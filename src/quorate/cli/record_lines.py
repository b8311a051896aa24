"""Records as lines, in both directions: what `quorate produce` reads and `quorate consume` prints.

As plain lines a record is its value, or its key and its value with something between them. As JSON it is an object
on a line of its own; what `consume --format json` prints, `produce --json` takes.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from quorate.cli.wrong import WrongUsage

BASE64 = "base64"
"""Bytes that are no text are {"base64": "..."} in JSON."""
FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")

NUMBER_MAX = (1 << 63) - 1
"""As large as the time of a record can be."""

Header = tuple[str, bytes | None]


class BadLine(WrongUsage):
    """A line that is no record, and why."""


class Outgoing(NamedTuple):
    """A record that somebody has typed."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp: int | None = None
    headers: tuple[Header, ...] = ()


class Incoming(NamedTuple):
    """A record that was read."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


# ---- from lines ----

Parse = Callable[[bytes], Outgoing]


def from_plain(line: bytes) -> Outgoing:
    return Outgoing(line)


def from_keyed(separator: bytes) -> Parse:
    def parse(line: bytes) -> Outgoing:
        key, found, value = line.partition(separator)
        if not found:
            raise BadLine(f"there is no {separator.decode()!r} between a key and a value")
        return Outgoing(value, key)

    return parse


def from_json(line: bytes) -> Outgoing:
    """Whatever a record of `consume` says of where it was is for people, but for its partition."""
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLine(f"no JSON: {error}") from None
    if not isinstance(found, dict) or not found.keys() <= set(FIELDS):
        raise BadLine(f"a record is an object with {', '.join(FIELDS[1:])}; only value must be there")
    if "value" not in found:
        raise BadLine("there is no value; null is one")
    headers = found.get("headers") or {}
    if not isinstance(headers, dict):
        raise BadLine("headers are an object: a name, and a text or null")
    return Outgoing(
        _bytes_of(found["value"]),
        _bytes_of(found.get("key")),
        _number(found, "partition"),
        _number(found, "timestamp"),
        tuple((name, _bytes_of(value)) for name, value in headers.items()),
    )


def _number(found: dict[str, Any], name: str) -> int | None:
    number = found.get(name)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= NUMBER_MAX:
        raise BadLine(f"{name} is {number!r}, and no number from 0 to {NUMBER_MAX}")
    return number


def _bytes_of(value: Any) -> bytes | None:
    """A text as it is; bytes by their own spelling; anything else as JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {BASE64}:
        try:
            return base64.b64decode(value[BASE64], validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise BadLine(f"{value[BASE64]!r} is not in base64") from None
    return msgspec.json.encode(value)


def header_of(text: str) -> Header:
    name, found, value = text.partition("=")
    if not found or not name:
        raise WrongUsage(f"--header {text!r}: write NAME=VALUE")
    return name, value.encode()


# ---- to lines ----

Show = Callable[[Incoming], bytes]


def to_plain(record: Incoming) -> bytes:
    return record.value or b""


def to_keyed(separator: bytes) -> Show:
    return lambda record: (record.key or b"") + separator + (record.value or b"")


def to_json(record: Incoming) -> bytes:
    shown: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _text_of(record.key),
        "value": _text_of(record.value),
    }
    if record.headers:
        shown["headers"] = {name: _text_of(value) for name, value in record.headers}
    return msgspec.json.encode(shown)


def _text_of(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {BASE64: base64.b64encode(value).decode()}
