"""`quorate scenario`: stories in the text language of docs/SCENARIOS.md, played against the real code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quorate.cli.wrong import WrongUsage

EPILOG = """\b
[bold]Examples[/bold]
quorate scenario tests/scenarios/raft/*.txt  play them all
quorate scenario --rewrite story.txt         expect what its traces say

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
) -> None:
    """Play scenarios, and say with file and line where the world was not as they expect."""
    found: list[Path] = []
    for file in files:
        inside = sorted(file.rglob("*.txt")) if file.is_dir() else [file]
        if not inside:
            raise WrongUsage(f"there is no scenario (*.txt) in the directory {str(file)!r}")
        if not file.exists():
            raise WrongUsage(
                f"there is no file {str(file)!r}; scenarios of this project are in tests/scenarios/raft"
            )
        found += inside
    from quorate.sim.scenario import run_files

    raise typer.Exit(run_files(found, rewrite=rewrite))
