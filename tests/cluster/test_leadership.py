"""What a node's configuration says about leaders: the timestamps that they give out, and who is to lead."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quorate.bench.cluster_processes import Cluster
from quorate.node.client import OutcomeUnknown
from tests.cluster.support import QUICK_RAFT, batch_of, run

pytestmark = pytest.mark.cluster


def cluster_with(directory: Path, **raft: Any) -> Cluster:
    return Cluster(directory, partitions=1, raft=QUICK_RAFT | raft)


@pytest.mark.behaviour("YB-14")
def test_timestamps_rise_over_the_end_of_a_leader(tmp_path: Path) -> None:
    async def main() -> None:
        with cluster_with(tmp_path, ceiling_s=0.3) as cluster:
            cluster.start()
            async with cluster.client() as client:
                (partition,) = cluster.partitions
                leader = (await cluster.leaders(client))[partition]
                before = [await client.propose(partition, [batch_of(b"%d" % n)]) for n in range(20)]
                cluster.nodes[leader].kill()
                with suppress(
                    OutcomeUnknown
                ):  # The connection to the old leader may be noticed to end only now.
                    await client.propose(partition, [batch_of(b"lost")])
                after = [await client.propose(partition, [batch_of(b"%d" % n)]) for n in range(20)]
                assert {settled.node for settled in before}.isdisjoint(settled.node for settled in after)
                stamps = [settled.timestamp for settled in before + after]
                assert stamps[0] > 0
                assert stamps == sorted(set(stamps)), "each is above all before it, whoever gave it out"

    run(main())


def test_a_node_of_higher_priority_comes_to_lead(tmp_path: Path) -> None:
    async def main() -> None:
        with cluster_with(tmp_path) as cluster:
            wanted = cluster.nodes[3]
            config = msgspec.json.decode(wanted.config.read_bytes())
            config["raft"]["priority"] = 2
            wanted.config.write_bytes(msgspec.json.encode(config))
            cluster.start()
            async with cluster.client() as client:
                (partition,) = cluster.partitions

                async def leads() -> bool | None:
                    return (await cluster.leaders(client))[partition] == 3 or None

                await cluster.until(leads, "node 3 to lead")
                assert (await client.propose(partition, [batch_of(b"x")])).node == 3

    run(main())
