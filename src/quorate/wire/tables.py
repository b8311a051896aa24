"""What clients of tables and nodes say to each other: one request of our own among Kafka's, with msgpack inside.

The frame is Kafka's: a size, the api's number, a version, a correlation id and a client id, so that whatever serves
Kafka clients (listeners, TLS, who may connect) serves these, too. The body is one msgpack message, and so is the
answer behind its correlation id.

A group is named, and by whoever has asked before identified, too: one that was deleted and created anew under the
same name is another one, whose offsets and versions mean something else.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from quorate.tables import TRANSACTION_BYTES_MAX, Result, Row, Table, Transaction, Values
from quorate.wire.cursor import Buffer
from quorate.wire.own import decode_body, encode_body, frame_answer, frame_request, split_answer

TABLES_API = 20_000
"""Far from any number that Kafka uses."""
TABLES_SCAN_API = 20_001
"""Scans and snapshots, whose answers are large: a node does one after the other of those that one client sends."""
TABLES_VERSION = 0
TABLES_REQUEST_BYTES_MAX = TRANSACTION_BYTES_MAX + (64 << 10)
PAGE_ROWS_MAX = 1000
PAGE_BYTES_MAX = 1 << 20
"""What one answer to a scan holds, at most, and always one row at least: others wait while it is looked up."""
CHANGES_PAGE_MAX = 10_000
"""Of changes: they are not opened where they are looked up."""


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
    """After that the outcome is unknown, and the node says so."""
    group_id: bytes = b""
    """As the client knows it; empty: it has not asked before."""


class Get(msgspec.Struct, frozen=True, tag="get"):
    """Answered by `Rows`, with one or none."""

    group: str
    table: str
    key: Values
    consistency: Consistency = Consistency.COMMITTED
    offset: int = -1
    """Committed reads wait until this is settled there: whoever has written sees it, wherever it asks."""
    timeout_ms: int = 30_000
    group_id: bytes = b""


class Scan(msgspec.Struct, frozen=True, tag="scan"):
    """Answered by `Rows`, in the order of their keys: a page of them, and where the next one begins."""

    group: str
    table: str
    first: Values | None = None
    last: Values | None = None
    after: Values | None = None
    """Instead of `first`: the key behind which to begin."""
    limit: int = PAGE_ROWS_MAX
    consistency: Consistency = Consistency.COMMITTED
    offset: int = -1
    timeout_ms: int = 30_000
    group_id: bytes = b""


class AskResult(msgspec.Struct, frozen=True, tag="result"):
    """What became of a transaction; answered by `Done`, with nothing where nothing is known of it."""

    group: str
    id: bytes
    consistency: Consistency = Consistency.LINEARIZABLE
    timeout_ms: int = 30_000
    group_id: bytes = b""


class AskTables(msgspec.Struct, frozen=True, tag="tables"):
    """Answered by `Described`."""

    group: str
    consistency: Consistency = Consistency.COMMITTED
    offset: int = -1
    timeout_ms: int = 30_000
    group_id: bytes = b""


class AskPiece(msgspec.Struct, frozen=True, tag="piece?"):
    """The next piece of a snapshot, which is of one moment: of that in which piece 0 was asked for.

    Answered by `Piece`. Pieces are asked for one after the other, of one node; the last one may be asked for again.
    """

    group: str
    snapshot: bytes
    """Whoever asks makes it up: 16 bytes."""
    number: int
    consistency: Consistency = Consistency.COMMITTED
    offset: int = -1
    timeout_ms: int = 30_000
    group_id: bytes = b""
    table: str = ""
    """Of this one alone; empty: of everything."""
    at: int = -1
    """Of one table: as it was when this offset was settled; -1: when piece 0 was asked for."""
    after: Values | None = None
    """Of one table: only what is behind this key."""


class AskChanges(msgspec.Struct, frozen=True, tag="changes?"):
    """What entries from `first` to `last`, which are settled, have changed in a table; answered by `Changes`."""

    group: str
    table: str
    first: int
    last: int
    skip: int = 0
    """As the page before has said."""
    consistency: Consistency = Consistency.COMMITTED
    offset: int = -1
    timeout_ms: int = 30_000
    group_id: bytes = b""


class Promote(msgspec.Struct, frozen=True, tag="promote"):
    """Let the node that is asked lead (`confirm`); answered by `Ordered`."""

    group: str
    roll_back: bool = False
    group_id: bytes = b""


class Demote(msgspec.Struct, frozen=True, tag="demote"):
    """Let the node that is asked lead no more (`confirm`); answered by `Ordered`."""

    group: str
    group_id: bytes = b""


Request = Execute | Get | Scan | AskResult | AskTables | AskPiece | AskChanges | Promote | Demote

LARGE = (Scan, AskPiece, AskChanges)
"""What is asked for with `TABLES_SCAN_API`."""


# --- answers ---


class Done(msgspec.Struct, frozen=True, tag="done"):
    result: Result | None
    settled: bool = True
    """Not yet: it is flushed, and touches no synchronous table; it may still be taken back."""
    group_id: bytes = b""


class Rows(msgspec.Struct, frozen=True, tag="rows"):
    rows: tuple[Row, ...]
    offset: int
    """Up to here entries are seen."""
    after: Values | None = None
    """There are more, behind this key."""
    group_id: bytes = b""


class Described(msgspec.Struct, frozen=True, tag="described"):
    tables: tuple[Table, ...]
    replication: str
    leader: int
    epoch: int
    copies: tuple[int, ...] = ()
    """The nodes that have one."""
    offset: int = -1
    """Up to here entries are seen."""
    group_id: bytes = b""


class Piece(msgspec.Struct, frozen=True, tag="piece"):
    content: bytes
    """Joined, they are what machine/table_snapshot.py writes."""
    is_last: bool = False
    is_lost: bool = False
    """The node knows nothing of this snapshot, any more: begin another one."""
    group_id: bytes = b""
    kept_from: int = -1
    """The table cannot be shown as it was then: this copy keeps changes from this offset on. -1: it can."""


class Change(NamedTuple):
    offset: int
    """Of the entry that made it."""
    timestamp: int
    """In milliseconds since 1970, when its transaction was taken; -1: nobody has said."""
    before: bytes | None
    """The row as it was: its version in eight bytes, and its values in msgpack. None: there was none."""
    after: bytes | None
    """Both empty, or one: the table itself was made, or dropped."""


class Changes(msgspec.Struct, frozen=True, tag="changes"):
    changes: tuple[Change, ...]
    """One for each row that a transaction has changed, however often."""
    kept_from: int
    """This copy keeps changes from this offset on; above `first`, there are none in here."""
    next: tuple[int, int] | None = None
    """There may be more: the `first` and `skip` of the next page."""
    group_id: bytes = b""


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


class NoGroup(msgspec.Struct, frozen=True, tag="no group"):
    """There is none of that name, by all that the cluster has settled; or another one than was meant."""

    is_another: bool = False


class Elsewhere(msgspec.Struct, frozen=True, tag="elsewhere"):
    """The node that was asked has no copy, and is to have none: ask one of these."""

    copies: tuple[int, ...]
    leader: int = 0


Answer = (
    Done
    | Rows
    | Described
    | Piece
    | Changes
    | Ordered
    | Again
    | Unknown
    | RolledBack
    | Refused
    | NoGroup
    | Elsewhere
)

_decode_request: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_decode_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def within(request: Request, timeout_s: float) -> Request:
    """A node that cannot answer in that time says so, instead of nothing."""
    if isinstance(request, Promote | Demote):
        return request
    return msgspec.structs.replace(request, timeout_ms=max(1, round(timeout_s * 1000)))


def size_of(request: Request) -> int:
    """In bytes, without its head."""
    return len(encode_body(request))


def encode_request(request: Request, correlation: int, client_id: str) -> bytes:
    api = TABLES_SCAN_API if isinstance(request, LARGE) else TABLES_API
    return frame_request(api, TABLES_VERSION, correlation, client_id, encode_body(request))


def decode_request(body: Buffer) -> Request:
    """Raises BadMessage."""
    return decode_body(_decode_request, body, "request about tables")


def encode_answer(answer: Answer, correlation: int) -> bytes:
    return frame_answer(encode_body(answer), correlation)


def decode_answer(frame: Buffer) -> tuple[int, Answer]:
    """(correlation, answer), of a frame without its size; raises BadMessage."""
    correlation, body = split_answer(frame)
    return correlation, decode_body(_decode_answer, body, "answer about tables")
