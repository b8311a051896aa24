"""What is to be ordered next of whoever oversees a partition, so that it gets to the copies which the image wants.

Operators and controllers change one copy at a time, and see each change through by themselves (core/coordinated,
core/isr). What is wanted may be several changes away: so whoever leads the metadata group looks at what is stored,
orders one step, and looks again. Nothing has to be remembered but what is wanted, and that stands in the image.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from functools import partial
from typing import Any

from quorate.core.coordinated import Shard, Status
from quorate.core.coordinated.orders import CallOff, Reconfigure
from quorate.core.coordinated.shard import Kind
from quorate.core.entry import Member
from quorate.core.isr import PartitionState
from quorate.core.isr.orders import ChangeReplicas
from quorate.machine.shards import State


class Rest(Enum):
    """Nothing is to be ordered."""

    REACHED = "it is as it is wanted"
    UNDER_WAY = "something is, and has to end first"


Step = Rest | Callable[[int], Any]
"""Or an order, made with the number that it is answered by."""


def next_step(stored: State, wanted: Collection[Member], before: Collection[Member]) -> Step:
    """`before`: who counted when this was wanted."""
    if isinstance(stored, PartitionState):
        return _of_controller(stored, set(wanted), set(before))
    return _of_operator(stored, set(wanted))


def _of_operator(shard: Shard, wanted: set[Member]) -> Step:
    """One comes before another goes, as long as there are no more than are wanted.

    In a swap the old one counts no more while the new one is filled, which may take long: that is for disks that
    are lost, and count for nothing anyway.
    """
    change, here = shard.reconfiguration, set(shard.ensemble)
    if shard.status is not Status.STEADY:
        return Rest.UNDER_WAY
    if change is not None:
        is_wanted = change.old not in wanted and (change.new is None or change.new in wanted)
        return Rest.UNDER_WAY if is_wanted else CallOff
    goes, comes = _leader_last(here - wanted, shard.leader), sorted(wanted - here)
    for new in comes:
        lost = [member for member in goes if member.node == new.node]
        if lost:
            return partial(Reconfigure, kind=Kind.SWAP, old=lost[0], new=new)
    if comes and len(here) <= len(wanted):
        return partial(Reconfigure, kind=Kind.EXPAND, new=comes[0])
    return partial(Reconfigure, kind=Kind.CONTRACT, old=goes[0]) if goes else Rest.REACHED


def _of_controller(state: PartitionState, wanted: set[Member], before: set[Member]) -> Step:
    """Whoever is new is in sync before another goes; but a node whose disk is lost has nothing to wait for."""
    here = set(state.replicas)
    for new in sorted(wanted - here):
        lost = [member for member in here if member.node == new.node]
        return partial(ChangeReplicas, old=lost[0] if lost else None, new=new)
    if not wanted - before <= set(state.isr):
        return Rest.UNDER_WAY
    goes = _leader_last(here - wanted, state.leader)
    return partial(ChangeReplicas, old=goes[0]) if goes else Rest.REACHED


def _leader_last(members: Collection[Member], leader: Member | None) -> list[Member]:
    return sorted(members, key=lambda member: (member == leader, member))
