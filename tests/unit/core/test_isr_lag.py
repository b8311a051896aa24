"""Two real replicas under a steady load: who keeps up stays in sync, and who catches up comes in.

Messages, flushes and proposals happen at given times, so that what a follower says is always a little old.
"""

from __future__ import annotations

import heapq
from itertools import count
from random import Random

import pytest

from quorate.core import effects, events, isr
from quorate.core.effects import Outcome
from quorate.core.entry import Header, Member
from quorate.core.isr.messages import AlterIsr, PartitionTold
from tests.unit.core.isr_kit import CONTROLLER, state
from tests.unit.core.kit import N1, N2, recovered

MESSAGE_S = 0.001
TUNING = isr.Tuning(lag_s=0.5)


class Pair:
    """N1 leads and N2 follows; whatever the leader asks of a controller is noted, and not answered."""

    def __init__(
        self,
        *,
        in_sync: tuple[Member, ...],
        flush_s: float,
        write_every_s: float,
        follows_at: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.asked: list[AlterIsr] = []
        self.settled_at: list[float] = []
        self.nodes = {m.node: isr.Replica(isr.Config(m, TUNING), Random(m.node)) for m in (N1, N2)}
        self._flush_s, self._write_every_s = flush_s, write_every_s
        self._is_flushing = {1: False, 2: False}
        self._due: list[tuple[float, int, int, events.Event]] = []
        self._order = count()
        stored = state(replicas=(N1, N2), isr_now=in_sync)
        for node, told_at in ((1, 0.0), (2, follows_at)):
            self._step(node, events.Started(recovered("")))
            self._at(told_at, node, events.Received(CONTROLLER, PartitionTold(1, stored)))
        self._at(0.1, 1, events.Proposed(1, (Header(0, 0, size=10),)))

    def run(self, until_s: float) -> None:
        while True:
            timers = [(at, node) for node, r in self.nodes.items() if (at := r.deadline()) is not None]
            timer_at, node = min(timers, default=(until_s, 0))
            self.now = max(self.now, min(timer_at, self._due[0][0]))
            if self.now >= until_s:
                return
            if timer_at < self._due[0][0]:
                self._step(node, events.TimePassed())
                continue
            _, _, node, event = heapq.heappop(self._due)
            self._is_flushing[node] &= not isinstance(event, events.Persisted)
            if isinstance(event, events.Proposed):
                again = events.Proposed(event.request + 1, event.headers)
                self._at(self.now + self._write_every_s, node, again)
            self._step(node, event)

    def _at(self, at: float, node: int, event: events.Event) -> None:
        heapq.heappush(self._due, (at, next(self._order), node, event))

    def _step(self, node: int, event: events.Event) -> None:
        replica = self.nodes[node]
        for effect in replica.step(self.now, event):
            if isinstance(effect, effects.Send) and effect.to in self.nodes:
                self._at(self.now + MESSAGE_S, effect.to, events.Received(replica.me, effect.message))
            elif isinstance(effect, effects.Send) and isinstance(effect.message, AlterIsr):
                self.asked.append(effect.message)
            elif isinstance(effect, effects.Reply) and effect.outcome is Outcome.SETTLED:
                self.settled_at.append(self.now)
        if not replica.ordering.idle and not self._is_flushing[node]:
            self._is_flushing[node] = True
            self._at(self.now + self._flush_s, node, events.Persisted(replica.ordering.issued))


LOADS = pytest.mark.parametrize(
    ("flush_s", "write_every_s"), [(0.002, 0.002), (0.005, 0.002), (0.01, 0.001), (0.003, 0.0005)]
)


@pytest.mark.behaviour("LB-20")
@LOADS
def test_one_that_is_milliseconds_behind_all_the_time_stays_in_sync(
    flush_s: float, write_every_s: float
) -> None:
    pair = Pair(in_sync=(N1, N2), flush_s=flush_s, write_every_s=write_every_s)
    pair.run(3 * TUNING.lag_s)
    assert pair.asked == []
    assert pair.settled_at[-1] > pair.now - 0.1


@pytest.mark.behaviour("LB-23")
@LOADS
def test_one_that_has_caught_up_comes_in_however_steady_the_load_is(
    flush_s: float, write_every_s: float
) -> None:
    """The end of a log that goes on cannot be reached: what is settled waits a little for it."""
    pair = Pair(in_sync=(N1,), flush_s=flush_s, write_every_s=write_every_s, follows_at=1.0)
    pair.run(1.0)
    assert pair.asked == []
    pair.run(1.2)
    assert pair.asked[:1] == [AlterIsr(1, 1, (N1, N2))]
