"""`quorate up`: a cluster on this machine, kept running until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from time import monotonic, strftime
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli import say
from quorate.cli.format import VOTERS_COUNT_MAX

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from quorate.cli.up_directory import LocalCluster
    from quorate.cli.up_supervisor import Supervisor, Watched
    from quorate.node.address import Address

DIRECTORY = Path("quorate-data")
NODES_COUNT = 3
PORT = 9092
READY_TIMEOUT_S = 120.0
LOOK_EVERY_S = 0.1
REDRAWN_PER_SECOND = 4

EPILOG = """\b
[bold]Examples[/bold]
quorate up                         three nodes on ports 9092 to 9094, data in ./quorate-data
quorate up --port 19092 --dir d    beside another one
quorate up --nodes 5               five nodes
quorate up --nats nats://127.0.0.1:4222

Stopped with Ctrl-C and started again, it is the same cluster with the same data.

[bold]Exit code[/bold]
0 stopped as asked, 1 a node failed, 2 wrong usage (a port is taken, the directory is somebody else's).
"""


def register(app: typer.Typer) -> None:
    app.command("up", epilog=EPILOG)(up)


def up(
    nodes: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=VOTERS_COUNT_MAX, help="How many nodes.", show_default=str(NODES_COUNT)
        ),
    ] = None,
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where data and logs are kept.")
    ] = DIRECTORY,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="P",
            min=1,
            max=65535,
            help="The first node's port; the next ones follow.",
            show_default=str(PORT),
        ),
    ] = None,
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", help="Stop, too, when standard input is closed.")
    ] = False,
    nats: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A NATS server, for topics that take messages from there."),
    ] = None,
) -> None:
    """Run a cluster on this machine: make it if it is not there, keep its nodes running, show how they are."""
    from quorate.cli import up_directory

    if nats is not None:
        up_directory.expect_nats(nats)
    with up_directory.held(directory):
        cluster = up_directory.found(directory, nodes=nodes, port=port)
        if cluster is not None:
            up_directory.expect_free(cluster.addresses())
        else:
            cluster = up_directory.planned(nodes=nodes or NODES_COUNT, port=port or PORT)
            up_directory.expect_free(cluster.addresses())
            up_directory.make_all(directory, cluster)
        status = asyncio.run(_keep_up(cluster, directory, stop_with_stdin=stop_with_stdin, nats=nats))
    if status:
        raise typer.Exit(status)


async def _keep_up(cluster: LocalCluster, directory: Path, *, stop_with_stdin: bool, nats: str | None) -> int:
    from quorate.cli.up_directory import why_not_there
    from quorate.cli.up_supervisor import State, Supervisor

    screen = Screen()
    watched_at = cluster.watched_at()
    supervisor = Supervisor(
        cluster.cluster,
        cluster.children(directory, watched_at=watched_at, nats=nats),
        screen.tell,
        why_not_there=lambda node: why_not_there(directory, cluster, node),
    )
    _stop_when_asked(supervisor, stop_with_stdin=stop_with_stdin)
    screen.tell(f"starting {_nodes(cluster)} in {directory}")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(supervisor.run())
        failed = not await _until_ready(supervisor, screen, running)
        if not failed and not supervisor.is_stopping:
            screen.welcome(cluster, directory, supervisor, watched_at)
            await _show_health(supervisor, screen, running)
        failed = failed or supervisor.is_lost
        if not supervisor.is_stopping:
            supervisor.ask_to_stop()
        screen.tell("stopping")
    left_down = [f"node {node}" for node, each in supervisor.nodes.items() if each.state is State.LEFT_DOWN]
    if left_down:
        screen.tell(f"not every node ended as it should: {', '.join(left_down)}; node.log says what was")
    elif not failed:
        screen.tell(f"stopped; `{command_again(directory, nats)}` starts it again")
    return 1 if failed or left_down else 0


def command_again(directory: Path, nats: str | None) -> str:
    """What starts the same cluster: nodes and ports are in its directory, the NATS server is not remembered."""
    words = ["quorate", "up"]
    if directory != DIRECTORY:
        words += ["--dir", quote(str(directory))]
    if nats is not None:  # A password has no place on a screen.
        words += ["--nats", "URL" if "@" in nats else quote(nats)]
    return " ".join(words)


def _nodes(cluster: LocalCluster) -> str:
    return "1 node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"


def _others(watched_at: dict[int, Address]) -> str:
    others = [f"node {node}: {address}" for node, address in watched_at.items() if node > 1]
    return ", ".join(others) or "no others"


def _stop_when_asked(supervisor: Supervisor, *, stop_with_stdin: bool) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, supervisor.ask_to_stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # Otherwise it was started with nohup.
        loop.add_signal_handler(signal.SIGHUP, supervisor.ask_to_stop)

    def stdin_is_readable() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin)
            supervisor.ask_to_stop()

    if stop_with_stdin:
        loop.add_reader(sys.stdin, stdin_is_readable)


async def _until_ready(supervisor: Supervisor, screen: Screen, running: asyncio.Task[None]) -> bool:
    """Whether the cluster serves (or was asked to stop before that)."""
    began = monotonic()
    while not running.done() and not supervisor.is_stopping:
        if supervisor.is_ready:
            screen.tell(f"ready in {say.duration(monotonic() - began)}")
            return True
        if monotonic() - began > READY_TIMEOUT_S:
            screen.tell(f"not ready after {READY_TIMEOUT_S:.0f} s: {supervisor.missing()}")
            return False
        await asyncio.sleep(LOOK_EVERY_S)
    return not supervisor.is_lost


async def _show_health(supervisor: Supervisor, screen: Screen, running: asyncio.Task[None]) -> None:
    seen = _noteworthy(supervisor)
    with screen.live() as show:
        while not running.done() and not supervisor.is_stopping:
            for what, is_now in _noteworthy(supervisor).items():
                if is_now != seen.get(what):
                    screen.tell(is_now)
                    seen[what] = is_now
            show(_table(supervisor))
            await asyncio.sleep(LOOK_EVERY_S)


def _noteworthy(supervisor: Supervisor) -> dict[str, str]:
    """What is told when it changes; what a node's end looks like, its supervisor tells."""
    from quorate.cli.up_supervisor import State

    told = {}
    for node, watched in supervisor.nodes.items():
        if watched.state is State.UP:
            told[f"node {node}"] = f"node {node} is up, process {watched.pid}"
        elif watched.state is State.SILENT:
            told[f"node {node}"] = f"node {node} does not answer, process {watched.pid}"
        if watched.status is not None and watched.status.nats is not None:
            told[f"node {node}, NATS"] = f"node {node}, {say.nats(watched.status.nats, counts=False)}"
    statuses = [watched.status for watched in supervisor.nodes.values() if watched.status is not None]
    leaders = {status.metadata_leader for status in statuses if status.metadata_leader}
    if len(leaders) == 1:
        told["metadata"] = f"node {leaders.pop()} leads the metadata group"
    return told


def _table(supervisor: Supervisor) -> Table:
    columns = ("node", "process", "state", "address", "partitions", "leads", "metadata", "connected to")
    return say.table("", columns, map(_row, supervisor.nodes.values()), right=(0, 1, 4, 5))


def _row(watched: Watched) -> tuple[str, ...]:
    from quorate.cli.up_supervisor import State
    from quorate.machine.metadata import METADATA

    colour = {State.UP: "green", State.STARTING: "yellow"}.get(watched.state, "red")
    row = (
        str(watched.child.node),
        str(watched.pid or "–"),
        f"[{colour}]{watched.state}[/{colour}]",
        str(watched.child.address),
    )
    status = watched.status
    if status is None:
        return (*row, "–", "–", "–", "–")
    replicas = [replica for replica in status.replicas if replica.partition != METADATA]
    leader = status.metadata_leader
    return (
        *row,
        f"{len(replicas):,}",
        f"{sum(replica.role == 'leader' for replica in replicas):,}",
        "leads" if leader == watched.child.node else f"follows node {leader}" if leader else "no leader",
        ", ".join(f"node {peer}" for peer in status.connected) or "nobody",
    )


class Screen:
    """A person's terminal with a table that stays, or a file with a line for every change."""

    def __init__(self) -> None:
        self._out: Console = say.console()

    def tell(self, text: str) -> None:
        from rich.text import Text

        line = Text.assemble((strftime("%H:%M:%S"), "dim"), "  ", text)
        self._out.print(line, soft_wrap=not self._out.is_terminal)
        sys.stdout.flush()

    def welcome(
        self, cluster: LocalCluster, directory: Path, supervisor: Supervisor, watched_at: dict[int, Address]
    ) -> None:
        servers = cluster.bootstrap()
        first = str(cluster.addresses()[1])
        command = say.command()
        processes = ", ".join(
            f"node {node}: {each.pid}" for node, each in supervisor.nodes.items() if each.pid
        )
        read_with_spark = (
            f'spark.read.format("quorate").option("kafka.bootstrap.servers", "{servers}")'
            '.option("subscribe", "events").load()'
        )
        self._out.print(f"\n[bold]Cluster {cluster.cluster} is up: {_nodes(cluster)}[/bold]")
        for what, how in (
            ("bootstrap servers", servers),
            ("make a topic", f"{command} topic create events --partitions 6 -b {first}"),
            ("write with kcat", f"echo hello | kcat -b {first} -t events -P -X acks=all"),
            ("read with kcat", f"kcat -b {first} -t events -C -e"),
            ("read with Spark", read_with_spark),
            ("watch", f"http://{watched_at[1]}/metrics, and /health, /ready, /state; {_others(watched_at)}"),
            ("data and logs", f"{directory}, a directory for each node; what it says is in its node.log"),
            ("processes", processes),
            ("stop", "Ctrl-C; a node that is killed is started again"),
        ):
            self._out.print(f"  {what:<18} {how}", soft_wrap=True, markup=False)
        self._out.print()
        sys.stdout.flush()

    @contextmanager
    def live(self) -> Iterator[Callable[[Table], None]]:
        if not self._out.is_terminal:
            yield lambda table: None
            return
        from rich.live import Live

        with Live(console=self._out, refresh_per_second=REDRAWN_PER_SECOND, transient=True) as live:
            yield live.update
