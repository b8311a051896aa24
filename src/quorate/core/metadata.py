"""The linearizable metadata store, as those who oversee a shard know it: compare-and-set on a version (OX-2).

Whoever drives them puts a real store behind this: a dictionary in fast worlds, the metadata group in whole ones.
What a shard looks like is each room's own. The version counts the writes of one shard; 0 means that there is none.
"""

from __future__ import annotations

from typing import Any

import msgspec


class ReadShard(msgspec.Struct, frozen=True, gc=False):
    """Effect: what is the newest? Answered by `ShardRead` or `StoreSilent`."""

    token: int


class WriteShard(msgspec.Struct, frozen=True, gc=False):
    """Effect: let it be this, if it is still at `version`. Answered by one of the other events below."""

    token: int
    version: int
    shard: Any


class ShardRead(msgspec.Struct, frozen=True, gc=False):
    token: int
    version: int
    shard: Any
    """None: there is none."""


class ShardWritten(msgspec.Struct, frozen=True, gc=False):
    token: int
    version: int


class WriteRefused(msgspec.Struct, frozen=True, gc=False):
    """Somebody else has written since."""

    token: int


class StoreSilent(msgspec.Struct, frozen=True, gc=False):
    """The store did not answer: a read has failed, a write may have been done or be done yet."""

    token: int
