"""`quorate cluster drain|decommission|rebalance|stop-moves`: many copies at once, off a node or onto a new one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from quorate.cli import say
from quorate.cli.options import SERVERS, WAIT_S, Json, NoWait, Servers, Throttle, Timeout
from quorate.cli.wrong import NotYet, WrongUsage

if TYPE_CHECKING:
    from quorate.cli.moving import Ordered
    from quorate.cli.orders import Orders
    from quorate.node.plans import Layout, Where
    from quorate.node.requests import Image

NodeArgument = Annotated[int, typer.Argument(metavar="NODE", min=1, help="A node's number.")]

GOES_ON = """
The orders stand in the metadata group: whatever happens to this command, or to the node that it asked, they are
carried out. Typed again, it goes on where it was; `quorate cluster stop-moves` calls off what is not done yet.

\b
[bold]Exit code[/bold]
0 it is so, 1 it is ordered and not yet so, 2 it cannot be done.
"""
DRAIN_EPILOG = f"""\b
[bold]Examples[/bold]
quorate cluster drain 4
quorate cluster drain 4 --throttle 20MiB/s
quorate cluster drain 4 --undo      let it be given copies again; `quorate cluster rebalance` gives it some

The node stays registered, keeps its vote in the metadata group, and gets no copies of new topics where there are
other nodes.
{GOES_ON}"""
DECOMMISSION_EPILOG = f"""\b
[bold]Examples[/bold]
quorate cluster decommission 4      the node may run, or be gone for good

Its copies go first, then its vote, which another node gets if there is one; then it is forgotten, and ends by
itself.
{GOES_ON}"""
REBALANCE_EPILOG = f"""\b
[bold]Examples[/bold]
quorate cluster rebalance --dry-run              what would be moved
quorate cluster rebalance --throttle 20MiB/s

Copies of a partition lie in as many racks as they can, nodes hold equally many copies, and lead equally often; not
one copy moves more than that takes. Nodes that do not answer are left alone.
{GOES_ON}"""
STOP_EPILOG = """\b
[bold]Examples[/bold]
quorate cluster stop-moves                       after `quorate cluster rebalance`, say

Every partition stays on the nodes that count now; copies that were being made are given up. Where both the old and
the new nodes count already, it goes back by the same way. What was moved before stays where it is. A node that was
being drained or decommissioned may be given copies again; one that was drained before stays so.

\b
[bold]Exit code[/bold]
0 nothing moves any more, 1 it is ordered and not yet so, 2 it cannot be done.
"""


class Drained(NamedTuple):
    partitions: list[Where]
    """That were moved, or are waited for."""
    is_so: bool


def register(cluster_app: typer.Typer) -> None:
    cluster_app.command("drain", epilog=DRAIN_EPILOG)(drain)
    cluster_app.command("decommission", epilog=DECOMMISSION_EPILOG)(decommission)
    cluster_app.command("rebalance", epilog=REBALANCE_EPILOG)(rebalance)
    cluster_app.command("stop-moves", epilog=STOP_EPILOG)(stop_moves)


# ---- off a node ----


def drain(
    node: NodeArgument,
    servers: Servers = SERVERS,
    undo: Annotated[bool, typer.Option("--undo", help="Let it be given copies again.")] = False,
    throttle: Throttle = None,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT_S,
    json: Json = False,
) -> None:
    """Move all copies and leaders off a node; it stays registered, and gets no new ones."""
    from quorate.cli.orders import carry_out

    if undo:
        carry_out(servers, lambda orders: _mark(orders, node, drained=False))
        say.result(
            f"node {node} may be given copies; `quorate cluster rebalance` gives it some",
            {"node": node, "drained": False},
            json=json,
        )
        return

    async def work(orders: Orders) -> Drained:
        again = f"quorate cluster drain {node}"
        orders.advise(again=again)
        drained = await _drained(orders, node, again, throttle, timeout_s=timeout, no_wait=no_wait)
        if drained.is_so:
            orders.advise(again=again)
            await _lead_metadata_elsewhere(orders, node)
        return drained

    drained = carry_out(servers, work)
    count = say.counted(len(drained.partitions), "partition")
    said = f"node {node} has no copies" + (f"; it had copies of {count}" if drained.partitions else "")
    if not drained.is_so:
        said = (
            f"node {node} is to have no copies; ordered for {count}; `quorate cluster status` shows how far"
        )
    named = [f"{name}/{number}" for name, number in drained.partitions]
    say.result(said, {"node": node, "is_so": drained.is_so, "drained": True, "partitions": named}, json=json)


def decommission(
    node: NodeArgument,
    servers: Servers = SERVERS,
    throttle: Throttle = None,
    timeout: Timeout = WAIT_S,
    json: Json = False,
) -> None:
    """Move everything off a node, take its vote away, and forget it."""
    from quorate.cli.orders import carry_out, is_forgotten

    async def work(orders: Orders) -> Drained | None:
        from quorate.machine.cluster import AlterCluster, drained_setting

        again = f"quorate cluster decommission {node}"
        orders.advise(again=again)
        if await is_forgotten(orders, node, (await orders.image(())).nodes):
            await orders.settle(f"node {node}", AlterCluster({drained_setting(node): None}))
            return None
        await _expect_another_voter(orders, node)
        drained = await _drained(orders, node, again, throttle, timeout_s=timeout, no_wait=False)
        orders.advise(again=again)
        await _vote_elsewhere(orders, node, timeout)
        await orders.image(())
        await orders.forget(node)
        await orders.settle(f"node {node}", AlterCluster({drained_setting(node): None}))
        return drained

    drained = carry_out(servers, work)
    named = [f"{name}/{number}" for name, number in drained.partitions] if drained is not None else []
    already = drained is None
    say.result(
        f"node {node} has no copies and no vote, and is forgotten{' already' * already}",
        {"node": node, "forgotten": True, "already": already, "partitions": named},
        json=json,
    )


async def _drained(
    orders: Orders, node: int, again: str, rate: str | None, *, timeout_s: float, no_wait: bool
) -> Drained:
    from quorate.cli import moving
    from quorate.cli.orders import expect_known
    from quorate.node import plans

    async def planned() -> Layout:
        image, statuses = await orders.image(), await orders.statuses()
        expect_known([node], image.nodes)
        moving.expect_disks(image, but=node)
        before, nodes = moving.layout_of(image), moving.nodes_of(image, statuses, leaves=[node])
        only = nodes._replace(leaves=[node])  # Others that are drained are their own affair.
        try:
            return plans.drained(before, only)
        except plans.NoPlace as nowhere:
            raise moving.no_place(only, before, nowhere) from nowhere

    await planned()
    await moving.throttle(orders, rate)
    await _mark(orders, node, drained=True)
    gone: dict[Where, None] = {}
    while True:
        after = await planned()
        held = moving.holding(orders.seen, node)
        if not held:
            return Drained(list(gone), is_so=True)
        gone |= dict.fromkeys(held)
        ordered = await moving.order(orders, after, more=held, again=again)
        if no_wait:
            return Drained(list(gone), is_so=False)
        await moving.wait(orders, _only_held(ordered, held), timeout_s)


def _only_held(ordered: Ordered, held: list[Where]) -> Ordered:
    return ordered._replace(awaited=[where for where in ordered.awaited if where in held])


async def _mark(orders: Orders, node: int, *, drained: bool) -> None:
    """Let the node get no copies of new topics; or let it."""
    from quorate.cli.orders import expect_known
    from quorate.machine.cluster import AlterCluster, drained_nodes, drained_setting

    image = await orders.image(())
    expect_known([node], image.nodes)
    if drained != (node in drained_nodes(image.cluster.config, image.lives)):
        value = str(image.lives[node]) if drained else None
        await orders.settle(f"node {node}", AlterCluster({drained_setting(node): value}))


async def _lead_metadata_elsewhere(orders: Orders, node: int) -> None:
    from quorate.cli.orders import leader_status
    from quorate.machine.metadata import METADATA

    statuses = await orders.statuses()
    leader = leader_status(statuses, METADATA)
    if leader is None or leader.me.node != node:
        return
    others = [member.node for member in leader.membership.ensemble if member.node != node]
    heirs = [other for other in others if other in statuses]
    if heirs:
        nearest = min(heirs, key=lambda heir: (leader.lags.get(heir, 0), heir))
        await orders.transfer(METADATA, "the metadata group", nearest)
    else:
        say.progress_line(f"node {node} leads the metadata group, and nobody else can: `quorate cluster add`")


async def _expect_another_voter(orders: Orders, node: int) -> None:
    """Before anything moves; raises WrongUsage."""
    from quorate.cli.orders import expect_known

    expect_known([node], (await orders.image(())).nodes)
    voters = await orders.voters()
    if list(voters) == [node] and not await _heirs(orders, voters, node):
        raise WrongUsage(f"node {node} is the last that votes in the metadata group; add another first")


async def _heirs(orders: Orders, voters: dict[int, int], node: int) -> list[int]:
    """Who could vote in its place."""
    from quorate.machine.cluster import drained_nodes

    image, statuses = orders.seen, await orders.statuses()
    passed_over = {node, *voters, *drained_nodes(image.cluster.config, image.lives)}
    return [info.node for info in image.nodes if info.node in statuses and info.node not in passed_over]


async def _vote_elsewhere(orders: Orders, node: int, timeout_s: float) -> None:
    from quorate.cli.how_far import change_voters, until_voters_stay

    await orders.image(())
    voters = await orders.voters()
    if orders.voters_change:
        await until_voters_stay(orders, timeout_s)
        await orders.image(())
        voters = await orders.voters()
    if node in voters:
        heirs = await _heirs(orders, voters, node)
        await change_voters(orders, sorted({*voters, *heirs[:1]} - {node}), timeout_s)


# ---- even ----


def rebalance(
    servers: Servers = SERVERS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be moved.")] = False,
    throttle: Throttle = None,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT_S,
    json: Json = False,
) -> None:
    """Even out copies and leaders over nodes and racks, with the fewest moves; after a node was added, say."""
    from quorate.cli.orders import carry_out

    async def work(orders: Orders) -> dict[str, Any]:
        before, after = await _rebalanced(orders)
        if dry_run:
            return {"plan": _as_object(before, after), **_summary(before, after)}
        return await _carry_out(orders, before, after, throttle, no_wait=no_wait, timeout_s=timeout)

    done = carry_out(servers, work)
    lines = [*_plan_lines(done), _in_words(done, dry_run=dry_run)]
    say.result(lines, {**done, "dry_run": dry_run}, json=json)


async def _rebalanced(orders: Orders) -> tuple[Layout, Layout]:
    from quorate.cli import moving
    from quorate.cli.orders import listed
    from quorate.node import plans

    image, statuses = await orders.image(), await orders.statuses()
    moving.expect_disks(image)
    before, nodes = moving.layout_of(image), moving.nodes_of(image, statuses)
    silent = [info.node for info in image.nodes if info.node not in statuses]
    if silent:
        several = len(silent) > 1
        which = (
            f"they do not answer: nodes {listed(silent)}"
            if several
            else f"it does not answer: node {silent[0]}"
        )
        say.progress_line(f"left alone, since {which}")
    try:
        return before, plans.rebalanced(before, nodes, chosen=moving.operated(image))
    except plans.NoPlace as nowhere:
        raise moving.no_place(nodes, before, nowhere) from nowhere


async def _carry_out(
    orders: Orders, before: Layout, after: Layout, rate: str | None, *, no_wait: bool, timeout_s: float
) -> dict[str, Any]:
    from quorate.cli import moving
    from quorate.cli.electing import elect

    again = "quorate cluster rebalance"
    orders.advise(again=again)
    await moving.throttle(orders, rate)
    open_before = moving.open_changes(orders.seen)
    ordered = await moving.order(orders, after, more=open_before, again=again)
    done = {"plan": _as_object(before, after), **_summary(before, after), "waited_for": len(open_before)}
    if no_wait:
        return {**done, "is_so": False}
    await moving.wait(orders, ordered, timeout_s)
    image = await orders.image()
    partitions = [(topic, number) for topic in image.topics for number in range(len(topic.ensembles))]
    orders.advise(again=again)
    elected = await elect(orders, partitions)
    for why in elected.failed:
        say.progress_line(why)
    if elected.failed:
        raise NotYet(f"copies are even; {len(elected.failed)} leaders are not where they are preferred")
    return {**done, "is_so": True, "leaders": len(elected.moved)}


def _summary(before: Layout, after: Layout) -> dict[str, Any]:
    from collections import Counter

    from quorate.node.plans import differences, moves_count

    def held(layout: Layout) -> dict[str, int]:
        counts = Counter(node for nodes in layout.values() for node in nodes)
        return {str(node): count for node, count in sorted(counts.items())}

    return {
        "changes": len(differences(before, after)),
        "copies_moved": moves_count(before, after),
        "held_before": held(before),
        "held": held(after),
    }


def _as_object(before: Layout, after: Layout) -> list[dict[str, Any]]:
    from quorate.node.plans import differences

    return [
        {"topic": name, "partition": number, "from": before[name, number], "to": nodes}
        for (name, number), nodes in differences(before, after).items()
    ]


def _plan_lines(done: dict[str, Any]) -> list[str]:
    from quorate.cli.moving import told

    before = {(each["topic"], each["partition"]): each["from"] for each in done["plan"]}
    after = {(each["topic"], each["partition"]): each["to"] for each in done["plan"]}
    return told(before, after)


def _in_words(done: dict[str, Any], *, dry_run: bool) -> str:
    count, changes = done["copies_moved"], done["changes"]
    moved = "1 copy" if count == 1 else f"{count:,} copies"
    held = ", ".join(f"node {node}: {count}" for node, count in done["held"].items())
    if dry_run:
        return f"{moved} would be moved; copies then: {held}" if changes else f"all is even; copies: {held}"
    if not done["is_so"]:
        return f"ordered to move: {moved}; `quorate cluster status` shows how far"
    if not changes and not done["waited_for"] and not done["leaders"]:
        return f"all is even already; copies: {held}"
    return f"{moved} moved, {say.counted(done['leaders'], 'leader')} handed over; copies: {held}"


# ---- calling off ----


def stop_moves(
    servers: Servers = SERVERS,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT_S,
    json: Json = False,
) -> None:
    """Call off every change of copies that is not done yet: each partition stays where it is."""
    from quorate.cli.moving import open_changes

    stop(servers, open_changes, drains=True, no_wait=no_wait, timeout_s=timeout, json=json)


def stop(
    servers: str,
    which: Callable[[Image], list[Where]],
    *,
    drains: bool = False,
    no_wait: bool,
    timeout_s: float,
    json: bool,
) -> None:
    """`which`: from an image to the partitions that are meant. `drains`: so are nodes that are just drained."""
    from quorate.cli.how_far import until_reached
    from quorate.cli.moving import being_drained, call_off
    from quorate.cli.orders import carry_out

    async def work(orders: Orders) -> tuple[list[Where], list[Where], list[int]]:
        filled = being_drained(await orders.image()) if drains else []
        # First the marks: whoever is interrupted here types it again, and finds what is not called off.
        for node in filled:
            await _mark(orders, node, drained=False)
        called, going_on = await call_off(orders, which(await orders.image()))
        if called and not no_wait:
            await until_reached(orders, called, timeout_s)
        return called, going_on, filled

    called, going_on, filled = carry_out(servers, work)
    said = [
        f"called off: {say.counted(len(called), 'partition')}" if called else "nothing is to be called off"
    ]
    said += [f"node {node} may be given copies again" for node in filled]
    if going_on:
        named = ", ".join(f"{name}/{number}" for name, number in going_on)
        said.append(f"goes on, as there is nothing to go back to: {named}")
    view = {
        "called_off": [f"{name}/{number}" for name, number in called],
        "going_on": [f"{name}/{number}" for name, number in going_on],
        "not_drained": filled,
        "is_so": not (called and no_wait),
    }
    say.result(said, view, json=json)
