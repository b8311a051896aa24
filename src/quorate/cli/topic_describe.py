"""`quorate topic describe`: who copies and who leads each partition of a topic, and how every copy is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from quorate.cli import say
from quorate.cli.options import NATS_SUBJECT, SERVERS, Json, Servers
from quorate.cli.topic_copies import Target, found
from quorate.cli.topic_turning import so_far, waiting_for

if TYPE_CHECKING:
    from quorate.cli.orders import Orders
    from quorate.cli.topic_view import CopyView, Found, TopicView
    from quorate.machine.metadata import Topic

EPILOG = """\b
[bold]Examples[/bold]
quorate topic describe events
quorate topic describe events/0 --json

[bold]copies[/bold] are in the order of the partition's list: the first is its preferred leader, to whom
`quorate topic elect` gives it back.
[bold]in sync[/bold] says whether a copy has everything that is settled, as its leader knows; in topics of isr,
whether it is waited for. [bold]faulty[/bold] names the offsets that cannot be read there; others have them.
[bold]stored[/bold] is what the metadata group keeps of a partition that an operator or a controller oversees.
"""
FAULTY_SHOWN_MAX = 3


def register(topic_app: typer.Typer) -> None:
    topic_app.command("describe", epilog=EPILOG)(describe)


def describe(target: Target, servers: Servers = SERVERS, json: Json = False) -> None:
    """Show who copies and who leads each partition of a topic, and how every copy is."""
    from quorate.cli.how_far import STAND_STILL, stands_still
    from quorate.cli.orders import carry_out

    topic, numbers, seen = carry_out(servers, lambda orders: _looked_at(orders, target))
    view = seen.topic(topic, numbers)
    if json:
        say.print_json(view)
        return
    columns = ["partition", "leader", "epoch", "copies", "learners", "to be", "settled", "behind"]
    rows = [_row(seen, topic, number) for number in numbers]
    if any(map(topic.is_overseen, numbers)):
        columns.append("stored")
        rows = [(*row, _stored(seen, topic, number)) for row, number in zip(rows, numbers, strict=True)]
    out = say.console()
    if topic.turning is not None:
        columns.append(f"to be {topic.turning.to}")
        rows = [
            (*row, waiting_for(seen, topic, number) or "yes")
            for row, number in zip(rows, numbers, strict=True)
        ]
    out.print(say.table(_title(topic), columns, rows, right=(0, 1, 2, 6)))
    copies = ("partition", "node", "role", "epoch", "log", "settled", "lag", "in sync", "faulty")
    out.print(say.table("", copies, _copy_rows(view), right=(0, 1, 3, 4, 5, 6)))
    if any(stands_still(seen.image, topic, number) for number in numbers):
        out.print(STAND_STILL, markup=False)


async def _looked_at(orders: Orders, target: str) -> tuple[Topic, list[int], Found]:
    from quorate.cli.orders import MAY_BE_OLD
    from quorate.cli.topic_view import Found

    topic, numbers = await found(orders, target, even_old=True)
    seen = Found(orders.seen, await orders.statuses())
    if not seen.image.is_current:
        say.progress_line(MAY_BE_OLD)
    return topic, numbers, seen


def _title(topic: Topic) -> str:
    from rich.markup import escape

    subject = topic.config.get(NATS_SUBJECT)
    fed = f", fed from NATS subject {subject}" if subject else ""
    settings = [f", {name}={value}" for name, value in sorted(topic.config.items()) if name != NATS_SUBJECT]
    turning = f", {so_far(topic)}" if topic.turning is not None else ""
    return escape(f"Topic {topic.name}, {topic.replication}{turning}{fed}{''.join(settings)}")


# ---- a row for each partition ----


def _row(seen: Found, topic: Topic, number: int) -> tuple[str, ...]:
    from quorate.cli.copies_there import counting, missing_copy
    from quorate.cli.how_far import is_unheard
    from quorate.cli.orders import listed
    from quorate.cli.topic_view import preferred_first
    from quorate.core.entry import partition_of

    partition = partition_of(topic.id, number)
    leader, change = seen.leader(partition), topic.changes.get(number)
    to_be = listed([member.node for member in change.wanted]) if change is not None else ""
    members = counting(topic, number, leader, seen.image.stored.get(partition))
    nodes = preferred_first(topic, number, [member.node for member in members])
    if leader is None:
        behind = ", ".join(f"node {node}: {_what_is_there(seen.copy(topic, number, node))}" for node in nodes)
        return str(number), "none", "", listed(nodes), "", to_be, "", behind
    late = []
    for node in sorted({*nodes, *(member.node for member in leader.membership.members)}):
        # A copy that lacks nothing may yet be on a node that is down.
        missing = missing_copy(seen.image, seen.statuses, topic, number, node)
        lag = leader.lags.get(node, 0)
        if is_unheard(leader, node):
            late.append(f"node {node}: {missing or 'not heard yet'}")
        elif lag > 0 or missing:
            what = [f"{lag:,}"] * (lag > 0) + [missing] * bool(missing)
            late.append(f"node {node}: {', '.join(what)}")
    copies = listed(nodes)
    if leader.membership.outgoing and not topic.is_overseen(number):  # For a moment both count.
        outgoing = [member.node for member in leader.membership.outgoing]
        copies += f" and {listed(preferred_first(topic, number, outgoing))}"
    learners = listed([member.node for member in leader.membership.learners])
    place = str(leader.me.node), str(leader.epoch), copies, learners
    return str(number), *place, to_be, f"{leader.commit:,}", ", ".join(late) or "nobody"


def _what_is_there(copy: CopyView) -> str:
    """While nobody leads."""
    from quorate.cli.topic_view import UP

    return f"there up to {copy.head:,}" if copy.state == UP else copy.state


def _stored(seen: Found, topic: Topic, number: int) -> str:
    from quorate.core.entry import partition_of

    stored = seen.image.stored.get(partition_of(topic.id, number))
    return str(stored.shard) if stored is not None else "nothing yet"


# ---- a row for each copy ----


def _copy_rows(view: TopicView) -> list[tuple[str, ...]]:
    return [
        (
            str(partition.partition),
            str(copy.node),
            copy.role or copy.state,
            _number(copy.epoch),
            _log(copy),
            _number(copy.commit),
            _number(copy.lag),
            {True: "yes", False: "no", None: ""}[copy.in_sync],
            _faulty(copy.faulty),
        )
        for partition in view.partitions
        for copy in partition.copies
    ]


def _number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _log(copy: CopyView) -> str:
    if copy.first is None or copy.head is None:
        return ""
    return f"{copy.first:,}..{copy.head:,}" if copy.first <= copy.head else "empty"


def _faulty(spans: list[tuple[int, int]]) -> str:
    named = ", ".join(f"{first:,}..{last:,}" for first, last in spans[:FAULTY_SHOWN_MAX])
    more = len(spans) - FAULTY_SHOWN_MAX
    return f"{named} and {more} more" if more > 0 else named
