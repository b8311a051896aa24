"""All four protocols as real processes, under faults: whatever was acknowledged is there once, and nothing else.

Each cluster has topics of all four kinds, and each fault hits the node that leads the metadata group, with whatever
else it leads; in a proof, every node. Meanwhile writes go on.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from quorate.bench.cluster_processes import NodeProcess
from quorate.core.entry import Member
from quorate.machine.metadata import REPLICATIONS
from quorate.node.client import Client
from quorate.node.fullness import DISK_FULL, DISK_HAS_ROOM
from quorate.node.statuses import ensemble_of
from tests.cluster.fault_support import Load, go_on, kill_amid_writes, transferred_in, written_to
from tests.cluster.person import Operator
from tests.cluster.proxied import ProxiedCluster
from tests.cluster.support import run, until

pytestmark = pytest.mark.cluster

FULL_NODE = Path(__file__).with_name("full_node.py")
LARGE_BYTES = 20_000
"""Of a value that goes straight to its segment, not into the journal."""
SMALL_SEGMENTS = {"segment_bytes": 1 << 17, "write_back_bytes": 1 << 16, "tail_bytes": 1 << 16}
SCRUB_EVERY_S = 0.5

Fault = Callable[[ProxiedCluster, Sequence[Load], int], Awaitable[None]]


# --- what can happen to a node ---


async def killed(cluster: ProxiedCluster, loads: Sequence[Load], node: int) -> None:
    await kill_amid_writes(cluster.nodes[node], loads)
    await go_on(loads)
    cluster.nodes[node].start()


async def stopped(cluster: ProxiedCluster, loads: Sequence[Load], node: int) -> None:
    await asyncio.to_thread(cluster.nodes[node].stop)
    await go_on(loads)
    cluster.nodes[node].start()


async def stands_still(cluster: ProxiedCluster, loads: Sequence[Load], node: int) -> None:
    process = cluster.nodes[node].process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    try:
        await go_on(loads)
    finally:
        os.kill(process.pid, signal.SIGCONT)


async def cut_off(cluster: ProxiedCluster, loads: Sequence[Load], node: int) -> None:
    cluster.cut_off(node)
    await go_on(loads)
    cluster.heal()


async def not_heard(cluster: ProxiedCluster, loads: Sequence[Load], node: int) -> None:
    cluster.cut_off(node, to=False)
    await go_on(loads)
    cluster.heal()


async def hears_nobody(cluster: ProxiedCluster, loads: Sequence[Load], node: int) -> None:
    cluster.cut_off(node, of=False)
    await go_on(loads)
    cluster.heal()


async def slow(cluster: ProxiedCluster, loads: Sequence[Load], node: int) -> None:
    cluster.slow_down(node, 0.1)
    await go_on(loads)
    cluster.heal()


PROCESS: tuple[Fault, ...] = (killed, stands_still, stopped)
NETWORK: tuple[Fault, ...] = (cut_off, not_heard, hears_nobody, slow)


async def leading(cluster: ProxiedCluster, client: Client) -> int:
    """The node that leads the metadata group, with operators and controllers, once all nodes say the same."""

    async def known() -> int | None:
        said = {status.metadata_leader for status in (await cluster.answers(client)).values()}
        return said.pop() if len(said) == 1 and 0 not in said else None

    return await cluster.until(known, "everybody to know who leads the metadata group")


# --- processes and links ---


@pytest.mark.parametrize(
    "faults", [PROCESS, pytest.param(NETWORK, marks=pytest.mark.proof)], ids=["process", "network"]
)
def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, faults: tuple[Fault, ...]) -> None:
    async def main() -> None:
        async with written_to(tmp_path) as (cluster, writers), cluster.client() as client:
            for fault in faults:
                await fault(cluster, writers, await leading(cluster, client))
                await cluster.until_registered(client)
                await go_on(writers)

    run(main())


@pytest.mark.proof
@pytest.mark.parametrize("fault", PROCESS + NETWORK, ids=lambda fault: fault.__name__)
def test_whichever_node_it_hits_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, fault: Fault) -> None:
    async def main() -> None:
        async with written_to(tmp_path) as (cluster, writers), cluster.client() as client:
            for node in (*cluster.nodes, *cluster.nodes):
                await fault(cluster, writers, node)
                await cluster.until_registered(client)
                await go_on(writers)

    run(main())


@pytest.mark.proof
def test_rolling_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with written_to(tmp_path) as (cluster, writers), cluster.client() as client:
            for node in cluster.nodes:
                await stopped(cluster, writers, node)
                await cluster.until_registered(client)
                await go_on(writers)

    run(main())


@pytest.mark.proof
def test_transfers_between_accounts_are_whole_and_done_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with transferred_in(tmp_path) as (cluster, banks), cluster.client() as client:
            for fault in (killed, stands_still):
                await fault(cluster, banks, await leading(cluster, client))
                await cluster.until_registered(client)
                await go_on(banks)

    run(main())


@pytest.mark.proof
@pytest.mark.parametrize("fault", [killed, stands_still, cut_off], ids=lambda fault: fault.__name__)
def test_whichever_node_it_hits_transfers_are_whole_and_done_once(tmp_path: Path, fault: Fault) -> None:
    async def main() -> None:
        async with transferred_in(tmp_path) as (cluster, banks), cluster.client() as client:
            for node in (*cluster.nodes, *cluster.nodes):
                await fault(cluster, banks, node)
                await cluster.until_registered(client)
                await go_on(banks)

    run(main())


# --- disks ---


def test_a_full_disk_holds_up_nobody_but_its_node(tmp_path: Path) -> None:
    """Two nodes in turn, that which leads the metadata group first: each leads something, and follows elsewhere."""

    async def main() -> None:
        cluster = ProxiedCluster(tmp_path)
        signs = {node: tmp_path / f"full-{node}" for node in cluster.nodes}
        for node, process in cluster.nodes.items():
            process.command = (sys.executable, str(FULL_NODE), str(signs[node]))
        async with (
            written_to(tmp_path, cluster, value_bytes=LARGE_BYTES, more_count=60) as (_, writers),
            cluster.client() as client,
        ):
            first = await leading(cluster, client)
            for node in (first, next(each for each in cluster.nodes if each != first)):
                signs[node].touch()
                await go_on(writers)
                await until(partial(says_last, cluster.nodes[node], DISK_FULL), "the node to say so")
                await go_on(writers)
                signs[node].unlink()
                await until(partial(says_last, cluster.nodes[node], DISK_HAS_ROOM), "the node to say so")
                await go_on(writers)

    run(main())


def says_last(process: NodeProcess, line: str) -> bool:
    """Of the two things that a node says about room."""
    text = process.output.read_text(encoding="utf-8")
    return max((DISK_FULL, DISK_HAS_ROOM), key=text.rfind) == line and line in text


def damage(directory: Path) -> int:
    """Flip bytes in the first and in the newest segment of every log; how many logs have a sealed one."""
    sealed_count = 0
    for log in sorted(directory.glob("store/partitions/*")):
        segments = sorted(log.glob("*.log"))
        sealed_count += len(segments) > 1
        for segment in segments[:1] + segments[1:][-1:]:
            data = bytearray(segment.read_bytes())
            for at in (len(data) // 3, len(data) // 2):
                data[at] ^= 0xFF
            segment.write_bytes(data)
    return sealed_count


def test_damaged_segments_are_mended_by_the_other_copies(tmp_path: Path) -> None:
    """As long as nobody can be asked, what is damaged is shown, and read by nobody."""

    async def main() -> None:
        cluster = ProxiedCluster(tmp_path, store=SMALL_SEGMENTS, scrub_every_s=SCRUB_EVERY_S)
        async with (
            written_to(tmp_path, cluster, value_bytes=2_000) as (_, writers),
            cluster.client() as client,
        ):
            await go_on(writers)
            node = await leading(cluster, client)
            cluster.nodes[node].kill()
            sealed_count = damage(cluster.nodes[node].directory)
            assert sealed_count >= len(REPLICATIONS)
            cluster.cut_off(node)
            cluster.nodes[node].start()

            async def faulty_count() -> int:
                return sum(bool(replica.faulty) for replica in (await client.status(node)).replicas)

            async def shown() -> bool | None:
                return await faulty_count() >= sealed_count or None

            await cluster.until(shown, "damage to be found in every log with a sealed segment")
            person = Operator(cluster.bootstrap)
            for kind in REPLICATIONS:
                partitions = (await asyncio.to_thread(person.shows, f"topic describe {kind}"))["partitions"]
                assert any(
                    copy["faulty"]
                    for partition in partitions
                    for copy in partition["copies"]
                    if copy["node"] == node
                )
            await go_on(writers)
            cluster.heal()

            async def mended() -> bool | None:
                return await faulty_count() == 0 or None

            await cluster.until(mended, "everything to be mended")

    run(main())


@pytest.mark.proof
def test_a_wiped_disk_is_replaced_and_counts_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with written_to(tmp_path) as (cluster, writers), cluster.client() as client:
            node = await leading(cluster, client)
            lost = cluster.nodes[node]
            lost.kill()
            shutil.rmtree(lost.directory)
            lost.format(replaces=True)
            await go_on(writers)
            lost.start()
            await cluster.until_registered(client)
            person = Operator(cluster.bootstrap)
            said = await asyncio.to_thread(person.brings_about, f"cluster replace {node}")
            assert said == f"node {node} counts in 8 partitions and the metadata group\n"
            await expect_new_life(client, node)
            await go_on(writers)
            other = next(each for each in cluster.nodes if each != node)
            await killed(cluster, writers, other)  # So the new copy is needed everywhere.

    run(main())


async def expect_new_life(client: Client, node: int) -> None:
    """Nobody counts that the lost disk was; whoever oversees a partition has stored so, too."""
    image = await client.image(node, current=True)
    ensembles = [ensemble for topic in image.topics for ensemble in topic.ensembles]
    overseen = [ensemble_of(stored.shard) for stored in image.stored.values()]
    assert len(overseen) == len(ensembles) // 2
    for ensemble in (*ensembles, *overseen):
        assert Member(node, 1) not in ensemble
        assert len(ensemble) == 3
