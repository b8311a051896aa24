"""Joint transactions between clients and nodes: one request of our own among Kafka's, with msgpack inside.

Framed as tables are (wire/tables.py). Any node may be asked; one that does not lead the app's home says who does.
Appending goes by Kafka's Produce, under the producer id of an attempt, with the app as transactional id.
"""

from __future__ import annotations

import msgspec

from quorate.wire.cursor import Buffer
from quorate.wire.own import decode_body, encode_body, frame_answer, frame_request, split_answer

JOINT_API = 20_010
JOINT_VERSION = 0
JOINT_REQUEST_BYTES_MAX = 16 << 20
PARTS_COUNT_MAX = 100_000


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

_decode_request: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_decode_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode_request(request: Request, correlation: int, client_id: str) -> bytes:
    return frame_request(JOINT_API, JOINT_VERSION, correlation, client_id, encode_body(request))


def decode_request(body: Buffer) -> Request:
    """Raises BadMessage."""
    return decode_body(_decode_request, body, "request about joint transactions")


def encode_answer(answer: Answer, correlation: int) -> bytes:
    return frame_answer(encode_body(answer), correlation)


def decode_answer(frame: Buffer) -> tuple[int, Answer]:
    """(correlation, answer), of a frame without its size; raises BadMessage."""
    correlation, body = split_answer(frame)
    return correlation, decode_body(_decode_answer, body, "answer about joint transactions")
