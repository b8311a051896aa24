"""`quorate cluster`: the nodes of a running cluster, and the metadata group that they agree in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli import say
from quorate.cli.options import SERVERS, WAIT_S, NoWait, Servers, Timeout
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from quorate.cli.orders import Orders
    from quorate.machine.metadata import NodeInfo
    from quorate.node.requests import ReplicaStatus, Status

cluster_app = typer.Typer(
    no_args_is_help=True, help="Look after a running cluster: its nodes and its metadata group."
)

NodeArgument = Annotated[int, typer.Argument(metavar="NODE", min=1, help="A node's number.")]

CHANGE_EPILOG = """\b
[bold]Exit code[/bold]
0 it is so, 1 it is ordered and not yet so, 2 it cannot be done.
"""
REPLACE_EPILOG = f"""\b
[bold]Examples[/bold]
quorate cluster replace 3              its disk was lost; it was made anew with --replaces, and runs
quorate cluster replace 3 --with 4     node 3 is gone for good

It is never done by itself: only a person knows whether the old disk may come back with what it holds.

{CHANGE_EPILOG}"""

FORGET_EPILOG = """\b
[bold]Examples[/bold]
quorate cluster forget 3               after `quorate cluster replace 3 --with 4`

Nobody tries to reach it any more, and nobody keeps anything for it. If it comes back, it is told so and ends;
with a directory made anew with --replaces it can join again.

\b
[bold]Exit code[/bold]
0 it is so, 2 it cannot be done.
"""


def register(app: typer.Typer) -> None:
    cluster_app.command("status")(status)
    cluster_app.command("transfer")(transfer)
    cluster_app.command("add", epilog=CHANGE_EPILOG)(add)
    cluster_app.command("remove", epilog=CHANGE_EPILOG)(remove)
    cluster_app.command("replace", epilog=REPLACE_EPILOG)(replace)
    cluster_app.command("forget", epilog=FORGET_EPILOG)(forget)
    app.add_typer(cluster_app, name="cluster")


def status(servers: Servers = SERVERS) -> None:
    """Show the nodes, what they hold, and who votes in the metadata group."""
    from quorate.cli.orders import carry_out

    rows, changes = carry_out(servers, _looked_at)
    columns = ("node", "address", "state", "metadata", "behind", "copies", "leads")
    out = say.console()
    out.print(say.table("Nodes", columns, rows, right=(0, 4, 5, 6)))
    for line in changes:
        out.print(line)


async def _looked_at(orders: Orders) -> tuple[list[tuple[str, ...]], list[str]]:
    from quorate.cli.orders import MAY_BE_OLD, leader_status, phase
    from quorate.core.entry import partition_of
    from quorate.machine.metadata import METADATA

    image, statuses = await orders.image(even_old=True), await orders.statuses()
    metadata = leader_status(statuses, METADATA)
    rows = [_row(info, statuses.get(info.node), metadata) for info in image.nodes]
    changes = [
        f"{topic.name}/{number} {phase(topic, number, leader_status(statuses, partition_of(topic.id, number)))}"
        for topic in image.topics
        for number in sorted(topic.changes)
    ]
    if not image.is_current:
        changes.insert(0, MAY_BE_OLD)
    return rows, changes


def _row(info: NodeInfo, status: Status | None, metadata: ReplicaStatus | None) -> tuple[str, ...]:
    from quorate.machine.metadata import METADATA

    role, behind = "unknown", ""
    if metadata is not None:
        lives = {member.node: member.incarnation for member in metadata.membership.voters}
        if info.node == metadata.me.node:
            role = "leads"
        elif info.node not in lives:
            role = "follows"
        else:
            role = "votes" if lives[info.node] == info.incarnation else "disk lost, does not count"
        behind = f"{metadata.lags[info.node]:,}" if info.node in metadata.lags else ""
    where = str(info.node), f"{info.host}:{info.port}"
    if status is None:
        return (*where, "does not answer", role, behind, "", "")
    replicas = [replica for replica in status.replicas if replica.partition != METADATA]
    leads = sum(replica.role == "leader" for replica in replicas)
    return (*where, "up", role, behind, f"{len(replicas):,}", f"{leads:,}")


def transfer(
    to: Annotated[int, typer.Option("--to", metavar="NODE", min=1, help="Who shall lead.")],
    servers: Servers = SERVERS,
) -> None:
    """Let another node lead the metadata group."""
    from quorate.cli.orders import carry_out
    from quorate.machine.metadata import METADATA

    async def work(orders: Orders) -> None:
        image = await orders.image()
        _expect_known(to, image.nodes)
        if to not in await orders.voters():
            raise WrongUsage(f"node {to} does not vote in the metadata group; `quorate cluster add {to}`")
        await orders.transfer(METADATA, "the metadata group", to)

    carry_out(servers, work)
    print(f"the metadata group is led by node {to}")


def add(node: NodeArgument, servers: Servers = SERVERS, timeout: Timeout = WAIT_S) -> None:
    """Let one more node vote in the metadata group."""

    async def work(orders: Orders) -> list[int]:
        image = await orders.image()
        voters = await orders.voters()
        _expect_known(node, image.nodes)
        if node in voters:
            raise WrongUsage(f"node {node} votes in the metadata group already")
        nodes = sorted([*voters, node])
        await orders.change_voters(nodes, timeout)
        return nodes

    _tell_voters(servers, work)


def remove(node: NodeArgument, servers: Servers = SERVERS, timeout: Timeout = WAIT_S) -> None:
    """Let a node vote no more in the metadata group; it follows then."""

    async def work(orders: Orders) -> list[int]:
        await orders.image(even_old=True)
        voters = await orders.voters()
        if node not in voters:
            raise WrongUsage(f"node {node} does not vote in the metadata group")
        if len(voters) == 1:
            raise WrongUsage(f"node {node} is the last that votes in the metadata group; add another first")
        nodes = sorted(voter for voter in voters if voter != node)
        await orders.change_voters(nodes, timeout)
        return nodes

    _tell_voters(servers, work)


def replace(
    node: NodeArgument,
    with_: Annotated[
        int | None,
        typer.Option(
            "--with", metavar="NEW", min=1, help="Who takes its place.", show_default="the same node"
        ),
    ] = None,
    servers: Servers = SERVERS,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT_S,
) -> None:
    """Let another node, or the same one with a new disk, take a node's place wherever it counts."""
    from quorate.cli.orders import carry_out, listed, until_reached
    from quorate.cli.topic_copies import STILL_THERE, copies_of, swapped

    new = with_ or node

    async def work(orders: Orders) -> str:
        image = await orders.image()
        _expect_known(new, image.nodes)
        voters = await orders.voters()
        wanted = [
            (topic, number, swapped(copies_of(topic, number), node, new))
            for topic in image.topics
            for number in range(len(topic.ensembles))
            if node in copies_of(topic, number).nodes
        ]
        if node not in voters and not wanted:
            raise WrongUsage(f"node {node} has no copy of anything, and no vote in the metadata group")
        votes = node in voters
        if votes and new != node and new in voters:
            raise WrongUsage(
                f"the metadata group: node {new} votes already, as do {listed(sorted(voters))}; take the vote away "
                f"with `quorate cluster remove {node}`, and move copies with `quorate topic replace`"
            )
        if new == node:
            (life,) = [info.incarnation for info in image.nodes if info.node == node]
            votes = votes and voters[node] != life
            wanted = [each for each in wanted if (each[0].name, each[1], node) in image.lost]
            if not votes and not wanted:
                raise WrongUsage(STILL_THERE.format(node=node))
        if votes:  # First of all: everything else is agreed on there.
            nodes = sorted(voters) if new == node else sorted({*voters, new} - {node})
            await orders.change_voters(nodes, timeout)
        for topic, number, nodes in wanted:
            await orders.change_topic(topic, number, nodes)
        names = sorted({topic.name for topic, _, _ in wanted})
        if names and not no_wait:
            await until_reached(orders, names, timeout)
        copies = f"{len(wanted)} partition{'s' * (len(wanted) != 1)}"
        return f"{copies} and the metadata group" if votes else copies

    done = carry_out(servers, work)
    if no_wait:
        print(f"ordered for {done}; `quorate cluster status` shows how far")
    else:
        print(f"node {new} counts in {done}" + (f" in place of node {node}" if new != node else ""))


def forget(node: NodeArgument, servers: Servers = SERVERS) -> None:
    """Say that a node is gone for good. It must have no vote and no copies."""
    from quorate.cli.orders import carry_out

    async def work(orders: Orders) -> None:
        _expect_known(node, (await orders.image(())).nodes)
        await orders.forget(node)

    carry_out(servers, work)
    print(f"node {node} is forgotten")


def _expect_known(node: int, known: tuple[NodeInfo, ...]) -> None:
    if all(info.node != node for info in known):
        there = ", ".join(str(info.node) for info in known)
        raise WrongUsage(f"there is no node {node}; there are: {there}")


def _tell_voters(servers: str, work: Callable[[Orders], Awaitable[list[int]]]) -> None:
    from quorate.cli.orders import carry_out, listed

    voters = carry_out(servers, work)
    who = f"nodes {listed(voters)} vote" if len(voters) > 1 else f"node {voters[0]} votes"
    print(f"{who} in the metadata group")
