"""How far a change is that was ordered: said in words, and waited for.

Lines of progress go to stderr: one whenever something is different, and one now and then while nothing is. What
can never come about, because a majority of the copies is lost, is not waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from time import monotonic

from quorate.cli import say
from quorate.cli.copies_there import Statuses, lost_for_good, missing_copy
from quorate.cli.orders import (
    LOOK_EVERY_S,
    NOBODY_LEADS,
    SOON_S,
    Orders,
    leader_status,
    listed,
    not_yet,
)
from quorate.cli.wrong import WrongUsage
from quorate.core.entry import Member, partition_of
from quorate.machine.cluster import MOVING_RATE, moving_rate
from quorate.machine.metadata import METADATA, Topic
from quorate.node.requests import Image, ReplicaStatus

TELL_AGAIN_S = 15.0
LET_THEM_GO_ON = f"quorate cluster alter --reset {MOVING_RATE}"
STAND_STILL = (
    f"copies that are being made stand still, as {MOVING_RATE} is 0; `{LET_THEM_GO_ON}` lets them go on"
)


class Teller:
    """Says what is waited for: when that changes, and again after a while."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._said = ""
        self._said_at = 0.0

    def tell(self, line: str) -> None:
        now = monotonic()
        if line != self._said:
            say.progress_line(line)
        elif now - self._said_at >= TELL_AGAIN_S:
            say.progress_line(f"{line} (after {say.duration(now - self._began)})")
        else:
            return
        self._said, self._said_at = line, now


# ---- waiting ----


async def until_reached(orders: Orders, partitions: Iterable[tuple[str, int]], timeout_s: float) -> None:
    """Until no change of these partitions is open any more; raises NotYet after that time."""
    orders.standing = orders.stands
    deadline = monotonic() + timeout_s
    teller = Teller()
    awaited = set(partitions)
    names = sorted({name for name, _ in awaited})
    while True:
        image = await orders.image(names, even_old=True)
        going_on = [
            (topic, number)
            for topic in image.topics
            for number in sorted(topic.changes)
            if (topic.name, number) in awaited
        ]
        if not going_on and image.is_current:
            return
        is_held_up = any(stands_still(image, topic, number) for topic, number in going_on)
        if monotonic() >= deadline:
            raise not_yet(timeout_s, STAND_STILL if is_held_up else "")
        line = NOBODY_LEADS
        if going_on and image.is_current:
            statuses = await orders.statuses(SOON_S)
            expect_majorities(image, going_on, statuses)
            topic, number = going_on[0]
            more = f", and {len(going_on) - 1} more" if len(going_on) > 1 else ""
            held_up = f"; {MOVING_RATE} is 0" * is_held_up
            line = f"{topic.name}/{number}: {phase(topic, number, image, statuses)}{more}{held_up}"
        teller.tell(line)
        await asyncio.sleep(LOOK_EVERY_S)


async def change_voters(orders: Orders, nodes: Sequence[int], timeout_s: float) -> None:
    """Let these vote in the metadata group, until it is so; raises NotYet after that time."""
    teller = Teller()
    order = asyncio.create_task(orders.change_voters(nodes, timeout_s))
    try:
        while not (await asyncio.wait({order}, timeout=SOON_S))[0]:
            phase_now = voters_phase(await orders.statuses(SOON_S))
            if phase_now not in ("", NOBODY_LEADS):
                orders.standing = orders.stands
            teller.tell(phase_now or "the metadata group: voters change")
        await order
    finally:
        order.cancel()


async def until_voters_stay(orders: Orders, timeout_s: float) -> None:
    """Until no change of voters is open any more; raises NotYet after that time."""
    deadline = monotonic() + timeout_s
    teller = Teller()
    while True:
        image = await orders.image((), even_old=True)
        if image.is_current and image.metadata.wanted is None and not image.metadata.is_joint:
            return
        if monotonic() >= deadline:
            raise not_yet(timeout_s)
        teller.tell(voters_phase(await orders.statuses(SOON_S)) or "the metadata group: voters change")
        await asyncio.sleep(LOOK_EVERY_S)


def stands_still(image: Image, topic: Topic, number: int) -> bool:
    """Whether a change waits for a copy that nobody is allowed to send to."""
    return waits_for_copies(topic, number) and moving_rate(image.cluster.config) == 0


def waits_for_copies(topic: Topic, number: int) -> bool:
    """Whether a change is open that takes copies which do not count yet."""
    return bool(set(topic.wanted(number)).difference(topic.ensembles[number]))


# ---- what can never come about ----


def expect_majorities(image: Image, partitions: Iterable[tuple[Topic, int]], statuses: Statuses) -> None:
    """Raises WrongUsage where a partition has lost so many copies that it never has a leader again."""
    for topic, number in partitions:
        if why := why_never_led(image, topic, number, statuses):
            raise WrongUsage(why)


def why_never_led(image: Image, topic: Topic, number: int, statuses: Statuses) -> str:
    """Empty unless too many of the copies that count are lost."""
    lost = lost_for_good(image, topic, number, statuses)
    if lost is None:
        return ""
    return (
        f"{topic.name}/{number}: {lost.why}, and its copies cannot be changed; "
        f"`quorate topic delete {topic.name}` gives it up, with what the others hold"
    )


# ---- in words ----


def phase(topic: Topic, number: int, image: Image, statuses: Statuses) -> str:
    """How far an open change of a partition is."""
    wanted = topic.changes[number].wanted
    to_be = f"to be on {listed([member.node for member in wanted])}"
    leader = leader_status(statuses, partition_of(topic.id, number))
    if leader is None:
        nodes = [member.node for member in topic.ensembles[number]]
        missing = [
            f"; node {node}: {why}"
            for node in nodes
            if (why := missing_copy(image, statuses, topic, number, node))
        ]
        return f"{to_be}: nobody leads{''.join(missing)}"
    return to_be + _on_its_way(wanted, leader, statuses)


def voters_phase(statuses: Statuses) -> str:
    """How far an open change of the metadata group's voters is; empty where none is open."""
    leader = leader_status(statuses, METADATA)
    if leader is None:
        return NOBODY_LEADS
    wanted = leader.membership.wanted
    if wanted is None:
        return ""
    to_vote = f"the metadata group: to vote {listed([member.node for member in wanted.ensemble])}"
    return to_vote + _on_its_way(wanted.ensemble, leader, statuses)


def _on_its_way(wanted: Sequence[Member], leader: ReplicaStatus, statuses: Statuses) -> str:
    if leader.membership.is_joint:
        away = [member.node for member in sorted(leader.membership.voters) if member.node not in statuses]
        missing = "".join(f"; node {node} does not answer" for node in away)
        return f": both the old and the new ensemble must agree{missing}"
    newcomers = sorted(set(wanted).difference(leader.membership.voters))
    lags = [f"node {each.node} {_behind(leader, each.node, statuses)}" for each in newcomers]
    return f": {', '.join(lags)}" if lags else ""


def _behind(leader: ReplicaStatus, node: int, statuses: Statuses) -> str:
    if node not in statuses:
        return "does not answer"
    lag = leader.lags.get(node)
    if lag is None or is_unheard(leader, node):
        return "is expected"
    # To be exact about it would print a line for every entry.
    return "has caught up" if lag <= 0 else f"is {10 ** (len(str(lag)) - 1):,} or more behind"


def is_unheard(leader: ReplicaStatus, node: int) -> bool:
    """Whether nothing is known of that copy since its leader came to lead, or since it was made."""
    return leader.lags.get(node, 0) > leader.head.offset
