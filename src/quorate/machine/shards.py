"""What overseers keep in the metadata group's image: shards of `coordinated`, states of `isr`, one for a partition.

It is the linearizable store that they need.

A write names the version that its writer has seen, and changes nothing if there is another one by now:
compare-and-set (OX-2, OX-3). Whoever wrote learns what came of it from the image, at the offset of the command or
later.
"""

from __future__ import annotations

import msgspec

from quorate.core.coordinated.shard import Shard
from quorate.core.entry import Partition
from quorate.core.isr.state import PartitionState

State = Shard | PartitionState
"""What an overseer stores of one partition."""


class WriteShard(msgspec.Struct, frozen=True, tag="write shard"):
    """Let a partition's shard be this, if its version is still the one that was seen; 0: there is none."""

    partition: Partition
    version: int
    shard: State


class Stored(msgspec.Struct, frozen=True):
    version: int
    at: int
    """The offset of the command that wrote it."""
    shard: State


Shards = dict[Partition, Stored]
"""By partition."""


def write(shards: Shards, command: WriteShard, offset: int) -> bool:
    """Whether it was done."""
    stored = shards.get(command.partition)
    if command.version != (stored.version if stored is not None else 0):
        return False
    shards[command.partition] = Stored(command.version + 1, offset, command.shard)
    return True
