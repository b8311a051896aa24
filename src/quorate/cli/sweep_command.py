"""`quorate sweep`: the simulator over many seeds on Spark, one row a seed in Parquet; protocols side by side."""

from __future__ import annotations

import shutil
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorate.cli import say
from quorate.cli.options import LOCAL, Master, check_master
from quorate.cli.sweep_progress import Told, progress_of
from quorate.cli.world_options import (
    NODES_MAX,
    PROTOCOLS,
    SEEDS_HELP,
    in_words,
    make_plan,
    parse_seeds,
    parse_settings,
)
from quorate.cli.wrong import WrongUsage, no_such

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quorate.cli.worlds import Totals
    from quorate.spark.sweep import SweepResult
    from quorate.spark.sweep_compare import Compared
    from quorate.spark.sweep_parts import Sweep

TASKS_MAX = 100_000
EPILOG = """\b
[bold]Examples[/bold]
quorate sweep raft --seeds 0:300                          on all cores of this machine
quorate sweep --protocols all --seeds 0:300               all four in the same worlds, and a report with pictures
quorate sweep raft --seeds 0:100000 --master spark://…    on a Spark cluster
quorate sweep raft --seeds 0:300 --faults network,crash   only these faults
quorate sweep coordinated --seeds 0:300                   another protocol

A sweep that was stopped goes on where it was when it is started again.

[bold]Exit code[/bold]
0 nothing was violated, 1 something was, 2 wrong usage.
"""


def register(app: typer.Typer) -> None:
    app.command("sweep", epilog=EPILOG)(sweep)


def sweep(
    protocol: Annotated[
        str | None,
        typer.Argument(metavar="|".join(PROTOCOLS), help="How the copies agree.", show_default=False),
    ] = None,
    *,
    seeds: Annotated[str, typer.Option(metavar="FIRST:END", help=SEEDS_HELP)],
    protocols: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Several of them in the same worlds, or all.")
    ] = None,
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
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where the page with pictures goes.", show_default="beside the rows, .html"
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there already.")] = False,
    master: Master = LOCAL,
    tasks: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=TASKS_MAX, help="How many tasks.", show_default="ten seeds each"
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=NUMBER", help="A tunable, instead of the drawn one."),
    ] = None,
) -> None:
    """Run the simulator over many seeds on Spark, and keep one row a seed as Parquet."""
    from quorate.spark.sweep_parts import Sweep

    names = chosen_protocols(protocol, protocols)
    chosen = parse_seeds(seeds)
    overrides = parse_settings(settings or [])
    plans = tuple(
        make_plan(
            chosen[0],
            protocol=name,
            faults=faults,
            nodes=nodes,
            learners=None,
            only=None,
            until=None,
            overrides=overrides,
        )
        for name in names
    )
    wanted = Sweep(plans, chosen.start, chosen.stop)
    which = "all" if names == PROTOCOLS else "-".join(names)
    place = out or f"out/sweep-{which}-{chosen[0]}-{chosen[-1]}.parquet"
    check_place(place, wanted, overwrite=overwrite)
    check_master(master)
    page = report or page_beside(place)
    found, compared = run(wanted, place, master=master, tasks=tasks, overwrite=overwrite)
    write_page(page, wanted, found, compared)
    tell(found, compared, place, page, json=json)
    if any(totals.sum.violations for totals in found):
        raise typer.Exit(1)


def chosen_protocols(protocol: str | None, protocols: str | None) -> tuple[str, ...]:
    if (protocol is None) == (protocols is None):
        raise WrongUsage("name one protocol, as in `quorate sweep raft`, or several with --protocols all")
    if protocol is not None:
        names = [protocol]
    else:
        assert protocols is not None
        names = [name.strip() for name in protocols.split(",") if name.strip()]
    if names == ["all"]:
        return PROTOCOLS
    for name in names:
        if name not in PROTOCOLS:
            raise no_such("protocol", name, PROTOCOLS)
    if not names:
        raise WrongUsage("--protocols names nothing; write all, or names with commas between")
    return tuple(dict.fromkeys(names))


def check_place(place: str, sweep: Sweep, *, overwrite: bool) -> None:
    """Said before the long run, not after it. What the same sweep has left there is gone on with."""
    from quorate.spark.sweep_parts import is_of, of_another

    if is_local(place) and Path(place).exists() and not overwrite and not is_of(Path(place), sweep):
        raise WrongUsage(of_another(place))


def is_local(place: str) -> bool:
    return "://" not in place and not place.startswith("file:/")


def for_spark(place: str) -> str:
    """With a scheme: where a name alone is, the platform's Hadoop says. (As Hadoop reads it, without escapes.)"""
    return f"file://{Path(place).absolute()}" if is_local(place) else place


def page_beside(place: str) -> Path:
    name = place.rstrip("/").removesuffix(".parquet")
    return Path(f"{name}.html") if is_local(place) else Path(f"out/{name.rsplit('/', 1)[-1]}.html")


# ---- running it ----


def run(
    sweep: Sweep, place: str, *, master: str, tasks: int | None, overwrite: bool
) -> tuple[list[Totals], list[Compared]]:
    """Start Spark, run what is not done yet, sum everything up."""
    from quorate.spark.java import NoJava
    from quorate.spark.session import NoSpark, local_session

    began = monotonic()
    say.progress_line(f"Spark is starting ({master}): some seconds")
    try:
        with local_session("quorate sweep", master=master, log_level="off") as session:
            run_parts(session, sweep, place, tasks=tasks, overwrite=overwrite)
            return added_up(session, sweep, for_spark(place), monotonic() - began)
    except (NoSpark, NoJava) as missing:
        raise WrongUsage(str(missing)) from missing


def added_up(
    session: SparkSession, sweep: Sweep, place: str, taken_s: float
) -> tuple[list[Totals], list[Compared]]:
    """What came of each protocol, and how they compare."""
    from quorate.cli.worlds import Totals
    from quorate.spark.sweep import summarize
    from quorate.spark.sweep_compare import compare

    found = []
    for plan in sweep.plans:
        totals = Totals(plan.protocol)
        count(totals, summarize(session, place, plan.protocol), taken_s)
        found.append(totals)
    return found, compare(session, place, tuple(plan.protocol for plan in sweep.plans))


def run_parts(session: SparkSession, sweep: Sweep, place: str, *, tasks: int | None, overwrite: bool) -> None:
    from quorate.spark.sweep import run_sweep, tasks_for
    from quorate.spark.sweep_parts import SweepFailed, begun, part_name

    try:
        parts = begun(session, for_spark(place), sweep, overwrite=overwrite)
    except SweepFailed as failed:
        raise WrongUsage(str(failed)) from failed
    undone = parts.undone(sweep)
    left = sum(len(seeds) for _, seeds in undone)
    if left < sweep.worlds_count:
        say.progress_line(
            f"going on: {sweep.worlds_count - left:,} of {sweep.worlds_count:,} worlds are done"
        )
    with progress_of(sweep.worlds_count) as told:
        done = sweep.worlds_count - left
        told(done)
        for plan, seeds in undone:
            tasks_count = min(tasks or tasks_for(seeds), len(seeds))
            say.progress_line(f"{in_words(plan, seeds)}, in {say.counted(tasks_count, 'task')}")
            try:
                run_sweep(
                    session,
                    plan,
                    seeds,
                    tasks_count=tasks_count,
                    out=parts.where(plan, seeds),
                    progress=_worlds(told, done, len(seeds), tasks_count),
                )
            except SweepFailed as failed:
                _forget(place, part_name(plan, seeds))
                raise WrongUsage(f"{failed}; look at the master and at {place!r}") from failed
            except BaseException:
                _forget(place, part_name(plan, seeds))
                say.progress_line(_kept(done, sweep.worlds_count))
                raise
            done += len(seeds)


def _worlds(told: Told, done: int, worlds_count: int, tasks_count: int) -> Told:
    """Spark tells of tasks; people are told of worlds. Tasks differ by one world at most."""
    return lambda tasks: told(done + worlds_count * tasks // tasks_count)


def _kept(done: int, worlds_count: int) -> str:
    if not done:
        return "nothing of it is kept; the same command begins it anew"
    return f"{done:,} of {worlds_count:,} worlds are kept; the same command goes on with the others"


def _forget(place: str, part: str) -> None:
    """What was not finished; and all of it, if nothing was."""
    if not is_local(place):
        return
    here = Path(place)
    shutil.rmtree(here / part, ignore_errors=True)
    if here.is_dir() and not any(path.is_dir() for path in here.iterdir()):
        shutil.rmtree(here, ignore_errors=True)


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


# ---- telling of it ----


def write_page(page: Path, sweep: Sweep, found: list[Totals], compared: list[Compared]) -> None:
    from quorate.cli.sweep_report import page_of

    violations = [
        (totals.sum.protocol, violation) for totals in found for violation in totals.finish().violations
    ]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(page_of(sweep, violations, compared), encoding="utf-8")


def tell(found: list[Totals], compared: list[Compared], place: str, page: Path, *, json: bool) -> None:
    import msgspec

    from quorate.cli.sweep_report import comparison
    from quorate.cli.worlds import show, show_violations, summary

    if json:
        sums = [_violations_first(msgspec.to_builtins(totals.finish())) for totals in found]
        for said, row in zip(sums, compared, strict=False):
            said["compared"] = msgspec.to_builtins(row)
        say.print_json(sums[0] if len(sums) == 1 else sums)
        return
    out = say.console()
    if len(found) == 1:
        show(found[0], out)
    else:
        for totals in found:
            if violations := totals.finish().violations:
                show_violations(violations, out, shrunk=False, of=totals.sum.protocol)
        names, rows = comparison(compared)
        out.print(say.table("The same worlds", names, rows, right=range(1, len(names))))
    out.print(f"Every seed, one row each:  {place}", soft_wrap=True, markup=False)
    out.print(f"Pictures:  {page}", soft_wrap=True, markup=False)
    for totals in found:
        out.print(f"[bold]{summary(totals, timed=len(found) == 1)}[/bold]", soft_wrap=True)
    if len(found) > 1:
        out.print(f"All of them in {say.duration(found[0].taken)}.")


def _violations_first(said: dict[str, Any]) -> dict[str, Any]:
    return {name: said[name] for name in ("protocol", "violations")} | said
