"""What a person orders besides moves, and whoever has to do with it is killed: leaders, votes, lost disks.

Operations are struck at each stage, under load, with topics of all four protocols in one cluster. What stands in
the end is compared with what was acknowledged, and every copy with every other (fault_support.py); the same order,
given again, comes to its end. Killed are the node that leads the metadata group, where operators and controllers
are, one that gives, one that gets, and the command itself:

| operation | where |
| --- | --- |
| add and replace a copy; more copies; drain; rebalance; replace a node | test_moves.py, `ORDERS` |
| decommission | test_moves.py |
| the command itself, of each of these | test_moves.py, `COMMANDS` |
| call off, slow down | test_moves.py |
| another kind of replication, called off, too | test_turning.py |
| transfer leadership, elect the preferred leaders; votes; a new disk | here |
| key compaction | test_compaction.py |
| backup and restore | test_backup.py |
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from quorate.core.entry import Partition, partition_of
from quorate.machine.metadata import REPLICATIONS
from quorate.node.client import BadRequest, NotDone, OutcomeUnknown
from tests.cluster.fault_support import written_to
from tests.cluster.growing import held_by
from tests.cluster.support import run
from tests.cluster.test_faults import expect_new_life, leading
from tests.cluster.test_moves import STAGES, VICTIMS, Moving, four_nodes

pytestmark = [pytest.mark.cluster, pytest.mark.proof]

HANDING_OVER = ("as it is ordered", "while the heir catches up", "as the heir leads")
MORE_COUNT = 60
"""Acknowledged of each topic between two kills."""
OPERATED = "coordinated"
"""Its operator chooses who leads."""


# --- leaders ---


async def ends(order: Awaitable[object]) -> None:
    """Somehow: whoever was to carry it out may be gone."""
    with suppress(NotDone, OutcomeUnknown, BadRequest):
        await order


async def handed_over(moving: Moving, partition: Partition, topic: str, victim: str, stage: str) -> None:
    """A leader hands over to another node; one of them, or who leads the metadata group, is killed meanwhile."""
    source = await moving.cluster.leader(moving.client, partition)
    held = held_by(await moving.cluster.answers(moving.client), partition)
    target = next(node for node, replica in held.items() if node != source and replica.role == "follower")
    operator = await leading(moving.cluster, moving.client)
    hit = {"operator": operator, "source": source, "target": target}[victim]
    heir = moving.cluster.nodes[target]
    is_held = stage == HANDING_OVER[1]
    if is_held:
        heir.send(signal.SIGSTOP)
    try:
        to = 0 if topic == OPERATED else target
        order = asyncio.create_task(ends(moving.client.transfer(partition, to)))
        if stage == HANDING_OVER[2]:
            await order
        else:
            await asyncio.sleep(0)  # It is sent.
        moving.cluster.nodes[hit].kill()
    finally:
        if is_held and hit != target:
            heir.send(signal.SIGCONT)
    moving.cluster.nodes[hit].start()
    await moving.go_on()
    await order
    await moving.cluster.until_registered(moving.client)
    await moving.cluster.leader(moving.client, partition)


async def hand_over_all(moving: Moving, stage: str, kinds: Sequence[str], victims: Sequence[str]) -> None:
    image = await moving.client.image(1, current=True)
    ids = {topic.name: topic.id for topic in image.topics}
    for kind in kinds:
        for victim in victims:
            partition = partition_of(ids[kind], 0)
            await handed_over(moving, partition, kind, victim, stage)
        to = "" if kind == OPERATED else f" --to {await follower(moving, partition)}"
        said = await moving.types(f"topic transfer {kind}/0{to}")
        assert said.startswith(f"{kind}/0 is led by node ")


async def follower(moving: Moving, partition: Partition) -> int:
    held = held_by(await moving.cluster.answers(moving.client), partition)
    return next(node for node, replica in held.items() if replica.role == "follower")


@pytest.mark.parametrize("stage", HANDING_OVER)
def test_whoever_is_killed_while_leadership_is_handed_over(tmp_path: Path, stage: str) -> None:
    async def main() -> None:
        async with (
            written_to(tmp_path, more_count=MORE_COUNT) as (cluster, writers),
            cluster.client() as client,
        ):
            await hand_over_all(Moving(cluster, client, writers), stage, REPLICATIONS, VICTIMS)

    run(main())


def test_whoever_is_killed_while_preferred_leaders_are_elected(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            written_to(tmp_path, more_count=MORE_COUNT) as (cluster, writers),
            cluster.client() as client,
        ):
            moving = Moving(cluster, client, writers)
            for node in (1, 2, 3):
                for kind in REPLICATIONS:
                    await moving.types(f"topic transfer {kind}/0")
                elected = [kind for kind in REPLICATIONS if kind != OPERATED]
                commands = [moving.begins(f"topic elect {kind}") for kind in elected]
                await moving.struck(node)
                for command in commands:
                    command.wait()
                for kind in elected:
                    await moving.types(f"topic elect {kind}")

    run(main())


# --- votes ---


@pytest.mark.parametrize("victim", VICTIMS)
def test_whoever_is_killed_while_votes_change(tmp_path: Path, victim: str) -> None:
    """Node 4 gets a vote, and loses it; the metadata group is led by others in turn."""

    async def main() -> None:
        async with four_nodes(tmp_path) as moving:
            for line in ("cluster add 4", "cluster transfer --to {heir}", "cluster remove 4"):
                leads = await leading(moving.cluster, moving.client)
                heir = next(node for node in (2, 3, 1) if node != leads)
                hit = {"operator": leads, "source": heir, "target": 4}[victim]
                command = moving.begins(line.format(heir=heir))
                await moving.struck(hit)
                command.wait()
                await moving.types(line.format(heir=heir))
            await moving.cluster.until_voters(moving.client, (1, 2, 3))

    run(main())


# --- a disk that is lost ---


@pytest.mark.parametrize("stage", STAGES)
def test_whoever_is_killed_while_a_new_disk_is_filled(tmp_path: Path, stage: str) -> None:
    """Node 3 loses its disk, again and again; another copy that its new ones come from is killed, or node 3 is."""

    async def main() -> None:
        async with four_nodes(tmp_path) as moving:
            lost = moving.cluster.nodes[3]
            for victim in VICTIMS:
                lost.kill()
                shutil.rmtree(lost.directory)
                lost.format(replaces=True)
                await moving.go_on()
                lost.start()
                await moving.cluster.until_registered(moving.client)
                await moving.holds_back(stage != STAGES[0])
                await moving.types("cluster replace 3 --no-wait")
                if stage != STAGES[0]:
                    assert await moving.changing(), "nothing is filled at this rate"
                    await moving.go_on()
                if stage == STAGES[2]:
                    await moving.holds_back(False)
                operator = await leading(moving.cluster, moving.client)
                source = next(node for node in (1, 2) if node != operator)
                await moving.struck({"operator": operator, "source": source, "target": 3}[victim])
                await moving.holds_back(False)
                await moving.until_still()
                await expect_new_life(moving.client, 3)
                await moving.go_on()

    run(main())
