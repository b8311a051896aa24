"""What a step of a raft leader costs, for small and for large payloads.

A leader of three replicas in its steady state: a proposal, the completion of its flush, and the answer of
each follower, one entry at a time, for ever. The protocol sees headers and never a payload, so a header that
speaks of 1 MiB must cost what one that speaks of a byte does.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from random import Random
from time import perf_counter_ns
from typing import Any

from quorate.bench import machine
from quorate.bench.report import Report, Say, figure, ratios, within
from quorate.bench.turns import in_turns
from quorate.core import effects, events, raft
from quorate.core.entry import NOWHERE, Header, Member
from quorate.core.raft.messages import AppendEntries, AppendResponse, GoneRequest, GoneResponse, VoteResponse

SMALL, LARGE = 1, 1 << 20
BATCH_BYTES = 69
"""What a batch of one record has besides the record's value."""
ROUNDS = 2000
REPETITIONS = 41
STEPS = ("Proposed", "Persisted", "AppendResponse")

ME, SECOND, THIRD = (Member(node, 1) for node in (1, 2, 3))


class Leader:
    """A leader and, in its followers' place, the answers that they would give."""

    def __init__(self, payload_bytes: int) -> None:
        self.header = Header(0, 0, size=payload_bytes + BATCH_BYTES, crc=0x5EED)
        self.request = 0
        self.now = 10.0
        self.replica = raft.Replica(raft.Config(ME, (ME, SECOND, THIRD)), Random(1))
        recovered = events.Recovered(base=NOWHERE, head=NOWHERE, epochs=())
        self._settle(self._step(events.Started(recovered)))
        deadline = self.replica.deadline()
        assert deadline is not None
        self.now = deadline
        self._settle(self._step(events.TimePassed()))
        assert self.replica.role.name == "leader"
        self.rounds(100)

    def rounds(self, count: int) -> dict[str, int]:
        """Nanoseconds spent in each kind of step over so many entries, proposed and settled one by one."""
        step, clock = self.replica.step, perf_counter_ns
        epoch, now = self.replica.epoch, self.now
        header = self.header
        proposed = persisted = answered = 0
        for _ in range(count):
            self.request += 1
            offset = self.replica.log.head.offset + 1
            proposal = events.Proposed(self.request, (header,))
            began = clock()
            ordered = step(now, proposal)
            proposed += clock() - began
            append = ordered[0]
            assert type(append) is effects.Append
            flushed = events.Persisted(append.io)
            began = clock()
            step(now, flushed)
            persisted += clock() - began
            for follower in (SECOND, THIRD):
                answer = AppendResponse(epoch, True, offset - 1, offset, offset - 1)
                received = events.Received(follower, answer)
                began = clock()
                step(now, received)
                answered += clock() - began
        assert self.replica.commit == self.replica.log.head.offset
        return {"Proposed": proposed, "Persisted": persisted, "AppendResponse": answered}

    def _step(self, event: events.Event) -> list[effects.Effect]:
        return self.replica.step(self.now, event)

    def _settle(self, ordered: list[effects.Effect]) -> None:
        """Flush what is ordered and answer what is sent, until nothing is left."""
        waiting = list(ordered)
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, effects.Send):
                answer = self._answer(effect.message)
                if answer is not None:
                    waiting += self._step(events.Received(Member(effect.to, 1), answer))
            elif isinstance(effect, effects.Append | effects.SaveState):
                waiting += self._step(events.Persisted(effect.io))

    def _answer(self, message: Any) -> Any:
        if isinstance(message, AppendEntries):
            probe = message.prev.offset
            matched = message.headers[-1].last if message.headers else probe
            return AppendResponse(message.epoch, True, probe, matched, message.commit)
        if isinstance(message, GoneRequest):
            return GoneResponse(message.epoch, message.asked, gone=True)
        return VoteResponse(message.epoch, granted=True)


def run(say: Say = lambda _: None, *, repetitions: int = REPETITIONS, rounds: int = ROUNDS) -> Report:
    small, large = Leader(SMALL), Leader(LARGE)
    nanoseconds: dict[tuple[str, str], list[float]] = {}
    clock_ns = _clock_cost_ns()

    def side(name: str, leader: Leader) -> Callable[[], float]:
        def measure() -> float:
            spent = leader.rounds(rounds)
            for kind, total in spent.items():
                steps = rounds * (2 if kind == "AppendResponse" else 1)
                nanoseconds.setdefault((name, kind), []).append(total / steps - clock_ns)
            return sum(spent.values()) / (4 * rounds) - clock_ns

        return measure

    gc.disable()
    try:
        both = in_turns({"1 B": side("1 B", small), "1 MiB": side("1 MiB", large)}, repetitions)
    finally:
        gc.enable()
    say(f"{repetitions} times {rounds} entries, for each size")
    names = [(name, kind) for kind in STEPS for name in both]
    return Report(
        bench="core",
        title="what a step of a raft leader costs",
        command="quorate bench core",
        machine=machine.describe(),
        figures=(
            *(figure(f"step({kind}), {name}", "ns", nanoseconds[name, kind]) for name, kind in names),
            *(figure(f"all steps of an entry, mean, {name}", "ns", both[name]) for name in both),
        ),
        claims=(
            *(
                within(
                    10,
                    f"step({kind}) for 1 MiB beside 1 B",
                    ratios(nanoseconds["1 MiB", kind], nanoseconds["1 B", kind]),
                )
                for kind in STEPS
            ),
            within(10, "all steps of an entry for 1 MiB beside 1 B", ratios(both["1 MiB"], both["1 B"])),
        ),
        notes=(
            "a leader of three replicas in its steady state; headers only, as the protocol sees them",
            f"each sample is the mean of {rounds:,} entries; the clock's own {clock_ns:.0f} ns are taken off",
        ),
    )


def _clock_cost_ns() -> float:
    count = 100_000
    clock = perf_counter_ns
    total = 0
    for _ in range(count):
        began = clock()
        total += clock() - began
    return total / count
