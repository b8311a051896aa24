"""`quorate format`: the data directory of one node, made once and on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_urlsafe
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli import say
from quorate.cli.run_node import ConfigFile, told_by
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from quorate.node.config import Address, NodeConfig

VOTERS_COUNT_MAX = 9
"""More voters make every change of metadata slower, and no cluster safer."""
CLUSTER_ID_BYTES = 16

EPILOG = """\b
[bold]Examples[/bold], one machine each:
quorate format data --node 1 --voters 1=10.0.0.1:9092,2=10.0.0.2:9092,3=10.0.0.3:9092
quorate format data --node 2 --voters (the same) --cluster (what the first one printed)
quorate node data                  run it

\b
With a configuration that is written by hand (docs/node.toml):
quorate format --config node.toml
quorate node --config node.toml

\b
One more node for a cluster that runs:
quorate format data --node 4 --listen 10.0.0.4:9092 --voters (the same) --cluster (the same)

On one machine, [bold]quorate up[/bold] does all of it.
"""


def register(app: typer.Typer) -> None:
    app.command("format", epilog=EPILOG)(format_)


def format_(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="What will be made: new, or empty.")
    ] = None,
    node: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=2**31 - 1, help="Which of the voters this is, or a new one."),
    ] = None,
    voters: Annotated[
        str | None,
        typer.Option(metavar="N=HOST:PORT,…", help="The nodes that the cluster begins with, or began with."),
    ] = None,
    config: ConfigFile = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where it is to be found, if it is not one of the voters."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="The cluster's id, the same on every node.", show_default="a new one"
        ),
    ] = None,
    replaces: Annotated[
        bool,
        typer.Option(
            "--replaces",
            help="This node was there before, and its disk is lost. It counts no more until somebody "
            "says `quorate cluster replace`.",
        ),
    ] = False,
) -> None:
    """Make the data directory of one node of a cluster.

    The voters are named when a cluster is born; they agree on everything that all nodes must know. A node that
    comes later is told the same ones.
    """
    if config is not None:
        if any(each is not None for each in (directory, node, voters, listen, cluster)):
            raise WrongUsage("--config says all of it; leave out everything else but --replaces")
        _make_as_told(told_by(None, config, [], {}, []), replaces=replaces)
        say.console().print(f"Run it:\n  quorate node --config {quote(str(config))}", soft_wrap=True)
        return
    if directory is None or node is None or voters is None:
        raise WrongUsage(
            "name DIR, --node and --voters, or a file with --config; see `quorate format --help`"
        )
    addresses = parse_voters(voters)
    if node not in addresses and listen is None:
        known = ", ".join(map(str, addresses))
        raise WrongUsage(
            f"--node {node} is not among the voters {known}; if the cluster is there already, say where this node "
            f"is with --listen HOST:PORT, and if it is new, add it to --voters"
        )
    place = parse_listen(listen) if listen is not None else addresses[node]
    if node in addresses and place != addresses[node]:
        raise WrongUsage(
            f"--listen: among the voters, node {node} is at {addresses[node]}; leave --listen out"
        )
    if cluster is None and (replaces or node not in addresses):
        option = "--replaces" if replaces else "--listen"
        raise WrongUsage(
            f"{option} is for a node of a cluster that is there; name that with --cluster, as `quorate cluster "
            f"status` shows it"
        )
    name = cluster if cluster is not None else new_cluster_id()
    make(directory, cluster=name, node=node, voters=addresses, listen=place, replaces=replaces)
    others = [other for other in addresses if other != node] if cluster is None else []
    like_this = f"--voters {voters} --cluster {name}"
    _tell(f"{directory} is ready: node {node} of cluster [bold]{name}[/bold]", others, like_this, place)
    say.console().print(f"Run it:\n  quorate node {quote(str(directory))}", soft_wrap=True)


def _tell(ready: str, others: Sequence[int], like_this: str, place: Address) -> None:
    from quorate.node.listeners import is_loopback

    out = say.console()
    out.print(ready, soft_wrap=True)
    if others:
        out.print("The others, each where it will run:")
    for other in others:
        out.print(f"  quorate format DIR --node {other} {like_this}", soft_wrap=True)
    if not is_loopback(place.host):
        out.print(
            "Other machines reach it there. Before it runs, give it TLS and passwords (docs/SECURITY.md), or say "
            "--insecure to `quorate node`.",
            soft_wrap=True,
        )


def _make_as_told(config: NodeConfig, *, replaces: bool) -> None:
    from random import SystemRandom

    from quorate.node.directory import format_directory

    with _in_one_line():
        format_directory(config, replaces=replaces, rng=SystemRandom())
    out = say.console()
    out.print(
        f"{config.directory} is ready: node {config.node} of cluster [bold]{config.cluster}[/bold]",
        soft_wrap=True,
    )


@contextmanager
def _in_one_line() -> Iterator[None]:
    """What the world refuses."""
    from quorate.node.config import BadConfig
    from quorate.node.directory import WrongDirectory
    from quorate.storage.disk import DiskFailed, DiskFull
    from quorate.storage.errors import StoreError
    from quorate.storage.real_disk import DirectoryInUse

    try:
        yield
    except (BadConfig, WrongDirectory, DirectoryInUse, DiskFull, DiskFailed, StoreError) as error:
        raise WrongUsage(str(error)) from error


def make(
    directory: Path,
    *,
    cluster: str,
    node: int,
    voters: dict[int, Address],
    listen: Address,
    replaces: bool = False,
) -> None:
    """Format a node's directory; what the world refuses is told in one line."""
    from random import SystemRandom

    from quorate.node.directory import format_node

    with _in_one_line():
        format_node(
            directory,
            cluster=cluster,
            node=node,
            voters=voters,
            listen=listen,
            replaces=replaces,
            rng=SystemRandom(),
        )


def new_cluster_id() -> str:
    """As Kafka's: 16 random bytes in letters that need no quoting, and none that looks like an option."""
    while True:
        name = token_urlsafe(CLUSTER_ID_BYTES)
        if name[0].isalnum():
            return name


def parse_listen(text: str) -> Address:
    from quorate.node.config import BadConfig, parse_address

    try:
        address = parse_address(text)
    except BadConfig as bad:
        raise WrongUsage(f"--listen: {bad}") from bad
    if address.port == 0:
        raise WrongUsage("--listen: others must know its port; 0 is none")
    return address


def parse_voters(text: str) -> dict[int, Address]:
    """`1=127.0.0.1:9092,2=…`, in the order of numbers."""
    from quorate.node.config import BadConfig, parse_address

    found: dict[int, Address] = {}
    for part in text.split(","):
        number, equals, address = part.strip().partition("=")
        if not equals or not number.isdecimal() or int(number) < 1:
            raise WrongUsage(f"--voters: {part!r} is no voter; write N=HOST:PORT,N=HOST:PORT, …")
        if int(number) in found:
            raise WrongUsage(f"--voters: node {number} is there twice; number every node differently")
        try:
            found[int(number)] = parse_address(address)
        except BadConfig as bad:
            raise WrongUsage(f"--voters: node {number}: {bad}") from bad
        if found[int(number)].port == 0:
            raise WrongUsage(f"--voters: node {number}: others must know its port; 0 is none")
    if len(set(found.values())) < len(found):
        raise WrongUsage("--voters: an address is there twice; every node has its own")
    if len(found) > VOTERS_COUNT_MAX:
        raise WrongUsage(f"--voters: {len(found)} are too many; name at most {VOTERS_COUNT_MAX}")
    return dict(sorted(found.items()))
