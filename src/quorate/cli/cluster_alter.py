"""`quorate cluster alter`: what new topics are where nobody says, and the feature level that everybody goes by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli import say
from quorate.cli.options import SERVERS, Config, Json, Reset, Servers
from quorate.cli.topic import altered_settings, in_words
from quorate.cli.wrong import WrongUsage

if TYPE_CHECKING:
    from quorate.cli.orders import Orders
    from quorate.machine.cluster import Cluster
    from quorate.node.requests import Image

EPILOG = """\b
[bold]Examples[/bold]
quorate cluster alter --config num.partitions=6 --config quorate.replication=coordinated
quorate cluster alter --reset num.partitions
quorate cluster alter --feature-level 2      when every node runs a version that knows it

\b
[bold]Settings[/bold]
num.partitions, default.replication.factor, and all settings of a topic but quorate.kind and
quorate.nats.subject: what a topic gets that is created without them. Topics that are there stay as they are.
quorate.moving.rate: how fast each node sends to new copies, as in 20MiB/s; 0: not at all, off: no limit.

A feature level never falls: whoever runs an older version from then on is refused.
"""


def register(cluster_app: typer.Typer) -> None:
    cluster_app.command("alter", epilog=EPILOG)(alter)


def alter(
    servers: Servers = SERVERS,
    config: Config = None,
    reset: Reset = None,
    feature_level: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Let everybody go by this feature level.")
    ] = None,
    json: Json = False,
) -> None:
    """Set what new topics are by default, or raise the feature level. It is so when this ends."""
    from quorate.cli.orders import carry_out, reached
    from quorate.cli.rates import parse_rate
    from quorate.client.admin import alter_cluster
    from quorate.machine.cluster import MOVING_RATE

    settings = altered_settings(config, reset)
    if (rate := settings.get(MOVING_RATE)) is not None:
        settings[MOVING_RATE] = str(parse_rate(rate, f"--config {MOVING_RATE}"))
    if not settings and feature_level is None:
        raise WrongUsage("nothing is to be altered: give --config, --reset or --feature-level")
    if feature_level is not None:
        carry_out(servers, lambda orders: _raise(orders, feature_level))
    if settings:
        with reached(servers) as cluster:
            alter_cluster(cluster, settings)
    now = carry_out(servers, _cluster)
    said = [*([f"feature level {now.level}"] if feature_level is not None else ()), *in_words(settings)]
    altered = {"feature_level": now.level, "config": now.config}
    say.result(f"the cluster: {', '.join(said)}", altered, json=json)


async def _cluster(orders: Orders) -> Cluster:
    return (await orders.image(())).cluster


async def _raise(orders: Orders, level: int) -> None:
    from quorate.machine.cluster import RaiseLevel

    image = await orders.image(())
    if why_not := why_not_raised(image, level):
        raise WrongUsage(why_not)
    if level > image.cluster.level:
        await orders.settle(f"feature level {level}", RaiseLevel(level))
        image = await orders.image(())
        if image.cluster.level < level:
            raise WrongUsage(
                why_not_raised(image, level) or f"feature level {level}: look, and order it again"
            )


def why_not_raised(image: Image, level: int) -> str:
    """Why the cluster cannot go by that feature level; empty if it can, or does."""
    if level < image.cluster.level:
        return f"the feature level is {image.cluster.level}, and never falls"
    behind = [info for info in image.nodes if info.knows < level]
    if behind:
        known = ", ".join(f"node {info.node} knows {info.knows}" for info in behind)
        return f"feature level {level}: {known}; install a version that knows it there first, and restart it"
    return ""
