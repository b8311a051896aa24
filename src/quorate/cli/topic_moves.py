"""`quorate topic elect|cancel`, and what `quorate topic alter --replicas` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from quorate.cli import say
from quorate.cli.options import SERVERS, WAIT_S, Json, NoWait, Servers, Timeout
from quorate.cli.topic_copies import CHOSEN, FEW, Target, found
from quorate.cli.wrong import NotYet, WrongUsage

if TYPE_CHECKING:
    from quorate.cli.electing import Elected
    from quorate.cli.orders import Orders
    from quorate.machine.metadata import Topic
    from quorate.node.plans import Where
    from quorate.node.requests import Image

ELECT_EPILOG = """\b
[bold]Examples[/bold]
quorate topic elect events
quorate topic elect events/0

The first node of a partition's list is preferred. After a node was away, others lead what it led: this gives it
back. In topics of coordinated nobody is preferred.

\b
[bold]Exit code[/bold]
0 they lead, 1 one of them has not taken over, 2 it cannot be done.
"""
CANCEL_EPILOG = """\b
[bold]Examples[/bold]
quorate topic cancel events      after `quorate topic add events --node 4`, say

The partition stays on the nodes that count now; copies that were being made are given up.

\b
[bold]Exit code[/bold]
0 nothing moves any more, 1 it is ordered and not yet so, 2 it cannot be done.
"""


def register(topic_app: typer.Typer) -> None:
    topic_app.command("elect", epilog=ELECT_EPILOG)(elect)
    topic_app.command("cancel", epilog=CANCEL_EPILOG)(cancel)


def elect(target: Target, servers: Servers = SERVERS, json: Json = False) -> None:
    """Let the preferred leaders lead again."""
    from quorate.cli import electing
    from quorate.cli.orders import carry_out

    async def work(orders: Orders) -> tuple[str, list[int], Elected]:
        topic, numbers = await found(orders, target)
        if all(map(topic.is_operated, numbers)):
            instead = f"nobody is preferred; `quorate topic transfer {target}` lets another lead"
            raise WrongUsage(CHOSEN.format(name=topic.name, instead=instead))
        orders.advise(again=f"quorate topic elect {target}")
        return topic.name, numbers, await electing.elect(orders, [(topic, number) for number in numbers])

    name, numbers, elected = carry_out(servers, work)
    said = []
    for where in ((name, number) for number in numbers):
        if where in elected.leads:
            already = "" if where in elected.moved else " already"
            said.append(f"{name}/{where[1]} is led by node {elected.leads[where]}{already}")
    leaders = [{"partition": number, "leader": elected.leads.get((name, number))} for number in numbers]
    if elected.failed:
        raise NotYet("; ".join(elected.failed[:3]))
    say.result(said, {"topic": name, "partitions": leaders, "moved": len(elected.moved)}, json=json)


def cancel(
    target: Target,
    servers: Servers = SERVERS,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT_S,
    json: Json = False,
) -> None:
    """Call off changes of who copies a topic that are not done yet."""
    from quorate.cli.cluster_moves import stop
    from quorate.cli.moving import open_changes
    from quorate.cli.orders import carry_out

    async def meant(orders: Orders) -> list[Where]:
        topic, numbers = await found(orders, target)
        return [(topic.name, number) for number in numbers]

    wheres = carry_out(servers, meant)

    def which(image: Image) -> list[Where]:
        return open_changes(image, of=wheres)

    stop(servers, which, no_wait=no_wait, timeout_s=timeout, json=json)


async def resize(
    orders: Orders, name: str, count: int, rate: str | None, *, no_wait: bool, timeout_s: float
) -> Topic:
    """Let every partition of a topic have so many copies; repeated, it goes on where it was."""
    from quorate.cli import moving
    from quorate.node import plans

    await orders.topic(name)
    image, statuses = await orders.image(), await orders.statuses()
    (topic,) = [each for each in image.topics if each.name == name]
    moving.expect_disks(image)
    wheres = [(name, number) for number in range(len(topic.ensembles))]
    before, nodes = moving.layout_of(image), moving.nodes_of(image, statuses)
    if count > len(nodes.takes):
        answering = say.counted(len(nodes.takes), "node")
        raise WrongUsage(f"{name}: {count} copies of each partition; {answering} answer and may have copies")
    try:
        after = plans.resized(before, wheres, count, nodes)
    except plans.NoPlace as nowhere:
        raise moving.no_place(nodes, before, nowhere) from nowhere
    if count in FEW and any(len(before[where]) > count for where in wheres):
        say.progress_line(f"{name}: {FEW[count]}")
    again = f"quorate topic alter {name} --replicas {count}"
    orders.advise(again=again)
    await moving.throttle(orders, rate)
    open_before = moving.open_changes(image, of=wheres)
    ordered = await moving.order(orders, after, more=open_before, again=again)
    if not no_wait:
        await moving.wait(orders, ordered, timeout_s)
    return await orders.topic(name)
