"""Where a run begins: who holds what, how its copies agree, and whom bad luck may hit."""

from __future__ import annotations

import msgspec

from quorate.core.entry import Quorums
from quorate.sim.tunables import Tunables


class Setup(msgspec.Struct, frozen=True):
    """Where a run begins."""

    seed: int
    tunables: Tunables
    voters: tuple[tuple[int, ...], ...]
    """The voting nodes of each partition."""
    learners: tuple[tuple[int, ...], ...]
    """The learning nodes of each partition."""
    hold: bool = False
    """Messages between replicas wait until they are delivered by hand."""
    outsiders: tuple[tuple[int, ...], ...] = ()
    """The nodes of each partition that hold a replica which is not a member yet; empty: nobody does."""
    unlucky: tuple[int, ...] = ()
    """Nodes whose copies may be lost for good, and who may never stand: fewer than half of any ensemble."""
    priorities: tuple[tuple[int, int], ...] = ()
    """(node, how much it is wanted as a leader), where that is not as tuned for all."""
    protocol: str = "raft"
    operators: tuple[int, ...] = ()
    """Operator processes: they are no nodes, and share the network with them."""
    metadata: int = -1
    """The partition that is the metadata group's, replicated by raft; -1: there is none."""
    tables: tuple[int, ...] = ()
    """The partitions that are table groups."""
    quorums: tuple[Quorums | None, ...] = ()
    """Of each partition, at birth (`confirm`); empty: majorities."""

    @property
    def everybody(self) -> tuple[int, ...]:
        """Whoever is in the network."""
        return self.nodes + self.operators

    @property
    def shards(self) -> range:
        """The partitions of which operators take care; clients write to them and to no others."""
        return range(len(self.voters) - (self.metadata >= 0))

    def protocol_of(self, partition: int) -> str:
        return "raft" if partition == self.metadata else self.protocol

    def purpose_of(self, partition: int) -> str:
        if partition == self.metadata:
            return "metadata"
        return "tables" if partition in self.tables else "topic"

    @property
    def nodes(self) -> tuple[int, ...]:
        groups = self.voters + self.learners + self.outsiders
        return tuple(sorted({node for group in groups for node in group}))

    @property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that hold each partition."""
        outsiders = self.outsiders or ((),) * len(self.voters)
        return tuple(
            tuple(sorted(group[0] + group[1] + group[2]))
            for group in zip(self.voters, self.learners, outsiders, strict=True)
        )
