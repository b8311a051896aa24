"""The metadata store of a whole world: the metadata group, replicated by raft on the very nodes of the world.

An operator reads by a linearizable read of whoever leads the group, and writes by proposing a command to it. It
asks one node after another until one answers, or until its patience is at its end; what became of a write is then
as unknown as with any other store. All that goes wrong goes wrong by itself: the nodes are the world's.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quorate.batch import parse_batch_header
from quorate.core.effects import Outcome, Reply
from quorate.core.events import ReadLevel
from quorate.core.invariant import Violated
from quorate.core.metadata import (
    ReadShard,
    ShardRead,
    ShardWritten,
    StoreSilent,
    WriteRefused,
    WriteShard,
)
from quorate.machine import shards
from quorate.machine.metadata import Metadata, command_batch
from quorate.sim.store import Answer, Store
from quorate.sim.world import World

PATIENCE_PACES = 4.0


class Asking(msgspec.Struct):
    """One request of one operator, until it is answered."""

    operator: int
    shard: int
    request: ReadShard | WriteShard
    answer: Answer
    node: int
    is_over: bool = False


class GroupStore(Store):
    def __init__(self, world: World, latency_s: float) -> None:
        super().__init__(world, latency_s)
        self._group = world.setup.metadata
        self._patience_s = PATIENCE_PACES * world.tunables.pace_s
        self._commands: dict[int, shards.WriteShard] = {}
        """All that were ever proposed, by the CRC of their batch."""
        self._settled: shards.Shards = {}
        """What the settled log comes down to: every machine must say the same."""
        self._leader = 0

    def newest(self, shard: int) -> Any:
        stored = self._settled.get(self._world.partitions[shard])
        return stored.shard if stored is not None else None

    def settled(self, offset: int, crc: int) -> None:
        """Every entry of the group's settled log, once, in its order."""
        command = self._commands.get(crc)
        if command is not None and shards.write(self._settled, command, offset):
            shard = self._world.number_of(command.partition)
            self.on_written(shard, command.version + 1, command.shard)

    # --- one request ---

    def ask(self, operator: int, shard: int, request: ReadShard | WriteShard, answer: Answer) -> None:
        asking = Asking(operator, shard, request, answer, self._leader or self._anybody())
        self._world.after(self._travel_s(), self._arrive, asking)
        self._world.after(self._patience_s * self._slow, self._give_up, asking)

    def _anybody(self) -> int:
        return self._rng.choice(self._world.setup.holders[self._group])

    def _arrive(self, asking: Asking) -> None:
        if asking.is_over:
            return
        world, links = self._world, self._world.network.links
        if self._silent or links[asking.operator, asking.node].cuts:
            self._leader = 0
            return  # Nobody answers.
        if isinstance(asking.request, ReadShard):
            taken = world.read(
                asking.node, self._group, ReadLevel.LINEARIZABLE, lambda reply: self._read(asking, reply)
            )
        else:
            taken = world.propose(
                asking.node, self._group, [self._command(asking)], lambda reply: self._proposed(asking, reply)
            )
        if not taken:
            self._elsewhere(asking, 0)

    def _command(self, asking: Asking) -> bytes:
        request = asking.request
        assert isinstance(request, WriteShard)
        partition = self._world.partitions[asking.shard]
        command = shards.WriteShard(partition, request.version, request.shard)
        payload = command_batch(command)
        self._commands[parse_batch_header(payload).crc] = command
        return payload

    def _read(self, asking: Asking, reply: Reply) -> None:
        if reply.outcome is not Outcome.SETTLED:
            self._elsewhere(asking, reply.leader)
            return
        self._leader = asking.node
        stored = self._stored(asking)
        version, content = (stored.version, stored.shard) if stored is not None else (0, None)
        self._end(asking, ShardRead(asking.request.token, version, content))

    def _proposed(self, asking: Asking, reply: Reply) -> None:
        if reply.outcome is Outcome.UNKNOWN:
            self._leader = 0
            self._end(asking, StoreSilent(asking.request.token))
        elif reply.outcome is not Outcome.SETTLED:
            self._elsewhere(asking, reply.leader)
        else:
            self._leader = asking.node
            # Settled is not yet applied there: only then the image says what came of it.
            self._world.read(
                asking.node,
                self._group,
                ReadLevel.AT_OFFSET,
                lambda applied: self._written(asking, reply.offset, applied),
                reply.offset,
            )

    def _written(self, asking: Asking, offset: int, applied: Reply) -> None:
        if applied.outcome is not Outcome.SETTLED:
            self._end(asking, StoreSilent(asking.request.token))
            return
        request, stored = asking.request, self._stored(asking)
        assert isinstance(request, WriteShard)
        if stored is not None and stored.at == offset:
            self._end(asking, ShardWritten(request.token, stored.version))
        elif stored is not None and stored.version > request.version + 1:
            # Somebody has written since. Whether it was done before, the image no longer says.
            self._end(asking, StoreSilent(request.token))
        else:
            self._end(asking, WriteRefused(request.token))

    def _stored(self, asking: Asking) -> shards.Stored | None:
        """What the image of the node that was asked says, now."""
        hosted = self._world.hosted(asking.node, self._group)
        assert hosted is not None
        assert isinstance(hosted.machine, Metadata)
        partition = self._world.partitions[asking.shard]
        stored = hosted.machine.shard(partition)
        known = self._settled.get(partition)
        if stored is not None and (known is None or (stored.version >= known.version and stored != known)):
            raise Violated("store-linearizable", f"n{asking.node} says {stored}, and {known} is settled")
        return stored

    # --- what comes of it ---

    def _elsewhere(self, asking: Asking, leader: int) -> None:
        """It was certainly not done: ask another node."""
        if not asking.is_over:
            self._leader = leader if leader != asking.node else 0
            asking.node = self._leader or self._anybody()
            self._world.after(self._travel_s(), self._arrive, asking)

    def _give_up(self, asking: Asking) -> None:
        if not asking.is_over:
            self._leader = 0
            self._end(asking, StoreSilent(asking.request.token))

    def _end(self, asking: Asking, event: Any) -> None:
        if not asking.is_over:
            asking.is_over = True
            if not self._world.network.links[asking.node, asking.operator].cuts:
                self._world.after(self._travel_s(), asking.answer, event)
