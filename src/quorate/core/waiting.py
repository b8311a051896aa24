"""Who waits for something that a replica learns in any role: reads at an offset, and the outcome of a transfer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core import effects
from quorate.core.effects import Outcome

if TYPE_CHECKING:
    from quorate.core.keeping import Keeper


class Waiting:
    __slots__ = ("_expected", "_reads", "_replica", "deadline")

    def __init__(self, replica: Keeper) -> None:
        self._replica = replica
        self._reads: list[tuple[int, int, float]] = []
        """(offset, request, deadline) of reads that wait until that much is published here."""
        self._expected: tuple[int, int, float] | None = None
        """(node, request, deadline): this replica has handed over, and somebody wants to know whether it worked."""
        self.deadline: float | None = None
        """When the first of them has waited long enough."""

    # --- reads ---

    def read(self, offset: int, request: int) -> None:
        """Answer a read as soon as everything up to `offset` can be read here."""
        replica = self._replica
        self._reads.append((offset, request, replica.now + replica.config.tuning.read_wait_s))
        self._answer_reads()

    def published(self) -> None:
        """Readers may see more."""
        if self._reads:
            self._answer_reads()

    def _answer_reads(self) -> None:
        replica = self._replica
        reads, self._reads = self._reads, []
        for offset, request, deadline in reads:
            upto, leader = replica.published, replica.leader
            if upto >= offset:
                replica.emit(effects.Reply(request, Outcome.SETTLED, upto, replica.epoch, leader))
            elif replica.now >= deadline:
                why = f"offset {offset} is not settled here; {upto} is"
                replica.emit(effects.Reply(request, Outcome.TIMED_OUT, leader=leader, why=why))
            else:
                self._reads.append((offset, request, deadline))
        self._look_ahead()

    # --- transfers ---

    def expect_leader(self, node: int, request: int, deadline: float) -> None:
        """Leadership was handed over: answer when somebody is heard to lead."""
        if self._expected is not None:
            self._judge()
        self._expected = (node, request, deadline)
        self._look_ahead()

    def heard_leader(self) -> None:
        if self._expected is not None:
            self._judge()

    def _judge(self) -> None:
        assert self._expected is not None
        replica = self._replica
        node, request, _ = self._expected
        self._expected = None
        if replica.leader == node:
            replica.emit(effects.Reply(request, Outcome.SETTLED, epoch=replica.epoch, leader=node))
        else:
            why = f"node {replica.leader} leads" if replica.leader else "nobody leads yet"
            replica.emit(effects.Reply(request, Outcome.TIMED_OUT, leader=replica.leader, why=why))
        self._look_ahead()

    # --- time ---

    def woke(self) -> None:
        if self.deadline is None or self._replica.now < self.deadline:
            return
        self._answer_reads()
        if self._expected is not None and self._replica.now >= self._expected[2]:
            self._judge()

    def _look_ahead(self) -> None:
        deadlines = [deadline for _, _, deadline in self._reads]
        if self._expected is not None:
            deadlines.append(self._expected[2])
        self.deadline = min(deadlines, default=None)
