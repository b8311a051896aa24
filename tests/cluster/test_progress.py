"""Everything that takes long tells how far it is, ends at Ctrl-C with what to type next, and what it says is so.

Each command is held up, watched, and interrupted, twice. Then the commands that it named itself are typed: the one
that calls it off, after which nothing of it is open, each node is to hold as much as before, and none is drained
that was not (votes are not compared), and the one that goes on, after which all is as it was ordered.
How `quorate backup` does it is in test_backup.py.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from quorate.core.entry import Partition, partition_of
from quorate.machine.metadata import METADATA
from tests.cluster.fault_support import written_to
from tests.cluster.growing import held_by
from tests.cluster.support import run
from tests.cluster.test_faults import expect_new_life, leading
from tests.cluster.test_moves import EMPTIED, FEW_COUNT, FEW_VALUE_BYTES, Moving
from tests.cluster.watched import Watched, advised

pytestmark = [pytest.mark.cluster, pytest.mark.proof]


class Long(NamedTuple):
    """A command that takes long, where something holds it up."""

    line: str
    says: str
    """In its lines of progress."""
    off: str = ""
    """What it is said to be called off by; empty where there is nothing to go back to."""
    undone: Sequence[str] = ()
    """So that all is as it was, for the next one."""


MOVES = {
    "a copy more": Long(
        "topic add raft --node 4",
        "raft/0: to be on ",
        "topic cancel raft",
        ["topic remove raft --node 4"],
    ),
    "a copy elsewhere": Long(
        "topic replace isr --node 3 --with 4",
        "isr/0: to be on ",
        "topic cancel isr",
        ["topic replace isr --node 4 --with 3"],
    ),
    "more copies": Long(
        "topic alter confirm --replicas 4",
        "confirm/0: to be on ",
        "cluster stop-moves",
        ["topic remove confirm --node 4"],
    ),
    "replace": Long(
        "cluster replace 3 --with 4",
        "/0: to be on ",
        "cluster stop-moves",
        ["cluster replace 4 --with 3"],
    ),
    "drain": Long(
        "cluster drain 3",
        "/0: to be on ",
        "cluster stop-moves",
        ["cluster drain 3 --undo", *EMPTIED],
    ),
    "rebalance": Long("cluster rebalance", ": to be on ", "cluster stop-moves", EMPTIED),
    "decommission": Long("cluster decommission 3", ": to be on ", "cluster stop-moves"),
}
"""Held up by the rate at which copies are made."""

Held = Callable[[], AbstractAsyncContextManager[None]]


async def expect_said(moving: Moving, long: Long, held: Held, is_open: Callable[[], Awaitable[bool]]) -> None:
    """Interrupted, called off, ordered again, interrupted again, gone on with, and waited for when it can be."""
    if long.off:
        before, drained = await moving.held(), await moving.drained()
        async with held():
            watched = Watched(long.line, moving.cluster.bootstrap)
            await watched.until_says(long.says)
            named = advised(await watched.interrupted())
            assert named == [long.line, long.off], watched.said
            assert await is_open(), f"{long.line}: it goes on by itself"
            await moving.types(named[1])
            assert not await is_open(), f"{named[1]} calls it off"
            assert await moving.held() == before, f"{named[1]} leaves every copy where it was"
            assert await moving.drained() == drained, f"{named[1]}: the next rebalance would bring it about"
    async with held():
        watched = Watched(long.line, moving.cluster.bootstrap)
        await watched.until_says(long.says)
        named = advised(await watched.interrupted())
        assert named == [long.line, *[long.off] * bool(long.off)], watched.said
        assert await is_open(), f"{long.line}: it goes on by itself"
        again = Watched(named[0], moving.cluster.bootstrap)
        await again.until_says(long.says)
    assert await again.ends() == 0, again.said
    assert not await is_open(), f"{named[0]} waits for it"


@asynccontextmanager
async def held_back(moving: Moving) -> AsyncIterator[None]:
    await moving.holds_back(True)
    yield
    await moving.holds_back(False)


async def is_moving(moving: Moving) -> bool:
    return bool(await moving.changing())


@asynccontextmanager
async def few_written(directory: Path) -> AsyncIterator[Moving]:
    """Four nodes, the fourth without copies, and logs that are larger than what goes at any rate."""
    async with (
        written_to(directory, value_bytes=FEW_VALUE_BYTES, more_count=FEW_COUNT) as (cluster, writers),
        cluster.client() as client,
    ):
        cluster.join(4, client)
        await cluster.until_registered(client)
        moving = Moving(cluster, client, writers)
        await moving.go_on()
        yield moving
        await moving.types("cluster alter --reset quorate.moving.rate")


def test_what_moves_copies_says_how_far_it_is_and_how_to_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with few_written(tmp_path) as moving:
            for name, move in MOVES.items():
                before = await moving.held()
                await expect_said(moving, move, partial(held_back, moving), partial(is_moving, moving))
                assert await moving.held() != before, name
                await moving.go_on()
                for line in move.undone:
                    await moving.types(line)
                assert not move.undone or await moving.held() == before
            moving.cluster.nodes.pop(3).stop()  # The last of them was to decommission it.

    run(main())


def test_a_new_disk_is_filled_and_says_how_far_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with few_written(tmp_path) as moving:
            lost = moving.cluster.nodes[3]
            lost.kill()
            shutil.rmtree(lost.directory)
            lost.format(replaces=True)
            await moving.go_on()
            lost.start()
            await moving.cluster.until_registered(moving.client)

            long = Long("cluster replace 3", "/0: to be on ")
            await expect_said(moving, long, partial(held_back, moving), partial(is_moving, moving))
            await expect_new_life(moving.client, 3)

    run(main())


# --- what is held up by nodes that are not heard ---


class Leading:
    """Who leads what, in a cluster of three whose links are ours."""

    def __init__(self, moving: Moving) -> None:
        self.moving = moving

    async def partition(self, topic: str, number: int) -> Partition:
        (found,) = (await self.moving.client.image(1, (topic,), current=True)).topics
        return partition_of(found.id, number)

    async def of(self, partition: Partition) -> int:
        return await self.moving.cluster.leader(self.moving.client, partition)

    @asynccontextmanager
    async def deaf(self, node: int) -> AsyncIterator[None]:
        """Who asks it is answered; what other nodes say does not get there."""
        self.moving.cluster.cut_off(node, of=False)
        yield
        self.moving.cluster.heal()


def test_what_makes_others_lead_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            written_to(tmp_path, more_count=FEW_COUNT) as (cluster, writers),
            cluster.client() as client,
        ):
            moving = Moving(cluster, client, writers)
            leads = Leading(moving)
            partition = await leads.partition("raft", 1)
            leader = await leads.of(partition)
            heir = next(node for node in cluster.nodes if node != leader)
            line = f"topic transfer raft/1 --to {heir}"
            await leads_in_the_end(leads, Long(line, f"raft/1: node {heir} is to lead"), partition, heir)
            (raft,) = (await client.image(1, ("raft",), current=True)).topics
            first = raft.ensembles[1][0].node
            if await leads.of(partition) == first:
                other = next(node for node in cluster.nodes if node != first)
                await moving.types(f"topic transfer raft/1 --to {other}")
            says = f"raft/1: node {first} is to lead"
            await leads_in_the_end(leads, Long("topic elect raft", says), partition, first)
            leader = await leading(cluster, client)
            voter = next(node for node in cluster.nodes if node != leader)
            says = f"the metadata group: node {voter} is to lead"
            await leads_in_the_end(leads, Long(f"cluster transfer --to {voter}", says), METADATA, voter)

    run(main())


async def leads_in_the_end(leads: Leading, long: Long, partition: Partition, heir: int) -> None:
    """A leader that hands over waits for its heir; who waits for it may go."""
    async with leads.deaf(heir):
        watched = Watched(long.line, leads.moving.cluster.bootstrap)
        await watched.until_says(long.says)
        said = await watched.interrupted()
        assert said.startswith("the order may be given already; it goes on by itself then; "), said
        assert advised(said) == [long.line], said
    await leads.moving.types(advised(said)[0])
    assert await leads.of(partition) == heir


def test_fewer_copies_and_votes_and_another_kind_say_how_far_they_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with few_written(tmp_path) as moving:
            cluster, client = moving.cluster, moving.client

            @asynccontextmanager
            async def away() -> AsyncIterator[None]:
                cluster.cut_off(2)
                yield
                cluster.heal()

            await moving.types("cluster transfer --to 1")
            fewer = Long("topic remove confirm --node 3", "confirm/0: to be on ", "topic cancel confirm")
            await expect_said(moving, fewer, away, partial(is_moving, moving))
            await moving.types("topic add confirm --node 3")

            @asynccontextmanager
            async def stands_still() -> AsyncIterator[None]:
                cluster.nodes[4].send(signal.SIGSTOP)
                yield
                cluster.nodes[4].send(signal.SIGCONT)

            async def is_voted_on() -> bool:
                held = held_by(await cluster.answers(client), METADATA).values()
                return any(each.membership.wanted is not None for each in held if each.role == "leader")

            votes = Long("cluster add 4", "the metadata group: to vote 1, 2, 3, 4", "cluster remove 4")
            await expect_said(moving, votes, stands_still, is_voted_on)
            await moving.types("cluster remove 4")

            async def turns() -> bool:
                (pair,) = (await client.image(1, ("pair",), current=True)).topics
                return pair.turning is not None

            await moving.types("topic create pair --partitions 1 --replicas 2 --replication raft")
            await moving.types("topic alter pair --replicas 3")
            await moving.types("topic remove pair --node 3,4")
            turn = Long(
                "topic alter pair --replication isr",
                "pair: to be replicated by isr: 0 of 1 partition so far",
                "topic alter pair --replication raft",
            )
            await expect_said(moving, turn, away, turns)
            await moving.types("topic delete pair")

    run(main())
