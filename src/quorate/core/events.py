"""Facts that a replica is told, in the past tense. `step(now, event)` is the only door into it.

Disk orders carry an io number; numbers rise by one per replica, and completions arrive in their order, so
`Persisted(7)` says that everything up to order 7 is on the disk to stay.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from quorate.core.entry import NOWHERE, EntryId, Header, Member, Snapshot, Span


class Recovered(msgspec.Struct, frozen=True, gc=False):
    """What was found on the disk: the start of everything a replica may claim to know."""

    base: EntryId
    """The entry just below the first kept one (the snapshot's last, or NOWHERE)."""
    head: EntryId
    """The last entry that was ever known to be flushed; below it there may be faulty spans."""
    epochs: tuple[tuple[int, int], ...]
    """(epoch, first offset) of every epoch above base, ascending; unknown inside faulty spans."""
    headers: tuple[Header, ...] = ()
    """The newest headers, contiguous up to head; empty if the head itself is faulty."""
    controls: tuple[Header, ...] = ()
    """Sticky control entries of the kept log, and every control entry among `headers`."""
    commit: int = -1
    """A lower bound of what was settled."""
    faulty: tuple[Span, ...] = ()
    state: Any = None
    """The protocol's own saved state; None where this replica has never saved one."""
    snapshot: Snapshot | None = None
    """The newest intact snapshot. None though the log has a base: it was damaged, and a peer's is needed."""
    base_checksum: int = 0
    """Of the frame of the entry just below the log."""
    generation: int = 0
    """Which turn of the partition this replica is of: barriers up to that one are behind it."""
    voids: bool = False
    """The log was once of a protocol in which settled records may be void."""
    begins: bool = False
    """Its generation has just begun here: it has promised nobody anything in it."""
    published: int = -1
    """Where it has just begun: what was handed out here before. Readers go on from there."""
    compacted: int = -1
    """How far the generation of compaction reaches that the log is of; -1: entries are as they came."""


class Started(msgspec.Struct, frozen=True, gc=False):
    """The process is up and the disk has been read. The first event, exactly once."""

    recovered: Recovered


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message arrived. The network may have lost, repeated, delayed and reordered others."""

    sender: Member
    message: Any


class Proposed(msgspec.Struct, frozen=True, gc=False):
    """A client wants these entries appended. Their epoch and offset are still 0: the leader fills them in."""

    request: int
    headers: tuple[Header, ...]
    wall_ms: int = 0
    """The time of day where it arrived, for leaders that give out timestamps."""
    more: bool = False
    """Another follows at once, or `Gathered` does: what is to be sent may wait for it, and go together."""


class Gathered(msgspec.Struct, frozen=True, gc=False):
    """What was to follow a proposal with `more` did not."""


class ReadLevel(StrEnum):
    """What a reader insists on."""

    LINEARIZABLE = "linearizable"
    """Everything that was settled anywhere when the read began, by asking a majority (read index)."""
    LEASE = "lease"
    """The same without asking, while clocks run within the stated drift of each other."""
    AT_OFFSET = "at offset"
    """What one replica has, leader or not, once that reaches as far as the given offset."""


class ReadAsked(msgspec.Struct, frozen=True, gc=False):
    """A client wants to know up to where it may read here. Answered by a `Reply`."""

    request: int
    level: ReadLevel
    offset: int = -1


class Persisted(msgspec.Struct, frozen=True, gc=False):
    """Every disk order up to and including `io` is flushed."""

    io: int


class Failed(msgspec.Struct, frozen=True, gc=False):
    """Order `io` and all later ones of this replica were refused, with nothing of them kept.

    The log on disk ends where the last persisted order left it. (A failed flush is not reported here: it
    ends the process.)
    """

    io: int
    reason: str
    head: EntryId = NOWHERE
    """Where the log on disk ends, be it readable or not."""


class Loaded(msgspec.Struct, frozen=True, gc=False):
    """The answer to `Read`: contiguous headers from the entry that holds `first`; none if it is not there."""

    token: int
    headers: tuple[Header, ...]


class SnapshotTaken(msgspec.Struct, frozen=True, gc=False):
    """A snapshot is on the disk to stay."""

    snapshot: Snapshot


class SnapshotFailed(msgspec.Struct, frozen=True, gc=False):
    """No snapshot was taken (the disk is full); the old one, if any, stands."""

    reason: str


class SnapshotLost(msgspec.Struct, frozen=True, gc=False):
    """The newest snapshot turned out to be unreadable."""


class Damaged(msgspec.Struct, frozen=True, gc=False):
    """A read or the scrubber found bytes that are not what was written."""

    span: Span


class Expired(msgspec.Struct, frozen=True, gc=False):
    """Nothing up to this entry, whose frame has `checksum`, has to be kept any longer; everything above it has."""

    to: EntryId
    checksum: int


class CompactionWanted(msgspec.Struct, frozen=True, gc=False):
    """Entries up to `upto` are to be compacted. No machine is made from what is left: a snapshot comes first."""

    upto: int


class CompactionAgreed(msgspec.Struct, frozen=True, gc=False):
    """Everybody has the same ready up to `upto`: peers give out nothing else there any more."""

    upto: int


class Compacted(msgspec.Struct, frozen=True, gc=False):
    """This log is of that generation now. Up to `rewritten` it is in new files: what was damaged there is whole."""

    upto: int
    rewritten: int


class CompactionUndone(msgspec.Struct, frozen=True, gc=False):
    """The disk had no room for what was ordered along with it: the log is again of the one before, up to `upto`."""

    upto: int


class Suspected(msgspec.Struct, frozen=True, gc=False):
    """Nothing has been heard from a node for a while. Repeated as long as that lasts."""

    node: int
    ended: bool = False
    """Its process is gone: its machine says that nobody listens there. It may be wrong, as any suspicion may."""


class Commanded(msgspec.Struct, frozen=True, gc=False):
    """Somebody with authority (a person, the operator, the controller) ordered something: see commands.py."""

    command: Any


class ApplyFailed(msgspec.Struct, frozen=True, gc=False):
    """The machine could not apply an entry that others could: this replica is not like them (TT-8)."""

    offset: int
    reason: str


class Counted(msgspec.Struct, frozen=True, gc=False):
    """Who is of the ensemble, by what the metadata group says: whether it keeps up or not, its copy counts."""

    members: tuple[Member, ...]


class TimePassed(msgspec.Struct, frozen=True, gc=False):
    """The replica's deadline has come."""


Event = (
    Started
    | Received
    | Proposed
    | Gathered
    | ReadAsked
    | Persisted
    | Failed
    | Loaded
    | SnapshotTaken
    | SnapshotFailed
    | SnapshotLost
    | Damaged
    | Expired
    | CompactionWanted
    | CompactionAgreed
    | Compacted
    | CompactionUndone
    | Suspected
    | Commanded
    | ApplyFailed
    | Counted
    | TimePassed
)
