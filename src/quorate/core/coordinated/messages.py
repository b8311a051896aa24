"""What the operator and the nodes say to each other, each its own type (OX-36).

Every message carries an epoch. The envelope names the partition, the sender with its incarnation, and the format
version; a node answers whoever asked. To the document's sixteen come: calling a reconfiguration off, fetching a
snapshot in chunks, asking who still follows (core/reading.py), and asking for damaged entries (core/repairing.py).
"""

from __future__ import annotations

import msgspec

from quorate.core.coordinated.shard import Reconfiguration
from quorate.core.entry import NOWHERE, EntryId, Header, Member, Snapshot, Span
from quorate.core.fetching import ChunkGone, ChunkRequest, ChunkResponse
from quorate.core.reading import StillRequest, StillResponse
from quorate.core.repairing import HaveEntries, WantEntries


class FenceRequest(msgspec.Struct, frozen=True, gc=False, tag="fence?"):
    """Operator to node: stop whatever you do in earlier epochs, and say how far your log goes (OX-6)."""

    epoch: int
    ensemble: tuple[Member, ...]
    """Who is fenced: whom to ask for entries that were damaged."""


class FenceResponse(msgspec.Struct, frozen=True, gc=False, tag="fence"):
    """Node to operator: fenced, and everything up to `head` is flushed (OX-7)."""

    epoch: int
    head: EntryId
    token: int
    """Names this fencing: only whoever was fenced just so may lead, and not twice in one epoch."""
    faulty: bool = False
    """Something of it cannot be read, or was given up: counted as fenced, never eligible to lead."""


class BecomeLeaderRequest(msgspec.Struct, frozen=True, gc=False, tag="lead?"):
    """Operator to the chosen leader (OX-10)."""

    epoch: int
    token: int
    ensemble: tuple[Member, ...]
    followers: tuple[tuple[Member, EntryId], ...]
    """Heads of those who had answered when the leader was chosen."""


class BecomeLeaderResponse(msgspec.Struct, frozen=True, gc=False, tag="lead"):
    """Leader to operator (OX-12). Not `leads`: it was fenced anew since, so somebody has to be chosen again."""

    epoch: int
    leads: bool


class AddFollowerRequest(msgspec.Struct, frozen=True, gc=False, tag="add follower?"):
    """Operator to leader: this one was fenced late (OX-13)."""

    epoch: int
    follower: Member
    head: EntryId


class AddFollowerResponse(msgspec.Struct, frozen=True, gc=False, tag="add follower"):
    """Leader to operator: it has a cursor."""

    epoch: int
    follower: Member


class TruncateRequest(msgspec.Struct, frozen=True, gc=False, tag="truncate?"):
    """Leader to follower: keep nothing above `to` (OX-14).

    A request that comes late or twice must not cut what was appended since, so it names the head that it is about:
    a log that goes on in this epoch never comes to have that head again.
    """

    epoch: int
    head: EntryId
    to: EntryId
    settled: EntryId = NOWHERE
    """The leader's name for the end of what the follower knows to be settled: that is never cut, and where it lies
    inside of damage, it can be asked for by this name."""


class TruncateResponse(msgspec.Struct, frozen=True, gc=False, tag="truncate"):
    """Follower to leader: its log ends here now."""

    epoch: int
    head: EntryId
    commit: int


class SnapshotRequest(msgspec.Struct, frozen=True, gc=False, tag="install?"):
    """Operator to the new node of a swap or an expansion, or leader to a follower that lags behind what is kept: be
    what this manifest says. Its chunks are to be fetched from `source`."""

    epoch: int
    snapshot: Snapshot
    source: Member


class SnapshotResponse(msgspec.Struct, frozen=True, gc=False, tag="install"):
    """To whoever asked. `head`: everything the manifest stands for is here. Not `installed`: the source has it no
    longer, and another one is needed."""

    epoch: int
    head: EntryId
    installed: bool


class AddEntryRequest(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="add entry?"):
    """Leader to follower: entries behind `prev`; with none it asks how far the follower is.

    The headers are rebuilt from the frames beside the message on arrival; they are not sent twice.
    """

    epoch: int
    prev: EntryId
    commit: int
    headers: tuple[Header, ...] = ()


class AddEntryResponse(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="add entry"):
    """Follower to leader: how much of the leader's log it holds, flushed.

    Not `accepted`: its log does not have `prev`, and ends at `head`.
    """

    epoch: int
    accepted: bool
    probe: int
    """The offset of `prev`."""
    matched: int
    commit: int
    head: EntryId
    faulty: Span | None = None
    """What it lost and asks for: the leader's answer is a `TruncateRequest` if it never had that."""
    wants_snapshot: int = -1
    """Its own snapshot is damaged: only another one that covers this offset helps."""


class PrepareReconfigurationRequest(msgspec.Struct, frozen=True, gc=False, tag="prepare?"):
    """Operator to leader: adopt the epoch, and let the old node count no more (OX-29, OX-33)."""

    epoch: int
    reconfiguration: Reconfiguration


class PrepareReconfigurationResponse(msgspec.Struct, frozen=True, gc=False, tag="prepare"):
    """Leader to operator; not `prepared`: it does not lead. For a new node, a snapshot of all that is settled; none
    if it has every entry by now (`Tuning.whole_logs`)."""

    epoch: int
    prepared: bool
    snapshot: Snapshot | None = None
    ready: bool = True
    """Not yet: the epoch is adopted, and a snapshot is being taken, or those who stay, or come, do not have
    everything."""


class CommitReconfigurationRequest(msgspec.Struct, frozen=True, gc=False, tag="commit?"):
    """Operator to leader: let the ensemble be the new one (OX-30, OX-34)."""

    epoch: int
    reconfiguration: Reconfiguration


class CommitReconfigurationResponse(msgspec.Struct, frozen=True, gc=False, tag="commit"):
    """Leader to operator; not `done`, though it `leads`: something settled would be on too few. Again (OX-35)."""

    epoch: int
    leads: bool
    done: bool = False


class AbortReconfigurationRequest(msgspec.Struct, frozen=True, gc=False, tag="abort?"):
    """Operator to leader: what was prepared is called off; the old node follows again."""

    epoch: int
    reconfiguration: Reconfiguration


class AbortReconfigurationResponse(msgspec.Struct, frozen=True, gc=False, tag="abort"):
    epoch: int
    leads: bool


Message = (
    FenceRequest
    | FenceResponse
    | BecomeLeaderRequest
    | BecomeLeaderResponse
    | AddFollowerRequest
    | AddFollowerResponse
    | TruncateRequest
    | TruncateResponse
    | SnapshotRequest
    | SnapshotResponse
    | AddEntryRequest
    | AddEntryResponse
    | PrepareReconfigurationRequest
    | PrepareReconfigurationResponse
    | CommitReconfigurationRequest
    | CommitReconfigurationResponse
    | AbortReconfigurationRequest
    | AbortReconfigurationResponse
    | ChunkRequest
    | ChunkResponse
    | ChunkGone
    | StillRequest
    | StillResponse
    | WantEntries
    | HaveEntries
)

ToOperator = (
    FenceResponse
    | BecomeLeaderResponse
    | AddFollowerResponse
    | SnapshotResponse
    | PrepareReconfigurationResponse
    | CommitReconfigurationResponse
    | AbortReconfigurationResponse
)
