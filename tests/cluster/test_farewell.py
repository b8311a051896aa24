"""A node that is stopped hands over first what it leads, also where somebody oversees who leads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quorate.bench.cluster_load import Ledger
from quorate.core.entry import Partition
from quorate.node.client import Client
from tests.cluster.growing import GrowingCluster, expect_all_on, held_by
from tests.cluster.support import expect_no_traceback, run, sampled, until_acknowledged

pytestmark = pytest.mark.cluster


async def leaders(
    cluster: GrowingCluster, client: Client, partitions: list[Partition]
) -> dict[Partition, int]:
    return {partition: await cluster.leader(client, partition) for partition in partitions}


@pytest.mark.parametrize("replication", sampled("isr"))
def test_a_node_that_is_stopped_hands_over_first(tmp_path: Path, replication: str) -> None:
    """Which may take no more than a second, and so does not always succeed where the machine is busy."""

    async def main() -> None:
        with GrowingCluster(tmp_path) as cluster:
            cluster.start()
            async with cluster.client() as client:
                await cluster.until_registered(client)
                topic = await cluster.topic(client, "t", (1, 2, 3), partitions=6, replication=replication)
                parts = topic.partitions()
                handed_over = []
                async with Ledger(client, parts, seed=1, value_bytes=256) as ledger:
                    for _ in range(3):
                        await until_acknowledged(ledger, 50)
                        led = list((await leaders(cluster, client, parts)).values())
                        node = max(led, key=led.count)
                        assert cluster.nodes[node].stop() == 0
                        said = cluster.nodes[node].last_words()
                        counts = re.findall(r"handed over (\d+) of (\d+) partitions", said)
                        assert counts, said
                        handed_over.append(int(counts[-1][0]))
                        await until_acknowledged(ledger, 50)
                        cluster.nodes[node].start()
                        await cluster.until_registered(client)
                assert max(handed_over) > 1
                await cluster.converged(client)
                await expect_all_on(ledger, cluster.nodes)
                for partition in parts:
                    assert len(held_by(await cluster.answers(client), partition)) == 3
            expect_no_traceback(*cluster.nodes.values())

    run(main())
