"""`quorate scenario`: stories in the text language of docs/SCENARIOS.md, played against the real code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli import say
from quorate.cli.wrong import WrongUsage, check_picture, check_writable, write_text

if TYPE_CHECKING:
    from quorate.sim.trace import Trace

STDOUT = "-"

EPILOG = """\b
[bold]Examples[/bold]
quorate scenario tests/scenarios/raft/*.txt  play them all
quorate scenario --rewrite story.txt         expect what its traces say
quorate scenario story.txt --story out.svg   and as a picture
quorate scenario tests/scenarios/coordinated/split-brain.txt --story out.svg

[bold]Exit code[/bold]
0 all went as expected, 1 something did not, 2 a file cannot be read or understood.
"""


def register(app: typer.Typer) -> None:
    app.command("scenario", epilog=EPILOG)(scenario)


def scenario(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Scenario files, or directories of them.")
    ],
    rewrite: Annotated[
        bool,
        typer.Option("--rewrite", help="Write traces that differ into the files; read the diff afterwards."),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The story of one scenario, one line an event; `-` for stdout."),
    ] = None,
    story: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="The story of one scenario as a picture.")
    ] = None,
) -> None:
    """Play scenarios, and say with file and line where the world was not as they expect."""
    found = scenarios(files)
    if (trace is not None or story is not None) and len(found) > 1:
        raise WrongUsage(f"--trace and --story tell of one scenario, not {len(found)}; name one file")
    check_picture(story)
    check_writable(trace if str(trace) != STDOUT else None)
    from quorate.sim.scenario import run_files
    from quorate.sim.trace import Trace

    happened = Trace() if trace is not None or story is not None else None
    code = run_files(found, rewrite=rewrite, trace=happened)
    if happened is not None and happened.happenings:
        tell(found[0], happened, trace=trace, story=story)
    raise typer.Exit(code)


def scenarios(files: list[Path]) -> list[Path]:
    found: list[Path] = []
    for file in files:
        inside = sorted(file.rglob("*.txt")) if file.is_dir() else [file]
        if not inside:
            raise WrongUsage(f"there is no scenario (*.txt) in the directory {str(file)!r}")
        if not file.exists():
            raise WrongUsage(
                f"there is no file {str(file)!r}; scenarios of this project are in tests/scenarios"
            )
        found += inside
    return found


def tell(file: Path, happened: Trace, *, trace: Path | None, story: Path | None) -> None:
    """Write down what happened in a scenario, be it as expected or not."""
    from quorate.sim import scenario_picture

    text = file.read_text(encoding="utf-8")
    if trace is not None:
        lines = scenario_picture.told(text, happened.happenings)
        if str(trace) == STDOUT:
            print(lines, end="")
        else:
            write_text(trace, lines)
            say.progress_line(f"the story: {trace} ({len(happened.happenings):,} lines)")
    if story is not None:
        write_text(story, scenario_picture.drawn(text, file, happened.happenings))
        say.progress_line(f"the picture: {story}")
