"""A topic of `isr` whose copies are mostly away takes writes, and goes on taking them while it is to turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quorate.machine.turning import MIN_ISR
from quorate.node.client import Client
from tests.cluster.fault_support import PARTITIONS_COUNT, Writer, differences, read_everything
from tests.cluster.growing import GrowingCluster, held_by
from tests.cluster.person import Operator
from tests.cluster.support import run

pytestmark = pytest.mark.cluster

STAYS, AWAY = 3, (4, 5)
NOT_YET = 1
"""The exit code of a command whose order stands."""
TURNS = "topic alter t --replication raft"


@pytest.mark.proof
def test_with_most_copies_away_writes_go_on_and_a_turn_is_called_off_or_waits_for_them(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        with GrowingCluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                await cluster.until_registered(client)
                for node in AWAY:
                    cluster.join(node, client)
                await cluster.until_registered(client)
                await few_turn(cluster, client)

    run(main())


async def few_turn(cluster: GrowingCluster, client: Client) -> None:
    few = {MIN_ISR: "1"}
    topic = await cluster.topic(
        client, "t", (STAYS, *AWAY), partitions=PARTITIONS_COUNT, replication="isr", config=few
    )
    person, writer = Operator(cluster.bootstrap), Writer(cluster.bootstrap, "t")
    await writer.go_on()
    for node in AWAY:
        cluster.nodes[node].kill()
    for partition in topic.partitions():
        await cluster.leader(client, partition, among=[STAYS])
    await writer.go_on()

    waits = await asyncio.to_thread(person.types, f"{TURNS} --timeout 3")
    assert waits.returncode == NOT_YET, waits.stderr
    assert "`quorate topic alter t --replication isr` calls it off" in waits.stderr
    described = await asyncio.to_thread(person.shows, "topic describe t")
    assert described["turning"] == "raft"
    await writer.go_on()
    await asyncio.to_thread(person.does, "topic alter t --replication isr")
    await writer.go_on()

    await asyncio.to_thread(person.does, f"{TURNS} --no-wait")
    await writer.go_on()
    for node in AWAY:
        cluster.nodes[node].start()
    await asyncio.to_thread(person.brings_about, TURNS)
    await writer.go_on()
    await writer.finish()
    assert not differences(read_everything(cluster.bootstrap, "t"), writer.acknowledged)
    held = held_by(await cluster.answers(client), topic.partitions()[0])
    assert {replica.protocol for replica in held.values()} == {"raft"}
