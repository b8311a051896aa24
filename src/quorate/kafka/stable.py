"""How far readers of committed records may read, and what of it was aborted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core.entry import Partition
from quorate.host import Hosted
from quorate.machine.producers import Producers

if TYPE_CHECKING:
    from quorate.node import Node


def stable_end(hosted: Hosted) -> int:
    """The first offset that they do not see: an open transaction begins there, or nothing is settled yet.

    What is settled and not applied may open a transaction that nobody knows of yet.
    """
    machine = hosted.machine
    if isinstance(machine, Producers):
        return machine.stable_end(hosted.applied.offset + 1)
    return hosted.commit + 1


def aborted_between(node: Node, partition: Partition, *, first: int, end: int) -> list[tuple[int, int]]:
    """(producer id, first offset) of transactions with aborted records there, `end` left out."""
    machine = node.host.hosted[partition].machine
    if not isinstance(machine, Producers):
        return []
    return [(each.producer_id, each.first) for each in machine.aborted(first=first, end=end)]
