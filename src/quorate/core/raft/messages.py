"""What raft replicas say to each other. Every message carries the sender's epoch (YB-18).

The envelope around a message names the partition, the sender with its incarnation, and the format version.
"""

from __future__ import annotations

import msgspec

from quorate.core import reading, repairing
from quorate.core.carrying import CarriesChunk
from quorate.core.entry import EntryId, Header, Snapshot, Span


class GoneRequest(msgspec.Struct, frozen=True, gc=False, tag="gone?"):
    """Whoever misses the leader asks, before it stands, whether others do, too (YB-16). The epoch stays."""

    epoch: int
    last: EntryId
    asked: int
    """Which time of asking this is: an answer to an earlier one says nothing about now."""


class GoneResponse(msgspec.Struct, frozen=True, gc=False, tag="gone"):
    """`gone`: no leader is heard here either, and the asker could have this replica's vote."""

    epoch: int
    asked: int
    gone: bool


class VoteRequest(msgspec.Struct, frozen=True, gc=False, tag="vote?"):
    """A candidate asks for a vote in `epoch`; `last` is the head of its log (YB-11)."""

    epoch: int
    last: EntryId
    handed_over: bool = False
    """The leader itself wants this candidate in its place: that it is still heard is no reason to refuse."""


class VoteResponse(msgspec.Struct, frozen=True, gc=False, tag="vote"):
    """`granted` in `epoch`. `faulty`: this log has damage and its replica must not lead."""

    epoch: int
    granted: bool
    faulty: bool = False


class AppendEntries(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="append?"):
    """Entries behind `prev` (YB-8); with none it is a probe or a heartbeat.

    The headers are rebuilt from the frames beside the message on arrival; they are not sent twice.
    """

    epoch: int
    prev: EntryId
    commit: int
    headers: tuple[Header, ...] = ()
    search: bool = False
    """A probe, perhaps in the middle of an entry: agreeing to it verifies nothing."""
    quiet: bool = False
    """Everybody is current: neither side needs to tick until something happens."""
    heir: int = 0
    """The node that is to lead next: nobody else stands meanwhile (YB-15)."""


class AppendResponse(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="append"):
    """The follower's answer: how much of the leader's log it holds, flushed.

    `probe` repeats the message's `prev` offset. A refusal says in `theirs` which of its own positions is
    the last at or below it.
    """

    epoch: int
    accepted: bool
    probe: int
    matched: int
    commit: int
    theirs: EntryId | None = None
    faulty: Span | None = None
    wants_snapshot: int = -1
    """Its own snapshot is damaged: only another one that covers this offset helps."""
    quiet: bool = False
    priority: int = 1
    """How much this node is wanted as the leader; 0: only where nobody else comes to lead."""
    loose: bool = False
    """`confirm`: it follows, and does not count until it is joined again (D9)."""


class TakeOver(msgspec.Struct, frozen=True, gc=False, tag="take over"):
    """The leader's heir has everything: stand for election now (YB-15)."""

    epoch: int


class SnapshotChunk(CarriesChunk, frozen=True, gc=False, tag="snapshot?"):
    """A piece of the snapshot that stands for entries nobody keeps any more."""


class SnapshotResponse(msgspec.Struct, frozen=True, gc=False, tag="snapshot"):
    """The follower holds the first `at` bytes of this snapshot."""

    epoch: int
    snapshot: Snapshot
    at: int


StillRequest = reading.StillRequest
StillResponse = reading.StillResponse
WantEntries = repairing.WantEntries
HaveEntries = repairing.HaveEntries
"""Said alike in every protocol."""

Message = (
    GoneRequest
    | GoneResponse
    | StillRequest
    | StillResponse
    | TakeOver
    | VoteRequest
    | VoteResponse
    | AppendEntries
    | AppendResponse
    | SnapshotChunk
    | SnapshotResponse
    | WantEntries
    | HaveEntries
)
