"""How every room says that something happened which must never happen."""

from __future__ import annotations


class Violated(Exception):
    """An invariant does not hold. `invariant` is its short name, `detail` says who, where and what."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail


class ImpossibleState(ValueError):
    """What no overseer stores. States come from the network and the disk, too: msgspec passes it on as its own."""
