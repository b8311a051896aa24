"""What a raft replica is told at birth, and what it keeps on disk beside its log."""

from __future__ import annotations

import msgspec

from quorate.core.entry import NOWHERE, EntryId, Member


class SavedState(msgspec.Struct, frozen=True, gc=False):
    """Durable before any answer that depends on it (YB-7). Epoch 0 at first."""

    epoch: int = 0
    vote: Member | None = None
    owed: EntryId = NOWHERE
    """A head this replica once promised and had to give up to damage: it votes as if it still had it, and
    does not lead before its log is past it."""


class Tuning(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """Times and bounds; the same for every replica of a node."""

    election_timeout_s: float = 1.0
    """A follower waits this long, and up to twice as long, for its leader."""
    heartbeat_s: float = 0.2
    message_bytes_max: int = 1 << 20
    message_entries_max: int = 256
    inflight_bytes_max: int = 8 << 20
    inflight_messages_max: int = 64
    uncommitted_entries_max: int = 1024
    """Proposals beyond this many unsettled ones are answered with BUSY."""
    snapshot_every: int = 0
    """Offsets between snapshots; 0: never by itself."""
    keep_behind: int = 1000
    """Offsets kept below a snapshot, so that followers a little behind need only entries."""
    chunk_bytes: int = 256 << 10
    repair_retry_s: float = 0.5
    priority: int = 1
    """How much this node is wanted as a leader. One that leads hands over to a current follower of a higher
    priority; a node of priority 0 stands only where nobody else has come to lead for a while."""
    catch_up_max: int = 256
    """A new voter must be this near to what is settled before it counts."""
    clock_drift_max: float = 0.1
    """By this share one node's clock may run faster or slower than true time before a lease read can be stale."""
    read_wait_s: float = 5.0
    """A read at an offset waits this long for it."""
    ceiling_s: float = 0.0
    """Leaders give out timestamps up to this far ahead of the last agreed ceiling; 0: none at all (YB-14)."""
    prefer_snapshots: bool = False
    """A follower far behind may get a snapshot though the log is there, where that costs less: only for logs
    that nobody reads but the machine."""
    paced: bool = False
    """Entries for whoever does not count yet are read first, though they are in memory: reads can be held up."""


class Config(msgspec.Struct, frozen=True, gc=False):
    """`voters` and `learners` are those at birth: the log says who counts now (`Replica.membership`)."""

    me: Member
    voters: tuple[Member, ...]
    learners: tuple[Member, ...] = ()
    tuning: Tuning = Tuning()
    preferred: int = 0
    """The node that stands for election first, where nothing has happened yet; 0: whoever wakes first."""

    def __post_init__(self) -> None:
        assert self.voters == tuple(sorted(self.voters)), "ensembles are sorted"
        assert self.voters
        assert self.tuning.heartbeat_s < self.tuning.election_timeout_s
