"""The operators of a scenario, and their store: instant, unless the story holds it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from quorate.core.coordinated import Shard, Status
from quorate.core.coordinated.metadata import ReadShard, WriteShard
from quorate.core.entry import Member
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

    def found(self, shard: Shard) -> None:
        """Somebody wrote this before the story began."""
        self._shards[0] = (1, shard)
        self.on_written(0, 1, shard)


class Overseeing(Operators):
    """Operators, told of and checked at every step. None of them runs before it is started."""

    store: StageStore

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage, StageStore(stage))
        self._stage = stage
        self._room: Any = stage.account.room
        self.store.on_written = self._written
        self.on_step = self._stepped

    def found(self, epoch: int) -> None:
        """An election of that epoch is stored: logs that are given come from earlier leaders."""
        ensemble = tuple(Member(voter, 1) for voter in self._stage.cast.voters)
        self.store.found(Shard(epoch, Status.ELECTION, ensemble))

    def member(self, node: int) -> Member:
        """As it stands in the ensemble; it may have lost its disk since."""
        shard = self.store.newest(0)
        members = shard.ensemble if shard is not None else ()
        return next((member for member in members if member.node == node), self._stage.member(node))

    def _written(self, shard: int, version: int, content: Shard) -> None:
        self._stage.narrator.say(f"the store has {self._stage.teller.named(str(content))}")
        self._room.wrote(self._stage.account, shard, version, content)

    def _stepped(self, operator: int, shard: int, ordered: list[Any]) -> None:
        self._room.operated(self._stage.account, operator, shard, ordered)
