"""`quorate --access FILE`: how commands show who they are, where a cluster asks. access_file.py reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from quorate.cli.access_file import Given

VARIABLE = "QUORATE_ACCESS"

Access = Annotated[
    Path | None,
    typer.Option(
        "--access",
        metavar="FILE",
        envvar=VARIABLE,
        help="Who you are, for clusters with TLS or passwords; docs/SECURITY.md has an example.",
    ),
]

_chosen: Path | None = None


def choose(file: Path | None) -> None:
    """For all that this process does from now on."""
    global _chosen
    _chosen = file


def access() -> Given:
    """What was chosen; nothing, if nothing was. Raises WrongUsage."""
    from quorate.cli.access_file import Given, read_access

    return Given(None, None) if _chosen is None else read_access(_chosen)
