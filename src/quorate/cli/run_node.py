"""`quorate node`: one node, in the foreground, told by a file, by variables and by flags."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from quorate.node.config import NodeConfig
    from quorate.node.settings import Given

CONFIG_VARIABLE = "QUORATE_CONFIG"

EPILOG = """\b
[bold]Examples[/bold]
quorate node data                          as `quorate format` made it, until Ctrl-C or SIGTERM
quorate node --config node.toml            for production; docs/node.toml shows what can be said there
quorate node --config node.toml --set raft.election_timeout_s=2 --rack b
QUORATE_RAFT__ELECTION_TIMEOUT_S=2 quorate node --config node.toml
quorate format --help                      how its directory is made

Every setting is also a variable: QUORATE_LISTEN, and QUORATE_RAFT__HEARTBEAT_S with two underscores between
levels. A flag goes before a variable, and that before the file.

[bold]Exit code[/bold]
0 stopped as asked, 1 it failed (a flush, a bug of ours) or its cluster does not want it, 2 it could not start.
Its last line says why.
"""


def register(app: typer.Typer) -> None:
    app.command("node", epilog=EPILOG)(node)


ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help=f"TOML or JSON; also {CONFIG_VARIABLE}.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, as often as needed.")
]


def node(
    directory_argument: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="As `quorate format` made it, in place of --config."),
    ] = None,
    config: ConfigFile = None,
    set_: Settings = None,
    cluster: Annotated[str | None, typer.Option(metavar="ID", help="The cluster's id.")] = None,
    node: Annotated[str | None, typer.Option(metavar="N", help="This node's number.")] = None,
    directory: Annotated[str | None, typer.Option(metavar="DIR", help="Where its data is.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where it listens.")] = None,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where clients find it, if not there.")
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option(metavar="N=HOST:PORT", help="Another node, as often as needed.")
    ] = None,
    voters: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="The nodes that the cluster began with.")
    ] = None,
    rack: Annotated[
        str | None, typer.Option(metavar="NAME", help="Where it stands; copies are put into different ones.")
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Health, metrics and state over HTTP.")
    ] = None,
    nats: Annotated[str | None, typer.Option(metavar="URL", help="A NATS server.")] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="text|json", help="What it says on stderr.")
    ] = None,
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", help="Stop, too, when standard input is closed.")
    ] = False,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Let other machines in without TLS and passwords (docs/SECURITY.md)."
        ),
    ] = False,
) -> None:
    """Run one node, and tell on stderr what a person should know."""
    named = {
        "cluster": cluster,
        "node": node,
        "directory": directory,
        "listen": listen,
        "advertise": advertise,
        "voters": voters,
        "rack": rack,
        "http": http,
        "nats": nats,
        "log_format": log_format,
        "insecure": "true" if insecure else None,
    }
    told = told_by(directory_argument, config, set_ or [], named, peer or [])
    from quorate.kafka import guests
    from quorate.node.__main__ import start

    place = str(config or directory_argument or "settings")
    status = start(told, place, guests=guests, program="quorate node", stop_with_stdin=stop_with_stdin)
    if status:
        raise typer.Exit(status)


def told_by(
    directory: Path | None,
    file: Path | None,
    pairs: list[str],
    named: dict[str, str | None],
    peers: list[str],
) -> NodeConfig:
    """What a node is told by its file, the environment and its command line; raises WrongUsage."""
    from quorate.node.config import BadConfig, NodeConfig, load_config, make_config
    from quorate.node.settings import from_environment

    if directory is not None:
        if file is not None:
            raise WrongUsage(
                f"{str(directory)!r} has a configuration of its own; leave it out beside --config"
            )
        file = _config_in(directory)
    elif file is None and os.environ.get(CONFIG_VARIABLE):
        file = Path(os.environ[CONFIG_VARIABLE])
    try:
        others = [*from_environment(os.environ, NodeConfig), *_from_flags(pairs, named, peers)]
        if file is not None:
            return load_config(file, others)
        if not others:
            raise WrongUsage("name a directory that `quorate format` made, or a file with --config")
        return make_config(others)
    except BadConfig as bad:
        raise WrongUsage(str(bad)) from bad


def _from_flags(pairs: list[str], named: dict[str, str | None], peers: list[str]) -> list[Given]:
    """Those with names of their own go before --set."""
    from quorate.node.config import NodeConfig
    from quorate.node.settings import from_pair, from_text

    given = [one for pair in pairs for one in from_pair(pair, "--set", NodeConfig)]
    for key, value in named.items():
        if value is not None:
            given += from_text((key,), value, f"--{key.replace('_', '-')}", NodeConfig)
    for peer in peers:
        given += from_text(("peers",), peer, "--peer", NodeConfig)
    return given


def _config_in(directory: Path) -> Path:
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
    return config
