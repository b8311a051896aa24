"""The invariants of every protocol in a world, each told only of its own partitions."""

from __future__ import annotations

from typing import Any


class Rooms:
    def __init__(self, room: Any, others: dict[int, Any]) -> None:
        """`others`: by partition, where it is not the usual one."""
        self._room = room
        self._others = others

    def stepped(self, world: Any, shadow: Any, replica: Any, event: Any, effects: list[Any]) -> None:
        self._of(shadow).stepped(world, shadow, replica, event, effects)

    def settled(self, world: Any, shadow: Any, replica: Any, offset: int) -> None:
        self._of(shadow).settled(world, shadow, replica, offset)

    def _of(self, shadow: Any) -> Any:
        return self._others.get(shadow.partition, self._room)
