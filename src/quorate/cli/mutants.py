"""`quorate mutants`: known bugs, planted into a copy of the code, which the simulator must catch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorate.cli import say
from quorate.cli.wrong import WrongUsage, check_picture, no_such, write_text

if TYPE_CHECKING:
    from quorate.sim.mutate import Caught, Mutant

    Outcome = Caught | str | None
    """What became of a mutant: caught, not even planted (the reason), or, None, it survived."""

EPILOG = """\b
[bold]Examples[/bold]
quorate mutants                              every mutant, killing seed first
quorate mutants --list                       what there is
quorate mutants disk-no-dirsync              one of them
quorate mutants disk-no-dirsync --story a.svg   and its story, as a picture
quorate mutants coordinated-commit-reset     a bug of another protocol
quorate mutants --list coordinated-          those whose names begin so
quorate mutants --seeds 1000 --afresh        as if no killing seed were known

[bold]Exit code[/bold]
0 all were caught, 1 one survived or could not be planted, 2 wrong usage.
"""


def register(app: typer.Typer) -> None:
    app.command("mutants", epilog=EPILOG)(mutants)


def mutants(
    chosen: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help="Which ones; all of them if none is named."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, help="A mutant that lives through so many worlds survives.")
    ] = 1000,
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, max=256, help="Processes; the results are the same.")
    ] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
    story: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the world that caught the (one) mutant.")
    ] = None,
    afresh: Annotated[
        bool,
        typer.Option("--afresh", help="Search from seed 0, without trying the known killing seed first."),
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Keep the seeds found in the patches, for `make test`.")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="Only say what there is.")] = False,
) -> None:
    """Plant known bugs of real systems, one by one, and report the seed and invariant that caught each."""
    from quorate.sim import mutate

    known = mutate.names()
    wanted = chosen_of(known, chosen, prefixes=listed) if chosen else known
    if story is not None and len(wanted) != 1:
        raise WrongUsage(f"--story draws one mutant's end, and {len(wanted)} are asked for; name one of them")
    check_picture(story)
    described = [describe(name) for name in wanted]
    if listed:
        show_list(described, json=json)
        return
    results = [(mutant, hunt(mutant, seeds, jobs=jobs, afresh=afresh, live=not json)) for mutant in described]
    if record:
        for mutant, caught in results:
            if isinstance(caught, mutate.Caught) and caught.seed != mutant.seed:
                mutate.record_seed(mutant.name, caught.seed)
    if json:
        say.print_json({"seeds": seeds, "mutants": [as_json(*result) for result in results]})
    else:
        show_end(results, seeds)
    if story is not None and isinstance(caught := results[0][1], mutate.Caught):
        write_text(story, drawn(results[0][0], caught))
        say.progress_line(f"the picture: {story}")
    if not all(isinstance(outcome, mutate.Caught) for _, outcome in results):
        raise typer.Exit(1)


def chosen_of(known: list[str], chosen: list[str], *, prefixes: bool) -> list[str]:
    """The mutants of these names, or, with `prefixes`, of those that begin so."""
    wanted: list[str] = []
    for name in chosen:
        alike = [other for other in known if other.startswith(name)]
        if name in known:
            wanted.append(name)
        elif not alike:
            raise no_such("mutant", name, known)
        elif not prefixes:
            raise WrongUsage(f"there is no mutant {name!r}; so begin: {', '.join(alike)}")
        else:
            wanted += alike
    return list(dict.fromkeys(wanted))


def describe(name: str) -> Mutant:
    from quorate.sim import mutate, patching

    try:
        return mutate.describe(name)
    except patching.BadPatch as error:
        raise WrongUsage(f"the patch cannot be read: {error}") from error


def hunt(mutant: Mutant, seeds: int, *, jobs: int, afresh: bool, live: bool) -> Outcome:
    """Told as it goes: one line a mutant."""
    from quorate.sim import mutate, patching

    def survived(count: int) -> None:
        if count % PROGRESS_SEEDS == 0:
            say.progress_line(f"{mutant.name}: has lived through {count} worlds")

    outcome: Outcome
    try:
        outcome = mutate.hunt(mutant.name, range(seeds), hint=not afresh, jobs=jobs, progress=survived)
    except (patching.DoesNotApply, mutate.HuntFailed) as error:
        outcome = str(error)
    if live:
        print(told(mutant, outcome, seeds), flush=True)
    return outcome


PROGRESS_SEEDS = 100


def told(mutant: Mutant, caught: Outcome, seeds: int) -> str:
    if caught is None:
        return f"SURVIVED  {mutant.name}: lived through {seeds} worlds; {mutant.does}"
    if isinstance(caught, str):
        return f"UNTRIED   {mutant.name}: {caught}"
    by = caught.invariant + ("" if caught.invariant in mutant.caught_by else " (not the one that should)")
    return f"caught    {mutant.name}: by {by}, seed {caught.seed}, {say.duration(caught.seconds)}"


def show_list(described: list[Mutant], *, json: bool) -> None:
    if json:
        say.print_json({"mutants": [about(mutant) for mutant in described]})
        return
    rows = [(mutant.name, mutant.protocol, mutant.does, mutant.origin) for mutant in described]
    columns = ("mutant", "protocol", "what it does", "origin")
    say.console().print(say.table("", columns, rows, whole=(0, 1)))


def about(mutant: Mutant) -> dict[str, Any]:
    return {
        "name": mutant.name,
        "protocol": mutant.protocol,
        "does": mutant.does,
        "origin": mutant.origin,
    }


def show_end(results: list[tuple[Mutant, Outcome]], seeds: int) -> None:
    out = say.console()
    caught = [
        (mutant, found) for mutant, found in results if found is not None and not isinstance(found, str)
    ]
    if caught:
        rows = [
            (mutant.name, mutant.does, found.invariant, str(found.seed), str(found.seeds_count))
            for mutant, found in caught
        ]
        columns = ("caught", "what it does", "by", "seed", "worlds")
        out.print(say.table("", columns, rows, right=(3, 4), whole=(0, 2)))
    survivors = [mutant.name for mutant, found in results if found is None]
    untried = [mutant.name for mutant, found in results if isinstance(found, str)]
    if survivors:
        out.print(f"[bold red]{len(survivors)} survived {seeds} worlds:[/bold red] {', '.join(survivors)}")
    if untried:
        out.print(f"[bold red]{len(untried)} could not be planted:[/bold red] {', '.join(untried)}")
    if not survivors and not untried:
        out.print(f"[bold]{all_caught(caught)}[/bold]")


def all_caught(caught: list[tuple[Mutant, Caught]]) -> str:
    """How many, and whether by what should catch them."""
    by_expected = sum(found.invariant in mutant.caught_by for mutant, found in caught)
    if by_expected == len(caught):
        return f"{len(caught)} of {len(caught)} caught by the expected invariant"
    return f"{len(caught)} of {len(caught)} caught, {by_expected} by the expected invariant"


def as_json(mutant: Mutant, caught: Outcome) -> dict[str, Any]:
    if caught is None:
        return about(mutant) | {"caught": False}
    if isinstance(caught, str):
        return about(mutant) | {"caught": False, "untried": caught}
    return about(mutant) | {
        "caught": True,
        "seed": caught.seed,
        "invariant": caught.invariant,
        "expected": caught.invariant in mutant.caught_by,
        "detail": caught.detail,
        "worlds": caught.seeds_count,
        "seconds": round(caught.seconds, 3),
    }


def drawn(mutant: Mutant, caught: Caught) -> str:
    from quorate.sim import mutate
    from quorate.sim.draw import draw

    return draw(
        mutate.story(mutant.name, caught.seed),
        title=f"{mutant.name}, seed {caught.seed}",
        subtitle=f"{mutant.does} (origin: {mutant.origin})",
        violation=f"{caught.invariant}: {caught.detail}",
    )
