"""What a run costs and gives, in its own time: so that protocols can be compared in the same worlds.

Counted while things go wrong, up to the moment in which everything is healed; recovery is what comes right after.
"""

from __future__ import annotations

from math import log2

import msgspec

from quorate.sim.oracle import Oracle, Proposal
from quorate.sim.world import World

BUCKETS_COUNT = 72
BUCKETS_PER_DOUBLING = 4
SHORTEST_S = 0.0001
"""Latencies are counted in buckets: the first up to this, and each next one longer by a fourth root of two."""
SLICE_S = 0.1
IN_TIME_S = 1.0


class Measured(msgspec.Struct, frozen=True):
    """In simulated seconds."""

    asked: int = 0
    """Tenths of a second in which some client proposed something to a partition."""
    served: int = 0
    """Those of them of which something was acknowledged within a second: what clients call available. (By time, not
    by proposals: some clients wait for an answer, and others send the more the less they are served.)"""
    latencies: tuple[int, ...] = ()
    """From a proposal to its acknowledgement, retries included: how many in each bucket."""
    messages: int = 0
    """Between nodes, whatever became of them."""
    sent_bytes: int = 0
    """Of entries and snapshots in those messages."""
    truncated: int = 0
    """Offsets that replicas cut from their logs."""
    recovery_s: float = 0.0
    """From the end of all faults until every partition had acknowledged something new; 0: it never did."""


def bucket_of(seconds: float) -> int:
    if seconds <= SHORTEST_S:
        return 0
    return min(int(log2(seconds / SHORTEST_S) * BUCKETS_PER_DOUBLING) + 1, BUCKETS_COUNT - 1)


def upper_s(bucket: int) -> float:
    """The longest latency of a bucket."""
    return float(SHORTEST_S * 2.0 ** (bucket / BUCKETS_PER_DOUBLING))


class Measures:
    def __init__(self, world: World, oracle: Oracle) -> None:
        self._world = world
        oracle.on_proposed = self.proposed
        oracle.on_acknowledged = self.acknowledged
        self._began: dict[int, float] = {}
        self._asked: set[tuple[int, int]] = set()
        self._served: set[tuple[int, int]] = set()
        """By partition and slice of time."""
        self._latencies = [0] * BUCKETS_COUNT
        self._healed_at: float | None = None
        self._recovered: dict[int, float] = {}
        """When each partition acknowledged something for the first time after all was healed."""
        self._costs = (0, 0, 0)

    def proposed(self, proposal: Proposal) -> None:
        if self._healed_at is None:
            now = self._world.now
            self._began[proposal.number] = now
            self._asked.add((proposal.partition, int(now / SLICE_S)))

    def acknowledged(self, proposal: Proposal) -> None:
        now = self._world.now
        if self._healed_at is not None:
            self._recovered.setdefault(proposal.partition, now)
            return
        began = self._began.pop(proposal.number, None)
        if began is not None:
            self._latencies[bucket_of(now - began)] += 1
            if now - began <= IN_TIME_S:
                self._served.add((proposal.partition, int(began / SLICE_S)))

    def healed(self, *, truncated: int) -> None:
        self._healed_at = self._world.now
        self._costs = self._world.messages_count, self._world.sent_bytes, truncated
        self._began.clear()

    def result(self, partitions_count: int) -> Measured:
        recovery_s = 0.0
        if self._healed_at is not None and len(self._recovered) >= partitions_count:
            recovery_s = max(self._recovered.values()) - self._healed_at
        return Measured(len(self._asked), len(self._served), tuple(self._latencies), *self._costs, recovery_s)
