"""`quorate node`: one formatted node, in the foreground."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from quorate.cli.wrong import WrongUsage

EPILOG = """\b
[bold]Examples[/bold]
quorate node data                  until Ctrl-C or SIGTERM
quorate node data --nats nats://10.0.0.9:4222
quorate format --help              how its directory is made

[bold]Exit code[/bold]
0 stopped as asked, 1 it failed (a flush, a bug of ours) or its cluster does not want it, 2 it could not start.
Its last line says why.
"""


def register(app: typer.Typer) -> None:
    app.command("node", epilog=EPILOG)(node)


def node(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="As `quorate format` made it.")],
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", help="Stop, too, when standard input is closed.")
    ] = False,
    nats: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The NATS server, in place of the one in its configuration."),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Let other machines in without TLS and passwords (docs/SECURITY.md)."
        ),
    ] = False,
) -> None:
    """Run one node, and tell on stderr what a person should know."""
    from quorate.cli.up_directory import CLUSTER_FILE
    from quorate.node.directory import CONFIG_FILE

    config = directory / CONFIG_FILE
    if not config.is_file():
        if (directory / CLUSTER_FILE).is_file():
            raise WrongUsage(
                f"{str(directory)!r} holds a whole cluster: run it with `quorate up --dir "
                f"{quote(str(directory))}`, or one of its nodes with `quorate node {quote(str(directory / 'n1'))}`"
            )
        raise WrongUsage(f"{str(directory)!r} holds no {CONFIG_FILE}; make it with `quorate format`")
    from quorate.kafka import guests
    from quorate.node.__main__ import main

    arguments = ["--config", str(config), *["--stop-with-stdin"] * stop_with_stdin]
    if nats is not None:
        arguments += ["--nats", nats]
    arguments += ["--insecure"] * insecure
    status = main(arguments, guests=guests, program="quorate node")
    if status:
        raise typer.Exit(status)
