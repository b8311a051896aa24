"""What a replica is told at birth, and what it keeps on disk beside its log."""

from __future__ import annotations

import msgspec

from quorate.core.entry import NOWHERE, EntryId, Member
from quorate.core.isr.state import PartitionState


class SavedState(msgspec.Struct, frozen=True, gc=False):
    """Durable before any answer that depends on it. Epoch 0 at first."""

    epoch: int = 0
    """The newest leader epoch that it was told of."""
    owed: EntryId = NOWHERE
    """A head that it once promised and had to give up to damage: it does not lead before its log is past it."""
    told: PartitionState | None = None
    """What it was told last: whom to follow, and whom to ask for damaged entries."""
    controllers: tuple[int, ...] = ()
    """The nodes that have told it something, the last one first."""
    lives: int = 0
    """How often it was started: what it asks now is newer than whatever it asked before."""


class Tuning(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """Times and bounds; the same for every replica of a node."""

    heartbeat_s: float = 0.2
    """What was not answered is asked again after this long."""
    lag_s: float = 2.0
    """Who has not caught up for this long is asked out of the ISR (LB-20). Better not longer than `suspect_s`:
    where two do not hear each other, the leader is to get rid of the other before that one gets rid of it. That
    costs an election otherwise, and nothing worse."""
    suspect_s: float = 2.0
    """A leader that is silent for this long, and up to twice as long, is reported (LB-12)."""
    message_bytes_max: int = 1 << 20
    message_entries_max: int = 256
    uncommitted_entries_max: int = 1024
    """Proposals beyond this many unsettled ones are answered with BUSY."""
    snapshot_every: int = 0
    """Offsets between snapshots; 0: only when one is asked for."""
    keep_behind: int = 1000
    """Offsets kept below a snapshot, so that followers a little behind need only entries."""
    chunk_bytes: int = 256 << 10
    repair_retry_s: float = 0.5
    read_wait_s: float = 5.0
    """A read at an offset waits this long for it."""
    prefer_snapshots: bool = False
    """A follower far behind may get a snapshot though the log is there, where that costs less."""
    paced: bool = False
    """Entries for whoever does not count yet are read first, though they are in memory: reads can be held up."""


class Config(msgspec.Struct, frozen=True, gc=False):
    """A replica knows nobody but those it is told of."""

    me: Member
    tuning: Tuning = Tuning()
