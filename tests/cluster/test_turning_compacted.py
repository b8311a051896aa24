"""Compacted topics go from one kind of replication to another, while they are written to, compacted, and killed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from quorate.core.entry import Partition
from quorate.machine.metadata import REPLICATIONS
from quorate.node.client import Client
from tests.cluster.fault_support import expect_same_copies
from tests.cluster.person import Operator
from tests.cluster.support import expect_no_traceback, run
from tests.cluster.test_compaction import CompactingCluster, Writer, expect_survivors
from tests.cluster.test_turning import in_words, shifted

pytestmark = pytest.mark.cluster

WRITES_AT_ONCE = 60
LEFT_OVER_MAX = 120
"""So many offsets at the end need not be compacted: what is written last lies in a segment that is open."""


@pytest.mark.proof
@pytest.mark.parametrize("shift", [1, 2, 3])
def test_the_newest_of_each_key_stays_however_its_copies_agree_and_whoever_is_killed(
    tmp_path: Path, shift: int
) -> None:
    async def main() -> None:
        with CompactingCluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                partitions = await cluster.create(client, REPLICATIONS)
                writers = [Writer(cluster.bootstrap, kind) for kind in REPLICATIONS]
                for victim, turns in enumerate((shifted(shift), shifted(0)), start=1):
                    await _turned_while_written(cluster, client, writers, turns, victim)
                    for writer in writers:
                        partition = partitions[writer.topic]
                        await _expect_compacted(cluster, client, writer, partition)
                await expect_same_copies(cluster, client)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


async def _turned_while_written(
    cluster: CompactingCluster, client: Client, writers: list[Writer], turns: Mapping[str, str], victim: int
) -> None:
    person, is_turned = Operator(cluster.bootstrap), asyncio.Event()

    async def write(writer: Writer) -> None:
        await writer.write(WRITES_AT_ONCE)
        while not is_turned.is_set():
            await writer.write(WRITES_AT_ONCE // 6)
        await writer.write(WRITES_AT_ONCE)

    async def turn() -> None:
        for topic, to in turns.items():
            await asyncio.to_thread(person.brings_about, f"topic alter {topic} --replication {to} --no-wait")
        node = cluster.nodes[victim]
        node.kill()
        node.start()
        await cluster.until(turned, in_words(dict(turns)))
        is_turned.set()

    async def turned() -> bool | None:
        topics = (await client.image(victim % 3 + 1, tuple(turns), current=True)).topics
        return all(each.turning is None and each.replication == turns[each.name] for each in topics) or None

    async with asyncio.TaskGroup() as tasks:
        for writer in writers:
            tasks.create_task(write(writer))
        tasks.create_task(turn())
    await cluster.until_registered(client)


async def _expect_compacted(
    cluster: CompactingCluster, client: Client, writer: Writer, partition: Partition
) -> None:
    last = max(writer.rows)
    upto = await cluster.until_compacted(client, partition, last - LEFT_OVER_MAX, 3)
    await expect_survivors(cluster, client, writer, partition, upto)
