"""`quorate demo`: raft through worlds of faults, then a bug planted on purpose, caught and drawn."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import gettempdir
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli import say
from quorate.cli.wrong import WrongUsage, check_picture, write_text

if TYPE_CHECKING:
    from rich.console import Console

    from quorate.cli.worlds import Totals
    from quorate.sim.mutate import Caught, Mutant
    from quorate.sim.run import Plan

SECONDS = 25.0
JOBS_MAX = 2
MUTANT = "raft-commit-old-epoch"
STORY = "demo-story.svg"
HUNT_SEEDS = 200

EPILOG = """\b
[bold]Examples[/bold]
quorate demo                       half a minute
quorate demo --seconds 5           a shorter look
quorate demo --story picture.svg   the picture goes there
"""


def register(app: typer.Typer) -> None:
    app.command("demo", epilog=EPILOG)(demo)


def demo(
    seconds: Annotated[
        float, typer.Option(metavar="S", min=1.0, max=3600.0, help="How long worlds are made for.")
    ] = SECONDS,
    story: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="Where the picture goes.", show_default=f"out/{STORY}"),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=256, help="Processes.", show_default="one per core, at most 2"),
    ] = None,
) -> None:
    """Show what Quorate is about: raft under every kind of fault, and proof that its checks bite."""
    check_picture(story)
    out = say.console()
    introduce(out)
    jobs = jobs or min(JOBS_MAX, os.cpu_count() or 1)
    totals = throw_worlds_at_raft(out, seconds, jobs)
    mutant, caught = plant_a_bug(out, jobs)
    picture = draw_it(out, mutant, caught, story) if caught is not None else None
    sum_up(out, totals, mutant, caught, picture)
    if totals.sum.violations or caught is None:
        raise typer.Exit(1)


def introduce(out: Console) -> None:
    out.print(
        "\n[bold]Quorate[/bold] keeps copies of a log on several machines. Its promise: a write that was\n"
        "acknowledged is never lost, doubled or reordered, whatever breaks. This demo tries to break it.\n"
    )


def step(out: Console, number: int, title: str, *lines: str) -> None:
    out.print(f"[bold]{number}  {title}[/bold]")
    for line in lines:
        out.print(f"   {line}", soft_wrap=True)
    out.print()


# ---- 1 ----


def throw_worlds_at_raft(out: Console, seconds: float, jobs: int) -> Totals:
    from quorate.cli.sweep import verdicts
    from quorate.cli.worlds import Totals, of_seconds, show, watched

    processes = f"in {jobs} processes" if jobs > 1 else "in one process"
    step(
        out,
        1,
        "Raft through worlds of faults",
        "Each world is made from one number, its seed: three nodes with made-up disks, clocks and network,",
        "and clients that write and read. The code under test is the real one. Whatever can go wrong does,",
        f"and every invariant is checked after every event. For {seconds:.0f} s, {processes}:",
    )
    totals = Totals("raft")
    watched(verdicts(plans_for(seconds), jobs), totals, of_seconds(seconds))
    show(totals, out)
    return totals


def plans_for(seconds: float) -> Iterator[Plan]:
    """One world after the other until the time is over; at least one."""
    from quorate.sim.run import Plan

    end = monotonic() + seconds
    for seed in count():
        yield Plan(seed)
        if monotonic() >= end:
            return


# ---- 2 ----


def plant_a_bug(out: Console, jobs: int) -> tuple[Mutant, Caught | None]:
    from quorate.cli.mutants import describe
    from quorate.sim import mutate, patching

    mutant = describe(MUTANT)
    step(
        out,
        2,
        "A bug, planted on purpose",
        "Would those checks notice? Into a copy of the code goes a known bug of real systems:",
        f"[italic]{mutant.name}[/italic]: it {mutant.does} (origin: {mutant.origin}).",
    )
    try:
        caught = mutate.hunt(mutant.name, range(HUNT_SEEDS), hint=False, jobs=jobs)
    except (patching.DoesNotApply, mutate.HuntFailed) as error:
        raise WrongUsage(f"the bug cannot be planted: {error}") from error
    if caught is None:
        out.print(f"   [red]It lived through {HUNT_SEEDS} worlds.[/red]\n")
    else:
        out.print(f"   Caught in {say.duration(caught.seconds)}, in world {caught.seed}, by the invariant")
        out.print(f"   [bold]{caught.invariant}[/bold]: {caught.detail}\n", soft_wrap=True)
    return mutant, caught


# ---- 3 ----


def draw_it(out: Console, mutant: Mutant, caught: Caught, wanted: Path | None) -> Path:
    from quorate.cli.mutants import drawn

    step(
        out,
        3,
        "The story of that bug, drawn",
        "A lane for each node, time running downwards, messages as arrows, faults as marks, and what",
        "happened in words beside it. Open it in a browser:",
    )
    picture = drawn(mutant, caught)
    file = wanted if wanted is not None else default_place()
    write_text(file, picture)
    out.print(f"   {file.resolve()}\n", soft_wrap=True)
    return file


def default_place() -> Path:
    """`out` below this directory, or the system's place for temporary files where that cannot be."""
    try:
        Path("out").mkdir(exist_ok=True)
    except OSError:
        return Path(gettempdir()) / f"quorate-{STORY}"
    return Path("out") / STORY


# ---- the end ----


def sum_up(out: Console, totals: Totals, mutant: Mutant, caught: Caught | None, picture: Path | None) -> None:
    found = totals.sum
    faults = sum(totals.thrown.values())
    out.print("[bold]In short[/bold]")
    if found.violations:
        out.print(
            f"   [red]{len(found.violations)} of {found.seeds} worlds broke a promise.[/red] "
            "That is a bug of ours; the lines above say how to see it again."
        )
    else:
        out.print(
            f"   {found.seeds:,} worlds lived through {say.duration(totals.seconds)} of their own time, "
            f"{faults:,} faults and {found.events:,} events\n"
            f"   in {say.duration(totals.taken)} of yours. {found.acknowledged:,} writes were acknowledged, "
            "and every one of them is still there."
        )
    if caught is not None:
        world = (
            "in its first world" if caught.seeds_count == 1 else f"in world {caught.seeds_count} of its life"
        )
        out.print(f"   The bug we planted was caught {world}.")
    else:
        out.print(f"   [red]The bug we planted, {mutant.name}, was not caught.[/red]")
    command = "quorate" if shutil.which("quorate") else ".venv/bin/quorate"
    out.print(
        "\n   Go on with:\n"
        f"     {command} sim raft --seed 7 --trace     one world, line by line\n"
        f"     {command} mutants                       every known bug, planted and caught\n"
        f"     {command} bench wal --quick             the log beside this machine's disk\n"
    )
