"""Topics go from one kind of replication to another while they are written to, and nodes are killed meanwhile.

`quorate topic alter --replication`, as a person types it. Whatever was acknowledged is there once in the end, on
every copy, byte for byte; and whoever writes sees no more of it than a short retry (steady.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from quorate.machine.metadata import REPLICATIONS
from quorate.machine.turning import TurnTopic
from quorate.node.client import Client
from tests.cluster.fault_support import Load, go_on, transferred_in, written_to
from tests.cluster.person import Operator
from tests.cluster.proxied import ProxiedCluster
from tests.cluster.steady import RETRY_OF_KILLED_S, written_steadily
from tests.cluster.support import run, until_caught
from tests.cluster.turning_stages import (
    COPIES,
    ENDED,
    LED,
    STAGES,
    Seen,
    Turn,
    about_to_turn,
    slowed_down,
    until_called_off,
    until_seen,
)
from tests.cluster.watched import Watched

pytestmark = pytest.mark.cluster

VICTIMS = ("operator", "source", "target")
"""The node that leads the metadata group, the one that leads the partition before, and one whose copy is to turn;
where it is led anew, the one that leads then."""
ONE_FURTHER_TWO_AND_THREE = (1, 3, 2)
"""Shifts, one after the other."""


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

    async def replication(self, topic: str) -> str:
        image = await self.client.image(next(iter(self.cluster.nodes)), (topic,), current=True)
        return image.topics[0].replication


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
            async with written_steadily(writers) as pauses:
                await struck(person, writers, "isr", "isr", "source", ENDED)
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
def test_whoever_is_killed_at_whatever_stage_it_goes_on(tmp_path: Path, stage: str) -> None:
    """All twelve pairs of kinds: each victim is killed as each kind becomes another, and as another becomes it."""

    async def main() -> None:
        async with written_to(tmp_path) as (cluster, writers), cluster.client() as client:
            person = Person(cluster, client)
            for victim, shift in zip(VICTIMS, ONE_FURTHER_TWO_AND_THREE, strict=True):
                for topic, to in shifted(shift).items():
                    async with written_steadily(writers) as pauses:
                        await struck(person, writers, topic, to, victim, stage)
                    pauses.expect_short(f"{victim} killed {stage}, topic {topic} to {to}", RETRY_OF_KILLED_S)

    run(main())


async def struck(
    person: Person, writers: Sequence[Load], topic: str, to: str, victim: str, stage: str
) -> None:
    before = await person.replication(topic)

    async def attempt() -> bool:
        is_caught = await caught_turning(person, writers, topic, to, victim, stage)
        if not is_caught:
            await person.orders({topic: before})
            await person.until_turned({topic: before})
        return is_caught

    await until_caught(f"topic {topic} to {to}: {victim} was never killed {stage}", attempt)


async def caught_turning(
    person: Person, writers: Sequence[Load], topic: str, to: str, victim: str, stage: str
) -> bool:
    """Whether one was killed when it was so far; in any case it comes to its end."""
    cluster, client = person.cluster, person.client
    turn = await about_to_turn(cluster, client, topic, to)
    slowed_down(cluster)
    order = Watched(f"topic alter {topic} --replication {to}", cluster.bootstrap)
    if (victim, stage) == ("target", LED):
        is_caught = await heir_killed(cluster, client, turn)
    else:
        seen = await until_seen(cluster, client, turn, stage)
        is_caught = seen is not None
        if seen is not None:
            cluster.nodes[hit_by(victim, turn, seen)].kill()
    cluster.heal()
    for node in cluster.nodes.values():
        if node.process is None:
            await go_on(writers)
            node.start()
    await cluster.until_registered(client)
    await order.ends()
    await person.types(order.line)
    await person.until_turned({topic: to})
    await go_on(writers)
    return is_caught


def hit_by(victim: str, turn: Turn, seen: Seen) -> int:
    """The target is a copy that has yet to turn; or that is about to, before one can."""
    if victim == "operator":
        return turn.operator
    if victim == "source":
        return turn.source
    behind = [node for node in seen.not_turned if node != turn.source]
    return turn.third if turn.third in behind else behind[0] if behind else turn.source


async def heir_killed(cluster: ProxiedCluster, client: Client, turn: Turn) -> bool:
    """Who led before is to lead again, so it is killed as copies turn: then its heir, as soon as it leads."""
    if await until_seen(cluster, client, turn, COPIES) is None:
        return False
    cluster.nodes[turn.source].kill()
    seen = await until_seen(cluster, client, turn, LED)
    assert seen is not None
    assert seen.leads != turn.source
    cluster.nodes[seen.leads].kill()
    cluster.nodes[turn.source].start()
    return True


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
@pytest.mark.parametrize("stage", STAGES[:-1])
@pytest.mark.parametrize("is_away", [True, False], ids=["before it is called off", "as it is called off"])
def test_whoever_is_killed_a_turn_is_called_off(tmp_path: Path, is_away: bool, stage: str) -> None:
    """Called off when it was seen so far; and somebody is killed directly before, or when that is seen."""

    async def main() -> None:
        async with written_to(tmp_path) as (cluster, writers), cluster.client() as client:
            person = Person(cluster, client)
            for shift, victim in enumerate(VICTIMS, 1):
                for topic, to in shifted(shift).items():
                    await until_caught(
                        f"topic {topic} to {to}: {victim} was never killed {stage}",
                        partial(caught_calling_off, person, writers, topic, to, victim, stage, is_away),
                    )

    run(main())


async def caught_calling_off(
    person: Person,
    writers: Sequence[Load],
    topic: str,
    to: str,
    victim: str,
    stage: str,
    is_away: bool,
) -> bool:
    cluster, client = person.cluster, person.client
    turn = await about_to_turn(cluster, client, topic, to)
    slowed_down(cluster)
    order = Watched(f"topic alter {topic} --replication {to} --no-wait", cluster.bootstrap)
    seen = await until_seen(cluster, client, turn, stage)
    off = TurnTopic(turn.topic.id, topic)
    if seen is not None and is_away:
        cluster.nodes[hit_by(victim, turn, seen)].kill()
        cluster.heal()
    called_off = asyncio.create_task(cluster.settle(client, off))
    if seen is not None and not is_away:
        await until_called_off(cluster, client, turn)
        cluster.nodes[hit_by(victim, turn, seen)].kill()
    cluster.heal()
    await go_on(writers)
    for node in cluster.nodes.values():
        if node.process is None:
            node.start()
    await cluster.until_registered(client)
    await order.ends()
    await called_off
    await person.until_turned({topic: topic})
    return seen is not None


@pytest.mark.proof
@pytest.mark.parametrize("shift", [1, 2, 3])
def test_groups_of_tables_turn_too(tmp_path: Path, shift: int) -> None:
    """Each of them is struck at another stage; in another test somebody else is killed."""

    async def main() -> None:
        async with transferred_in(tmp_path) as (cluster, banks), cluster.client() as client:
            person = Person(cluster, client)
            for (topic, to), stage in zip(shifted(shift).items(), STAGES[1:], strict=True):
                await struck(person, banks, topic, to, VICTIMS[shift - 1], stage)

    run(main())
