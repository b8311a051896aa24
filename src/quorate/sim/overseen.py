"""What a made-up world must know of each protocol whose shards somebody oversees: operators, or controllers."""

from __future__ import annotations

from random import Random
from typing import Any

from quorate.core import coordinated, isr
from quorate.core.coordinated import orders as operator_orders
from quorate.core.entry import Member
from quorate.core.isr import orders as controller_orders
from quorate.sim.setup import Setup

OVERSEEN = ("coordinated", "isr")

Order = operator_orders.Order | controller_orders.Order


def make(setup: Setup, shard: int, *, rng: Random) -> Any:
    """Whoever oversees one shard, for one life of a process."""
    oversight = setup.tunables.oversight
    first = tuple(Member(voter, 1) for voter in setup.voters[shard])
    if setup.protocol == "isr":
        birth = isr.Birth(first, min_isr(setup, shard))
        return isr.Controller(oversight.controller, rng, birth=birth)
    newborn = coordinated.Shard(0, coordinated.Status.ELECTION, first)
    return coordinated.Operator(oversight.operator, rng, birth=newborn)


def min_isr(setup: Setup, shard: int) -> int:
    """How many must be in sync for anything to be settled.

    What is settled is on so many copies, so it is fair to lose some for good only if that is one more.
    """
    voters = setup.voters[shard]
    least = 1 + sum(voter in setup.unlucky for voter in voters)
    return least + round((len(voters) - least) * setup.tunables.oversight.min_isr_share)


def members(stored: Any) -> tuple[Member, ...]:
    """Who copies the shard, by what the store says."""
    copies: tuple[Member, ...] = (
        stored.replicas if isinstance(stored, isr.PartitionState) else stored.ensemble
    )
    return copies
