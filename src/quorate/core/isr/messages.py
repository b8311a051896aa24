"""What replicas and controllers say to each other, each its own type.

Every message carries a leader epoch. The envelope names the partition, the sender with its incarnation, and the
format version; whoever is asked answers the sender. Beside these: fetching a snapshot in chunks (core/fetching.py),
asking who still follows (core/reading.py), and asking for damaged entries (core/repairing.py).
"""

from __future__ import annotations

import msgspec

from quorate.core.entry import NOWHERE, EntryId, Header, Member, Snapshot, Span
from quorate.core.fetching import ChunkGone, ChunkRequest, ChunkResponse
from quorate.core.isr.state import PartitionState
from quorate.core.reading import StillRequest, StillResponse
from quorate.core.repairing import HaveEntries, WantEntries


class PartitionTold(msgspec.Struct, frozen=True, gc=False, tag="told"):
    """Controller to every replica: this is in the store. Repeated until it is answered (LB-13).

    It is true whoever says it, so a replica passes it on to one that speaks from an earlier epoch.
    """

    epoch: int
    state: PartitionState
    answer: bool = True
    """From a controller: to be answered, and requests and reports go there, too, from now on."""


class PartitionHeard(msgspec.Struct, frozen=True, gc=False, tag="heard"):
    """Replica to controller: it knows of this leader epoch, and of this epoch of the partition."""

    epoch: int
    partition_epoch: int
    leads: bool
    """It leads in that leader epoch. Whoever is told to and does not, never will in that one."""
    can_lead: bool = True
    """Its log is whole: it has not lost anything to damage."""


class FetchRequest(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="fetch?"):
    """Follower to leader: what comes behind `prev`? (LB-7)

    It names two positions, and only the second is an acknowledgement (LB-9).
    """

    epoch: int
    session: int
    """Rises whenever a replica begins to follow, over all its lives."""
    number: int
    """Counts the requests of a session: one that is not the newest is not answered."""
    prev: EntryId
    """The end of its log, flushed or not: next wanted is the offset behind it."""
    flushed: int
    """Up to here it agrees with this leader, can read it, and has flushed it."""
    commit: int
    faulty: Span | None = None
    """What it lost, and asks its peers for."""
    wants_snapshot: int = -1
    """Its own snapshot is damaged: only another one that covers this offset helps."""


class FetchResponse(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="fetch"):
    """Leader to follower. A request may be answered more than once: the leader says so when there is something new.

    The headers are rebuilt from the frames beside the message on arrival; they are not sent twice.
    """

    epoch: int
    session: int
    number: int
    prev: EntryId
    """The request's. Unless something below says otherwise, the leader's log has it."""
    commit: int
    """The leader's high watermark."""
    headers: tuple[Header, ...] = ()
    diverging: EntryId | None = None
    """The leader does not have `prev`. This is its last entry that is not of a later epoch than that: keep nothing
    above it, and ask again (LB-22, D1)."""
    settled: EntryId = NOWHERE
    """With `diverging`: the leader's name for the end of what the follower knows to be settled."""
    snapshot: Snapshot | None = None
    """What it needs is no longer in the leader's log: fetch this."""
    later: bool = False
    """Nothing can be said about `prev` yet: a snapshot is being taken."""
    rest: bool = False
    """There is nothing that it does not have. It will be told when there is, and need not ask meanwhile."""


class ReportLeader(msgspec.Struct, frozen=True, gc=False, tag="report"):
    """Follower to controller: the leader of this epoch has not been heard of for a while (LB-12, LB-15)."""

    epoch: int
    partition_epoch: int


class AlterIsr(msgspec.Struct, frozen=True, gc=False, tag="alter isr"):
    """Leader to controller: let these be in sync, if nothing has changed since that epoch of the partition.

    The answer is the next state, whatever that is: one that is newer than what the request is based on tells what
    came of it.
    """

    epoch: int
    partition_epoch: int
    isr: tuple[Member, ...]


Message = (
    PartitionTold
    | PartitionHeard
    | FetchRequest
    | FetchResponse
    | ReportLeader
    | AlterIsr
    | ChunkRequest
    | ChunkResponse
    | ChunkGone
    | StillRequest
    | StillResponse
    | WantEntries
    | HaveEntries
)

ToController = PartitionHeard | ReportLeader | AlterIsr
