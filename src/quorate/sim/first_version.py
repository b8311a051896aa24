"""What `confirm` replicas of the first version say, know of a log, and save: a frozen copy, never to be changed.

It stands for a node that nobody has upgraded yet (TT-41). Such a node fails loudly when it is sent anything that it
does not know: `forbid_unknown_fields`. Nothing here is imported from the live messages, so that the copy cannot
change with them; a test holds the hash of its fields.

What came later, with the feature level `CUTTING_LOOSE`, is not here: `AppendResponse.loose`, `Says.commit`,
`Rollback.forced`, and the quorums of `Membership` and `Wanted`.
"""

from __future__ import annotations

import msgspec


class Copied(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Anything that a node of the first version can read."""


# ---- positions and members ----


class Member(Copied, frozen=True, gc=False):
    node: int
    incarnation: int


class EntryId(Copied, frozen=True, gc=False):
    epoch: int
    offset: int


NOWHERE = EntryId(0, -1)


class Span(Copied, frozen=True, gc=False):
    before: EntryId
    last: EntryId


# ---- control records ----


class NoOp(Copied, frozen=True, gc=False, tag="noop"):
    leader: int


class Wanted(Copied, frozen=True, gc=False, omit_defaults=True):
    ensemble: tuple[Member, ...]
    learners: tuple[Member, ...] = ()
    version: int = 0


class Membership(Copied, frozen=True, gc=False, omit_defaults=True, tag="membership"):
    ensemble: tuple[Member, ...]
    learners: tuple[Member, ...] = ()
    outgoing: tuple[Member, ...] = ()
    wanted: Wanted | None = None
    version: int = 0


class Ceiling(Copied, frozen=True, gc=False, tag="ceiling"):
    upto: int


class Promote(Copied, frozen=True, gc=False, tag="promote"):
    leader: int
    former: int


class Confirm(Copied, frozen=True, gc=False, tag="confirm"):
    upto: EntryId


class Rollback(Copied, frozen=True, gc=False, omit_defaults=True, tag="rollback"):
    first: int


Control = NoOp | Membership | Ceiling | Promote | Confirm | Rollback


class Standing(Copied, frozen=True, gc=False):
    membership: Membership | None = None
    ceiling: int = 0


class Header(Copied, frozen=True, gc=False):
    epoch: int
    offset: int
    count: int = 1
    size: int = 0
    kind: int = 0
    flags: int = 0
    crc: int = 0
    control: Control | None = None


class Snapshot(Copied, frozen=True, gc=False):
    last: EntryId
    checksum: int
    size: int
    standing: Standing = Standing()


# ---- messages ----


class GoneRequest(Copied, frozen=True, gc=False, tag="gone?"):
    epoch: int
    last: EntryId
    asked: int


class GoneResponse(Copied, frozen=True, gc=False, tag="gone"):
    epoch: int
    asked: int
    gone: bool


class StillRequest(Copied, frozen=True, gc=False, tag="still?"):
    epoch: int
    round: int


class StillResponse(Copied, frozen=True, gc=False, tag="still"):
    epoch: int
    round: int
    promised_s: float = 0.0


class TakeOver(Copied, frozen=True, gc=False, tag="take over"):
    epoch: int


class Row(Copied, frozen=True, gc=False, omit_defaults=True):
    epoch: int = 0
    nominee: int = 0
    aye: bool = False
    leader: int = 0
    former: int = 0
    since: int = 0


class Says(Copied, frozen=True, gc=False, omit_defaults=True, tag="voting"):
    epoch: int
    row: Row
    last: EntryId = NOWHERE
    stands: bool = False
    ordered: bool = False
    faulty: bool = False


class AppendEntries(Copied, frozen=True, gc=False, omit_defaults=True, tag="append?"):
    epoch: int
    prev: EntryId
    commit: int
    headers: tuple[Header, ...] = ()
    search: bool = False
    quiet: bool = False
    heir: int = 0


class AppendResponse(Copied, frozen=True, gc=False, omit_defaults=True, tag="append"):
    epoch: int
    accepted: bool
    probe: int
    matched: int
    commit: int
    theirs: EntryId | None = None
    faulty: Span | None = None
    wants_snapshot: int = -1
    quiet: bool = False
    priority: int = 1


class SnapshotChunk(Copied, frozen=True, gc=False, tag="snapshot?"):
    epoch: int
    snapshot: Snapshot
    at: int
    length: int


class SnapshotResponse(Copied, frozen=True, gc=False, tag="snapshot"):
    epoch: int
    snapshot: Snapshot
    at: int


class WantEntries(Copied, frozen=True, gc=False, tag="want"):
    epoch: int
    span: Span


class HaveEntries(Copied, frozen=True, gc=False, tag="have"):
    epoch: int
    span: Span
    headers: tuple[Header, ...] = ()
    why_not: str = ""


Message = (
    GoneRequest
    | GoneResponse
    | StillRequest
    | StillResponse
    | TakeOver
    | Says
    | AppendEntries
    | AppendResponse
    | SnapshotChunk
    | SnapshotResponse
    | WantEntries
    | HaveEntries
)


# ---- beside the log ----


class SavedState(Copied, frozen=True, gc=False, omit_defaults=True):
    epoch: int = 0
    vote: Member | None = None
    owed: EntryId = NOWHERE
    row: Row = Row()
    led: int = 0


# ---- what a node of the first version does with bytes: it reads them all, or raises msgspec.ValidationError ----

_encode = msgspec.msgpack.Encoder().encode
_decode_message: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_decode_control: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


def heard(message: bytes) -> bytes:
    """The same message, as the first version would have written it."""
    return _encode(_decode_message.decode(message))


def read_control(record: bytes) -> bytes:
    """The same control record, as the first version would have written it."""
    return _encode(_decode_control.decode(record))
