"""Runs inside of a mutated copy of this package, as a process of its own: see mutate.py.

One request comes in on stdin. One line of JSON a seed goes out on stdout, as soon as it is known, and the
first violation ends it.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

import quorate
from quorate.core.invariant import Violated
from quorate.sim.happening import Happening

SEED_SECONDS_MAX = 300
"""A run that takes longer will never end: some loop goes round and round."""

SHRINK_RUNS_MAX = 100


class Request(msgspec.Struct, frozen=True):
    seeds: tuple[int, ...]
    faults: str
    nodes: int
    learners: int | None
    overrides: dict[str, int | float]
    trace: bool = False
    """With everything that happened."""
    shrink: bool = False
    """A violation's story is made shorter before it is told."""
    protocol: str = "raft"


class Found(msgspec.Struct, frozen=True):
    """What came of one seed."""

    seed: int
    package: str
    """Where the code was that ran: whoever asked makes sure that it was the mutated one."""
    invariant: str = ""
    """The one that was violated, if one was."""
    detail: str = ""
    happenings: tuple[Happening, ...] = ()


def run(request: Request, seed: int) -> Found:
    from quorate.sim.faults import parse_profiles  # Whoever only asks needs no simulator.
    from quorate.sim.run import Plan, run_plan
    from quorate.sim.shrink import shrink

    plan = Plan(
        seed,
        request.protocol,
        parse_profiles(request.faults),
        request.nodes,
        request.learners,
        request.overrides,
    )
    if request.shrink:
        shorter = shrink(plan, runs_max=SHRINK_RUNS_MAX)
        plan = shorter.plan if shorter is not None else plan
    signal.alarm(SEED_SECONDS_MAX)
    verdict = run_plan(plan, trace=request.trace)
    signal.alarm(0)
    found = Found(seed, str(Path(quorate.__file__).parent), happenings=tuple(verdict.happenings or ()))
    if verdict.violations:
        violation = verdict.violations[0]
        found = msgspec.structs.replace(found, invariant=violation.invariant, detail=violation.detail)
    return found


def give_up(*_: object) -> NoReturn:
    raise Violated("endless", f"after {SEED_SECONDS_MAX} s the run is still going on")


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    signal.signal(signal.SIGALRM, give_up)
    for seed in request.seeds:
        found = run(request, seed)
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        sys.stdout.buffer.flush()
        if found.invariant:
            return


if __name__ == "__main__":
    main()
