"""What a client notices while data moves: commits while one more copy is made, as fast as it goes and slowly.

The third copy of each protocol's topic is taken away and made anew from a log of some length, while a client
commits small entries one at a time. Beside that stand the same commits before the order, on the same two copies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from time import perf_counter

from quorate.bench.cluster_commits import SMALL_BYTES, percentile
from quorate.bench.cluster_kafka import ANSWER_TIMEOUT_S, KafkaCluster, Producing, lead_and_produce
from quorate.bench.cluster_stage import Found, Stage
from quorate.bench.report import figure, ratios
from quorate.bench.wal_store import payload_of
from quorate.client.admin import alter_cluster
from quorate.core.entry import partition_of
from quorate.machine.cluster import MOVING_RATE
from quorate.machine.metadata import Topic
from quorate.node.client import Client

SLOWLY = 16 << 20
"""Bytes in a second."""
FILL_BYTES, FILL_IN_FLIGHT = 512 << 10, 8
MIB = 1 << 20
FOR_EVER_S = 3600.0
MOVED_TIMEOUT_S = 300.0


def moving(stage: Stage) -> Found:
    runner, cluster, _, protocols, plan, say = stage
    figures = []
    for name in protocols:
        say(f"moving, {name}: writing {plan.moved_bytes >> 20} MiB")
        count = -(-plan.moved_bytes // FILL_BYTES)
        batch = payload_of(FILL_BYTES)
        filling = lead_and_produce(
            cluster, name, batch, in_flight=FILL_IN_FLIGHT, seconds=FOR_EVER_S, count_max=count
        )
        runner.run(filling)
        before: list[list[float]] = []
        during: list[list[float]] = []
        slowly: list[list[float]] = []
        rates = []
        for repetition in range(plan.repetitions):
            say(f"moving, {name}: a copy goes and is made anew, {repetition + 1} of {plan.repetitions}")
            found = runner.run(_measured(cluster, name, plan.seconds))
            before.append(found[0])
            slowly.append(found[1])
            during.append(found[2])
            rates.append(plan.moved_bytes / MIB / found[3])
        quiet = [percentile(times, 50) for times in before]
        figures.append(figure(f"{name}: commit of {SMALL_BYTES} B, two copies, p50", "ms", _ms(quiet)))
        for how, runs in (("a third is made", during), (f"it is made at {SLOWLY >> 20} MiB/s", slowly)):
            middles = [percentile(times, 50) for times in runs]
            tails = [percentile(times, 99) for times in runs]
            longest = [times[-1] for times in runs]
            figures.append(figure(f"· while {how}, p50", "ms", _ms(middles)))
            figures.append(figure("  · beside that before", "times", ratios(middles, quiet)))
            figures.append(figure("  · p99", "ms", _ms(tails)))
            figures.append(figure("  · the longest", "ms", _ms(longest)))
        figures.append(figure("· how fast it is made", "MiB/s", rates))
    note = (
        f"moving: a log of {plan.moved_bytes >> 20} MiB is copied to a node that had none of it, while a client "
        f"commits one at a time; slowly: quorate.moving.rate"
    )
    return Found(figures, [], (note,))


async def _measured(
    cluster: KafkaCluster, name: str, seconds: float
) -> tuple[list[float], list[float], list[float], float]:
    """Commits before, while a copy is made slowly, and as fast as it goes, ascending; and how long that took."""
    async with cluster.client() as client:
        leader = (await asyncio.to_thread(cluster.leader, name)).node
        goes = max(node for node in cluster.nodes if node != leader)
        stays = [node for node in cluster.nodes if node != goes]
        await _change(cluster, client, name, stays)
        before = await _commits_during(cluster, name, asyncio.sleep(seconds))

        await asyncio.to_thread(_let_rate_be, cluster, str(SLOWLY))
        topic = await _seen(client, name)
        await client.change(partition_of(topic.id, 0), list(cluster.nodes))
        slowly = await _commits_during(cluster, name, asyncio.sleep(seconds))
        await _change(cluster, client, name, stays)  # Whatever of it is there is given up.

        await asyncio.to_thread(_let_rate_be, cluster, None)
        began = perf_counter()
        during = await _commits_during(cluster, name, _change(cluster, client, name, list(cluster.nodes)))
        return before, slowly, during, perf_counter() - began


def _let_rate_be(cluster: KafkaCluster, rate: str | None) -> None:
    with cluster.asked() as asked:
        alter_cluster(asked, {MOVING_RATE: rate})


async def _commits_during(cluster: KafkaCluster, name: str, work: Awaitable[None]) -> list[float]:
    """One at a time, from the beginning of what is done meanwhile to its end."""
    leader = await asyncio.to_thread(cluster.leader, name)
    producing = Producing(name, payload_of(SMALL_BYTES), in_flight=1, seconds=FOR_EVER_S)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: producing, *leader.address)
    try:
        await work
        producing.stop()
        await asyncio.wait_for(producing.done, ANSWER_TIMEOUT_S)
    finally:
        transport.close()
    return sorted(producing.found)


async def _change(cluster: KafkaCluster, client: Client, name: str, nodes: list[int]) -> None:
    """Until these nodes copy it."""
    topic = await _seen(client, name)
    await client.change(partition_of(topic.id, 0), nodes)

    async def is_so() -> bool | None:
        now = await _seen(client, name)
        return (not now.changes and sorted(member.node for member in now.ensembles[0]) == nodes) or None

    await cluster.until(is_so, f"{name} to be on nodes {nodes}", MOVED_TIMEOUT_S)


async def _seen(client: Client, name: str) -> Topic:
    image = await client.image(1, (name,), current=True)
    (topic,) = image.topics
    return topic


def _ms(seconds: list[float]) -> list[float]:
    return [1000 * each for each in seconds]
