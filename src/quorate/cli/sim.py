"""`quorate sim`: a protocol through worlds of faults, many seeds at once or one of them line by line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from quorate.cli import say
from quorate.cli.world_options import (
    NODES_MAX,
    SEEDS_HELP,
    TRANSACTIONS,
    WORLDS,
    check_only,
    in_words,
    make_plan,
    parse_only,
    parse_seed,
    parse_seeds,
    parse_settings,
)
from quorate.cli.wrong import WrongUsage, check_picture, check_writable, write_text

if TYPE_CHECKING:
    from quorate.cli.worlds import Totals
    from quorate.sim.run import Plan, Verdict

SEEDS = "0:100"
STDOUT = "-"

EPILOG = """\b
[bold]Examples[/bold]
quorate sim raft                             a hundred worlds, every fault
quorate sim raft --seeds 0:500 --jobs 2      five times as many, on two cores
quorate sim raft --faults network,crash      only these faults
quorate sim raft --seed 7 --trace            one world, line by line
quorate sim raft --seed 7 --story story.svg  one world as a picture
quorate sim raft --seed 7 --shrink           a failing world, made shorter
quorate sim coordinated --faults operator    operators compete and die
quorate sim confirm --seed 7 --trace         CONFIRM, ROLLBACK, told by lines
quorate sim raft --set tables_share=1        clients use tables, not topics
quorate sim turning                          partitions go from one protocol to another
quorate sim transactions --seeds 0:100       coordinators, producers and readers

[bold]Faults[/bold]
all, none, or names with commas between:
network crash power pause clock disk damage full-disk slow-disk wipe
membership; for coordinated and isr also operator, which is not one of all:
several operators at once, which die in the middle of what they do, stand still and
hear rumours, and a store that is slow or silent. Nor are retention and compaction:
logs keep everything but what expires, or what a newer record of its key supersedes,
and now and then something does. Nor is pacing: copies that do not count yet are sent
data at a rate, which changes

[bold]Exit code[/bold]
0 nothing was violated, 1 something was, 2 wrong usage.
"""


class TraceMayStandAlone(TyperCommand):
    """`--trace` with no file behind it means stdout."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        for index, word in enumerate(given):
            if word == "--trace":
                behind = given[index + 1] if index + 1 < len(given) else "--"
                if behind in WORLDS or (behind.startswith("-") and behind != STDOUT):
                    given[index] = f"--trace={STDOUT}"
        return super().parse_args(ctx, given)


def register(app: typer.Typer) -> None:
    app.command("sim", cls=TraceMayStandAlone, epilog=EPILOG)(sim)


def sim(
    protocol: Annotated[
        str,
        typer.Argument(
            metavar="|".join(WORLDS),
            help="How the copies agree, or what is built on them.",
        ),
    ],
    seeds: Annotated[
        str | None,
        typer.Option(metavar="FIRST:END", help=SEEDS_HELP, show_default=SEEDS),
    ] = None,
    seed: Annotated[str | None, typer.Option(metavar="N", help="One world.")] = None,
    faults: Annotated[str, typer.Option(metavar="NAMES", help="What goes wrong: see below.")] = "all",
    nodes: Annotated[int, typer.Option(metavar="N", min=1, max=NODES_MAX, help="How many nodes vote.")] = 3,
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, max=256, help="Processes; the results are the same.")
    ] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
    trace: Annotated[
        str | None, typer.Option(metavar="[FILE]", help="The story, one line an event, to stdout or a file.")
    ] = None,
    story: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="The story as a picture: a space-time diagram.")
    ] = None,
    shrink: Annotated[bool, typer.Option("--shrink", help="Make a failing seed's story shorter.")] = False,
    learners: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=3,
            help="Of raft and confirm: nodes that do not vote.",
            show_default="drawn",
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="0,3,…", help="Only these faults of the schedule; `none` for none.")
    ] = None,
    until: Annotated[
        float | None, typer.Option(metavar="S", min=0.0, help="Faults and load end at this virtual second.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=NUMBER", help="A tunable, instead of the drawn one."),
    ] = None,
) -> None:
    """Run a protocol through made-up worlds full of faults, and check every invariant after every event."""
    chosen = chosen_seeds(seed, seeds, one=trace is not None or story is not None or shrink)
    if json and trace == STDOUT:
        raise WrongUsage("--json and --trace cannot both have stdout; give --trace a file")
    if protocol == TRANSACTIONS and (story is not None or shrink):
        raise WrongUsage("transactions: a world is told by lines (--trace), not drawn nor made shorter")
    check_picture(story)
    check_writable(Path(trace) if trace is not None and trace != STDOUT else None)
    plan = make_plan(
        chosen[0],
        protocol=protocol,
        faults=faults,
        nodes=nodes,
        learners=learners,
        only=parse_only(only),
        until=until,
        overrides=parse_settings(settings or []),
    )
    if len(chosen) == 1:  # Each world has a schedule of its own.
        check_only(plan)
    if trace is not None or story is not None or shrink:
        failed = tell_one(plan, json=json, trace=trace, story=story, shrink=shrink)
    else:
        failed = tell_many(plan, chosen, json=json, jobs=min(jobs, len(chosen)))
    if failed:
        raise typer.Exit(1)


def chosen_seeds(seed: str | None, seeds: str | None, *, one: bool) -> range:
    if seed is not None and seeds is not None:
        raise WrongUsage("--seed names one world and --seeds a range; give one of them")
    if seed is not None:
        number = parse_seed(seed)
        return range(number, number + 1)
    if one and seeds is None:
        raise WrongUsage("--trace, --story and --shrink tell of one world; name it with --seed N")
    chosen = parse_seeds(seeds if seeds is not None else SEEDS)
    if one and len(chosen) > 1:
        raise WrongUsage(
            f"--trace, --story and --shrink tell of one world, not {len(chosen)}; name it with --seed N"
        )
    return chosen


# ---- many worlds ----


def tell_many(plan: Plan, seeds: range, *, json: bool, jobs: int) -> bool:
    """True if something was violated in a world like this of any of these seeds."""
    from msgspec.structs import replace

    from quorate.cli.sweep import verdicts
    from quorate.cli.worlds import Totals, of_seeds, show, summary, watched

    say.progress_line(in_words(plan, seeds))
    totals = Totals(plan.protocol)
    plans = (replace(plan, seed=seed) for seed in seeds)
    watched(verdicts(plans, jobs), totals, of_seeds(len(seeds)))
    found = totals.finish()
    if json:
        say.print_json(found)
    else:
        out = say.console()
        show(totals, out)
        out.print(f"[bold]{summary(totals)}[/bold]", soft_wrap=True)
    return bool(found.violations)


# ---- one world ----


def tell_one(plan: Plan, *, json: bool, trace: str | None, story: Path | None, shrink: bool) -> bool:
    from quorate.cli.worlds import Totals
    from quorate.sim.run import run_plan

    if shrink:
        plan = shorter(plan)
    totals = Totals(plan.protocol)
    verdict = run_plan(plan, trace=True)
    totals.add(verdict)
    if trace == STDOUT:
        for happening in verdict.happenings or ():
            print(happening)
    elif trace is not None:
        write_text(Path(trace), "".join(f"{happening}\n" for happening in verdict.happenings or ()))
        say.progress_line(f"the story: {trace} ({len(verdict.happenings or ()):,} lines)")
    if story is not None:
        write_text(story, drawn(plan, verdict))
        say.progress_line(f"the picture: {story}")
    tell_verdict(totals, json=json, on_stderr=trace == STDOUT, shrunk=shrink)
    return bool(verdict.violations)


def tell_verdict(totals: Totals, *, json: bool, on_stderr: bool, shrunk: bool) -> None:
    from quorate.cli.worlds import show, summary

    if json:
        say.print_json(totals.finish())
        return
    out = say.console(stderr=on_stderr)
    if not on_stderr:
        show(totals, out, shrunk=shrunk)
    elif totals.sum.violations:
        found = totals.sum.violations[0]
        out.print(f"{found.invariant}: {found.detail}", soft_wrap=True, markup=False)
    out.print(f"[bold]{summary(totals)}[/bold]", soft_wrap=True)


def shorter(plan: Plan) -> Plan:
    """The shortest plan found that breaks the same invariant; the plan itself if it breaks none."""
    from quorate.sim.shrink import shrink

    def progress(found: Plan, events: int) -> None:
        faults = f", {say.counted(len(found.only), 'fault')}" if found.only is not None else ""
        say.progress_line(f"still broken after {events:,} events{faults}")

    found = shrink(plan, progress=progress)
    if found is None:
        say.progress_line(f"seed {plan.seed}: nothing was violated, so there is nothing to shrink")
        return plan
    say.progress_line(
        f"from {found.events_before:,} to {say.counted(found.events, 'event')}, from {found.faults_before} to "
        f"{say.counted(found.faults_count, 'fault')}, in {say.counted(found.runs, 'run')}"
    )
    return found.plan


def drawn(plan: Plan, verdict: Verdict) -> str:
    """The story as a picture, of the partition that it is about."""
    from quorate.sim.draw import draw

    found = verdict.violations[0] if verdict.violations else None
    return draw(
        verdict.happenings or (),
        title=f"{plan.protocol}, seed {plan.seed}",
        subtitle=plan.command(),
        violation=f"{found.invariant}: {found.detail}" if found is not None else None,
    )
