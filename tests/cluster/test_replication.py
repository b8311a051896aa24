"""Three real processes, real sockets, real flushes; killed, paused, wiped and brought back."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from quorate.batch import decode_records
from quorate.bench.cluster_load import Ledger
from quorate.core.entry import Kind
from tests.cluster.support import (
    batch_of,
    cluster_of,
    expect_no_traceback,
    expect_nothing_lost,
    run,
    until_acknowledged,
)

pytestmark = pytest.mark.cluster


def test_three_nodes_elect_and_replicate_a_hundred_partitions(tmp_path: Path) -> None:
    async def main() -> None:
        with cluster_of(tmp_path, partitions=100) as cluster:
            cluster.start()
            async with cluster.client() as client:
                leaders = await cluster.leaders(client)
                assert len(leaders) == 100
                for number, partition in enumerate(cluster.partitions):
                    settled = await client.propose(partition, [batch_of(b"%d" % number)])
                    assert settled.node == leaders[partition]
                await cluster.converged(client)
                for node in cluster.nodes:
                    for number, partition in enumerate(cluster.partitions):
                        frames, commit = await client.fetch(node, partition, 0)
                        records = [frame for frame in frames if frame.header.kind == Kind.RECORDS]
                        assert commit == frames[-1].header.last
                        assert [decode_records(frame.payload)[0].value for frame in records] == [
                            b"%d" % number
                        ]
            for process in cluster.nodes.values():
                assert process.stop() == 0
            expect_no_traceback(*cluster.nodes.values())

    run(main())


def test_kill_of_leaders_under_load_loses_nothing_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        with cluster_of(tmp_path, partitions=20) as cluster:
            cluster.start()
            async with cluster.client() as client:
                await cluster.leaders(client)
                async with Ledger(client, cluster.partitions, seed=1, value_bytes=256) as ledger:
                    for _ in range(2):
                        await until_acknowledged(ledger, 500)
                        led = Counter((await cluster.leaders(client)).values())
                        victim = cluster.nodes[led.most_common(1)[0][0]]
                        victim.kill()
                        await until_acknowledged(ledger, 500)
                        victim.start()
                        await cluster.leaders(client)
                    await until_acknowledged(ledger, 500)
                await cluster.converged(client)
                await expect_nothing_lost(cluster, ledger)
            expect_no_traceback(*cluster.nodes.values())

    run(main())


def test_kill_of_all_nodes_at_once_loses_nothing_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        with cluster_of(tmp_path, partitions=10) as cluster:
            cluster.start()
            async with cluster.client() as client:
                await cluster.leaders(client)
                async with Ledger(client, cluster.partitions, seed=2, value_bytes=20_000) as ledger:
                    await until_acknowledged(ledger, 300)
                    for node in cluster.nodes.values():
                        node.kill()
                    for node in cluster.nodes.values():
                        node.start()
                    await until_acknowledged(ledger, 300)
                await cluster.converged(client)
                await expect_nothing_lost(cluster, ledger)

    run(main())


def test_a_paused_follower_holds_nobody_up_and_catches_up(tmp_path: Path) -> None:
    async def main() -> None:
        with cluster_of(tmp_path, partitions=5) as cluster:
            cluster.start()
            async with cluster.client() as client:
                leaders = await cluster.leaders(client)
                paused = next(node for node in cluster.nodes if node != leaders[cluster.partitions[0]])
                mine = [partition for partition in cluster.partitions if leaders[partition] != paused]
                process = cluster.nodes[paused].process
                assert process is not None
                async with Ledger(client, mine, seed=3, value_bytes=60_000) as ledger:
                    await until_acknowledged(ledger, 50)
                    os.kill(process.pid, signal.SIGSTOP)
                    await until_acknowledged(ledger, 500)
                    os.kill(process.pid, signal.SIGCONT)
                    await until_acknowledged(ledger, 50)
                await cluster.converged(client)
                await expect_nothing_lost(cluster, ledger)

    run(main())


@pytest.mark.proof
def test_a_lost_disk_comes_back_as_another_incarnation_and_is_filled_again(tmp_path: Path) -> None:
    async def main() -> None:
        with cluster_of(tmp_path, partitions=3) as cluster:
            cluster.start()
            async with cluster.client() as client:
                await cluster.leaders(client)
                victim = cluster.nodes[2]
                async with Ledger(client, cluster.partitions, seed=4, value_bytes=1000) as ledger:
                    await until_acknowledged(ledger, 200)
                    victim.kill()
                    shutil.rmtree(victim.directory)
                    await until_acknowledged(ledger, 200)
                    victim.format(replaces=True)
                    victim.start()
                    await until_acknowledged(ledger, 200)
                await cluster.converged(client)
                await expect_nothing_lost(cluster, ledger)
                status = await client.status(victim.node)
                assert {replica.role for replica in status.replicas} == {"learner"}

    run(main())
