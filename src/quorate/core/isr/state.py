"""What the metadata store holds of one partition: who leads, who is in sync. Only controllers write it.

Two numbers stand in it. `epoch` rises with every change, whatever it is: whoever asks for a change names the
epoch that the change is based on. `leader_epoch` rises with every leader: it is the epoch of entries, and fences
the past.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from quorate.core.entry import Member


class Unclean(msgspec.Struct, frozen=True, gc=False):
    """A person has let somebody lead who may lack what is settled: never forgotten."""

    leader_epoch: int
    """The one that began with it."""
    leader: Member
    isr: tuple[Member, ...]
    """Who was in sync before, and so had everything."""


class Birth(msgspec.Struct, frozen=True, gc=False):
    """What to begin a partition with of which the store knows nothing."""

    replicas: tuple[Member, ...]
    min_isr: int = 1


class PartitionState(msgspec.Struct, frozen=True, gc=False):
    epoch: int
    """Rises by one with every change; the document calls it Epoch."""
    leader_epoch: int
    """Rises by one with every leader; the document calls it LeaderEpoch."""
    leader: Member
    replicas: tuple[Member, ...]
    isr: tuple[Member, ...]
    """Who is in sync: each of them has everything that is settled, and is waited for."""
    elr: tuple[Member, ...] = ()
    """Who left the ISR when it fell, or was, below the minimum. Nothing is settled since, so they have everything,
    too, and may lead (KIP-966's eligible leader replicas)."""
    min_isr: int = 1
    """While fewer are in sync nothing is taken and nothing is settled."""
    unclean: Unclean | None = None
    """The last time that a person accepted a loss."""

    def __post_init__(self) -> None:
        assert self.replicas == tuple(sorted(set(self.replicas))), "replicas are sorted"
        assert self.isr == tuple(sorted(set(self.isr))), "so is the ISR"
        assert len({member.node for member in self.replicas}) == len(self.replicas), "one replica a node"
        assert self.leader in self.isr, "the leader is in the ISR"
        assert set(self.isr) <= set(self.replicas)
        assert set(self.elr) <= set(self.replicas) - set(self.isr)
        assert 1 <= self.min_isr <= len(self.replicas)
        assert not self.elr or len(self.isr) < self.min_isr

    @property
    def may_settle(self) -> bool:
        """Whether enough are in sync to settle anything."""
        return len(self.isr) >= self.min_isr

    @property
    def may_lead(self) -> tuple[Member, ...]:
        """Who has everything that is settled: the next leader is one of these."""
        return tuple(sorted((*self.isr, *self.elr)))

    def with_isr(self, isr: Collection[Member]) -> PartitionState:
        """Others are in sync. Whoever leaves an ISR that is then below the minimum stays eligible."""
        now = tuple(sorted(isr))
        left = [member for member in self.may_lead if member not in isr]
        elr = tuple(left) if len(now) < self.min_isr else ()
        return msgspec.structs.replace(self, epoch=self.epoch + 1, isr=now, elr=elr)

    def led_by(self, leader: Member) -> PartitionState:
        """Another leader epoch. One that was eligible is in sync by leading: nothing was settled without it."""
        assert leader in self.may_lead
        changed = self.with_isr({*self.isr, leader})
        return msgspec.structs.replace(changed, leader=leader, leader_epoch=self.leader_epoch + 1)

    def __str__(self) -> str:
        def nodes(members: tuple[Member, ...]) -> str:
            return "{" + ",".join(f"n{member.node}" for member in members) + "}"

        elr = f" elr {nodes(self.elr)}" if self.elr else ""
        return (
            f"e{self.leader_epoch} (v{self.epoch}) led by n{self.leader.node},"
            f" isr {nodes(self.isr)}{elr} of {nodes(self.replicas)}"
        )


def newborn(birth: Birth, leader: Member) -> PartitionState:
    """The first state: everybody has the same empty log, so everybody is in sync (LB-1)."""
    replicas = tuple(sorted(birth.replicas))
    return PartitionState(1, 1, leader, replicas, replicas, min_isr=birth.min_isr)
