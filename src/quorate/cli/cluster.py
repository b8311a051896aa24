"""`quorate cluster`: the nodes of a running cluster, and the metadata group that they agree in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from quorate.cli import cluster_replace, say
from quorate.cli.options import NATS_SUBJECT, SERVERS, WAIT_S, Servers, Timeout
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from quorate.cli.orders import Orders
    from quorate.machine.metadata import NodeInfo
    from quorate.node.requests import Image, ReplicaStatus, Status

cluster_app = typer.Typer(
    no_args_is_help=True, help="Look after a running cluster: its nodes and its metadata group."
)

NodeArgument = Annotated[int, typer.Argument(metavar="NODE", min=1, help="A node's number.")]

CHANGE_EPILOG = """\b
[bold]Exit code[/bold]
0 it is so, 1 it is ordered and not yet so, 2 it cannot be done.
"""
FORGET_EPILOG = """\b
[bold]Examples[/bold]
quorate cluster forget 3               after `quorate cluster replace 3 --with 4`

Nobody tries to reach it any more, and nobody keeps anything for it. If it comes back, it is told so and ends;
with a directory made anew with --replaces it can join again.

\b
[bold]Exit code[/bold]
0 it is so, 1 nobody knows yet whether it is, 2 it cannot be done.
"""


class Voting(NamedTuple):
    """Who votes in the metadata group; and whether that was so before anybody ordered it."""

    nodes: list[int]
    already: bool = False


def register(app: typer.Typer) -> None:
    cluster_app.command("status")(status)
    cluster_app.command("transfer")(transfer)
    cluster_app.command("add", epilog=CHANGE_EPILOG)(add)
    cluster_app.command("remove", epilog=CHANGE_EPILOG)(remove)
    cluster_replace.register(cluster_app)
    cluster_app.command("forget", epilog=FORGET_EPILOG)(forget)
    app.add_typer(cluster_app, name="cluster")


def status(servers: Servers = SERVERS) -> None:
    """Show the nodes, what they hold, and who votes in the metadata group."""
    from quorate.cli.orders import carry_out

    name, rows, changes = carry_out(servers, _looked_at)
    columns = ("node", "address", "state", "metadata", "behind", "copies", "leads")
    out = say.console()
    out.print(say.table(f"Cluster {name}", columns, rows, right=(0, 4, 5, 6)))
    for line in changes:
        out.print(line, markup=False)


async def _looked_at(orders: Orders) -> tuple[str, list[tuple[str, ...]], list[str]]:
    """The cluster's id, a row for each node, and a line for each change that is open and each use of NATS."""
    from quorate.cli.how_far import phase, voters_phase
    from quorate.cli.orders import MAY_BE_OLD, leader_status
    from quorate.machine.metadata import METADATA

    image, statuses = await orders.image(even_old=True), await orders.statuses()
    metadata = leader_status(statuses, METADATA)
    rows = [_row(info, statuses.get(info.node), metadata) for info in image.nodes]
    changes = [
        f"{topic.name}/{number} {phase(topic, number, image, statuses)}"
        for topic in image.topics
        for number in sorted(topic.changes)
    ]
    if metadata is not None and (voters_change := voters_phase(statuses)):
        changes.insert(0, voters_change)
    changes += [
        f"node {node}, {say.nats(each.nats, led=_subjects(image, each))}"
        for node, each in sorted(statuses.items())
        if each.nats
    ]
    if not image.is_current:
        changes.insert(0, MAY_BE_OLD)
    return orders.client.cluster, rows, changes


def _subjects(image: Image, status: Status) -> list[str]:
    """NATS subjects of the topics that a node leads."""
    leads = {replica.partition for replica in status.replicas if replica.role == "leader"}
    return [
        topic.config[NATS_SUBJECT]
        for topic in image.topics
        if NATS_SUBJECT in topic.config and leads.intersection(topic.partitions())
    ]


def _row(info: NodeInfo, status: Status | None, metadata: ReplicaStatus | None) -> tuple[str, ...]:
    from quorate.cli.how_far import is_unheard
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
        if info.node in metadata.lags:
            lag = metadata.lags[info.node]
            behind = "not heard yet" if is_unheard(metadata, info.node) else f"{lag:,}"
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
    from quorate.cli.how_far import change_voters

    async def work(orders: Orders) -> Voting:
        image = await orders.image()
        voters = await orders.voters()
        life = _expect_known(node, image.nodes).incarnation
        if node in voters and voters[node] != life:
            raise WrongUsage(
                f"node {node} votes with a disk that is lost; let its new one count with "
                f"`quorate cluster replace {node}`"
            )
        if node in voters:
            return await _as_ordered(orders, voters, timeout)
        nodes = sorted([*voters, node])
        await change_voters(orders, nodes, timeout)
        return Voting(nodes)

    _tell_voters(servers, work)


def remove(node: NodeArgument, servers: Servers = SERVERS, timeout: Timeout = WAIT_S) -> None:
    """Let a node vote no more in the metadata group; it follows then."""
    from quorate.cli.how_far import change_voters

    async def work(orders: Orders) -> Voting:
        image = await orders.image(even_old=True)
        voters = await orders.voters()
        if node not in voters:
            _expect_known(node, image.nodes)
            return await _as_ordered(orders, voters, timeout)
        if len(voters) == 1:
            raise WrongUsage(f"node {node} is the last that votes in the metadata group; add another first")
        nodes = sorted(voter for voter in voters if voter != node)
        await change_voters(orders, nodes, timeout)
        return Voting(nodes)

    _tell_voters(servers, work)


async def _as_ordered(orders: Orders, voters: Iterable[int], timeout_s: float) -> Voting:
    """It was ordered before: wait for it, where it is not so yet."""
    from quorate.cli.how_far import until_voters_stay

    is_so = not orders.voters_change
    if not is_so:
        await until_voters_stay(orders, timeout_s)
    return Voting(sorted(voters), already=is_so)


def forget(node: NodeArgument, servers: Servers = SERVERS) -> None:
    """Say that a node is gone for good. It must have no vote and no copies."""
    from quorate.cli.orders import carry_out

    async def work(orders: Orders) -> None:
        _expect_known(node, (await orders.image(())).nodes)
        await orders.forget(node)

    carry_out(servers, work)
    print(f"node {node} is forgotten")


def _expect_known(node: int, known: tuple[NodeInfo, ...]) -> NodeInfo:
    from quorate.cli.orders import expect_known

    expect_known([node], known)
    return next(info for info in known if info.node == node)


def _tell_voters(servers: str, work: Callable[[Orders], Awaitable[Voting]]) -> None:
    from quorate.cli.orders import carry_out, listed

    nodes, already = carry_out(servers, work)
    who = f"nodes {listed(nodes)} vote" if len(nodes) > 1 else f"node {nodes[0]} votes"
    print(f"{who} in the metadata group{' already' * already}")
