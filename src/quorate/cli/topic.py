"""`quorate topic`: create, list and delete topics of a running cluster; topic_copies.py moves their copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli import say, topic_copies
from quorate.cli.options import NATS_SUBJECT, SERVERS, Servers
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from quorate.cli.orders import Orders

topic_app = typer.Typer(
    no_args_is_help=True, help="Create, list and delete topics of a running cluster, and move their copies."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic.")]

CREATE_EPILOG = """\b
[bold]Examples[/bold]
quorate topic create events
quorate topic create events --partitions 6 --replicas 3
quorate topic create events --config max.message.bytes=4000000
quorate topic create events --nats "orders.*"      where the nodes know a NATS server
"""


def register(app: typer.Typer) -> None:
    topic_app.command("create", epilog=CREATE_EPILOG)(create)
    topic_app.command("list")(list_)
    topic_app.command("delete")(delete)
    topic_copies.register(topic_app)
    app.add_typer(topic_app, name="topic")


def create(
    name: Name,
    servers: Servers = SERVERS,
    partitions: Annotated[int, typer.Option(metavar="N", min=1, max=3000, help="How many partitions.")] = 1,
    replicas: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=9, help="Copies of each.", show_default="3, or all nodes"),
    ] = None,
    replication: Annotated[
        str, typer.Option(metavar="HOW", help="How the copies agree; this version has raft.")
    ] = "raft",
    nats: Annotated[
        str | None,
        typer.Option(metavar="SUBJECT", help="Take what is published to this NATS subject, too."),
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of the topic; repeat for more.")
    ] = None,
) -> None:
    """Create a topic; it can be written to when this ends."""
    from quorate.cli.orders import reached
    from quorate.client.admin import create_topic

    settings = {"quorate.replication": replication}
    if nats is not None:
        settings[NATS_SUBJECT] = nats
    for setting in config or ():
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise WrongUsage(f"--config {setting!r}: write KEY=VALUE")
        if nats is not None and key == NATS_SUBJECT:
            raise WrongUsage(f"--nats and --config {NATS_SUBJECT} say the same: give one of them")
        settings[key] = value
    with reached(servers) as cluster:
        create_topic(
            cluster, name, partitions_count=partitions, replicas_count=replicas or -1, config=settings
        )
    say.console().print(f"topic {name} is created: {partitions} partition{'s' * (partitions > 1)}")
    _tell_silent(servers, name)


def _tell_silent(servers: str, name: str) -> None:
    """Copies are put on nodes that do not answer only where there are no others: somebody should know."""
    from quorate.cli.orders import carry_out, listed

    try:
        silent = carry_out(servers, lambda orders: _silent(orders, name))
    except WrongUsage:  # The topic is there all the same.
        return
    if silent:
        several = len(silent) > 1
        which = f"nodes {listed(silent)} do" if several else f"node {silent[0]} does"
        say.progress_line(
            f"{which} not answer, and {'have' if several else 'has'} copies of {name} all the same: too few others "
            f"are there; "
            f"`quorate topic describe {name}` shows them"
        )


async def _silent(orders: Orders, name: str) -> list[int]:
    topic, statuses = await orders.topic(name, even_old=True), await orders.statuses()
    nodes = {member.node for ensemble in topic.ensembles for member in ensemble}
    return sorted(nodes.difference(statuses))


def list_(servers: Servers = SERVERS) -> None:
    """List the topics, with the node that leads each partition."""
    from quorate.cli.orders import carry_out, reached
    from quorate.client import LATEST

    names = carry_out(servers, _names)
    with reached(servers) as cluster:
        rows = []
        found = cluster.topics(names) if names else {}
        for topic in (found[name] for name in names):
            led = {part.number: LATEST for part in topic.partitions if part.leader > 0}
            ends = cluster.offsets(topic.name, led)
            for part in topic.partitions:
                leader = str(part.leader) if part.leader > 0 else "none"
                end = f"{ends[part.number] or 0:,}" if part.number in ends else "unknown"
                rows.append((topic.name, str(part.number), leader, end))
    out = say.console()
    if rows:
        out.print(say.table("Topics", ("topic", "partition", "leader", "next offset"), rows, right=(1, 2, 3)))
    else:
        out.print("There are no topics; make one: quorate topic create NAME")


async def _names(orders: Orders) -> list[str]:
    from quorate.cli.orders import MAY_BE_OLD

    image = await orders.image(even_old=True)
    if not image.is_current:
        say.progress_line(MAY_BE_OLD)
    return [topic.name for topic in image.topics]


def delete(name: Name, servers: Servers = SERVERS) -> None:
    """Delete a topic, with all that is in it."""
    from quorate.cli.orders import reached
    from quorate.client.admin import delete_topic

    with reached(servers) as cluster:
        delete_topic(cluster, name)
    say.console().print(f"topic {name} is deleted")
