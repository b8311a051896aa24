"""`quorate cluster`: the nodes of a running cluster, and the metadata group that they agree in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from quorate.cli import cluster_alter, cluster_moves, cluster_replace, cluster_status, say
from quorate.cli.options import SERVERS, WAIT_S, Json, Servers, Timeout
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from quorate.cli.orders import Orders
    from quorate.machine.metadata import NodeInfo

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
    cluster_status.register(cluster_app)
    cluster_alter.register(cluster_app)
    cluster_app.command("transfer")(transfer)
    cluster_app.command("add", epilog=CHANGE_EPILOG)(add)
    cluster_app.command("remove", epilog=CHANGE_EPILOG)(remove)
    cluster_replace.register(cluster_app)
    cluster_moves.register(cluster_app)
    cluster_app.command("forget", epilog=FORGET_EPILOG)(forget)
    app.add_typer(cluster_app, name="cluster")


def transfer(
    to: Annotated[int, typer.Option("--to", metavar="NODE", min=1, help="Who shall lead.")],
    servers: Servers = SERVERS,
    json: Json = False,
) -> None:
    """Let another node lead the metadata group."""
    from quorate.cli.orders import carry_out, leader_status
    from quorate.machine.metadata import METADATA

    async def work(orders: Orders) -> bool:
        image = await orders.image()
        _expect_known(to, image.nodes)
        if to not in await orders.voters():
            raise WrongUsage(f"node {to} does not vote in the metadata group; `quorate cluster add {to}`")
        orders.advise(again=f"quorate cluster transfer --to {to}")
        before = leader_status(await orders.statuses(), METADATA)
        await orders.transfer(METADATA, "the metadata group", to)
        return before is not None and before.me.node == to

    already = carry_out(servers, work)
    said = f"the metadata group is led by node {to}{' already' * already}"
    say.result(said, {"leader": to, "already": already}, json=json)


def add(
    node: NodeArgument, servers: Servers = SERVERS, timeout: Timeout = WAIT_S, json: Json = False
) -> None:
    """Let one more node vote in the metadata group."""
    from quorate.cli.how_far import change_voters

    async def work(orders: Orders) -> Voting:
        image = await orders.image()
        voters = await orders.voters()
        life = _expect_known(node, image.nodes).incarnation
        orders.advise(again=f"quorate cluster add {node}", off=f"quorate cluster remove {node}")
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

    _tell_voters(servers, work, json=json)


def remove(
    node: NodeArgument, servers: Servers = SERVERS, timeout: Timeout = WAIT_S, json: Json = False
) -> None:
    """Let a node vote no more in the metadata group; it follows then."""
    from quorate.cli.how_far import change_voters

    async def work(orders: Orders) -> Voting:
        image = await orders.image(even_old=True)
        voters = await orders.voters()
        orders.advise(again=f"quorate cluster remove {node}", off=f"quorate cluster add {node}")
        if node not in voters:
            _expect_known(node, image.nodes)
            return await _as_ordered(orders, voters, timeout)
        if len(voters) == 1:
            raise WrongUsage(f"node {node} is the last that votes in the metadata group; add another first")
        nodes = sorted(voter for voter in voters if voter != node)
        await change_voters(orders, nodes, timeout)
        return Voting(nodes)

    _tell_voters(servers, work, json=json)


async def _as_ordered(orders: Orders, voters: Iterable[int], timeout_s: float) -> Voting:
    """It was ordered before: wait for it, where it is not so yet."""
    from quorate.cli.how_far import until_voters_stay

    is_so = not orders.voters_change
    if not is_so:
        orders.standing = orders.stands
        await until_voters_stay(orders, timeout_s)
    return Voting(sorted(voters), already=is_so)


def forget(node: NodeArgument, servers: Servers = SERVERS, json: Json = False) -> None:
    """Say that a node is gone for good. It must have no vote and no copies."""
    from quorate.cli.orders import carry_out, is_forgotten

    async def work(orders: Orders) -> bool:
        image = await orders.image(())
        if await is_forgotten(orders, node, image.nodes):
            return True
        await orders.forget(node)
        return False

    already = carry_out(servers, work)
    forgotten = {"node": node, "forgotten": True, "already": already}
    say.result(f"node {node} is forgotten{' already' * already}", forgotten, json=json)


def _expect_known(node: int, known: tuple[NodeInfo, ...]) -> NodeInfo:
    from quorate.cli.orders import expect_known

    expect_known([node], known)
    return next(info for info in known if info.node == node)


def _tell_voters(servers: str, work: Callable[[Orders], Awaitable[Voting]], *, json: bool) -> None:
    from quorate.cli.orders import carry_out, listed

    nodes, already = carry_out(servers, work)
    who = f"nodes {listed(nodes)} vote" if len(nodes) > 1 else f"node {nodes[0]} votes"
    voting = {"voters": nodes, "already": already}
    say.result(f"{who} in the metadata group{' already' * already}", voting, json=json)
