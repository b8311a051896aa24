"""Votes change and preferred leaders are elected, and whoever has to do with it is killed, at each stage of it.

What a stage is, is seen, not guessed: links between nodes are slow, or a node stands still, until the leader of the
metadata group says of its membership that it is so far, or the command tells which partition is handed over.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import pytest

from quorate.bench.cluster_processes import START_TIMEOUT_S
from quorate.core.entry import Membership, Partition
from quorate.machine.metadata import METADATA, REPLICATIONS
from tests.cluster.fault_support import written_to
from tests.cluster.growing import held_by
from tests.cluster.support import run
from tests.cluster.test_faults import leading
from tests.cluster.test_moves import FEW_COUNT, VICTIMS, Moving
from tests.cluster.watched import Watched

pytestmark = pytest.mark.cluster

VOTING = ("as it is ordered", "while it is held up", "while both must agree")
ELECTING = ("as the first is handed over", "as the last is handed over", "as all lead")
SLOW_S = 0.06
"""What one node says takes so long to another, and its answer, too: each step of a change is then seen, and nobody
is suspected (an election time-out is eight times as long)."""
LOOK_EVERY_S = 0.005
TRIES_MAX = 4
"""A machine that is busy may look too late."""
ELECTED = [kind for kind in REPLICATIONS if kind != "coordinated"]
"""Of the other an operator chooses who leads."""


# --- votes ---


async def membership(moving: Moving) -> Membership | None:
    """Of the metadata group, as its leader has it: what is in its log, settled or not."""
    held = held_by(await moving.cluster.answers(moving.client), METADATA).values()
    leaders = [replica for replica in held if replica.role == "leader"]
    return max(leaders, key=lambda replica: replica.epoch).membership if leaders else None


async def until_voting(moving: Moving, command: Watched, stage: str) -> None:
    """Until a change of votes is so far."""
    deadline = monotonic() + START_TIMEOUT_S
    while True:
        now = await membership(moving)
        if now is not None and now.wanted is not None and (stage != VOTING[2] or now.is_joint):
            return
        assert command.process.poll() is None, f"{command.line} was done before it was seen {stage}"
        assert monotonic() < deadline, f"{command.line} is not seen {stage}"
        await asyncio.sleep(LOOK_EVERY_S)


@contextmanager
def standing_still(moving: Moving, nodes: Sequence[int], but: int) -> Iterator[None]:
    """Until this is over; `but` is killed meanwhile."""
    for node in nodes:
        moving.cluster.nodes[node].send(signal.SIGSTOP)
    try:
        yield
    finally:
        for node in nodes:
            if node != but:
                moving.cluster.nodes[node].send(signal.SIGCONT)


async def struck_while_voting(moving: Moving, line: str, victim: str, stage: str) -> None:
    """Who leads the metadata group, another of its voters, or node 4, whose vote it is about."""
    leads = await leading(moving.cluster, moving.client)
    other, third, *_ = (node for node in (2, 3, 1) if node != leads)  # By now node 4 may lead.
    hit = {"operator": leads, "source": other, "target": 4}[victim]
    is_held, is_voter = stage == VOTING[1], line == "cluster remove 4"
    for node in (1, 2, 3):
        moving.cluster.slow_down(node, SLOW_S)
    # One that does not follow cannot come to vote.
    with standing_still(moving, [4] * (is_held and not is_voter), but=hit):
        command = Watched(line, moving.cluster.bootstrap)
        await until_voting(moving, command, stage)
        # Of four voters, two alone settle nothing of what was ordered by now.
        with standing_still(moving, [4, third] * (is_held and is_voter), but=hit):
            moving.cluster.nodes[hit].kill()
    moving.cluster.heal()
    moving.cluster.nodes[hit].start()
    await moving.go_on()
    await moving.cluster.until_registered(moving.client)
    await command.ends()
    await moving.types(line)


@pytest.mark.parametrize(
    ("stage", "victims"),
    [
        (VOTING[2], VICTIMS[:1]),
        *(pytest.param(stage, VICTIMS, marks=pytest.mark.proof) for stage in VOTING),
    ],
    ids=["sample", *VOTING],
)
def test_whoever_is_killed_while_votes_change(tmp_path: Path, stage: str, victims: Sequence[str]) -> None:
    """Node 4 gets a vote, and loses it."""

    async def main() -> None:
        async with (
            written_to(tmp_path, more_count=FEW_COUNT) as (cluster, writers),
            cluster.client() as client,
        ):
            cluster.join(4, client)
            await cluster.until_registered(client)
            moving = Moving(cluster, client, writers)
            for victim in victims:
                await struck_while_voting(moving, "cluster add 4", victim, stage)
                await cluster.until_voters(client, (1, 2, 3, 4))
                await struck_while_voting(moving, "cluster remove 4", victim, stage)
                await cluster.until_voters(client, (1, 2, 3))

    run(main())


# --- preferred leaders ---


class Handing(NamedTuple):
    """A topic, and whom it prefers to lead each of its partitions."""

    kind: str
    partitions: Sequence[Partition]
    preferred: Sequence[int]

    def others(self, number: int) -> list[int]:
        return [node for node in (1, 2, 3) if node != self.preferred[number]]


async def handing(moving: Moving, kind: str) -> Handing:
    (topic,) = (await moving.client.image(1, (kind,), current=True)).topics
    return Handing(kind, topic.partitions(), [ensemble[0].node for ensemble in topic.ensembles])


async def led_by(moving: Moving, partition: Partition) -> int | None:
    held = held_by(await moving.cluster.answers(moving.client), partition)
    return next((node for node, replica in held.items() if replica.role == "leader"), None)


async def caught(moving: Moving, handed: Handing, victim: str, stage: str) -> bool:
    """Whether somebody was killed when it was so far, and no further."""
    for number, partition in enumerate(handed.partitions):
        await moving.cluster.hand_over(moving.client, partition, handed.others(number)[0])
    number = len(handed.partitions) - 1 if stage != ELECTING[0] else 0
    heir, source = handed.preferred[number], handed.others(number)[0]
    operator = await leading(moving.cluster, moving.client)
    hit = {"operator": operator, "source": source, "target": heir}[victim]
    for node in (1, 2, 3):
        moving.cluster.slow_down(node, SLOW_S)
    line = f"topic elect {handed.kind}"
    command = Watched(line, moving.cluster.bootstrap)
    await command.until_says(f"{handed.kind}/{number}: node {heir} is to lead")
    is_last = stage == ELECTING[2]
    if is_last:
        assert await command.ends() == 0, command.said
    is_caught = is_last or await led_by(moving, handed.partitions[number]) == source
    moving.cluster.nodes[hit].kill()
    moving.cluster.heal()
    moving.cluster.nodes[hit].start()
    await moving.go_on()
    await moving.cluster.until_registered(moving.client)
    await command.ends()
    await moving.types(line)
    for partition, preferred in zip(handed.partitions, handed.preferred, strict=True):
        assert await led_by(moving, partition) == preferred
    return is_caught


@pytest.mark.proof
@pytest.mark.parametrize("stage", ELECTING)
@pytest.mark.parametrize("kind", ELECTED)
def test_whoever_is_killed_while_preferred_leaders_are_elected(tmp_path: Path, kind: str, stage: str) -> None:
    async def main() -> None:
        async with (
            written_to(tmp_path, more_count=FEW_COUNT) as (cluster, writers),
            cluster.client() as client,
        ):
            moving = Moving(cluster, client, writers)
            handed = await handing(moving, kind)
            for victim in VICTIMS:
                for _ in range(TRIES_MAX):
                    if await caught(moving, handed, victim, stage):
                        break
                else:
                    raise AssertionError(f"{victim} was never killed {stage}")

    run(main())
