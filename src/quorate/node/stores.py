"""Where operators and controllers keep what they must not forget: the metadata group's image, or another store.

They know a store only by what they ask of it and hear from it (core/metadata.py): read the newest, and write if
nobody else has since. So any linearizable store with compare-and-set would do, outside of the cluster as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Partition
from quorate.core.events import ReadLevel
from quorate.core.metadata import ReadShard, ShardRead, ShardWritten, StoreSilent, WriteRefused, WriteShard
from quorate.machine import shards
from quorate.machine.metadata import METADATA, command_batch

if TYPE_CHECKING:
    from quorate.node.node import Node

Heard = ShardRead | ShardWritten | WriteRefused | StoreSilent
Answer = Callable[[Heard], None]


class Store(Protocol):
    def known(self, partition: Partition) -> shards.Stored | None:
        """What is known here without asking; it may be old."""
        ...

    def ask(self, partition: Partition, request: ReadShard | WriteShard, answer: Answer) -> None:
        """Answered once, later or at once. A write whose outcome nobody knows is answered as silence."""
        ...


class MetadataStore:
    """The image of the metadata group, for the node that leads it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def known(self, partition: Partition) -> shards.Stored | None:
        return self._node.metadata.image.shard(partition)

    def ask(self, partition: Partition, request: ReadShard | WriteShard, answer: Answer) -> None:
        if isinstance(request, ReadShard):
            self._read(partition, request, answer)
        else:
            self._write(partition, request, answer)

    def _read(self, partition: Partition, request: ReadShard, answer: Answer) -> None:
        def read(reply: Reply) -> None:
            if reply.outcome is not Outcome.SETTLED:
                answer(StoreSilent(request.token))
                return
            stored = self.known(partition)
            version, shard = (stored.version, stored.shard) if stored is not None else (0, None)
            answer(ShardRead(request.token, version, shard))

        self._node.read(METADATA, ReadLevel.LINEARIZABLE, read)

    def _write(self, partition: Partition, request: WriteShard, answer: Answer) -> None:
        command = shards.WriteShard(partition, request.version, request.shard)

        def settled(reply: Reply) -> None:
            if reply.outcome is not Outcome.SETTLED:
                # Not led here any more, or too busy: what was not done for certain is asked for again all the same.
                answer(StoreSilent(request.token))
                return

            def applied(done: Reply) -> None:
                answer(self._written(partition, request, reply.offset, done))

            # Settled is not yet applied: only then the image says what came of it.
            self._node.read(METADATA, ReadLevel.AT_OFFSET, applied, offset=reply.offset)

        self._node.propose(METADATA, [command_batch(command)], settled)

    def _written(self, partition: Partition, request: WriteShard, offset: int, applied: Reply) -> Heard:
        stored = self.known(partition)
        if applied.outcome is not Outcome.SETTLED:
            return StoreSilent(request.token)
        if stored is not None and stored.at == offset:
            return ShardWritten(request.token, stored.version)
        if stored is not None and stored.version > request.version + 1:
            # Somebody has written since. Whether it was done before, the image no longer says.
            return StoreSilent(request.token)
        return WriteRefused(request.token)
