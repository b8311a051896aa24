"""Back to the preferred leaders: the first node of each partition's list leads, where it can."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from quorate.cli.orders import Orders, leader_status
from quorate.cli.wrong import NotYet, WrongUsage
from quorate.core.entry import partition_of
from quorate.machine.metadata import Topic


class Elected(NamedTuple):
    leads: dict[tuple[str, int], int]
    """Who leads each partition now, as far as that is known."""
    moved: list[tuple[str, int]]
    failed: list[str]
    """In words: why the preferred one does not lead."""


async def elect(orders: Orders, partitions: Iterable[tuple[Topic, int]]) -> Elected:
    """One after the other. One that cannot be handed over just now keeps nobody else waiting."""
    statuses = await orders.statuses()
    leads, moved, failed = {}, [], []
    for topic, number in partitions:
        where, name = (topic.name, number), f"{topic.name}/{number}"
        preferred, partition = topic.ensembles[number][0].node, partition_of(topic.id, number)
        leader = leader_status(statuses, partition)
        if leader is not None:
            leads[where] = leader.me.node
        if topic.is_operated(number) or (leader is not None and leader.me.node == preferred):
            continue
        if preferred not in statuses:
            failed.append(f"{name}: node {preferred} is preferred, and does not answer")
            continue
        try:
            leads[where] = await orders.transfer(partition, name, preferred)
        except (WrongUsage, NotYet) as why:
            failed.append(str(why))
        else:
            moved.append(where)
    return Elected(leads, moved, failed)
