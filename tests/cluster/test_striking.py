"""What a person orders besides moves, and whoever has to do with it is killed: leaders, copies fewer, disks.

Operations are struck at each stage, under load, with topics of all four protocols in one cluster. What stands in
the end is compared with what was acknowledged, and every copy with every other (fault_support.py); the same order,
given again, comes to its end. Killed are the node that leads the metadata group, where operators and controllers
are, one that gives, one that gets, and the command itself:

| operation | where |
| --- | --- |
| add and replace a copy; more copies; drain; rebalance; replace a node | test_moves.py, `ORDERS` |
| decommission | test_moves.py |
| the command itself, of each of these | test_moves.py |
| slow down | test_moves.py |
| another kind of replication, called off, too | test_turning.py |
| transfer leadership; promote and demote; a new disk | here |
| votes; who leads the metadata group; elect the preferred leaders | test_striking_votes.py |
| remove a copy; fewer copies; call off what moves | here |
| key compaction | test_compaction.py |
| backup and restore | test_backup_striking.py |
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

from quorate.bench.cluster_processes import START_TIMEOUT_S
from quorate.client import AsyncTableGroup, ClientError
from quorate.core.entry import Partition, partition_of
from quorate.machine.metadata import OPERATED, REPLICATIONS
from quorate.node.client import BadRequest, NotDone, OutcomeUnknown
from tests.cluster.fault_support import transferred_in, written_to
from tests.cluster.growing import held_by
from tests.cluster.moving_stages import STAGES
from tests.cluster.support import TRIES_MAX, run
from tests.cluster.test_faults import expect_new_life, leading
from tests.cluster.test_moves import VICTIMS, Moving, four_nodes

pytestmark = [pytest.mark.cluster, pytest.mark.proof]

HANDING_OVER = ("as it is ordered", "while the heir catches up", "as the heir leads")
MORE_COUNT = 60
"""Acknowledged of each topic between two kills."""
PROMOTED = "confirm"
"""Its leaders are promoted and demoted; those of the others hand over."""
ORDER_TIMEOUT_S = 5.0
UNDER_WAY_S = 0.05
"""So long after an order was given somebody is killed, if it is not done by then."""
REMOVING = ("as it is ordered", "while it cannot be settled", "as it can be settled")
FEWER = {"a copy less": "topic remove {kind} --node 3", "fewer copies": "topic alter {kind} --replicas 2"}


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
            await asyncio.wait({order}, timeout=UNDER_WAY_S)
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


async def table_order(moving: Moving, verb: str, kind: str, id_: bytes, target: int) -> None:
    """Given once, whatever comes of it."""
    if verb == "transfer":
        await ends(moving.client.transfer(partition_of(id_, 0), 0 if kind == OPERATED else target))
        return
    with suppress(ClientError):
        async with AsyncTableGroup(moving.cluster.bootstrap, kind, timeout_s=ORDER_TIMEOUT_S) as group:
            await (group.demote() if verb == "demote" else group.promote(target))


async def comes_about(moving: Moving, kind: str, target: int) -> None:
    """A busy group has more than who is promoted, and says NAY unless its leader has just stopped: typed again."""
    deadline = monotonic() + 2 * START_TIMEOUT_S  # Two commands each time, on a machine that is busy.
    to = "" if kind == OPERATED else f" --to {target}"
    lines = [f"topic transfer {kind}{to}"]
    if kind == PROMOTED:
        lines = [f"table demote {kind}", f"table promote {kind} --node {target}"]
    while any([(done := await asyncio.to_thread(moving.person.types, line)).returncode for line in lines]):
        assert monotonic() < deadline, done.stderr


async def struck_while(moving: Moving, verb: str, kind: str, victim: str, stage: str) -> None:
    """A group of tables gets another leader; one of both, or who leads the metadata group, is killed meanwhile."""
    (group,) = (await moving.client.image(1, (kind,), current=True)).topics
    source = await moving.cluster.leader(moving.client, partition_of(group.id, 0))
    target = next(node for node in moving.cluster.nodes if node != source)
    operator = await leading(moving.cluster, moving.client)
    hit = {"operator": operator, "source": source, "target": target}[victim]
    heir, is_held = moving.cluster.nodes[target], stage == HANDING_OVER[1]
    if is_held:
        heir.send(signal.SIGSTOP)
    try:
        order = asyncio.create_task(table_order(moving, verb, kind, group.id, target))
        if stage == HANDING_OVER[2]:
            await order
        else:
            await asyncio.wait({order}, timeout=UNDER_WAY_S)
        moving.cluster.nodes[hit].kill()
    finally:
        if is_held and hit != target:
            heir.send(signal.SIGCONT)
    moving.cluster.nodes[hit].start()
    await moving.go_on()
    await order
    await moving.cluster.until_registered(moving.client)
    await comes_about(moving, kind, target)


@pytest.mark.parametrize("stage", HANDING_OVER)
def test_whoever_is_killed_while_leaders_of_tables_are_promoted_and_demoted(
    tmp_path: Path, stage: str
) -> None:
    """`quorate table promote` and `demote` are orders of `confirm`; leaders of the other three hand over."""

    async def main() -> None:
        async with transferred_in(tmp_path) as (cluster, banks), cluster.client() as client:
            moving = Moving(cluster, client, banks)
            for kind in REPLICATIONS:
                for verb in ("demote", "promote") if kind == PROMOTED else ("transfer",):
                    for victim in VICTIMS:
                        await struck_while(moving, verb, kind, victim, stage)

    run(main())


# --- fewer copies ---


@pytest.mark.parametrize("stage", REMOVING)
@pytest.mark.parametrize("name", FEWER)
def test_whoever_is_killed_while_copies_are_removed(tmp_path: Path, name: str, stage: str) -> None:
    """One of three copies goes. Of the two that stay both are needed, so with one cut off nothing is settled."""

    async def main() -> None:
        async with (
            written_to(tmp_path, more_count=MORE_COUNT) as (cluster, writers),
            cluster.client() as client,
        ):
            moving = Moving(cluster, client, writers)
            for hit in cluster.nodes:
                await moving.types("cluster transfer --to 1")
                if stage != REMOVING[0]:
                    cluster.cut_off(2)
                    await moving.go_on()  # So node 2 has less than it needs to count without node 3.
                for kind in REPLICATIONS:
                    await moving.types(f"{FEWER[name].format(kind=kind)} --no-wait")
                if stage != REMOVING[0]:
                    assert await moving.changing() == set(REPLICATIONS), "settled without node 2"
                if stage == REMOVING[2]:
                    cluster.heal()
                cluster.nodes[hit].kill()
                cluster.nodes[hit].start()
                cluster.heal()
                await moving.go_on()
                await cluster.until_registered(client)
                for kind in REPLICATIONS:
                    await moving.types(FEWER[name].format(kind=kind))
                await moving.until_still()
                assert sum((await moving.held()).values()) == 16
                await moving.go_on()
                for kind in REPLICATIONS:
                    await moving.types(f"topic alter {kind} --replicas 3")
                await moving.go_on()

    run(main())


# --- what is called off ---


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("line", ["cluster stop-moves", "topic cancel {kind}"], ids=["all", "each"])
def test_whoever_is_killed_while_moves_are_called_off(tmp_path: Path, line: str, stage: str) -> None:
    """Node 3's copies are on their way to node 4, and stay where they are, unless they are there already."""

    async def main() -> None:
        async with four_nodes(tmp_path) as moving:
            for victim in VICTIMS:
                for _ in range(TRIES_MAX):
                    if await caught_calling_off(moving, line, victim, stage):
                        break
                else:
                    raise AssertionError(f"{victim} was never killed {stage}")

    run(main())


async def caught_calling_off(moving: Moving, line: str, victim: str, stage: str) -> bool:
    """Whether one was killed when what is called off was so far; in any case all copies stay, or come back."""
    before = await moving.held()
    operator = await leading(moving.cluster, moving.client)
    await moving.holds_back(True)
    for kind in REPLICATIONS:
        await moving.types(f"topic replace {kind} --node 3 --with 4 --no-wait")
    assert await moving.changing() == set(REPLICATIONS)
    is_caught = stage == STAGES[0] or await moving.is_seen(operator, stage)
    lines = dict.fromkeys(line.format(kind=kind) for kind in REPLICATIONS)
    commands = [moving.begins(each) for each in lines]
    if is_caught:
        await moving.struck({"operator": operator, "source": 3, "target": 4}[victim])
    for command in commands:
        await asyncio.to_thread(command.wait)  # Nodes talk through proxies of this loop.
    for each in lines:
        await moving.types(each)
    assert await moving.changing() == set()
    await moving.lets_go()
    if stage == STAGES[2]:
        for kind in REPLICATIONS:
            await moving.types_again(f"topic replace {kind} --node 4 --with 3")
    assert await moving.held() == before
    await moving.go_on()
    return is_caught


# --- a disk that is lost ---


@pytest.mark.parametrize("stage", STAGES)
def test_whoever_is_killed_while_a_new_disk_is_filled(tmp_path: Path, stage: str) -> None:
    """Node 3 loses its disk, again and again; another copy that its new ones come from is killed, or node 3 is."""

    async def main() -> None:
        async with four_nodes(tmp_path) as moving:
            for victim in VICTIMS:
                for _ in range(TRIES_MAX):
                    if await caught_filling(moving, victim, stage):
                        break
                else:
                    raise AssertionError(f"{victim} was never killed {stage}")

    run(main())


async def caught_filling(moving: Moving, victim: str, stage: str) -> bool:
    """Whether one was killed when it was so far; in any case it comes to its end."""
    lost = moving.cluster.nodes[3]
    lost.kill()
    shutil.rmtree(lost.directory)
    lost.format(replaces=True)
    await moving.go_on()
    lost.start()
    await moving.cluster.until_registered(moving.client)
    operator = await leading(moving.cluster, moving.client)
    source = next(node for node in (1, 2) if node != operator)
    await moving.holds_back(True)
    command = moving.begins("cluster replace 3 --no-wait")
    is_caught = await moving.is_seen(operator, stage)
    if is_caught:
        await moving.struck({"operator": operator, "source": source, "target": 3}[victim])
    await moving.lets_go()
    await asyncio.to_thread(command.wait)  # Nodes talk through proxies of this loop.
    await moving.types_again("cluster replace 3")
    await moving.until_still()
    await expect_new_life(moving.client, 3)
    await moving.go_on()
    return is_caught
