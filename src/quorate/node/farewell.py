"""A node that is asked to stop hands over what it leads first: its groups need not wait until they miss it.

So does one whose disk is full, of what is written to: others may have room. The metadata group it keeps, whose
commands are small: for those there is room in the journal.

Replicas that elect their own leader are told whom to let lead. Where somebody oversees a partition, that one is
asked to let another lead; it lives where the metadata group is led. So that group is handed over last of all.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING
from zlib import crc32

from quorate.core.effects import Outcome, Reply
from quorate.core.entry import TOPIC_ID_BYTES, Partition, number_of
from quorate.core.raft.leader import Leader
from quorate.host import Hosted
from quorate.machine.metadata import METADATA

if TYPE_CHECKING:
    from quorate.node.node import Node

LOOK_EVERY_S = 0.25
AGAIN_S = 2.0
"""A full disk that leads again is made way for again; not at once, as the others' may be full, too."""
FAREWELL_S = 1.0
"""Whatever is not handed over by then is missed, and gets another leader by itself. The metadata group has as long
once more."""


async def make_way(node: Node) -> None:
    """Until cancelled: whenever the disk is full, let others lead."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        if node.fullness.lately and not node.is_leaving:
            await hand_over(node, metadata=False)
            await asyncio.sleep(AGAIN_S)


async def hand_over(node: Node, *, metadata: bool = True) -> None:
    """Let others lead what is led here, as far as that is done at once."""
    overseen = [partition for partition in node.host.hosted if _is_overseen(node, partition)]
    heirs = {partition: heir(node, hosted) for partition, hosted in node.host.hosted.items()}
    own = {partition: to for partition, to in heirs.items() if to and partition != METADATA}
    works: list[asyncio.Future[bool]] = _ordered(node, own)
    if node.connected:
        moves = [node.metadata.move_leader(partition, timeout_s=FAREWELL_S) for partition in overseen]
        works += map(asyncio.ensure_future, moves)
    done_count = await _done_count(works)
    last = {METADATA: heirs[METADATA]} if metadata and heirs.get(METADATA) else {}
    done_count += await _done_count(_ordered(node, last))
    if led_count := len(overseen) + len(own) + len(last):
        node.log(f"handed over {done_count} of {led_count} partitions that it led")


def _ordered(node: Node, heirs: dict[Partition, int]) -> list[asyncio.Future[bool]]:
    """Transfers that are under way, all of one turn; whether each is so."""
    loop = asyncio.get_running_loop()

    def answered(over: asyncio.Future[bool], reply: Reply) -> None:
        if not over.done():
            over.set_result(reply.outcome is Outcome.SETTLED)

    futures = {partition: loop.create_future() for partition in heirs}
    node.begin_turn()
    for partition, to in heirs.items():
        node.transfer(partition, partial(answered, futures[partition]), to=to)
    node.end_turn()
    return list(futures.values())


async def _done_count(works: list[asyncio.Future[bool]]) -> int:
    """How many of these come to a good end in time."""
    if not works:
        return 0
    try:
        done, _ = await asyncio.wait(works, timeout=FAREWELL_S)
    finally:
        for work in works:
            work.cancel()
    return sum(work.result() for work in done)


def _is_overseen(node: Node, partition: Partition) -> bool:
    """Whether it is led here, and somebody oversees it."""
    if not node.config.voters or not node.is_leader(partition):
        return False
    topic = node.metadata.image.by_id.get(partition[:TOPIC_ID_BYTES])
    return topic is not None and topic.is_overseen(number_of(partition))


def heir(node: Node, hosted: Hosted) -> int:
    """The voter that is nearest to the end of the log, of those that can be reached; 0: nobody, or not led.

    Where several are, each gets its share of the partitions.
    """
    replica, role = hosted.replica, hosted.replica.role
    if not isinstance(role, Leader):
        return 0
    reachable = [
        cursor
        for cursor in role.cursors.values()
        if cursor.node in node.connected and cursor.member in replica.membership.ensemble
    ]
    nearest = max(
        reachable,
        key=lambda cursor: (
            cursor.priority > 0,
            cursor.matched,
            cursor.priority,
            crc32(b"%d" % cursor.node, crc32(hosted.partition)),
        ),
        default=None,
    )
    return nearest.node if nearest is not None else 0
