"""The sweep of `quorate bench spark`: the same worlds with one core and with two."""

from __future__ import annotations

from pathlib import Path

from quorate.bench.report import Say, at_least, figure, ratios
from quorate.bench.spark_stage import REPETITIONS, Found
from quorate.bench.spark_stage import session_of as _session
from quorate.bench.turns import in_turns, seconds


def sweeps(place: Path, quick: bool, say: Say) -> Found:
    from quorate.sim.run import Plan
    from quorate.spark.sweep import run_sweep

    seeds = range(8 if quick else 40)

    def swept(cores: int) -> float:
        with _session(cores) as session:
            out = str(place / "rows.parquet")
            plan, tell = Plan(0), lambda done: None
            run_sweep(session, plan, range(1000, 1000 + cores), tasks_count=cores, out=out, progress=tell)
            return seconds(
                lambda: run_sweep(session, plan, seeds, tasks_count=len(seeds) // 2, out=out, progress=tell)
            )

    sides = {"one core": lambda: swept(1), "two cores": lambda: swept(2)}
    taken = in_turns(sides, 1 if quick else REPETITIONS, lambda text: say(f"sweep: {text}"))
    rates = [len(seeds) / took_s for took_s in taken["two cores"]]
    return [figure("sweep: worlds a second", "", rates)], [
        at_least(1.7, "sweep: two cores beside one", "times", ratios(taken["one core"], taken["two cores"]))
    ]
