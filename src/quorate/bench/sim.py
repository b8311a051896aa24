"""How fast simulated worlds run on one core with every invariant on, and where the time goes."""

from __future__ import annotations

import cProfile
from collections.abc import Sequence
from pathlib import PurePath
from time import perf_counter, process_time
from types import CodeType

import quorate
from quorate.bench import machine
from quorate.bench.report import Report, Say, Share, at_least, figure
from quorate.sim.run import run_seed

BATCHES, SEEDS_PER_BATCH = 9, 12
PROFILED_SEEDS = 12

LAYERS = (
    ("core", "core: the protocol"),
    ("host", "host: effects executed"),
    ("machine", "host: effects executed"),
    ("storage", "storage: frames, journal, segments, recovery"),
    ("batch", "storage: frames, journal, segments, recovery"),
    ("sim/disk", "sim: disks"),
    ("sim/invariants", "sim: invariants and oracle"),
    ("sim/oracle", "sim: invariants and oracle"),
    ("sim/world", "sim: world, network, clocks"),
    ("sim/network", "sim: world, network, clocks"),
    ("sim/clock", "sim: world, network, clocks"),
    ("sim", "sim: clients, faults, healing"),
)
"""Path below the package, and what it counts for; the first that fits."""
CHECKS_IN_CORE = "invariants.py"
ELSEWHERE = "Python's own library"


def run(say: Say = lambda _: None, *, quick: bool = False) -> Report:
    batches = 3 if quick else BATCHES
    per_batch = 3 if quick else SEEDS_PER_BATCH
    rates, cpu_rates, sizes, taken = [], [], [], []
    violations = 0
    run_seed(0)  # Python's caches are warm then.
    for number in range(batches):
        say(f"seeds {number * per_batch} to {(number + 1) * per_batch - 1}, all faults, all invariants")
        for_batch = 0
        began, cpu_began = perf_counter(), process_time()
        for seed in range(number * per_batch, (number + 1) * per_batch):
            verdict = run_seed(seed)
            for_batch += verdict.events
            sizes.append(float(verdict.events))
            violations += len(verdict.violations)
        seconds = perf_counter() - began
        rates.append(for_batch / seconds)
        cpu_rates.append(for_batch / (process_time() - cpu_began))
        taken.append(seconds / per_batch)
    say("once more under the profiler")
    shares = profile(range(3 if quick else PROFILED_SEEDS))
    notes = [
        f"seeds 0 to {batches * per_batch - 1} under every kind of fault; each sample is {per_batch} of them",
        "an event is one thing off the world's queue: a message, a flush, a timer, a client, a fault",
        "shares are of profiled time, where calls look dearer than they are; built-ins count for callers",
    ]
    if violations:
        notes.append(f"{violations} violations were found: a violated world ends early, so see to them first")
    return Report(
        bench="sim",
        title="simulated worlds on one core",
        command="quorate bench sim" + (" --quick" if quick else ""),
        machine=machine.describe(),
        figures=(
            figure("events per second", "", rates),
            figure("events per second of the core's time", "", cpu_rates),
            figure("events in a world", "", sizes),
            figure("seconds for a world", "s", taken),
        ),
        claims=(at_least(25_000, "events per second, all invariants on", "", rates),),
        shares=tuple(shares),
        notes=tuple(notes),
    )


def profile(seeds: Sequence[int]) -> list[Share]:
    """Where the time goes, by layer, the largest share first."""
    profiler = cProfile.Profile()
    profiler.enable()
    for seed in seeds:
        run_seed(seed)
    profiler.disable()
    spent: dict[str, float] = {}
    for entry in profiler.getstats():
        if isinstance(entry.code, str):
            continue  # A built-in: counted with its callers below.
        inside = sum(call.inlinetime for call in entry.calls or () if isinstance(call.code, str))
        layer = layer_of(entry.code)
        spent[layer] = spent.get(layer, 0.0) + entry.inlinetime + inside
    whole = sum(spent.values())
    shares = [Share(layer, round(100 * seconds / whole, 1)) for layer, seconds in spent.items()]
    return sorted(shares, key=lambda share: -share.percent)


PACKAGE = PurePath(quorate.__file__).parent


def layer_of(code: CodeType) -> str:
    path = PurePath(code.co_filename)
    if not path.is_relative_to(PACKAGE):
        return ELSEWHERE
    below = path.relative_to(PACKAGE)
    if below.parts[0] == "core" and below.name == CHECKS_IN_CORE:
        return "sim: invariants and oracle"
    return next((layer for start, layer in LAYERS if below.as_posix().startswith(start)), ELSEWHERE)
