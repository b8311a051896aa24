"""What commands that move many copies have in common: what is known, what is ordered, and what is waited for.

Every order stands in the metadata group as soon as it is given, and a plan is made from what is wanted: so whoever
was interrupted types the same command again, and it goes on where it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from quorate.cli import say
from quorate.cli.how_far import expect_majorities, until_reached
from quorate.cli.orders import STANDS, Orders, listed
from quorate.cli.rates import parse_rate
from quorate.cli.wrong import WrongUsage
from quorate.machine.cluster import MOVING_RATE, AlterCluster, drained_nodes, moving_rate
from quorate.machine.metadata import Topic
from quorate.node.placement import rack_of
from quorate.node.plans import Layout, Nodes, NoPlace, Where, differences
from quorate.node.requests import Image

TOLD_EVERY = 20
"""So many orders are given between two lines about it."""


# ---- what is known ----


def layout_of(image: Image) -> Layout:
    """Who copies what, or shall, where a change is open."""
    return {
        (topic.name, number): [member.node for member in topic.wanted(number)]
        for topic in image.topics
        for number in range(len(topic.ensembles))
    }


def nodes_of(image: Image, statuses: Collection[int], *, leaves: Iterable[int] = ()) -> Nodes:
    """Who answers may be given copies, unless it is to have none."""
    goes = sorted({*drained_nodes(image.cluster.config, image.lives), *leaves})
    racks = {info.node: rack_of(info) for info in image.nodes}
    return Nodes(racks, [node for node in racks if node in statuses and node not in goes], goes)


def operated(image: Image) -> set[Where]:
    """Partitions of which an operator says who leads."""
    return {
        (topic.name, number)
        for topic in image.topics
        for number in range(len(topic.ensembles))
        if topic.is_operated(number)
    }


def expect_disks(image: Image, *, but: int = 0) -> None:
    """A copy whose disk is lost would be made anew by any order: a person is to have said so. Raises WrongUsage."""
    for name, number, node in image.lost:
        if node != but:
            raise WrongUsage(
                f"{name}/{number}: the disk of node {node} is lost; first let its new one count: "
                f"`quorate cluster replace {node}`"
            )


def no_place(nodes: Nodes, layout: Layout, error: NoPlace) -> WrongUsage:
    (name, number), node = error.where, error.node
    copies = layout[error.where]
    there = listed([each for each in copies if each != node])
    has = f"it has copies on nodes {there}, and " if there else ""
    fewer = len([each for each in copies if each in nodes.takes])
    advice = (
        f", or have fewer copies: `quorate topic alter {name} --replicas {fewer}`" if fewer and node else ""
    )
    return WrongUsage(f"{name}/{number}: {has}no other node that answers may have one; add a node{advice}")


# ---- ordering ----


class Ordered(NamedTuple):
    """What was ordered, and what is waited for with it."""

    moved: Layout
    awaited: list[Where]


async def order(orders: Orders, after: Layout, *, more: Iterable[Where] = (), again: str) -> Ordered:
    """What differs from what is wanted; `more` was ordered before. `again`: the command that goes on with it."""
    image = orders.seen
    moved = differences(layout_of(image), after)
    topics = {topic.name: topic for topic in image.topics}
    awaited = sorted({*moved, *more})
    if image.lost_now:
        on_their_way = [(topics[name], number) for name, number in awaited]
        expect_majorities(image, on_their_way, await orders.statuses())
    orders.advise(again=again, off="quorate cluster stop-moves")
    for given, ((name, number), nodes) in enumerate(moved.items()):
        if given and given % TOLD_EVERY == 0:
            say.progress_line(f"{given} of {len(moved)} changes are ordered")
        await orders.change_topic(topics[name], number, nodes)
    if awaited:
        orders.standing = orders.stands
    return Ordered(moved, awaited)


async def wait(orders: Orders, ordered: Ordered, timeout_s: float) -> None:
    """Until all of it is so; raises NotYet after that time."""
    if ordered.awaited:
        await until_reached(orders, ordered.awaited, timeout_s)


def open_changes(image: Image, *, of: Collection[Where] | None = None) -> list[Where]:
    """Partitions whose copies are to be others, and are not yet."""
    found = [(topic.name, number) for topic in image.topics for number in sorted(topic.changes)]
    return [where for where in found if of is None or where in of]


def holding(image: Image, node: int) -> list[Where]:
    """Partitions of which that node has a copy, or may."""
    return [
        (topic.name, number)
        for topic in image.topics
        for number in range(len(topic.ensembles))
        if any(member.node == node for member in topic.holders(number))
    ]


# ---- calling off ----


async def call_off(orders: Orders, wheres: Collection[Where]) -> tuple[list[Where], list[Where]]:
    """Let these partitions be where they are; those for which that was ordered, and those which go on.

    A copy on a new disk in place of a lost one has nothing to go back to.
    """
    image = orders.seen
    called, going_on = [], []
    orders.stands = f"{STANDS}; `quorate cluster status` shows how far"
    for topic, number in changing(image, wheres):
        if not _has_a_way_back(image, topic, number):
            going_on.append((topic.name, number))
            continue
        if (
            topic.wanted(number) != topic.ensembles[number]
        ):  # Else it was called off before, and is on its way.
            await orders.change_topic(topic, number, [member.node for member in topic.ensembles[number]])
        called.append((topic.name, number))
    return called, going_on


def _has_a_way_back(image: Image, topic: Topic, number: int) -> bool:
    known = {info.node for info in image.nodes}
    settled = [member.node for member in topic.ensembles[number]]
    lost = any((topic.name, number, node) in image.lost_now for node in settled)
    return not lost and known.issuperset(settled)


def being_drained(image: Image) -> list[int]:
    """Nodes that are drained, and that copies are to leave which can be called back."""
    leave = {
        member.node
        for topic, number in changing(image, open_changes(image))
        if _has_a_way_back(image, topic, number)
        for member in topic.ensembles[number]
        if member not in topic.wanted(number)
    }
    return [node for node in drained_nodes(image.cluster.config, image.lives) if node in leave]


def changing(image: Image, wheres: Collection[Where]) -> list[tuple[Topic, int]]:
    return [
        (topic, number)
        for topic in image.topics
        for number in sorted(topic.changes)
        if (topic.name, number) in wheres
    ]


# ---- how fast ----


async def throttle(orders: Orders, text: str | None) -> None:
    """Let nodes send to new copies as fast as this, and no faster; it stays so."""
    if text is None:
        return
    rate = parse_rate(text, "--throttle")
    if moving_rate(orders.seen.cluster.config) != rate:
        await orders.settle(MOVING_RATE, AlterCluster({MOVING_RATE: None if rate < 0 else str(rate)}))
        how = "as fast as it goes" if rate < 0 else f"with at most {say.bytes_count(rate)}/s"
        say.progress_line(f"from now on each node sends to new copies {how}")


# ---- in words ----


def told(before: Layout, after: Layout) -> list[str]:
    """A plan, a line for each partition."""
    lines = []
    for (name, number), nodes in differences(before, after).items():
        was = before[name, number]
        how = f"{listed(was)} → {listed(nodes)}"
        if set(was) == set(nodes):
            how = f"node {nodes[0]} is preferred as its leader instead of node {was[0]}"
        lines.append(f"{name}/{number}: {how}")
    return lines
