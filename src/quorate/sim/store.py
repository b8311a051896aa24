"""The metadata store of a fast world: a dictionary, a while away from every operator.

It is linearizable: each request takes effect at one moment between its sending and its answer. What goes wrong is
on the way. While the store is *silent*, requests are lost, or done though nobody hears of it, or done much later,
when whoever asked has long gone on; sometimes that it is silent is said, sometimes nothing is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorate.core.metadata import (
    ReadShard,
    ShardRead,
    ShardWritten,
    StoreSilent,
    WriteRefused,
    WriteShard,
)
from quorate.sim.chance import stream
from quorate.sim.world import World

Answer = Callable[[Any], None]
"""Takes one of the events of core/metadata.py."""

LATE_MAX = 40.0
"""A request to a silent store is done up to so many times as late as usual."""


class Store:
    """What operators and whoever watches a world need of a store, and what can go wrong with any."""

    def __init__(self, world: World, latency_s: float) -> None:
        self.on_written: Callable[[int, int, Any], None] = lambda shard, version, content: None
        """Told every write at the moment when it is done: which shard, its version from then on, what it is."""
        self._world = world
        self._latency_s = latency_s
        self._slow = 1.0
        self._silent = False
        self._rng = stream(world.setup.seed, "store")

    def ask(self, operator: int, shard: int, request: ReadShard | WriteShard, answer: Answer) -> None:
        raise NotImplementedError

    def newest(self, shard: int) -> Any:
        """The truth, for whoever stands outside of the world; each room has its own. None: there is none."""
        raise NotImplementedError

    def slow_down(self, factor: float) -> None:
        self._slow = factor

    def fall_silent(self) -> None:
        self._silent = True

    def recover(self) -> None:
        """Neither slow nor silent, however often it was made so."""
        self._slow, self._silent = 1.0, False

    def _travel_s(self) -> float:
        return self._latency_s * self._slow * (0.5 + self._rng.random())


class MemoryStore(Store):
    def __init__(self, world: World, latency_s: float) -> None:
        super().__init__(world, latency_s)
        self._shards: dict[int, tuple[int, Any]] = {}
        self.accepts: Callable[[int, Any], bool] = lambda shard, content: True
        """Whether a shard may be that at all, just now."""

    def newest(self, shard: int) -> Any:
        found = self._shards.get(shard)
        return found[1] if found is not None else None

    def turn(self, shard: int, content: Any) -> int:
        """Let another generation begin with this; the version. Whatever was to be written before is refused."""
        version = self._shards.get(shard, (0, None))[0] + 1
        self._shards[shard] = (version, content)
        return version

    def ask(self, operator: int, shard: int, request: ReadShard | WriteShard, answer: Answer) -> None:
        there, back = self._travel_s(), self._travel_s()
        if not self._silent:
            self._world.after(
                there, self._arrived, (shard, request, lambda event: self._answer(back, answer, event))
            )
            return
        fate = self._rng.choice(("lost", "done", "late"))
        if fate != "lost":
            late = there * (1.0 + LATE_MAX * self._rng.random()) if fate == "late" else there
            self._world.after(late, self._arrived, (shard, request, lambda event: None))
        if self._rng.random() < 0.5:
            self._world.after(there + back, answer, StoreSilent(request.token))

    def _answer(self, seconds: float, answer: Answer, event: Any) -> None:
        self._world.after(seconds, answer, event)

    def _arrived(self, asked: tuple[int, ReadShard | WriteShard, Answer]) -> None:
        shard, request, answer = asked
        version, content = self._shards.get(shard, (0, None))
        if isinstance(request, ReadShard):
            answer(ShardRead(request.token, version, content))
        elif version != request.version or not self.accepts(shard, request.shard):
            answer(WriteRefused(request.token))
        else:
            self._shards[shard] = (version + 1, request.shard)
            self.on_written(shard, version + 1, request.shard)
            answer(ShardWritten(request.token, version + 1))
