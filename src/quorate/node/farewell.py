"""A node that is asked to stop hands over what it leads first: its groups need not wait until they miss it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from zlib import crc32

from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Partition
from quorate.core.raft.leader import Leader
from quorate.host import Hosted

if TYPE_CHECKING:
    from quorate.node.node import Node

FAREWELL_S = 1.0
"""Whatever is not handed over by then is missed, and elects another leader by itself."""


async def hand_over(node: Node) -> None:
    """Let others lead what is led here, as far as that is done at once."""
    heirs = {partition: heir(node, hosted) for partition, hosted in node.host.hosted.items()}
    going = {partition: to for partition, to in heirs.items() if to}
    if not going:
        return
    missing, done_count = dict.fromkeys(going), 0
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(partition: Partition, reply: Reply) -> None:
        nonlocal done_count
        missing.pop(partition, None)
        done_count += reply.outcome is Outcome.SETTLED
        if not missing and not over.done():
            over.set_result(None)

    node.begin_turn()
    for partition, to in going.items():
        node.transfer(partition, partial(answered, partition), to=to)
    node.end_turn()
    with suppress(TimeoutError):
        await asyncio.wait_for(over, FAREWELL_S)
    node.log(f"handed over {done_count} of {len(going)} partitions that it led")


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
