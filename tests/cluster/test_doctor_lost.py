"""`quorate doctor` where disks are lost, and no majority says what that means."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from time import monotonic

import pytest

from quorate.machine.metadata import METADATA
from tests.cluster.proxied import ProxiedCluster
from tests.cluster.support import expect_no_traceback, run
from tests.cluster.test_doctor import FOUND_TIMEOUT_S, finds, led_by, started, write

pytestmark = [pytest.mark.cluster, pytest.mark.proof]


def test_the_only_copy_in_sync_is_lost_and_the_others_do_not_help(tmp_path: Path) -> None:
    """One after the other leaves the ISR, which takes a metadata group that can still agree on that."""

    async def main() -> None:
        async with ProxiedCluster(tmp_path) as cluster, cluster.client() as client:
            person = await started(cluster, client)

            async def in_sync_are(count: int) -> None:
                deadline = monotonic() + FOUND_TIMEOUT_S
                while True:
                    view = await asyncio.to_thread(person.shows, "topic describe few")
                    (partition,) = view["partitions"]
                    if len(partition["stored"]["shard"]["isr"]) == count:
                        return
                    assert monotonic() < deadline, partition

            cluster.join(4, client)
            await cluster.until_registered(client)
            create = "topic create few --replication isr --config min.insync.replicas=1"
            await asyncio.to_thread(person.does, create)
            await asyncio.to_thread(person.brings_about, "cluster add 4")
            await asyncio.to_thread(write, cluster.bootstrap, "few", 5)
            leads = await led_by(cluster, client, "few")
            view = await asyncio.to_thread(person.shows, "topic describe few")
            first, second = (node for node in view["partitions"][0]["nodes"] if node != leads)
            cluster.nodes[first].kill()
            await in_sync_are(2)
            await asyncio.to_thread(person.brings_about, f"cluster remove {first}")
            cluster.nodes[second].kill()
            await in_sync_are(1)
            process = cluster.nodes[leads]
            process.kill()
            cluster.nodes[second].start()
            cluster.nodes[first].start()
            shutil.rmtree(process.directory)
            process.format(replaces=True)
            process.start()

            found = await finds(cluster, "partition-lost")
            assert found["partition-lost"]["nodes"] == [leads]
            assert (
                f"the disk of its copy on node {leads} is lost, and no other"
                in found["partition-lost"]["what"]
            )
            assert "partition-leaderless" not in found
            refused = await asyncio.to_thread(person.types, f"cluster replace {leads}")
            assert refused.returncode == 2, refused
            assert "`quorate topic delete few` gives it up" in refused.stderr
            found = await finds(cluster, "partition-lost")
            assert "disk-lost" not in found, "its vote counts again, and nothing else can"
            await asyncio.to_thread(person.does, "topic delete few")
            assert await cluster.leader(client, METADATA)
            expect_no_traceback(*cluster.nodes.values())

    run(main())
