"""What the metadata store holds of one partition: who leads, who is in sync. Only controllers write it.

Two numbers stand in it. `epoch` rises with every change, whatever it is: whoever asks for a change names the
epoch that the change is based on. `leader_epoch` rises with every leader: it is the epoch of entries, and fences
the past.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from quorate.core.entry import Member
from quorate.core.invariant import ImpossibleState


class Unclean(msgspec.Struct, frozen=True, gc=False):
    """A person has let somebody lead who may lack what is settled: kept until that is done again."""

    leader_epoch: int
    """The one that began with it."""
    leader: Member
    had_everything: tuple[Member, ...]
    """Who was in sync before, or eligible."""


class Birth(msgspec.Struct, frozen=True, gc=False):
    """What to begin a partition with of which the store knows nothing."""

    replicas: tuple[Member, ...]
    min_isr: int
    """Fewer than a majority is a choice that somebody has to make, so there is no default. It stays what it is."""
    leader: Member | None = None
    """Who shall lead first; None: anybody."""


class PartitionState(msgspec.Struct, frozen=True, gc=False, tag="isr"):
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
        replicas, isr, elr = set(self.replicas), set(self.isr), set(self.elr)
        for holds, rule in (
            (self.replicas == tuple(sorted(replicas)), "replicas are sorted"),
            (self.isr == tuple(sorted(isr)), "the ISR is sorted"),
            (self.elr == tuple(sorted(elr)), "the ELR is sorted"),
            (len({member.node for member in replicas}) == len(replicas), "one replica a node"),
            (self.leader in isr, "the leader is in the ISR"),
            (isr <= replicas, "who is in sync holds the partition"),
            (elr <= replicas - isr, "who is eligible holds it, and is not in sync"),
            (1 <= self.min_isr <= len(replicas), "as many hold it as are needed in sync"),
            (not elr or len(isr) < self.min_isr, "where enough are in sync nobody is only eligible"),
        ):
            if not holds:
                raise ImpossibleState(f"{self}: {rule}")

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
        """Another leader epoch. One that was eligible leads because nobody in sync was there.

        So it begins alone, and all the others stay eligible: nothing is settled before enough have joined it.
        """
        assert leader in self.may_lead
        isr = self.isr if leader in self.isr else (leader,)
        return msgspec.structs.replace(
            self,
            epoch=self.epoch + 1,
            leader_epoch=self.leader_epoch + 1,
            leader=leader,
            isr=isr,
            elr=tuple(member for member in self.may_lead if member not in isr),
        )

    def held_by(self, replicas: tuple[Member, ...]) -> PartitionState:
        """Others hold the partition. Whoever does no more is neither in sync nor eligible; the leader stays."""
        isr = tuple(member for member in self.isr if member in replicas)
        left = tuple(member for member in self.may_lead if member in replicas and member not in isr)
        elr = left if len(isr) < self.min_isr else ()
        return msgspec.structs.replace(self, epoch=self.epoch + 1, replicas=replicas, isr=isr, elr=elr)

    def __str__(self) -> str:
        def nodes(members: tuple[Member, ...]) -> str:
            return "{" + ",".join(f"n{member.node}" for member in members) + "}"

        elr = f" elr {nodes(self.elr)}" if self.elr else ""
        unclean = f", uncleanly since e{self.unclean.leader_epoch}" if self.unclean is not None else ""
        return (
            f"e{self.leader_epoch} (v{self.epoch}) led by n{self.leader.node},"
            f" isr {nodes(self.isr)}{elr} of {nodes(self.replicas)}{unclean}"
        )


def newborn(birth: Birth, leader: Member) -> PartitionState:
    """The first state: everybody has the same empty log, so everybody is in sync (LB-1)."""
    replicas = tuple(sorted(birth.replicas))
    return PartitionState(1, 1, leader, replicas, replicas, min_isr=birth.min_isr)
