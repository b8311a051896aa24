"""Joint transactions between clients and nodes: one request of our own among Kafka's, with msgpack inside.

Framed as tables are (wire/tables.py). Any node may be asked; one that does not lead the app's home says who does.
Appending goes by Kafka's Produce, under the producer id of an attempt, with the app as transactional id.
"""

from __future__ import annotations

import struct

import msgspec

from quorate.wire.cursor import BadMessage, Buffer

JOINT_API = 20_010
JOINT_VERSION = 0
JOINT_REQUEST_BYTES_MAX = 16 << 20
PARTS_COUNT_MAX = 100_000

_HEAD = struct.Struct(">ihhi")
_CORRELATION = struct.Struct(">ii")
_LENGTH = struct.Struct(">h")


# --- requests ---


class Open(msgspec.Struct, frozen=True, tag="open"):
    """A producer id that nobody had before, for one attempt of a task; answered by `Opened`."""

    app: str
    number: int
    run: str
    task: int
    attempt: int
    timeout_ms: int
    """The attempt is aborted if nothing is decided about it, nor is it renewed, for so long."""


class Written(msgspec.Struct, frozen=True):
    """Where an attempt has written, and how many records."""

    topic: str
    topic_id: bytes
    partition: int
    count: int


class Part(msgspec.Struct, frozen=True):
    """An attempt, as a commit lists it."""

    producer_id: int
    written: tuple[Written, ...] = ()


class Commit(msgspec.Struct, frozen=True, tag="commit"):
    """Publish these parts, all or none, and abort all others up to this number; answered by `Committed`."""

    app: str
    number: int
    run: str
    parts: tuple[Part, ...]
    timeout_ms: int = 30_000


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """This run gives the number up; answered by `Aborted`."""

    app: str
    number: int
    run: str


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """The time of these attempts begins anew; answered by `Renewed`."""

    app: str
    run: str
    producer_ids: tuple[int, ...]


class AskLast(msgspec.Struct, frozen=True, tag="last"):
    """Answered by `Last`."""

    app: str


Request = Open | Commit | Abort | Renew | AskLast


# --- answers ---


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    producer_id: int
    epoch: int


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    last: int
    """The highest number that is in."""
    already_in: bool = False
    """It was in before: nothing was published by this request."""


class Aborted(msgspec.Struct, frozen=True, tag="aborted"):
    last: int
    already_in: bool = False
    """Nothing was aborted: it is published, for good."""


class Renewed(msgspec.Struct, frozen=True, tag="renewed"):
    pass


class Last(msgspec.Struct, frozen=True, tag="last is"):
    number: int
    """-1: nothing is known of this app."""
    run: str = ""


class Again(msgspec.Struct, frozen=True, tag="again"):
    """Nothing was done, or it does no harm to do it again: ask `leader`, or here a little later."""

    why: str
    leader: int = 0


class Fenced(msgspec.Struct, frozen=True, tag="fenced"):
    """A newer run of this app has begun."""

    why: str = ""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The commit is not possible, now or ever: a part is gone, or not all of it is there. Nothing is published."""

    why: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Asking again does not help."""

    why: str


Answer = Opened | Committed | Aborted | Renewed | Last | Again | Fenced | Failed | Refused

_encode = msgspec.msgpack.Encoder().encode
_decode_request: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_decode_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode_request(request: Request, correlation: int, client_id: str) -> bytes:
    name, body = client_id.encode(), _encode(request)
    size = _HEAD.size - 4 + _LENGTH.size + len(name) + len(body)
    head = _HEAD.pack(size, JOINT_API, JOINT_VERSION, correlation)
    return b"".join((head, _LENGTH.pack(len(name)), name, body))


def decode_request(body: Buffer) -> Request:
    """Raises BadMessage."""
    try:
        return _decode_request.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"no request about joint transactions: {error}") from error


def encode_answer(answer: Answer, correlation: int) -> bytes:
    body = _encode(answer)
    return _CORRELATION.pack(4 + len(body), correlation) + body


def decode_answer(frame: Buffer) -> tuple[int, Answer]:
    """(correlation, answer), of a frame without its size; raises BadMessage."""
    if len(frame) < 4:
        raise BadMessage("an answer without a correlation id")
    correlation = int.from_bytes(frame[:4], "big")
    try:
        return correlation, _decode_answer.decode(memoryview(frame)[4:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"no answer about joint transactions: {error}") from error
