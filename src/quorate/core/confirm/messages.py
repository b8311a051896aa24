"""What confirm replicas say to each other: raft's messages, but for votes, which are rows of `_voting`."""

from __future__ import annotations

from quorate.core.confirm.voting import Row, Says
from quorate.core.raft.messages import (
    AppendEntries,
    AppendResponse,
    GoneRequest,
    GoneResponse,
    HaveEntries,
    SnapshotChunk,
    SnapshotResponse,
    StillRequest,
    StillResponse,
    TakeOver,
    WantEntries,
)

__all__ = [
    "AppendEntries",
    "AppendResponse",
    "GoneRequest",
    "GoneResponse",
    "HaveEntries",
    "Message",
    "Row",
    "Says",
    "SnapshotChunk",
    "SnapshotResponse",
    "StillRequest",
    "StillResponse",
    "TakeOver",
    "WantEntries",
]

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
