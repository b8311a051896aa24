"""What `quorate topic alter --replication` waits for, and what `quorate topic describe` says of it (017)."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from quorate.cli import say
from quorate.cli.wrong import NotYet, WrongUsage

if TYPE_CHECKING:
    from quorate.cli.orders import Orders
    from quorate.cli.topic_view import Found
    from quorate.machine.metadata import Topic

LOOK_EVERY_S = 0.3


async def until_turned(orders: Orders, name: str, to: str | None, *, timeout_s: float) -> None:
    """Until all partitions agree as was ordered, with a line whenever more of them do.

    Raises NotYet; and WrongUsage where somebody else orders another kind meanwhile. None: the default was ordered.
    """
    from quorate.cli.how_far import Teller

    deadline = monotonic() + timeout_s
    teller = Teller()
    while True:
        topic = await orders.topic(name)
        heading = topic.turning.to if topic.turning is not None else topic.replication
        if to is not None and heading != to:
            raise WrongUsage(
                f"{name}: {heading} was ordered by somebody else meanwhile; look, and order again"
            )
        if topic.turning is None:
            return
        alter = f"quorate topic alter {name} --replication"
        wanted = topic.turning.to
        off = f"{alter} {topic.replication}" if wanted != topic.replication else ""  # It is being called off.
        orders.advise(again=f"{alter} {wanted}", off=off)
        orders.standing = orders.stands
        line = f"{name}: {so_far(topic)}"
        teller.tell(line)
        if monotonic() >= deadline:
            raise NotYet(
                f"{line}; it goes on by itself: `quorate topic describe {name}` says what it waits for"
                + (f", and `{off}` calls it off" if off else "")
            )
        await asyncio.sleep(LOOK_EVERY_S)


def so_far(topic: Topic) -> str:
    assert topic.turning is not None
    count, to = len(topic.ensembles), topic.turning.to
    turned = sum(topic.protocol(number) == to for number in range(count))
    return f"to be replicated by {to}: {turned} of {say.counted(count, 'partition')} so far"


def waiting_for(seen: Found, topic: Topic, number: int) -> str:
    """What keeps a partition from being replicated as is wanted; empty: it is."""
    from quorate.core.entry import partition_of

    if topic.turning is None or topic.protocol(number) == topic.turning.to:
        return ""
    leader = seen.leader(partition_of(topic.id, number))
    if leader is None:
        return "nobody leads it"
    ensemble = topic.ensembles[number]
    if leader.protocol == "isr" and leader.barrier < 0 and 2 * len(leader.in_sync) <= len(ensemble):
        there = ", ".join(f"node {node}" for node in leader.in_sync)
        return f"a majority of its {len(ensemble)} copies has to be in sync first, and so far is {there}"
    late = [f"node {node} by {lag:,}" for node, lag in sorted(leader.lags.items()) if lag > 0]
    if late:
        return f"a majority has to have all of it, and behind is {', '.join(late)}"
    if 0 <= leader.barrier <= leader.commit:
        return f"node {leader.me.node} has ended {topic.protocol(number)}, and tells the metadata group"
    return f"its leader, node {leader.me.node}, ends {topic.protocol(number)}"
