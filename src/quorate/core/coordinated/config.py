"""What a node is told at birth, and what it keeps on disk beside its log."""

from __future__ import annotations

import msgspec

from quorate.core.entry import NOWHERE, EntryId, Member


class SavedState(msgspec.Struct, frozen=True, gc=False):
    """Durable before any answer that depends on it. Epoch 0 at first."""

    epoch: int = 0
    owed: EntryId = NOWHERE
    """A head this replica once promised and had to give up to damage: it is fenced with that head, and does not
    lead before its log is past it."""
    told: tuple[Member, ...] = ()
    """Who else holds this log, as whoever fenced us said: whom to ask for damaged entries."""


class Tuning(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """Times and bounds; the same for every replica of a node."""

    heartbeat_s: float = 0.2
    """Whoever has not answered is asked again after this long."""
    message_bytes_max: int = 1 << 20
    message_entries_max: int = 256
    inflight_bytes_max: int = 8 << 20
    inflight_messages_max: int = 64
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
    whole_logs: bool = False
    """Whoever is new gets every entry that is kept, and no snapshot: the log itself is what people read."""
    paced: bool = False
    """Entries for whoever does not count yet are read first, though they are in memory: reads can be held up."""


class Config(msgspec.Struct, frozen=True, gc=False):
    """A node knows no peers but those it is told (OX-1)."""

    me: Member
    tuning: Tuning = Tuning()
