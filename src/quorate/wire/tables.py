"""What clients of tables and nodes say to each other: one request of our own among Kafka's, with msgpack inside.

The frame is Kafka's: a size, the api's number, a version, a correlation id and a client id, so that whatever serves
Kafka clients (listeners, TLS, who may connect) serves these, too. The body is one msgpack message, and so is the
answer behind its correlation id.
"""

from __future__ import annotations

import struct
from enum import StrEnum

import msgspec

from quorate.tables import Result, Row, Table, Transaction, Values
from quorate.wire.cursor import BadMessage, Buffer

TABLES_API = 20_000
"""Far from any number that Kafka uses."""
TABLES_VERSION = 0

_HEAD = struct.Struct(">ihhi")
_CORRELATION = struct.Struct(">ii")
_LENGTH = struct.Struct(">h")


class Consistency(StrEnum):
    """What a reader sees: what this copy has applied, what is settled here, or what was settled anywhere."""

    LOCAL = "local"
    COMMITTED = "committed"
    LINEARIZABLE = "linearizable"


# --- requests ---


class Execute(msgspec.Struct, frozen=True, tag="execute"):
    """Do all of it, or nothing; answered by `Done`, or by why not."""

    group: str
    transaction: Transaction
    timeout_ms: int = 30_000


class Get(msgspec.Struct, frozen=True, tag="get"):
    """Answered by `Rows`, with one or none."""

    group: str
    table: str
    key: Values
    consistency: Consistency = Consistency.COMMITTED
    offset: int = -1
    """Committed reads wait until this is settled there: whoever has written sees it, wherever it asks."""


class Scan(msgspec.Struct, frozen=True, tag="scan"):
    """Answered by `Rows`, in the order of their keys."""

    group: str
    table: str
    first: Values | None = None
    last: Values | None = None
    limit: int = 1000
    consistency: Consistency = Consistency.COMMITTED
    offset: int = -1


class AskResult(msgspec.Struct, frozen=True, tag="result"):
    """What became of a transaction; answered by `Done`, with nothing where nothing is known of it."""

    group: str
    id: bytes
    consistency: Consistency = Consistency.LINEARIZABLE


class AskTables(msgspec.Struct, frozen=True, tag="tables"):
    """Answered by `Described`."""

    group: str
    consistency: Consistency = Consistency.COMMITTED
    offset: int = -1


class Promote(msgspec.Struct, frozen=True, tag="promote"):
    """Let the node that is asked lead (`confirm`); answered by `Ordered`."""

    group: str
    roll_back: bool = False


class Demote(msgspec.Struct, frozen=True, tag="demote"):
    """Let the node that is asked lead no more (`confirm`); answered by `Ordered`."""

    group: str


Request = Execute | Get | Scan | AskResult | AskTables | Promote | Demote


# --- answers ---


class Done(msgspec.Struct, frozen=True, tag="done"):
    result: Result | None
    settled: bool = True
    """Not yet: it is flushed, and touches no synchronous table; it may still be taken back."""


class Rows(msgspec.Struct, frozen=True, tag="rows"):
    rows: tuple[Row, ...]
    offset: int
    """Up to here entries are seen."""


class Described(msgspec.Struct, frozen=True, tag="described"):
    tables: tuple[Table, ...]
    replication: str
    leader: int
    epoch: int


class Ordered(msgspec.Struct, frozen=True, tag="ordered"):
    leader: int


class Again(msgspec.Struct, frozen=True, tag="again"):
    """Nothing was done: ask `leader`, or whoever leads by then, or here a little later."""

    why: str
    leader: int = 0


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """Rule 9: it may have been done, or may be yet. The same transaction, by its id, can be asked for again."""

    why: str = ""


class RolledBack(msgspec.Struct, frozen=True, tag="rolled back"):
    """It was there, and was taken back. It can be asked for again."""

    why: str = ""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Asking again does not help."""

    why: str


Answer = Done | Rows | Described | Ordered | Again | Unknown | RolledBack | Refused

_encode = msgspec.msgpack.Encoder().encode
_decode_request: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_decode_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode_request(request: Request, correlation: int, client_id: str) -> bytes:
    name, body = client_id.encode(), _encode(request)
    head = _HEAD.pack(
        _HEAD.size - 4 + _LENGTH.size + len(name) + len(body), TABLES_API, TABLES_VERSION, correlation
    )
    return b"".join((head, _LENGTH.pack(len(name)), name, body))


def decode_request(body: Buffer) -> Request:
    """Raises BadMessage."""
    try:
        return _decode_request.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"no request about tables: {error}") from error


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
        raise BadMessage(f"no answer about tables: {error}") from error
