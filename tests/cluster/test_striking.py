"""What a person orders besides moves, and whoever has to do with it is killed: leaders, copies fewer, disks.

Operations are struck at each stage, under load, with topics of all four protocols in one cluster. What stands in
the end is compared with what was acknowledged, and every copy with every other (fault_support.py); the same order,
given again, comes to its end. Killed are the node that leads the metadata group, where operators and controllers
are, one that gives, one that gets, and the command itself:

| operation | where |
| --- | --- |
| add and replace a copy; more copies; drain; rebalance; replace a node | test_moves.py, `ORDERS` |
| decommission | test_moves.py; its vote goes, and it is forgotten: test_striking_votes.py |
| the command itself, of each of these | test_moves.py |
| slow down | test_moves.py |
| another kind of replication, called off, too | test_turning.py |
| transfer leadership; promote and demote; a new disk | here |
| votes; who leads the metadata group; elect the preferred leaders | test_striking_votes.py |
| remove a copy; fewer copies; call off what moves | here |
| key compaction | test_compaction.py |
| backup and restore | test_backup_striking.py |
| damage is mended | test_mending.py |
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from subprocess import Popen
from time import monotonic

import pytest

from quorate.bench.cluster_processes import START_TIMEOUT_S
from quorate.machine.metadata import OPERATED, REPLICATIONS, Topic
from tests.cluster.fault_support import PARTITIONS_COUNT, transferred_in, written_to
from tests.cluster.handing_stages import HANDING_OVER, Handing, Ordered, about_to_hand_over, heir
from tests.cluster.moving_stages import STAGES
from tests.cluster.support import LOOK_EVERY_S, run, until_caught
from tests.cluster.test_faults import expect_new_life, leading
from tests.cluster.test_moves import SLOW_S, VICTIMS, Moving, four_nodes

pytestmark = [pytest.mark.cluster, pytest.mark.proof]

MORE_COUNT = 60
"""Acknowledged of each topic between two kills."""
PROMOTED = "confirm"
"""Leaders of its tables are promoted and demoted; those of the others hand over."""
REMOVING = ("as it is ordered", "while it cannot be settled", "as it can be settled")
FEWER = {"a copy less": "topic remove {kind} --node 3", "fewer copies": "topic alter {kind} --replicas 2"}


# --- leaders ---


async def caught_handing_over(moving: Moving, topic: str, verb: str, victim: str, stage: str) -> bool:
    """Whether one was killed when it was so far; in any case it comes about, ordered again."""
    cluster, client = moving.cluster, moving.client
    handing = await about_to_hand_over(cluster, client, topic, verb)
    order = Ordered(cluster, client, handing)
    is_caught = await order.is_seen(stage)
    hit = handing.hit(victim)
    if victim == "target" and stage == HANDING_OVER[2]:
        hit = await heir(cluster, client, handing)
    if is_caught:
        await moving.kill(hit)
    cluster.heal()
    if is_caught:
        cluster.nodes[hit].start()
    await moving.go_on()
    await order.ends()
    await cluster.until_registered(client)
    await comes_about(moving, handing)
    return is_caught


async def comes_about(moving: Moving, handing: Handing) -> None:
    """A busy group has more than who is promoted, and says NAY unless its leader has just stopped: typed again."""
    deadline = monotonic() + 2 * START_TIMEOUT_S  # Two commands each time, on a machine that is busy.
    topic, target = handing.topic, handing.target
    to = "" if topic == OPERATED else f" --to {target}"
    lines = [f"topic transfer {topic}/0{to}"]
    if handing.verb != "transfer":
        lines = [f"table demote {topic}", f"table promote {topic} --node {target}"]
    while any([(done := await asyncio.to_thread(moving.person.types, line)).returncode for line in lines]):
        assert monotonic() < deadline, done.stderr


async def hand_over_all(moving: Moving, stage: str, verbs: dict[str, Sequence[str]]) -> None:
    for kind in REPLICATIONS:
        for verb in verbs.get(kind, ("transfer",)):
            for victim in VICTIMS:
                await until_caught(
                    f"{verb} {kind}: {victim} was never killed {stage}",
                    partial(caught_handing_over, moving, kind, verb, victim, stage),
                )


@pytest.mark.parametrize("stage", HANDING_OVER)
def test_whoever_is_killed_while_leadership_is_handed_over(tmp_path: Path, stage: str) -> None:
    async def main() -> None:
        async with (
            written_to(tmp_path, more_count=MORE_COUNT) as (cluster, writers),
            cluster.client() as client,
        ):
            await hand_over_all(Moving(cluster, client, writers), stage, {})

    run(main())


@pytest.mark.parametrize("stage", HANDING_OVER)
def test_whoever_is_killed_while_leaders_of_tables_are_promoted_and_demoted(
    tmp_path: Path, stage: str
) -> None:
    """`quorate table promote` and `demote` are orders of `confirm`; leaders of the other three hand over."""

    async def main() -> None:
        async with transferred_in(tmp_path) as (cluster, banks), cluster.client() as client:
            await hand_over_all(Moving(cluster, client, banks), stage, {PROMOTED: ("demote", "promote")})

    run(main())


# --- fewer copies ---


@pytest.mark.parametrize("stage", REMOVING)
@pytest.mark.parametrize("name", FEWER)
def test_whoever_is_killed_while_copies_are_removed(tmp_path: Path, name: str, stage: str) -> None:
    """One of three copies goes. Of the two that stay both are needed, so with one cut off nothing is settled."""
    removing = caught_removing_one if stage == REMOVING[0] else caught_removing_all
    each = [(kind,) for kind in REPLICATIONS] if stage == REMOVING[0] else [REPLICATIONS]

    async def main() -> None:
        async with (
            written_to(tmp_path, more_count=MORE_COUNT) as (cluster, writers),
            cluster.client() as client,
        ):
            moving = Moving(cluster, client, writers)
            for hit in cluster.nodes:
                for kinds in each:
                    lines = [FEWER[name].format(kind=kind) for kind in kinds]
                    await moving.types("cluster transfer --to 1")
                    await until_caught(
                        f"{lines}: node {hit} was never killed {stage}",
                        partial(removing, moving, lines, hit, stage),
                    )

    run(main())


async def caught_removing_one(moving: Moving, lines: Sequence[str], hit: int, stage: str) -> bool:
    """Whether a node was killed when the command had just ordered it, and it had not come about: links are slow."""
    (line,) = lines
    for node in moving.cluster.nodes:
        moving.cluster.slow_down(node, SLOW_S)
    command = moving.begins(f"{line} --no-wait")
    is_caught = await is_ordered(moving, command)
    await moving.kill(hit)
    await removed(moving, lines, hit)
    await asyncio.to_thread(command.wait)
    return is_caught


async def is_ordered(moving: Moving, command: Popen[bytes]) -> bool:
    """As soon as node 1 knows of it, which takes the order; False: it came about before anybody looked."""
    while command.poll() is None:
        if await ordered(moving):
            return True
        await asyncio.sleep(LOOK_EVERY_S)
    return False


async def ordered(moving: Moving) -> set[str]:
    """The topics of which something has not come about, as node 1 knows without asking anybody."""
    return {topic.name for topic in (await moving.client.image(1)).topics if topic.changes}


async def caught_removing_all(moving: Moving, lines: Sequence[str], hit: int, stage: str) -> bool:
    moving.cluster.cut_off(2)
    await moving.go_on()  # So node 2 has less than it needs to count without node 3.
    for line in lines:
        await moving.types(f"{line} --no-wait")
    assert await moving.changing() == set(REPLICATIONS), "settled without node 2"
    is_caught = True
    if stage == REMOVING[2]:
        for node in moving.cluster.nodes:  # It is healed, and what was said meanwhile is yet to be heard.
            moving.cluster.slow_down(node, SLOW_S)
        is_caught = await ordered(moving) == set(REPLICATIONS)
    await moving.kill(hit)
    await removed(moving, lines, hit)
    return is_caught


async def removed(moving: Moving, lines: Sequence[str], hit: int) -> None:
    """A node was killed: it comes about in any case, and is taken back."""
    moving.cluster.nodes[hit].start()
    moving.cluster.heal()
    await moving.go_on()
    await moving.cluster.until_registered(moving.client)
    for line in lines:
        await moving.types(line)
    await moving.until_still()
    assert sum((await moving.held()).values()) == 24 - PARTITIONS_COUNT * len(lines)
    await moving.go_on()
    for kind in REPLICATIONS:
        await moving.types(f"topic alter {kind} --replicas 3")
    await moving.go_on()


# --- what is called off ---


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("line", ["cluster stop-moves", "topic cancel {kind}"], ids=["all", "each"])
@pytest.mark.parametrize("is_away", [True, False], ids=["before it is called off", "as it is called off"])
def test_whoever_is_killed_while_moves_are_called_off(
    tmp_path: Path, is_away: bool, line: str, stage: str
) -> None:
    """Node 3's copies are on their way to node 4, and stay where they are, unless they are there already."""

    async def main() -> None:
        async with four_nodes(tmp_path) as moving:
            for victim in VICTIMS:
                await until_caught(
                    f"{victim} was never killed {stage}",
                    partial(caught_calling_off, moving, line, victim, stage, is_away),
                )

    run(main())


async def caught_calling_off(moving: Moving, line: str, victim: str, stage: str, is_away: bool) -> bool:
    """Whether one was killed when what is called off was so far; in any case all copies stay, or come back.

    It is away while that is called off; or it is killed when the first of it was.
    """
    before = await moving.held()
    operator = await leading(moving.cluster, moving.client)
    hit = {"operator": operator, "source": 3, "target": 4}[victim]
    await moving.before(stage, 4)
    for kind in REPLICATIONS:
        await moving.types(f"topic replace {kind} --node 3 --with 4 --no-wait")
    assert await moving.changing() == set(REPLICATIONS)
    is_caught = await moving.is_seen(operator, stage, 4)
    if is_caught and is_away:
        await moving.kill(hit)
        moving.cluster.heal()
    lines = dict.fromkeys(line.format(kind=kind) for kind in REPLICATIONS)
    commands = [moving.begins(each) for each in lines]
    if is_caught and not is_away:
        is_caught = await is_called_off(moving, operator, commands)
        await moving.kill(hit)
    moving.cluster.heal()
    await moving.go_on()
    await has_only_to_come_back(moving, hit, commands)
    if moving.cluster.nodes[hit].process is None:
        moving.cluster.nodes[hit].start()
    for command in commands:
        await asyncio.to_thread(command.wait)  # Nodes talk through proxies of this loop.
    await moving.cluster.until_registered(moving.client)
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


async def has_only_to_come_back(moving: Moving, hit: int, commands: Sequence[Popen[bytes]]) -> None:
    """Until all is called off, or what is left has to have its copy there again, which counts no more."""
    alive = next(node for node in moving.cluster.nodes if node != hit)
    while any(command.poll() is None for command in commands):
        topics = (await moving.client.image(alive)).topics
        left = [change.wanted for topic in topics for change in topic.changes.values()]
        if left and all(any(member.node == hit for member in wanted) for wanted in left):
            return
        await asyncio.sleep(LOOK_EVERY_S)


async def is_called_off(moving: Moving, operator: int, commands: Sequence[Popen[bytes]]) -> bool:
    """As soon as some of it is, by the commands, which are under way."""
    while all(command.poll() is None for command in commands):
        topics = (await moving.client.image(operator)).topics
        if any(3 in nodes_at_rest(topic) for topic in topics):
            return True
        await asyncio.sleep(LOOK_EVERY_S)
    return False


def nodes_at_rest(topic: Topic) -> set[int]:
    """Of partitions none of whose copies is to move: those who have copies."""
    still = [ensemble for number, ensemble in enumerate(topic.ensembles) if number not in topic.changes]
    return {member.node for ensemble in still for member in ensemble}


# --- a disk that is lost ---


@pytest.mark.parametrize("stage", STAGES)
def test_whoever_is_killed_while_a_new_disk_is_filled(tmp_path: Path, stage: str) -> None:
    """Node 3 loses its disk, again and again; another copy that its new ones come from is killed, or node 3 is."""

    async def main() -> None:
        async with four_nodes(tmp_path) as moving:
            for victim in VICTIMS:
                await until_caught(
                    f"{victim} was never killed {stage}", partial(caught_filling, moving, victim, stage)
                )

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
