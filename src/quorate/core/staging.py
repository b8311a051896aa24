"""A snapshot that is arriving in chunks. What is already being installed outlives changes of epoch."""

from __future__ import annotations

import msgspec

from quorate.core.entry import EntryId, Snapshot


class Staging(msgspec.Struct):
    snapshot: Snapshot
    at: int = 0
    """How many of its bytes have been ordered to be kept."""
    io: int = 0
    """The newest chunk's order, which is answered when it is durable; 0 once it has been."""
    install_io: int = 0
    """The order that puts it in the log's place; until that is durable the log is in suspense."""
    keep: bool = False
    """Decided with that order: whether entries above the snapshot stay."""
    start: EntryId | None = None
    """And where the log starts, where that is not behind the snapshot."""
    compacted: int = -1
    """How far the generation reaches that the log is of then."""
