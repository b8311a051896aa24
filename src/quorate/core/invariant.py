"""How every room says that something happened which must never happen."""

from __future__ import annotations

from typing import Any


class Violated(Exception):
    """An invariant does not hold. `invariant` is its short name, `detail` says who, where and what."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail


class ImpossibleState(ValueError):
    """What no overseer stores. States come from the network and the disk, too: msgspec passes it on as its own."""


def settled_by(replica: Any, offset: int) -> int:
    """The entry that a leader has counted to settle everything up to `offset`: that one, unless it is a Barrier of
    an earlier epoch. Then it is the first of the leader's own, which can never be settled itself (017)."""
    ended, first = replica.barrier, replica.leads_from
    return (
        max(offset, first)
        if ended is not None and ended.entry.offset == offset and first is not None
        else offset
    )
