"""A failing seed, made shorter: fewer faults, less time, fewer partitions and clients, the same violation.

Delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002) over the
schedule of faults, since each fault can be left out without changing the chance of the others; then the same
greedy question for everything else that can be had smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from quorate.sim.run import Plan, Run, Violation, run_plan

RUNS_MAX = 300
"""Shrinking ends after so many tries, with the best story found by then."""


class Shrunk(msgspec.Struct, frozen=True):
    plan: Plan
    violation: Violation
    events: int
    """How long the story is now."""
    events_before: int
    faults_count: int
    faults_before: int
    runs: int


def shrink(
    plan: Plan, *, runs_max: int = RUNS_MAX, progress: Callable[[Plan, int], None] | None = None
) -> Shrunk | None:
    """The shortest story found that breaks the same invariant; None if nothing is broken."""
    return Shrinker(plan, runs_max, progress).run()


class Shrinker:
    def __init__(self, plan: Plan, runs_max: int, progress: Callable[[Plan, int], None] | None) -> None:
        self.plan = plan
        self.runs_max = runs_max
        self.runs = 0
        self.events = 0
        self.seconds = 0.0
        self.violation: Violation | None = None
        self._progress = progress

    def run(self) -> Shrunk | None:
        if not self._fails(self.plan):
            return None
        events_before = self.events
        drawn = Run(self.plan)
        before = self.plan.only if self.plan.only is not None else tuple(range(len(drawn.faults)))
        until = min(self.seconds, self.plan.until or drawn.tunables.seconds)
        self._try(only=before, until=until) or self._try(only=before)
        self._fewer_faults(list(before))
        for changes in self._smaller(drawn):
            self._try(**changes)
        self._shorter()
        self._fewer_faults(list(self.plan.only or ()))
        assert self.violation is not None
        return Shrunk(
            plan=self.plan,
            violation=self.violation,
            events=self.events,
            events_before=events_before,
            faults_count=len(self.plan.only or ()),
            faults_before=len(before),
            runs=self.runs,
        )

    def _fails(self, plan: Plan) -> bool:
        """Run it; remember it if it breaks what the first run broke."""
        if self.runs >= self.runs_max:
            return False
        self.runs += 1
        verdict = run_plan(plan)
        wanted = self.violation.invariant if self.violation is not None else None
        for violation in verdict.violations:
            if wanted is None or violation.invariant == wanted:
                self.plan, self.violation = plan, violation
                self.events, self.seconds = verdict.events, verdict.seconds
                if self._progress is not None:
                    self._progress(plan, self.events)
                return True
        return False

    def _try(self, **changes: Any) -> bool:
        return self._fails(msgspec.structs.replace(self.plan, **changes))

    def _fewer_faults(self, kept: list[int]) -> None:
        """Leave out ever smaller parts of the schedule, as long as it still fails."""
        if kept and self._try(only=()):
            return
        size = (len(kept) + 1) // 2
        while kept:
            at = 0
            while at < len(kept):
                rest = kept[:at] + kept[at + size :]
                if self._try(only=tuple(rest)):
                    kept = rest
                else:
                    at += size
            if size == 1:
                return
            size = (size + 1) // 2

    def _smaller(self, drawn: Run) -> Iterator[dict[str, Any]]:
        """Everything else that might be had smaller, one after the other."""
        if self.plan.learners != 0:
            yield {"learners": 0}
        if drawn.tunables.partitions_count > 1:
            yield {"overrides": {**self.plan.overrides, "partitions_count": 1}}
        clients_count = drawn.tunables.manners.clients_count
        while clients_count > 1:
            clients_count //= 2
            yield {"overrides": {**self.plan.overrides, "clients_count": clients_count}}
        if drawn.tunables.manners.readers_count:
            yield {"overrides": {**self.plan.overrides, "readers_count": 0}}
        for share in (0.0, 1.0):
            yield {"overrides": {**self.plan.overrides, "reads_share": share}}
        if self.plan.nodes > 3:
            yield {"nodes": 3}

    def _shorter(self) -> None:
        """End the safety phase earlier: what is broken for good is found in the liveness phase, too."""
        until = self.plan.until
        while until is not None and until > 0.01 and self.runs < self.runs_max:
            until = until / 2
            if not self._try(until=until):
                return
