"""How the store of shards is asked: core/metadata.py."""

from __future__ import annotations

from quorate.core.metadata import (
    ReadShard,
    ShardRead,
    ShardWritten,
    StoreSilent,
    WriteRefused,
    WriteShard,
)

__all__ = ["ReadShard", "ShardRead", "ShardWritten", "StoreSilent", "WriteRefused", "WriteShard"]
