"""`quorate sweep`: the simulator over many seeds on Spark, one row a seed in Parquet, and a summary."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli import say
from quorate.cli.world_options import (
    NODES_MAX,
    PROTOCOLS,
    SEEDS_HELP,
    in_words,
    make_plan,
    parse_seeds,
    parse_settings,
)
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from quorate.cli.worlds import Totals
    from quorate.sim.run import Plan
    from quorate.spark.sweep import SweepResult

PLAIN_EVERY_S = 5.0
TASKS_MAX = 100_000
EPILOG = """\b
[bold]Examples[/bold]
quorate sweep raft --seeds 0:300                          on all cores of this machine
quorate sweep raft --seeds 0:100000 --master spark://…    on a Spark cluster
quorate sweep raft --seeds 0:300 --faults network,crash   only these faults
quorate sweep coordinated --seeds 0:300                   another protocol
quorate sweep confirm --seeds 0:300                       and one more

[bold]Exit code[/bold]
0 nothing was violated, 1 something was, 2 wrong usage.
"""


def register(app: typer.Typer) -> None:
    app.command("sweep", epilog=EPILOG)(sweep)


def sweep(
    protocol: Annotated[str, typer.Argument(metavar="|".join(PROTOCOLS), help="How the copies agree.")],
    seeds: Annotated[str, typer.Option(metavar="FIRST:END", help=SEEDS_HELP)],
    faults: Annotated[
        str, typer.Option(metavar="NAMES", help="What goes wrong, as for `quorate sim`.")
    ] = "all",
    nodes: Annotated[int, typer.Option(metavar="N", min=1, max=NODES_MAX, help="How many nodes vote.")] = 3,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Where the rows go.", show_default="out/sweep-PROTOCOL-FIRST-LAST.parquet"
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there already.")] = False,
    master: Annotated[str, typer.Option(metavar="URL", help="Which Spark runs it.")] = "local[*]",
    tasks: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=TASKS_MAX, help="How many parts.", show_default="ten seeds each"
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=NUMBER", help="A tunable, instead of the drawn one."),
    ] = None,
) -> None:
    """Run the simulator over many seeds on Spark, and keep one row a seed as Parquet."""
    chosen = parse_seeds(seeds)
    plan = make_plan(
        chosen[0],
        protocol=protocol,
        faults=faults,
        nodes=nodes,
        learners=None,
        only=None,
        until=None,
        overrides=parse_settings(settings or []),
    )
    place = out or f"out/sweep-{protocol}-{chosen[0]}-{chosen[-1]}.parquet"
    check_place(place, overwrite=overwrite)
    check_master(master)
    totals = run(plan, chosen, place, master=master, tasks=tasks)
    tell(totals, place, json=json)
    if totals.sum.violations:
        raise typer.Exit(1)


def check_master(master: str) -> None:
    """Spark itself says it with two pages of Java."""
    if not re.fullmatch(r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+", master):
        raise WrongUsage(f"--master {master!r}: write local[*], spark://HOST:PORT, yarn or k8s://HOST:PORT")


def check_place(place: str, *, overwrite: bool) -> None:
    """Said before the long run, not after it."""
    if is_local(place) and Path(place).exists() and not overwrite:
        raise WrongUsage(
            f"{place!r} is there already; name another with --out, or replace it with --overwrite"
        )


def run(plan: Plan, seeds: range, place: str, *, master: str, tasks: int | None) -> Totals:
    """Start Spark, run the seeds, sum them up."""
    from quorate.cli.worlds import Totals, counted
    from quorate.spark.java import NoJava
    from quorate.spark.session import NoSpark, local_session

    totals = Totals(plan.protocol)
    began = monotonic()
    say.progress_line(f"Spark is starting ({master}): some seconds")
    try:
        with local_session("quorate sweep", master=master) as session:
            from quorate.spark.sweep import SweepFailed, run_sweep, summarize, tasks_for

            tasks_count = min(tasks or tasks_for(seeds), len(seeds))
            say.progress_line(f"{in_words(plan, seeds)}, in {counted(tasks_count, 'task')}")
            try:
                with appearing(place) as unfinished, progress_of(tasks_count, len(seeds)) as progress:
                    run_sweep(
                        session, plan, seeds, tasks_count=tasks_count, out=unfinished, progress=progress
                    )
            except SweepFailed as failed:
                raise WrongUsage(f"{failed}; look at the master and at {place!r}") from failed
            count(totals, summarize(session, place), monotonic() - began)
    except (NoSpark, NoJava) as missing:
        raise WrongUsage(str(missing)) from missing
    return totals


def count(totals: Totals, result: SweepResult, taken_s: float) -> None:
    """What `Totals` would have counted, had it seen every verdict."""
    from quorate.sim.run import Violation

    found = totals.sum
    found.seeds = result.seeds
    for name in found.summed:
        setattr(found, name, result.sums[name])
    totals.reads = result.sums["reads"]
    totals.seconds = result.virtual_seconds
    totals.thrown = {name: result.sums[f"thrown_{name}"] for name in totals.thrown}
    found.violations = [Violation(*row) for row in result.violations]
    totals.taken = taken_s
    found.events_per_second = round(found.events / totals.taken, 1)


def tell(totals: Totals, place: str, *, json: bool) -> None:
    from quorate.cli.worlds import show, summary

    if json:
        say.print_json(totals.finish())
        return
    out = say.console()
    show(totals, out)
    out.print(f"Every seed, one row each:  {place}", soft_wrap=True, markup=False)
    out.print(f"[bold]{summary(totals)}[/bold]", soft_wrap=True)


# ---- files that appear whole ----


def is_local(place: str) -> bool:
    return "://" not in place


@contextmanager
def appearing(place: str) -> Iterator[str]:
    """Where to write; it takes its real name when all of it is there, and is removed if it never is.

    A place on another system (s3://…) is written directly: there is no renaming there.
    """
    if not is_local(place):
        yield place
        return
    final = Path(place).absolute()
    unfinished = final.with_name(f".{final.name}.unfinished")
    final.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        yield str(unfinished)
        if final.is_dir():
            shutil.rmtree(final)
        else:
            final.unlink(missing_ok=True)
        unfinished.rename(final)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


# ---- progress ----


@contextmanager
def progress_of(tasks_count: int, worlds_count: int) -> Iterator[Callable[[int], None]]:
    """Spark tells of tasks that are done; people are told of worlds. Tasks differ by one world at most."""
    screen = say.console(stderr=True)
    if not screen.is_terminal:
        yield _Plain(tasks_count, worlds_count)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} worlds"),
        BarColumn(bar_width=30),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("sweep", total=worlds_count)
        yield lambda done: progress.update(task, completed=worlds_count * done // tasks_count)


class _Plain:
    """A line now and then, where nobody's terminal shows it live."""

    def __init__(self, tasks_count: int, worlds_count: int) -> None:
        self._tasks_count = tasks_count
        self._worlds_count = worlds_count
        self._began = self._told = monotonic()

    def __call__(self, done: int) -> None:
        now = monotonic()
        if now - self._told < PLAIN_EVERY_S or done == self._tasks_count:
            return
        self._told = now
        left = (
            f", {say.duration((now - self._began) / done * (self._tasks_count - done))} left" if done else ""
        )
        worlds = self._worlds_count * done // self._tasks_count
        say.progress_line(
            f"{done / self._tasks_count:4.0%}  {worlds:,} of {self._worlds_count:,} worlds{left}"
        )
