"""Three real processes on TCP with real flushes, beside what the machine allows; and kill -9 under load.

The limit of a commit's latency is two round trips on loopback (client to leader, leader to follower) and one
flush; that of the throughput is three processes that write and flush the same bytes without any protocol.
Both are measured in the same run, in turns with the cluster's own figures. Then nodes are killed under load
and come back, and everything that was acknowledged is read back from every node.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import uvloop

from quorate.bench import cluster_limits, machine
from quorate.bench.cluster_load import Findings, Ledger, latencies, throughput
from quorate.bench.cluster_processes import Cluster
from quorate.bench.report import Claim, Figure, Report, Say, at_most, figure, ratios
from quorate.bench.wal_store import payload_of
from quorate.core.entry import Partition
from quorate.node.client import Client
from quorate.storage.frame import FRAME_HEAD_BYTES

NODES, PARTITIONS = 3, 100
SMALL_BYTES, LARGE_BYTES = 256, 64 << 10
SMALL_IN_FLIGHT, LARGE_IN_FLIGHT = 256, 16
SMALL_PER_FLUSH, LARGE_PER_FLUSH = 64, 4
"""How many the raw writers put under one flush."""
MIB = 1 << 20


class _Plan(msgspec.Struct, frozen=True):
    repetitions: int
    seconds: float
    """Of each measurement."""
    kill_seconds: float
    """Of load before, between and after the kills."""


FULL = _Plan(repetitions=3, seconds=1.5, kill_seconds=2.0)
QUICK = _Plan(repetitions=1, seconds=0.5, kill_seconds=1.0)


def run(say: Say = lambda _: None, *, directory: Path | None = None, quick: bool = False) -> Report:
    plan = QUICK if quick else FULL
    with machine.scratch(directory) as place, Cluster(place, nodes=NODES, partitions=PARTITIONS) as cluster:
        described = machine.describe(place)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            figures, claims = runner.run(_measure(cluster, place, plan, say))
    throughput_limit = (
        f"limit of throughput: {NODES} processes append and flush the same bytes ({LARGE_PER_FLUSH} large or "
        f"{SMALL_PER_FLUSH} small entries a flush), no protocol and no client; the slowest of them counts"
    )
    kills = (
        "kill -9 of a node, and then of the node that leads most, under load; both come back; every "
        "acknowledged entry is read back from every node and compared"
    )
    notes = (
        f"{NODES} node processes, {PARTITIONS} partitions, and the client, all on this machine's cores",
        "limit of latency: two loopback round trips between processes and one write and flush, each alone",
        throughput_limit,
        kills,
    )
    command = "quorate bench cluster" + (" --quick" if quick else "")
    title = "three processes, real sockets, real flushes"
    return Report("cluster", title, command, described, tuple(figures), tuple(claims), notes=notes)


async def _measure(cluster: Cluster, place: Path, plan: _Plan, say: Say) -> tuple[list[Figure], list[Claim]]:
    say(f"starting {NODES} nodes with {PARTITIONS} partitions")
    cluster.start()
    async with cluster.client() as client:
        await cluster.leaders(client)
        figures = await _latency(client, cluster.partitions[0], place, plan, say)
        figures += await _small(client, cluster, place, plan, say)
        figures += await _large(client, cluster.partitions[0], place, plan, say)
        more, claims = await _kills(client, cluster, plan, say)
    for node in cluster.nodes.values():
        node.stop()
    return figures + more, claims


async def _latency(client: Client, partition: Partition, place: Path, plan: _Plan, say: Say) -> list[Figure]:
    """Commit of 256 B, one at a time."""
    payload = payload_of(SMALL_BYTES)
    framed = payload + bytes(FRAME_HEAD_BYTES)
    found: dict[str, list[float]] = {"p50": [], "p99": [], "limit": [], "trip": [], "flush": []}
    await latencies(client, partition, payload, seconds=plan.seconds / 2)
    for repetition in range(plan.repetitions):
        say(f"latency of 256 B, {repetition + 1} of {plan.repetitions}")
        trips = await cluster_limits.round_trips(framed, seconds=plan.seconds / 2)
        flushes = cluster_limits.flushes(place, framed, seconds=plan.seconds / 2)
        commits = await latencies(client, partition, payload, seconds=plan.seconds)
        found["trip"].append(1000 * _percentile(trips, 50))
        found["flush"].append(1000 * _percentile(flushes, 50))
        found["limit"].append(2 * found["trip"][-1] + found["flush"][-1])
        found["p50"].append(1000 * _percentile(commits, 50))
        found["p99"].append(1000 * _percentile(commits, 99))
    return [
        figure("commit of 256 B, one at a time, p50", "ms", found["p50"]),
        figure("commit of 256 B, one at a time, p99", "ms", found["p99"]),
        figure("limit: two round trips and a flush, p50", "ms", found["limit"]),
        figure("· a loopback round trip", "ms", found["trip"]),
        figure("· a write and flush", "ms", found["flush"]),
        figure("latency beside its limit (p50)", "times", ratios(found["p50"], found["limit"])),
    ]


async def _small(client: Client, cluster: Cluster, place: Path, plan: _Plan, say: Say) -> list[Figure]:
    payload = payload_of(SMALL_BYTES)

    async def ours() -> float:
        return await throughput(
            client, cluster.partitions, payload, in_flight=SMALL_IN_FLIGHT, seconds=plan.seconds
        )

    def limit() -> float:
        return cluster_limits.raw_writes(
            place,
            payload_bytes=len(payload) + FRAME_HEAD_BYTES,
            per_flush=SMALL_PER_FLUSH,
            seconds=plan.seconds / 2,
        )

    say(f"throughput of 256 B over {PARTITIONS} partitions")
    rates, limits = await _in_turns(ours, limit, plan)
    return [
        figure(f"256 B over {PARTITIONS} partitions, {SMALL_IN_FLIGHT} in flight", "entries/s", rates),
        figure("limit: three processes write and flush", "entries/s", limits),
        figure("256 B throughput beside its limit", "", ratios(rates, limits)),
    ]


async def _large(client: Client, partition: Partition, place: Path, plan: _Plan, say: Say) -> list[Figure]:
    payload = payload_of(LARGE_BYTES)
    in_mib = len(payload) / MIB

    async def ours() -> float:
        rate = await throughput(
            client, (partition,), payload, in_flight=LARGE_IN_FLIGHT, seconds=plan.seconds
        )
        return rate * in_mib

    def limit() -> float:
        rate = cluster_limits.raw_writes(
            place,
            payload_bytes=len(payload) + FRAME_HEAD_BYTES,
            per_flush=LARGE_PER_FLUSH,
            seconds=plan.seconds / 2,
        )
        return rate * in_mib

    say(f"throughput of 64 KiB, {LARGE_IN_FLIGHT} in flight")
    rates, limits = await _in_turns(ours, limit, plan)
    return [
        figure(f"64 KiB, {LARGE_IN_FLIGHT} in flight", "MiB/s", rates),
        figure("limit: three processes write and flush", "MiB/s", limits),
        figure("64 KiB throughput beside its limit", "", ratios(rates, limits)),
    ]


async def _in_turns(
    ours: Callable[[], Awaitable[float]], limit: Callable[[], float], plan: _Plan
) -> tuple[list[float], list[float]]:
    rates, limits = [], []
    for _ in range(plan.repetitions):
        limits.append(limit())
        rates.append(await ours())
    return rates, limits


async def _kills(client: Client, cluster: Cluster, plan: _Plan, say: Say) -> tuple[list[Figure], list[Claim]]:
    await cluster.converged(client)
    heads = {
        Partition(replica.partition): replica.head.offset for replica in (await client.status(1)).replicas
    }
    async with Ledger(client, cluster.partitions, seed=1, value_bytes=SMALL_BYTES, after=heads) as ledger:
        for what in ("a node", "the node that leads most"):
            await asyncio.sleep(plan.kill_seconds)
            led = Counter((await cluster.leaders(client)).values())
            victim = cluster.nodes[max(led, key=lambda node: led[node]) if what != "a node" else NODES]
            say(f"kill -9 of {what} (node {victim.node}, leads {led[victim.node]}) under load")
            victim.kill()
            await asyncio.sleep(plan.kill_seconds)
            victim.start()
            await cluster.leaders(client)
    say("reading everything back from every node")
    await cluster.converged(client)
    found = [await ledger.compare(node) for node in cluster.nodes]
    return _verdict(found, ledger)


def _verdict(found: Sequence[Findings], ledger: Ledger) -> tuple[list[Figure], list[Claim]]:
    figures = [
        figure("acknowledged under kill -9", "entries", [ledger.acknowledged_count]),
        figure("longest time without any acknowledgement", "s", [ledger.longest_gap_s]),
        figure("of unknown outcome", "entries", [each.unknown_count for each in found]),
        figure("· settled all the same", "entries", [each.unknown_kept_count for each in found]),
    ]
    claims = [
        at_most(0, "acknowledged entries lost, any node", "", [sum(len(each.lost) for each in found)]),
        at_most(0, "entries that nobody wrote, or twice", "", [sum(len(each.foreign) for each in found)]),
    ]
    return figures, claims


def _percentile(ascending: Sequence[float], percent: int) -> float:
    return ascending[min(len(ascending) * percent // 100, len(ascending) - 1)]
