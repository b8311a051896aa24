"""Damage is found in three ways, and whichever it was, other copies mend it while clients are served.

All four protocols in one cluster, written to all the time. That a node was found damaged by its start, by what a
client read of it, or by its scrubber, is told apart by what it counts: nothing is read there besides.

What is found is held where that is to be looked at: the node hears nobody, so nobody's entries come.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from quorate.core.entry import Partition, partition_of
from quorate.machine.metadata import METADATA, REPLICATIONS
from quorate.node.client import Client
from quorate.storage.segment import directory_of, segment_base
from tests.cluster.counted import numbers_of, that_tells
from tests.cluster.fault_support import (
    Writer,
    differences,
    go_on,
    kill_amid_writes,
    read_everything,
    written_to,
)
from tests.cluster.proxied import ProxiedCluster
from tests.cluster.support import run, until_caught
from tests.cluster.test_faults import SCRUB_EVERY_S, SMALL_SEGMENTS, leading

pytestmark = pytest.mark.cluster

VALUE_BYTES = 2_000
SEALED_MIN = 2
NEVER = 0.0
SLOW_S = 0.1
"""What the node and the others say takes so long to each other: what is mended piece by piece is then seen."""
SAID = "cannot be read here; other copies are asked for them"


class Numbers(NamedTuple):
    """What a node counts since it was started, and how much it cannot read now."""

    damaged: int
    faulty_offsets: int
    mended_offsets: int
    scrubs: int


class Copy(NamedTuple):
    """Of the first partition of a topic of each kind, on the node that is to be damaged."""

    partition: Partition
    files: Path

    @property
    def sealed(self) -> list[Path]:
        """Segments that are full, oldest first."""
        found = [file for file in self.files.glob("*.log") if segment_base(file.name) is not None]
        return sorted(found)[:-1]


class Damaging:
    """A cluster whose nodes tell their numbers, and the bytes on the disk of one of them."""

    def __init__(self, cluster: ProxiedCluster, client: Client, writers: Sequence[Writer]) -> None:
        self.cluster, self.client, self.writers = cluster, client, writers

    async def numbers(self, node: int) -> Numbers:
        names = ("damaged_total", "faulty_offsets", "mended_offsets_total", "scrubs_total")
        return Numbers(*await numbers_of(self.cluster.nodes[node], *names))

    async def copies(self, node: int) -> dict[str, Copy]:
        """By kind; each has sealed segments, if need be by more that is written."""
        store = self.cluster.nodes[node].directory / "store"
        image = await self.client.image(node)
        partitions = {topic.name: partition_of(topic.id, 0) for topic in image.topics}
        found = {
            kind: Copy(partitions[kind], store / directory_of(partitions[kind])) for kind in REPLICATIONS
        }
        while any(len(copy.sealed) < SEALED_MIN for copy in found.values()):
            await go_on(self.writers)
        return found

    async def faulty(self, node: int) -> dict[Partition, tuple[tuple[int, int], ...]]:
        found = (await self.client.status(node)).replicas
        return {Partition(replica.partition): replica.faulty for replica in found if replica.faulty}

    async def until_faulty(self, node: int, copies: dict[str, Copy]) -> None:
        wanted = {copy.partition for copy in copies.values()}

        async def so() -> bool | None:
            return set(await self.faulty(node)) >= wanted or None

        await self.cluster.until(so, f"node {node} to know what it cannot read")

    async def until_mended(self, node: int) -> None:
        async def so() -> bool | None:
            return not await self.faulty(node) or None

        await self.cluster.until(so, f"node {node} to be mended")

    async def expect_served(self, node: int, copies: dict[str, Copy]) -> None:
        """What is whole there can be read there, and writers go on."""
        before = await self.faulty(node)
        for copy in copies.values():
            damage = before[copy.partition]
            behind = max(last for _, last in damage) + 1
            frames, _ = await self.client.fetch(node, copy.partition, behind)
            assert frames, f"nothing behind {damage}"
            assert frames[0].header.offset <= behind <= frames[0].header.last
        await go_on(self.writers)
        assert set(await self.faulty(node)) >= {copy.partition for copy in copies.values()}


def damage(segment: Path) -> None:
    """One byte is another, where it lies: whoever has the file open has it so, too."""
    with segment.open("r+b") as file:
        at = segment.stat().st_size // 3
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 0xFF]))


def cut_short(segment: Path) -> None:
    """What a start looks at is whether all are there, and as long as they are to be; not inside of them."""
    os.truncate(segment, segment.stat().st_size // 3)


@asynccontextmanager
async def damaged_in(directory: Path, *, scrub_every_s: float) -> AsyncIterator[Damaging]:
    cluster = that_tells(ProxiedCluster(directory, store=SMALL_SEGMENTS, scrub_every_s=scrub_every_s))
    async with (
        written_to(directory, cluster, value_bytes=VALUE_BYTES) as (_, writers),
        cluster.client() as client,
    ):
        yield Damaging(cluster, client, writers)


def test_what_a_start_finds_damaged_is_mended_while_clients_are_served(tmp_path: Path) -> None:
    """By the others: one that was just started knows of nothing that it is settled before it hears them."""

    async def main() -> None:
        async with damaged_in(tmp_path, scrub_every_s=NEVER) as damaging:
            cluster = damaging.cluster
            node = await leading(cluster, damaging.client)
            copies = await damaging.copies(node)
            cluster.nodes[node].kill()
            for copy in copies.values():
                cut_short(copy.sealed[0])
            cluster.cut_off(node, of=False)
            cluster.nodes[node].start()
            await damaging.until_faulty(node, copies)
            found = await damaging.numbers(node)
            assert found.damaged == 0, "nobody read it since"
            assert found.scrubs == 0
            assert found.faulty_offsets >= len(copies)
            await go_on(damaging.writers)
            assert await damaging.numbers(node) == found, "nobody is heard who could mend it"
            cluster.heal()
            await damaging.until_mended(node)
            mended = await damaging.numbers(node)
            assert mended.faulty_offsets == 0
            assert mended.mended_offsets >= found.faulty_offsets
            assert mended.damaged == 0

    run(main())


@pytest.mark.proof
def test_what_a_client_reads_damaged_is_mended_while_clients_are_served(tmp_path: Path) -> None:
    """A consumer, of the node that leads: it reads all of it, from whoever leads then."""

    async def main() -> None:
        async with damaged_in(tmp_path, scrub_every_s=NEVER) as damaging:
            for kind in REPLICATIONS:
                await until_caught(
                    f"{kind} was mended before it was seen", partial(read_damaged, damaging, kind)
                )

    run(main())


async def read_damaged(damaging: Damaging, kind: str) -> bool:
    """Whether what was damaged was seen so; in any case it is mended."""
    cluster = damaging.cluster
    (writer,) = (writer for writer in damaging.writers if writer.topic == kind)
    (topic,) = (await damaging.client.image(1, (kind,))).topics
    node = await cluster.leader(damaging.client, partition_of(topic.id, 0))
    copies = {kind: (await damaging.copies(node))[kind]}
    before, acknowledged = await damaging.numbers(node), set(writer.acknowledged)
    damage(copies[kind].sealed[0])
    cluster.slow_down(node, SLOW_S)
    reading = asyncio.create_task(asyncio.to_thread(read_everything, cluster.bootstrap, kind))

    async def found() -> Numbers | None:
        now = await damaging.numbers(node)
        return now if now.damaged > before.damaged else None

    seen = await cluster.until(found, "a read to find it")
    cluster.heal()
    cluster.cut_off(node, of=False)
    is_seen = copies[kind].partition in await damaging.faulty(node)
    if is_seen:
        await damaging.expect_served(node, copies)
        assert seen.scrubs == 0, "a read has found it"
    read = differences(await reading, acknowledged)
    assert "lost" not in read, read
    assert "doubled" not in read, read
    cluster.heal()
    await damaging.until_mended(node)
    mended = await damaging.numbers(node)
    assert mended.faulty_offsets == 0
    assert mended.mended_offsets > before.mended_offsets
    return is_seen


@pytest.mark.proof
def test_what_the_scrubber_finds_damaged_is_mended_while_clients_are_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with damaged_in(tmp_path, scrub_every_s=SCRUB_EVERY_S) as damaging:
            cluster = damaging.cluster
            node = await leading(cluster, damaging.client)
            copies = await damaging.copies(node)
            cluster.cut_off(node, of=False)
            assert (await damaging.numbers(node)).damaged == 0
            for copy in copies.values():
                damage(copy.sealed[0])
            await damaging.until_faulty(node, copies)
            said = cluster.nodes[node].output.read_text(encoding="utf-8").splitlines()
            for kind in copies:
                assert any(f"{kind}/0: offsets" in line and SAID in line for line in said), kind
            found = await damaging.numbers(node)
            assert found.damaged >= len(copies)
            assert found.scrubs > 0
            assert found.faulty_offsets >= len(copies)
            await damaging.expect_served(node, copies)
            cluster.heal()
            await damaging.until_mended(node)
            mended = await damaging.numbers(node)
            assert mended.faulty_offsets == 0
            assert mended.mended_offsets >= found.faulty_offsets

    run(main())


@pytest.mark.proof
def test_a_node_that_is_killed_while_it_is_mended_is_mended_when_it_is_back(tmp_path: Path) -> None:
    """All of its sealed segments are damaged, and mended one after the other: it is killed in between."""

    async def main() -> None:
        async with damaged_in(tmp_path, scrub_every_s=SCRUB_EVERY_S) as damaging:
            for node in damaging.cluster.nodes:
                await until_caught(
                    f"node {node} was never killed while it was mended",
                    partial(killed_mending, damaging, node),
                )

    run(main())


async def killed_mending(damaging: Damaging, node: int) -> bool:
    """Whether some was mended then, and some was not, of each kind; in any case all is in the end."""
    cluster = damaging.cluster
    copies = await damaging.copies(node)
    wanted = {copy.partition for copy in copies.values()}
    cluster.cut_off(node, of=False)
    for copy in copies.values():
        for segment in copy.sealed:
            damage(segment)
    await damaging.until_faulty(node, copies)
    before = await damaging.numbers(node)
    cluster.heal()
    cluster.slow_down(node, SLOW_S)

    async def some() -> Numbers | None:
        now = await damaging.numbers(node)
        return now if now.mended_offsets > before.mended_offsets else None

    await cluster.until(some, f"node {node} to be mended in part")
    is_seen = set(await damaging.faulty(node)) >= wanted
    await kill_amid_writes(cluster.nodes[node], damaging.writers)
    cluster.heal()
    await go_on(damaging.writers)
    cluster.nodes[node].start()
    await cluster.until_registered(damaging.client)

    async def all_read() -> bool | None:
        """By the scrubber: what was damaged, and not found before, is found."""
        return (await damaging.numbers(node)).scrubs > 2 * len(held) or None

    held = (await damaging.client.status(node)).replicas
    await cluster.until(all_read, f"node {node} to have read everything")
    await damaging.until_mended(node)
    await go_on(damaging.writers)
    return is_seen


SERVING = ("a peer", "who leads", "who leads the metadata group")
SPANS_MIN = 4
"""One for each segment that is damaged: they are asked for one after the other."""


@pytest.mark.proof
@pytest.mark.parametrize("kind", REPLICATIONS)
def test_whoever_serves_what_is_mended_is_killed_meanwhile_and_others_go_on_with_it(
    tmp_path: Path, kind: str
) -> None:
    """The node that is damaged hears only who is to be killed, so it is that one who has served what was mended."""

    async def main() -> None:
        async with damaged_in(tmp_path, scrub_every_s=SCRUB_EVERY_S) as damaging:
            for victim in SERVING:
                await until_caught(
                    f"{kind}: {victim} was never killed while it served",
                    partial(killed_serving, damaging, kind, victim),
                )

    run(main())


async def killed_serving(damaging: Damaging, kind: str, victim: str) -> bool:
    """Whether some was mended then, and some was not; in any case all is, before whoever was killed is back."""
    cluster = damaging.cluster
    node, serves, other = await about_to_serve(damaging, kind, victim)
    copy = (await damaging.copies(node))[kind]
    while len(copy.sealed) < SPANS_MIN:
        await go_on(damaging.writers)
    before = await damaging.numbers(node)
    cluster.cut_off(node, of=False)
    damaged = copy.sealed
    for segment in damaged:
        damage(segment)

    async def spans_count() -> int:
        return len((await damaging.faulty(node)).get(copy.partition, ()))

    async def all_found() -> bool | None:
        return await spans_count() == len(damaged) or None

    async def some_mended() -> bool | None:
        return await spans_count() < len(damaged) or None

    await cluster.until(all_found, f"node {node} to know all that it cannot read")
    cluster.slow_down(node, SLOW_S)
    cluster.links[other, node].set(cut=True)
    await cluster.until(some_mended, f"node {node} to be mended in part")
    await kill_amid_writes(cluster.nodes[serves], damaging.writers)
    is_seen = await spans_count() > 0  # Nobody is heard any more who could have mended it since.
    cluster.heal()
    await go_on(damaging.writers)
    await damaging.until_mended(node)
    cluster.nodes[serves].start()
    await cluster.until_registered(damaging.client)
    mended = await damaging.numbers(node)
    assert mended.faulty_offsets == 0
    assert mended.mended_offsets >= before.mended_offsets + len(damaged)
    await go_on(damaging.writers)
    return is_seen


async def about_to_serve(damaging: Damaging, kind: str, victim: str) -> tuple[int, int, int]:
    """Who is to be damaged, who serves it, and the third; and whoever serves leads what it is to lead, only."""
    cluster, client = damaging.cluster, damaging.client
    (topic,) = (await client.image(1, (kind,), current=True)).topics
    leads = await cluster.leader(client, partition_of(topic.id, 0))
    first, second = (node for node in cluster.nodes if node != leads)
    node, serves, other, operator = {
        SERVING[0]: (first, second, leads, leads),
        SERVING[1]: (first, leads, second, second),
        SERVING[2]: (first, second, leads, second),
    }[victim]
    if await leading(cluster, client) != operator:
        await cluster.hand_over(client, METADATA, operator)
    return node, serves, other
