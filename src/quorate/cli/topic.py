"""`quorate topic`: create, list, alter and delete topics of a running cluster.

topic_describe.py shows how they are, topic_copies.py moves their copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorate.cli import say, topic_copies, topic_describe, topic_moves
from quorate.cli.options import (
    NATS_SUBJECT,
    SERVERS,
    WAIT_S,
    Config,
    Json,
    NoWait,
    Reset,
    Servers,
    Throttle,
    Timeout,
)
from quorate.cli.wrong import WrongUsage, no_such

if TYPE_CHECKING:
    from quorate.cli.orders import Orders

KINDS = ("raft", "coordinated", "isr", "confirm")

topic_app = typer.Typer(
    no_args_is_help=True,
    help="Create, list, alter and delete topics of a running cluster, and move their copies.",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic.")]

CREATE_EPILOG = """\b
[bold]Examples[/bold]
quorate topic create events
quorate topic create orders --partitions 6 --replicas 3 --replication coordinated
quorate topic create payments --replication isr --config min.insync.replicas=3
quorate topic create events --config max.message.bytes=4000000
quorate topic create events --nats "orders.*"      where the nodes know a NATS server

\b
[bold]raft[/bold]         the copies elect their own leader, and a majority settles
[bold]coordinated[/bold]  an operator on the metadata group's leader fences and elects; a majority settles
[bold]isr[/bold]          the leader waits for every copy that is in sync, and at least min.insync.replicas of them
[bold]confirm[/bold]      a leader's writes are settled by a CONFIRM in the log, or rolled back
"""
ALTER_EPILOG = """\b
[bold]Examples[/bold]
quorate topic alter events --config max.message.bytes=4000000
quorate topic alter events --reset max.message.bytes
quorate topic alter events --partitions 12      partitions are added, never removed
quorate topic alter events --replicas 5         copies are added, or removed, while clients write
quorate topic alter events --replication isr    copies agree in another way, while clients write

More copies are made like any other: the order stands in the metadata group, and goes on by itself. Typed again, it
is waited for; `quorate topic cancel events` calls it off. So it is with the way in which copies agree: each
partition turns by itself, and to order the former one again calls it off for those that have not.

\b
[bold]Exit code[/bold]
0 it is so, 1 it is ordered and not yet so, 2 it cannot be done.
"""


def register(app: typer.Typer) -> None:
    topic_app.command("create", epilog=CREATE_EPILOG)(create)
    topic_app.command("list")(list_)
    topic_describe.register(topic_app)
    topic_app.command("alter", epilog=ALTER_EPILOG)(alter)
    topic_app.command("delete")(delete)
    topic_copies.register(topic_app)
    topic_moves.register(topic_app)
    app.add_typer(topic_app, name="topic")


def create(
    name: Name,
    servers: Servers = SERVERS,
    partitions: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=3000, help="How many partitions.", show_default="1"),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=9, help="Copies of each.", show_default="3, or all nodes"),
    ] = None,
    replication: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="How the copies agree: raft, coordinated, isr or confirm.",
            show_default="raft",
        ),
    ] = None,
    nats: Annotated[
        str | None,
        typer.Option(metavar="SUBJECT", help="Take what is published to this NATS subject, too."),
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of the topic; repeat for more.")
    ] = None,
    json: Json = False,
) -> None:
    """Create a topic; it can be written to when this ends."""
    from quorate.cli.orders import reached
    from quorate.client.admin import create_topic

    given = settings_of(config)
    if nats is not None and NATS_SUBJECT in given:
        raise WrongUsage(f"--nats and --config {NATS_SUBJECT} say the same: give one of them")
    settings = ({"quorate.replication": replication} if replication is not None else {}) | given
    if nats is not None:
        settings[NATS_SUBJECT] = nats
    with reached(servers) as cluster:
        made = create_topic(
            cluster, name, partitions_count=partitions or -1, replicas_count=replicas or -1, config=settings
        )
    created = {"topic": name, "partitions": made.partitions_count, "config": made.config}
    say.result(f"topic {name} is created: {_counted(made.partitions_count)}", created, json=json)
    _tell_silent(servers, name)


def settings_of(config: list[str] | None) -> dict[str, str]:
    settings = {}
    for setting in config or ():
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise WrongUsage(f"--config {setting!r}: write KEY=VALUE")
        settings[key] = value
    return settings


def altered_settings(config: list[str] | None, reset: list[str] | None) -> dict[str, str | None]:
    """What each is to be; None: as by default."""
    given = settings_of(config)
    both = set(given).intersection(reset or ())
    if both:
        raise WrongUsage(f"--config and --reset both name {min(both)}: give one of them")
    return {**given, **dict.fromkeys(reset or ())}


def in_words(settings: dict[str, str | None]) -> list[str]:
    return [f"{key} is {'as by default' if value is None else value}" for key, value in settings.items()]


def _counted(partitions: int) -> str:
    return say.counted(partitions, "partition")


def _copies(count: int) -> str:
    return f"{count} {'copies' if count > 1 else 'copy'}"


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


def list_(servers: Servers = SERVERS, json: Json = False) -> None:
    """List the topics, with the node that leads each partition."""
    from quorate.cli.orders import carry_out, reached
    from quorate.client import LATEST

    replications = carry_out(servers, _replications)
    topics: list[dict[str, Any]] = []
    with reached(servers) as cluster:
        found = cluster.topics(list(replications)) if replications else {}
        for topic in (found[name] for name in replications):
            led = {part.number: LATEST for part in topic.partitions if part.leader > 0}
            ends = cluster.offsets(topic.name, led)
            partitions = [
                {
                    "partition": part.number,
                    "leader": part.leader if part.number in led else None,
                    "next_offset": (ends[part.number] or 0) if part.number in ends else None,
                }
                for part in topic.partitions
            ]
            made = {"topic": topic.name, "replication": replications[topic.name], "partitions": partitions}
            topics.append(made)
    if json:
        say.print_json({"topics": topics})
    else:
        _tell_topics(topics)


def _tell_topics(topics: list[dict[str, Any]]) -> None:
    rows = [
        (
            topic["topic"],
            topic["replication"],
            str(part["partition"]),
            str(part["leader"] or "none"),
            "unknown" if part["next_offset"] is None else f"{part['next_offset']:,}",
        )
        for topic in topics
        for part in topic["partitions"]
    ]
    out = say.console()
    if rows:
        columns = ("topic", "replication", "partition", "leader", "next offset")
        out.print(say.table("Topics", columns, rows, right=(2, 3, 4)))
    else:
        out.print("There are no topics; make one: quorate topic create NAME")


async def _replications(orders: Orders) -> dict[str, str]:
    """How the copies of each topic agree."""
    from quorate.cli.orders import MAY_BE_OLD

    image = await orders.image(even_old=True)
    if not image.is_current:
        say.progress_line(MAY_BE_OLD)
    return {topic.name: topic.replication for topic in image.topics}


def alter(
    name: Name,
    servers: Servers = SERVERS,
    config: Config = None,
    reset: Reset = None,
    partitions: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=3000, help="How many partitions it shall have.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=9, help="How many copies each shall have.")
    ] = None,
    replication: Annotated[
        str | None, typer.Option(metavar="KIND", help=f"How its copies shall agree: {', '.join(KINDS)}.")
    ] = None,
    throttle: Throttle = None,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT_S,
    json: Json = False,
) -> None:
    """Alter the settings of a topic, add partitions, change how many copies there are, or how they agree."""
    from quorate.cli.orders import carry_out, reached
    from quorate.cli.topic_turning import so_far, until_turned
    from quorate.client.admin import add_partitions, alter_topic

    settings = altered_settings(config, reset)
    if replication is not None:
        if replication not in KINDS:
            raise no_such("kind of replication", replication, KINDS)
        settings["quorate.replication"] = replication
    if not settings and partitions is None and replicas is None:
        raise WrongUsage(
            "nothing is to be altered: give --config, --reset, --partitions, --replicas or --replication"
        )
    topic = carry_out(servers, lambda orders: orders.topic(name))
    with reached(servers) as cluster:
        if settings:
            alter_topic(cluster, name, settings)
        if partitions is not None and partitions != len(topic.ensembles):
            add_partitions(cluster, name, partitions)
    if "quorate.replication" in settings and not no_wait:
        to = settings["quorate.replication"]
        carry_out(servers, lambda orders: until_turned(orders, name, to, timeout_s=timeout))
    if replicas is not None:
        topic = carry_out(
            servers,
            lambda orders: topic_moves.resize(
                orders, name, replicas, throttle, no_wait=no_wait, timeout_s=timeout
            ),
        )
    else:
        topic = carry_out(servers, lambda orders: orders.topic(name))
    said = [f"it has {_counted(len(topic.ensembles))}"] * (partitions is not None)
    if topic.turning is not None and settings.pop("quorate.replication", None):
        said.insert(0, so_far(topic))  # Nobody waited for it.
    said = in_words(settings) + said
    if replicas is not None:
        is_so = not topic.changes
        said.append(f"each partition {'has' if is_so else 'is to have'} {_copies(replicas)}")
    altered = {"topic": name, "partitions": len(topic.ensembles), "config": topic.config}
    altered["nodes"] = [
        [member.node for member in topic.wanted(each)] for each in range(len(topic.ensembles))
    ]
    altered["replication"] = topic.replication
    altered["is_so"] = not topic.changes and topic.turning is None
    say.result(f"topic {name}: {', '.join(said)}", altered, json=json)


def delete(name: Name, servers: Servers = SERVERS, json: Json = False) -> None:
    """Delete a topic, with all that is in it."""
    from quorate.cli.orders import reached
    from quorate.client.admin import delete_topic

    with reached(servers) as cluster:
        delete_topic(cluster, name)
    say.result(f"topic {name} is deleted", {"topic": name, "deleted": True}, json=json)
