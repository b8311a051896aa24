"""Orders that a replica gives, in the imperative. The host executes them in the order given.

`Append`, `Cut`, `SaveState`, `Repair`, `StageChunk`, `InstallSnapshot` and `RemovePrefix` go to the disk,
carry an io number, and are answered by `Persisted` or `Failed`. Nothing promises anything before that.
Bytes never pass through here: the host finds the payload of every header that an effect names in what the
step was about (the received message, the proposal, the read) or in its own log.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from quorate.core.entry import EntryId, Header, Member, Snapshot, Span


class Append(msgspec.Struct, frozen=True, gc=False):
    """Write these entries behind the current end of the log."""

    io: int
    headers: tuple[Header, ...]


class Cut(msgspec.Struct, frozen=True, gc=False):
    """Forget every entry above `to`. Durable before anything is appended over it."""

    io: int
    to: EntryId
    aside: bool = False
    """A former leader's own entries are among them: keep a copy beside the log, for people (TT-27)."""


class SaveState(msgspec.Struct, frozen=True, gc=False):
    """Keep the protocol's own state (epoch, vote): a small Struct that msgpack can carry."""

    io: int
    state: Any


class Repair(msgspec.Struct, frozen=True, gc=False):
    """Write these entries, whose bytes arrived with this step, where the faulty ones were."""

    io: int
    headers: tuple[Header, ...]


class StageChunk(msgspec.Struct, frozen=True, gc=False):
    """Keep a piece of an arriving snapshot; `at` 0 starts a new one."""

    io: int
    at: int


class InstallSnapshot(msgspec.Struct, frozen=True, gc=False):
    """The staged snapshot is whole: make it the state, and let the log start behind it.

    With `keep`, this log holds its last entry and what is above it stays; without, the log is empty then. With
    `start`, the log starts behind that entry all the same: with `keep` nothing is removed, and without, what lies
    between is missing, to be asked of peers as if it were damaged.
    """

    io: int
    snapshot: Snapshot
    keep: bool
    start: EntryId | None = None
    start_checksum: int = 0
    compacted: int = -1
    """What is missing then is of the generation that reaches so far."""


class RemovePrefix(msgspec.Struct, frozen=True, gc=False):
    """Entries up to `to` (which a snapshot covers) need not be kept.

    With the `checksum` of its frame, `to` may lie inside of what cannot be read, or end the log, which then goes on
    in another file.
    """

    io: int
    to: EntryId
    checksum: int | None = None


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send a message; the host attaches the bytes of the entries or the chunk that it names."""

    to: int
    message: Any
    paced: bool = False
    """The piece of a snapshot that it names is for a copy that does not count yet: its bytes may be held up."""


class Read(msgspec.Struct, frozen=True, gc=False):
    """Fetch headers (and hold their bytes) from the entry that holds `first` on. Answered by `Loaded`."""

    token: int
    first: int
    last: int
    bytes_max: int
    paced_for: int = 0
    """The node that it is for, where the copy there does not count yet: it may be held up, so that clients have the
    disk and the network first (018). A newer one for the same takes its place. 0: it is never held up."""
    mends: bool = False
    """It is to fill in a log, whoever leads; otherwise a leader's own, which goes on side by side with that."""

    @property
    def paced(self) -> bool:
        return self.paced_for != 0


class Commit(msgspec.Struct, frozen=True, gc=False):
    """Every offset up to `offset` is settled and flushed here: machines apply it, readers may see it."""

    offset: int


class TakeSnapshot(msgspec.Struct, frozen=True, gc=False):
    """Snapshot the machine's state as of some settled offset. Answered by `SnapshotTaken` or its failure."""


class Outcome(StrEnum):
    """What became of a proposal, a read or a command."""

    SETTLED = "settled"
    NOT_LEADER = "not leader"
    UNKNOWN = "unknown"
    """Leadership ended first: the entries may be settled yet, or never (rule 9: never 'not written')."""
    BUSY = "busy"
    FULL = "disk full"
    OUT_OF_ORDER = "out of order"
    """A producer's batch that is not the next one: those before it are not here."""
    FENCED = "fenced"
    """The producer goes by a newer epoch now."""
    NOT_OPEN = "no open transaction"
    """A batch of a transaction of which this leader has not heard from its coordinator that it is open."""
    DUPLICATE = "duplicate"
    """Settled so long ago that nobody remembers where."""
    REFUSED = "refused"
    """A command that must not be carried out now; `why` says why not."""
    FLUSHED = "flushed"
    """An asynchronous transaction is on the leader's disk, and may be lost yet: a named choice (TT-34)."""
    ROLLED_BACK = "rolled back"
    """Settled as void: it has not happened, and never will."""
    TIMED_OUT = "timed out"
    """A command that was given up, or a read that waited in vain: nothing has changed."""


class Reply(msgspec.Struct, frozen=True, gc=False):
    """Answer a client. `leader` is a hint for the next try.

    SETTLED means, for a proposal: `offset` is its first; for a read: everything up to `offset` may be read, and
    that is all that was settled when the read began; for a change of membership: `offset` is the entry that
    ended it; for a transfer: `leader` leads.
    """

    request: int
    outcome: Outcome
    offset: int = -1
    epoch: int = 0
    leader: int = 0
    timestamp: int = 0
    """A settled proposal's, in milliseconds, where leaders give them out (YB-14)."""
    why: str = ""


class Report(msgspec.Struct, frozen=True, gc=False):
    """Something a person should hear about: damage that no peer could repair, say."""

    what: str
    span: Span | None = None
    member: Member | None = None


DiskEffect = Append | Cut | SaveState | Repair | StageChunk | InstallSnapshot | RemovePrefix
Effect = DiskEffect | Send | Read | Commit | TakeSnapshot | Reply | Report
