"""Votes change, others come to lead, and whoever has to do with it is killed, at each stage of it.

What a stage is, is seen, not guessed: links between nodes are slow, or a node stands still, until the leader of the
metadata group says of its membership that it is so far, or the command tells which partition is handed over.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import pytest

from quorate.bench.cluster_processes import START_TIMEOUT_S
from quorate.core.entry import Partition
from quorate.machine.metadata import METADATA, REPLICATIONS
from quorate.node.requests import ReplicaStatus
from tests.cluster.fault_support import written_to
from tests.cluster.growing import held_by
from tests.cluster.support import run, until_caught
from tests.cluster.test_faults import leading
from tests.cluster.test_moves import FEW_COUNT, VICTIMS, Moving
from tests.cluster.watched import Watched

pytestmark = pytest.mark.cluster

ADD, REMOVE = "cluster add 4", "cluster remove 4"
VOTERS = {ADD: (1, 2, 3, 4), REMOVE: (1, 2, 3)}
"""Who votes when it is done."""
VOTING = ("as it is ordered", "while it is held up", "while both must agree")
FORGETTING = "as it is to be forgotten"
LEAVING = (*VOTING, FORGETTING)
"""Of a node that is decommissioned: how its vote goes, and what comes after."""
HANDING_OVER = ("as it is ordered", "while its heir stands still", "as its heir leads")
ELECTING = ("as the first is handed over", "as the last is handed over", "as all lead")
SLOW_S = 0.06
"""What one node says takes so long to another, and its answer, too: each step of a change is then seen, and nobody
is suspected (an election time-out is eight times as long)."""
ARRIVED_S = 2 * SLOW_S
"""By then who leads has heard what others answered before they stood still."""
LOOK_EVERY_S = 0.005
ELECTED = [kind for kind in REPLICATIONS if kind != "coordinated"]
"""Of the other an operator chooses who leads."""


def led(held: dict[int, ReplicaStatus]) -> int | None:
    """By whom, of those who say so: one that has not heard of the next epoch may still say it."""
    leaders = [node for node, replica in held.items() if replica.role == "leader"]
    return max(leaders, key=lambda node: held[node].epoch, default=None)


async def led_by(moving: Moving, partition: Partition, *, but: Sequence[int] = ()) -> int | None:
    return led(held_by(await moving.cluster.answers(moving.client, but=but), partition))


# --- votes ---


@contextmanager
def standing_still(moving: Moving, nodes: Sequence[int]) -> Iterator[None]:
    """Until this is over; who is killed meanwhile stays so."""
    for node in nodes:
        moving.cluster.nodes[node].send(signal.SIGSTOP)
    try:
        yield
    finally:
        for node in nodes:
            if moving.cluster.nodes[node].process is not None:
                moving.cluster.nodes[node].send(signal.SIGCONT)


class Voting(NamedTuple):
    """A change of the vote of a node, and who led the metadata group when it was ordered."""

    moving: Moving
    line: str
    stage: str
    leads: int
    node: int = 4

    @property
    def is_held(self) -> bool:
        return self.stage == VOTING[1]

    @property
    def held_before(self) -> list[int]:
        """One that does not follow cannot come to vote."""
        return [self.node] if self.is_held and self.line == ADD else []

    @property
    def held_as_seen(self) -> list[int]:
        """Of four voters, two alone settle nothing of what was ordered by now."""
        others = [node for node in (self.node, 3, 2) if node != self.leads]
        return others[:2] if self.is_held and self.line != ADD else []

    async def is_so_far(self, *, but: Sequence[int]) -> bool:
        """As who leads has it in its log, settled or not; nothing is seen when another leads by now."""
        answers = await self.moving.cluster.answers(self.moving.client, but=but)
        held = held_by(answers, METADATA)
        if led(held) != self.leads:
            return False
        now = held[self.leads].membership
        if self.stage == FORGETTING:
            has_vote = self.node in (member.node for member in now.ensemble)
            return now.wanted is None and not has_vote and self.node in answers[self.leads].registered
        return now.wanted is not None and (self.stage != VOTING[2] or now.is_joint)

    async def is_seen(self, command: Watched) -> bool:
        """Whether it was seen before the command was done."""
        deadline = monotonic() + START_TIMEOUT_S
        while command.process.poll() is None:
            if await self.is_so_far(but=self.held_before):
                return True
            assert monotonic() < deadline, f"{self.line} is not seen {self.stage}"
            await asyncio.sleep(LOOK_EVERY_S)
        return False

    async def stays(self) -> bool:
        """Whether it is so far still, directly before somebody is killed; what is held up goes no further."""
        but = [*self.held_before, *self.held_as_seen]
        if self.is_held:
            await asyncio.sleep(ARRIVED_S)  # What was on its way may have settled it.
        if not await self.is_so_far(but=but):
            return False
        if self.is_held:
            await asyncio.sleep(ARRIVED_S)
            now = (await self._held(but))[self.leads].membership
            assert now.wanted is not None, f"{self.line} went on without {but}"
        return True

    async def _held(self, but: Sequence[int]) -> dict[int, ReplicaStatus]:
        return held_by(await self.moving.cluster.answers(self.moving.client, but=but), METADATA)


async def caught_voting(moving: Moving, line: str, victim: str, stage: str) -> bool:
    """Whether it was so far when one was killed: who leads the metadata group, another voter, or node 4."""
    leads = await leading(moving.cluster, moving.client)
    other = next(node for node in (2, 3) if node != leads)  # By now node 4 may lead.
    hit = {"operator": leads, "source": other, "target": 4}[victim]
    voting = Voting(moving, line, stage, leads)
    for node in (1, 2, 3):
        moving.cluster.slow_down(node, SLOW_S)
    is_caught = False
    with standing_still(moving, voting.held_before):
        command = Watched(line, moving.cluster.bootstrap)
        if await voting.is_seen(command):
            with standing_still(moving, voting.held_as_seen):
                is_caught = await voting.stays()
                if is_caught:
                    await moving.kill(hit)
    moving.cluster.heal()
    if is_caught:
        moving.cluster.nodes[hit].start()
        await moving.go_on()
        await moving.cluster.until_registered(moving.client)
    await command.ends()
    await moving.types(line)
    await moving.cluster.until_voters(moving.client, VOTERS[line])
    return is_caught


async def struck_while_voting(moving: Moving, line: str, victim: str, stage: str) -> None:
    (back,) = (other for other in VOTERS if other != line)

    async def attempt() -> bool:
        is_caught = await caught_voting(moving, line, victim, stage)
        if not is_caught:
            await moving.types(back)
            await moving.cluster.until_voters(moving.client, VOTERS[back])
        return is_caught

    await until_caught(f"{line}: {victim} was never killed {stage}", attempt)


@pytest.mark.proof
@pytest.mark.parametrize("stage", VOTING)
def test_whoever_is_killed_while_votes_change(tmp_path: Path, stage: str) -> None:
    """Node 4 gets a vote, and loses it."""

    async def main() -> None:
        async with (
            written_to(tmp_path, more_count=FEW_COUNT) as (cluster, writers),
            cluster.client() as client,
        ):
            cluster.join(4, client)
            await cluster.until_registered(client)
            moving = Moving(cluster, client, writers)
            for victim in VICTIMS:
                for line in VOTERS:
                    await struck_while_voting(moving, line, victim, stage)

    run(main())


# --- a node that votes goes for good ---


async def caught_leaving(moving: Moving, node: int, victim: str, stage: str) -> bool:
    """Whether it was so far when one was killed: who leads the metadata group, the node that goes, a voter that
    stays, or the command itself."""
    leads = await leading(moving.cluster, moving.client)
    other = next(each for each in (2, 3) if each != leads)
    line = f"cluster decommission {node}"
    voting = Voting(moving, line, stage, leads, node)
    for slow in (1, 2, 3):
        moving.cluster.slow_down(slow, SLOW_S)
    is_caught = False
    command = Watched(line, moving.cluster.bootstrap)
    if leads != node and await voting.is_seen(command):
        with standing_still(moving, voting.held_as_seen):
            is_caught = await voting.stays() and command.process.poll() is None
            if is_caught and victim == "command":
                command.process.kill()
            elif is_caught:
                await moving.kill({"operator": leads, "source": node, "target": other}[victim])
    moving.cluster.heal()
    for stopped in moving.cluster.nodes.values():
        if stopped.process is None:
            stopped.start()
    await moving.go_on()
    await command.ends()
    await moving.types_again(line)
    gone = moving.cluster.nodes.pop(node)
    gone.kill()  # It may have ended: who is started when it is forgotten is not let in.
    await moving.cluster.until_registered(moving.client)
    await moving.cluster.until_voters(moving.client, VOTERS[REMOVE])
    return is_caught


@pytest.mark.proof
@pytest.mark.parametrize("stage", LEAVING)
def test_whoever_is_killed_while_a_node_that_votes_is_decommissioned(tmp_path: Path, stage: str) -> None:
    """It has no copies, so its vote goes at once; another comes in its place."""

    async def main() -> None:
        async with (
            written_to(tmp_path, more_count=FEW_COUNT) as (cluster, writers),
            cluster.client() as client,
        ):
            moving, nodes = Moving(cluster, client, writers), count(4)

            async def attempt(victim: str) -> bool:
                node = next(nodes)
                cluster.join(node, client)
                await cluster.until_registered(client)
                await moving.types(f"cluster add {node}")
                await cluster.until_voters(client, (1, 2, 3, node))
                return await caught_leaving(moving, node, victim, stage)

            for victim in (*VICTIMS, "command"):
                await until_caught(f"{victim} was never killed {stage}", partial(attempt, victim))

    run(main())


# --- who leads the metadata group ---


async def caught_handing_over(moving: Moving, victim: str, stage: str) -> bool:
    """Whether it was so far when one was killed: who leads the metadata group, its heir, or another voter."""
    leads = await leading(moving.cluster, moving.client)
    heir, other = (node for node in (1, 2, 3) if node != leads)
    hit = {"operator": leads, "source": other, "target": heir}[victim]
    held = [heir] if stage == HANDING_OVER[1] else []
    is_last = stage == HANDING_OVER[2]
    for node in (1, 2, 3):
        moving.cluster.slow_down(node, SLOW_S)
    line = f"cluster transfer --to {heir}"
    with standing_still(moving, held):
        command = Watched(line, moving.cluster.bootstrap)
        await command.until_says(f"the metadata group: node {heir} is to lead")
        if is_last:
            await command.ends()
        if held:
            await asyncio.sleep(ARRIVED_S)  # By then it was ordered, and the heir has not answered.
        is_caught = await led_by(moving, METADATA, but=held) == (heir if is_last else leads)
        if is_caught:
            await moving.kill(hit)
    moving.cluster.heal()
    if is_caught:
        moving.cluster.nodes[hit].start()
        await moving.go_on()
        await moving.cluster.until_registered(moving.client)
    await command.ends()
    await moving.types(line)
    assert await led_by(moving, METADATA) == heir
    return is_caught


@pytest.mark.proof
@pytest.mark.parametrize("stage", HANDING_OVER)
def test_whoever_is_killed_while_the_metadata_group_is_handed_over(tmp_path: Path, stage: str) -> None:
    async def main() -> None:
        async with (
            written_to(tmp_path, more_count=FEW_COUNT) as (cluster, writers),
            cluster.client() as client,
        ):
            moving = Moving(cluster, client, writers)
            for victim in VICTIMS:
                await until_caught(
                    f"{victim} was never killed {stage}", partial(caught_handing_over, moving, victim, stage)
                )

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
    await moving.kill(hit)
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
                await until_caught(
                    f"{victim} was never killed {stage}", partial(caught, moving, handed, victim, stage)
                )

    run(main())
