"""The operators, or controllers, of a scenario, and their store: instant, unless the story holds it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from quorate.core.entry import Member
from quorate.core.isr import PartitionState
from quorate.core.metadata import ReadShard, WriteShard
from quorate.sim import overseen
from quorate.sim.operators import Operators
from quorate.sim.store import Answer, MemoryStore

if TYPE_CHECKING:
    from quorate.sim.scenario_stage import Stage


class StageStore(MemoryStore):
    def __init__(self, stage: Stage) -> None:
        super().__init__(stage, latency_s=0.0)
        self.is_held = False
        self._waiting: deque[tuple[int, int, ReadShard | WriteShard, Answer]] = deque()

    def ask(self, operator: int, shard: int, request: ReadShard | WriteShard, answer: Answer) -> None:
        if self.is_held:
            self._waiting.append((operator, shard, request, answer))
        else:
            super().ask(operator, shard, request, answer)

    def release(self) -> None:
        """What it was asked meanwhile is done in that order, and answered."""
        self.is_held = False
        while self._waiting:
            self.ask(*self._waiting.popleft())

    def found(self, shard: Any) -> None:
        """Somebody wrote this before the story began."""
        self._shards[0] = (1, shard)


class Overseeing(Operators):
    """Operators, told of and checked at every step. None of them runs before it is started."""

    store: StageStore

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage, StageStore(stage))
        self._stage = stage
        self._room: Any = stage.account.room
        self.store.on_written = self._written
        self.on_step = self._stepped

    def found(self, stored: Any) -> None:
        """Logs that are given come from earlier leaders, of whom the store knows."""
        self.store.found(stored)
        if isinstance(stored, PartitionState):
            self._room.found(0, 1, stored)
        else:
            self._room.wrote(self._stage.account, 0, 1, stored)

    def member(self, node: int) -> Member:
        """As it stands in the store; it may have lost its disk since."""
        shard = self.store.newest(0)
        members = overseen.members(shard) if shard is not None else ()
        return next((member for member in members if member.node == node), self._stage.member(node))

    def _written(self, shard: int, version: int, content: Any) -> None:
        self._stage.narrator.say(f"the store has {self._stage.teller.named(str(content))}")
        self._room.wrote(self._stage.account, shard, version, content)

    def _stepped(self, operator: int, shard: int, ordered: list[Any]) -> None:
        self._room.operated(self._stage.account, operator, shard, ordered)
