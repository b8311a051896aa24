"""How far copies are that are being made, as whoever leads the metadata group and those that hold them say."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import NamedTuple

from quorate.bench.cluster_processes import START_TIMEOUT_S
from quorate.node.client import Client
from tests.cluster.growing import GrowingCluster, held_by

STAGES = ("as it is ordered", "while copies are made", "as they are about to count")
LOOK_EVERY_S = 0.002


class Copies(NamedTuple):
    """Of all that is ordered and has not come about."""

    missing: int
    """Copies that are to be, and that their nodes have nothing of."""
    behind: int
    """Those that lack something that is settled."""
    full: int
    """Those that lack nothing; but the group has not got to where it is to be."""

    def are(self, stage: str) -> bool:
        if stage == STAGES[0]:
            return self.missing > 0 and self.full == 0
        if stage == STAGES[1]:
            return self.behind > 0 and self.full == 0
        return self.full > 0


async def looked_at(cluster: GrowingCluster, client: Client, operator: int) -> Copies:
    image, statuses = await asyncio.gather(client.image(operator), cluster.answers(client))
    missing = behind = full = 0
    for topic in image.topics:
        for number, change in topic.changes.items():
            held = held_by(statuses, topic.partitions()[number])
            settled = max((replica.commit for replica in held.values()), default=-1)
            for member in set(change.wanted) - set(topic.ensembles[number]):
                replica = held.get(member.node)
                if replica is None or replica.me != member:
                    missing += 1
                elif replica.commit < settled:
                    behind += 1
                else:
                    full += 1
    return Copies(missing, behind, full)


async def is_seen(cluster: GrowingCluster, client: Client, operator: int, stage: str) -> bool:
    """As soon as it is so far; False: nothing is open any more, and it was so far before anybody looked."""
    deadline = monotonic() + START_TIMEOUT_S
    was_open = stage == STAGES[2]
    while True:
        copies = await looked_at(cluster, client, operator)
        if copies.are(stage):
            return True
        is_over = not copies.missing if stage == STAGES[0] else not any(copies)
        if was_open and is_over:
            return False
        was_open = was_open or any(copies)
        if stage == STAGES[0] and monotonic() >= deadline:
            return False
        assert monotonic() < deadline, f"not seen {stage}: {copies}"
        await asyncio.sleep(LOOK_EVERY_S)
