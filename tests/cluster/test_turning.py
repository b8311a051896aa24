"""Topics go from one kind of replication to another while they are written to, and nodes are killed meanwhile.

`quorate topic alter --replication`, as a person types it. Whatever was acknowledged is there once in the end, on
every copy, byte for byte; and whoever writes sees no more of it than a short retry (steady.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from quorate.core.entry import partition_of
from quorate.machine.metadata import REPLICATIONS
from quorate.node.client import Client
from tests.cluster.fault_support import Load, go_on, transferred_in, written_to
from tests.cluster.person import Operator
from tests.cluster.proxied import ProxiedCluster
from tests.cluster.steady import RETRY_OF_KILLED_S, written_steadily
from tests.cluster.support import run
from tests.cluster.test_faults import killed, leading

pytestmark = pytest.mark.cluster

STAGES = ("as it is ordered", "while protocols end", "as copies turn")
VICTIMS = ("leader", "metadata leader", "follower")


def shifted(shift: int) -> dict[str, str]:
    """By topic, each named as the kind that it begins with: another kind. Three shifts are all twelve pairs."""
    count = len(REPLICATIONS)
    return {kind: REPLICATIONS[(place + shift) % count] for place, kind in enumerate(REPLICATIONS)}


class Person:
    def __init__(self, cluster: ProxiedCluster, client: Client) -> None:
        self.cluster, self.client = cluster, client
        self._operator = Operator(cluster.bootstrap)

    async def types(self, line: str) -> str:
        return await asyncio.to_thread(self._operator.brings_about, line)

    async def orders(self, turns: dict[str, str]) -> None:
        for topic, to in turns.items():
            await self.types(f"topic alter {topic} --replication {to} --no-wait")

    async def until_turned(self, turns: dict[str, str]) -> None:
        async def turned() -> bool | None:
            image = await self.client.image(next(iter(self.cluster.nodes)), current=True)
            found = {topic.name: (topic.replication, topic.turning) for topic in image.topics}
            return all(found[topic] == (to, None) for topic, to in turns.items()) or None

        await self.cluster.until(turned, f"{turns}")

    async def until_some_turned(self) -> None:
        async def some() -> bool | None:
            image = await self.client.image(next(iter(self.cluster.nodes)), current=True)
            return any(topic.turned for topic in image.topics) or None

        await self.cluster.until(some, "a partition to turn")

    async def victim(self, which: str, topic: str) -> int:
        image = await self.client.image(next(iter(self.cluster.nodes)), current=True)
        (found,) = [each for each in image.topics if each.name == topic]
        if which == "metadata leader":
            return await leading(self.cluster, self.client)
        leads = await self.cluster.leader(self.client, partition_of(found.id, 0))
        return leads if which == "leader" else next(node for node in self.cluster.nodes if node != leads)


def test_every_kind_becomes_another_under_load_and_whoever_leads_is_killed(tmp_path: Path) -> None:
    turns = shifted(1)

    async def main() -> None:
        async with written_to(tmp_path) as (cluster, writers), cluster.client() as client:
            person = Person(cluster, client)
            async with written_steadily(writers) as pauses:
                await turned(person, writers, turns)
            pauses.expect_short(in_words(turns))
            shown = await person.types("topic describe raft")
            assert shown.startswith("Topic raft, coordinated")
            hit = await leading(cluster, client)
            back = shifted(0)
            async with written_steadily(writers) as pauses:
                await person.orders(back)
                await killed(cluster, writers, hit)
                await cluster.until_registered(client)
                await person.until_turned(back)
            pauses.expect_short("back, and a node is killed", RETRY_OF_KILLED_S)

    run(main())


async def turned(person: Person, writers: Sequence[Load], turns: dict[str, str]) -> None:
    """Ordered and waited for, with writes before, meanwhile and after."""
    await go_on(writers)
    await person.orders(turns)
    await person.until_turned(turns)
    await go_on(writers)


def in_words(turns: dict[str, str]) -> str:
    return ", ".join(f"topic {topic} to {to}" for topic, to in turns.items())


@pytest.mark.proof
@pytest.mark.parametrize("shift", [1, 2, 3])
def test_whoever_writes_sees_a_short_retry_and_no_more(tmp_path: Path, shift: int) -> None:
    """From each kind to each other one, in three runs; and back, and once more."""

    async def main() -> None:
        async with written_to(tmp_path) as (cluster, writers), cluster.client() as client:
            person = Person(cluster, client)
            for turns in (shifted(shift), shifted(0)) * 2:
                async with written_steadily(writers) as pauses:
                    await turned(person, writers, turns)
                pauses.expect_short(in_words(turns))

    run(main())


@pytest.mark.proof
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("shift", [1, 2, 3])
def test_whoever_is_killed_at_whatever_stage_it_goes_on(tmp_path: Path, shift: int, stage: str) -> None:
    async def main() -> None:
        async with written_to(tmp_path) as (cluster, writers), cluster.client() as client:
            person = Person(cluster, client)
            for number, which in enumerate(VICTIMS):
                turns = shifted(shift if number % 2 == 0 else 0)
                hit = await person.victim(which, REPLICATIONS[number])
                async with written_steadily(writers) as pauses:
                    await struck(person, writers, turns, hit, stage)
                    await cluster.until_registered(client)
                    await person.until_turned(turns)
                    await go_on(writers)
                pauses.expect_short(f"{which} killed {stage}, {in_words(turns)}", RETRY_OF_KILLED_S)

    run(main())


async def struck(
    person: Person, writers: Sequence[Load], turns: dict[str, str], hit: int, stage: str
) -> None:
    """Order it, and have that node killed when it has come so far."""
    if stage == STAGES[0]:
        first = dict([next(iter(turns.items()))])
        await person.orders(first)
        await killed(person.cluster, writers, hit)
        await person.cluster.until_registered(person.client)
        await person.orders(turns)
        return
    await person.orders(turns)
    if stage == STAGES[2]:
        await person.until_some_turned()
    await killed(person.cluster, writers, hit)


@pytest.mark.proof
def test_a_turn_is_called_off_again_and_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with written_to(tmp_path) as (cluster, writers), cluster.client() as client:
            person = Person(cluster, client)
            for shift in (1, 2, 3):
                await person.orders(shifted(shift))
                await person.orders(shifted(0))
                await go_on(writers)
                await person.until_turned(shifted(0))

    run(main())


@pytest.mark.proof
@pytest.mark.parametrize("is_away", [True, False], ids=["before it is called off", "as it is called off"])
def test_whoever_is_killed_a_turn_is_called_off(tmp_path: Path, is_away: bool) -> None:
    async def main() -> None:
        async with written_to(tmp_path) as (cluster, writers), cluster.client() as client:
            person = Person(cluster, client)
            for shift, which in enumerate(VICTIMS, 1):
                hit = cluster.nodes[await person.victim(which, REPLICATIONS[shift])]
                await person.orders(shifted(shift))
                if is_away:
                    hit.kill()
                await person.orders(shifted(0))
                if not is_away:
                    hit.kill()
                await go_on(writers)
                hit.start()
                await cluster.until_registered(client)
                await person.until_turned(shifted(0))

    run(main())


@pytest.mark.proof
@pytest.mark.parametrize("shift", [1, 2, 3])
def test_groups_of_tables_turn_too(tmp_path: Path, shift: int) -> None:
    turns = shifted(shift)

    async def main() -> None:
        async with transferred_in(tmp_path) as (cluster, banks), cluster.client() as client:
            person = Person(cluster, client)
            await person.orders(turns)
            await killed(cluster, banks, await leading(cluster, client))
            await cluster.until_registered(client)
            await person.until_turned(turns)
            await go_on(banks)

    run(main())
