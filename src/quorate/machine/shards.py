"""Shards of `coordinated` in the metadata group's image: the linearizable store that operators need.

A write names the version that its writer has seen, and changes nothing if there is another one by now:
compare-and-set (OX-2, OX-3). Whoever wrote learns what came of it from the image, at the offset of the command or
later.
"""

from __future__ import annotations

import msgspec

from quorate.core.coordinated.shard import Shard
from quorate.core.entry import Partition


class WriteShard(msgspec.Struct, frozen=True, tag="write shard"):
    """Let a partition's shard be this, if its version is still the one that was seen; 0: there is none."""

    partition: Partition
    version: int
    shard: Shard


class Stored(msgspec.Struct, frozen=True):
    version: int
    at: int
    """The offset of the command that wrote it."""
    shard: Shard


Shards = dict[Partition, Stored]
"""By partition."""


def write(shards: Shards, command: WriteShard, offset: int) -> bool:
    """Whether it was done."""
    stored = shards.get(command.partition)
    if command.version != (stored.version if stored is not None else 0):
        return False
    shards[command.partition] = Stored(command.version + 1, offset, command.shard)
    return True
