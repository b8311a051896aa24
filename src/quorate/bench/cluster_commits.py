"""What a commit takes, one at a time and many at once, beside what the machine allows; each protocol in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quorate.bench import cluster_bare, cluster_limits
from quorate.bench.cluster_kafka import KafkaCluster, lead_and_produce
from quorate.bench.cluster_stage import Found, Stage
from quorate.bench.report import at_least, at_most, figure, ratios
from quorate.bench.wal_store import payload_of
from quorate.storage.frame import FRAME_HEAD_BYTES

SMALL_BYTES, LARGE_BYTES = 256, 64 << 10
IN_FLIGHT = 16
PER_FLUSH = 4
"""How many large entries the raw writers put under one flush."""
MIB = 1 << 20
LATENCY_MAX, THROUGHPUT_MIN = 2.5, 0.5
"""Beside their limits."""


def latency(stage: Stage) -> Found:
    """Of 256 B, one at a time; two round trips on loopback and one flush are the limit.

    Beside it stands what three bare processes take, as that of a machine with few processors is out of reach.
    """
    runner, cluster, place, protocols, plan, say = stage
    framed = payload_of(SMALL_BYTES) + bytes(FRAME_HEAD_BYTES)
    trips, flushes, limits, bare = [], [], [], []
    middles: dict[str, list[float]] = {name: [] for name in protocols}
    tails: dict[str, list[float]] = {name: [] for name in protocols}
    for name in protocols:  # They get warm.
        commit_times(runner, cluster, name, seconds=plan.seconds)
    for repetition in range(plan.repetitions):
        for name in protocols:
            say(f"latency of {SMALL_BYTES} B, {name}, {repetition + 1} of {plan.repetitions}")
            found = runner.run(cluster_limits.round_trips(framed, seconds=plan.seconds / 2))
            trips.append(1000 * percentile(found, 50))
            found = cluster_limits.flushes(place, framed, seconds=plan.seconds / 2)
            flushes.append(1000 * percentile(found, 50))
            limits.append(2 * trips[-1] + flushes[-1])
            found = runner.run(cluster_bare.commits(place, framed, seconds=plan.seconds / 2))
            bare.append(1000 * percentile(found, 50))
            found = commit_times(runner, cluster, name, seconds=plan.seconds)
            middles[name].append(1000 * percentile(found, 50))
            tails[name].append(1000 * percentile(found, 99))
    figures = [
        figure("limit: two round trips and a flush, p50", "ms", limits),
        figure("· a loopback round trip", "ms", trips),
        figure("· a write and flush", "ms", flushes),
        figure("three bare processes, p50", "ms", bare),
        figure("three bare processes beside the limit", "times", ratios(bare, limits)),
    ]
    claims = []
    for number, name in enumerate(protocols):
        figures.append(figure(f"{name}: commit of {SMALL_BYTES} B, one at a time, p50", "ms", middles[name]))
        figures.append(figure(f"{name}: commit of {SMALL_BYTES} B, one at a time, p99", "ms", tails[name]))
        beside = ratios(middles[name], limits[number :: len(protocols)])
        claims.append(at_most(LATENCY_MAX, f"{name}: latency beside its limit (p50)", "times", beside))
        beside = ratios(middles[name], bare[number :: len(protocols)])
        figures.append(figure(f"{name}: latency beside three bare processes (p50)", "times", beside))
    return Found(
        figures,
        claims,
        (
            "limit of latency: two loopback round trips between processes and one write and flush, each alone",
            "bare processes: uvloop, three that write and flush at once, no protocol, no checksums, no log",
        ),
    )


def commit_times(runner: asyncio.Runner, cluster: KafkaCluster, topic: str, *, seconds: float) -> list[float]:
    """Of 256 B, one at a time, ascending."""
    batch = payload_of(SMALL_BYTES)
    return sorted(runner.run(lead_and_produce(cluster, topic, batch, in_flight=1, seconds=seconds)))


def throughput(stage: Stage) -> Found:
    """64 KiB entries, 16 in flight on one connection; three processes that write and flush are the limit."""
    runner, cluster, place, protocols, plan, say = stage
    batch = payload_of(LARGE_BYTES)
    limits: list[float] = []
    rates: dict[str, list[float]] = {name: [] for name in protocols}
    for repetition in range(plan.repetitions):
        for name in protocols:
            say(f"throughput of {LARGE_BYTES >> 10} KiB, {name}, {repetition + 1} of {plan.repetitions}")
            size = len(batch) + FRAME_HEAD_BYTES
            limit = cluster_limits.raw_writes(
                place, payload_bytes=size, per_flush=PER_FLUSH, seconds=plan.seconds / 2
            )
            limits.append(limit * len(batch) / MIB)
            found = runner.run(
                lead_and_produce(cluster, name, batch, in_flight=IN_FLIGHT, seconds=plan.seconds)
            )
            in_time_count = len(found) - IN_FLIGHT  # The last ones were answered afterwards.
            rates[name].append(in_time_count / plan.seconds * len(batch) / MIB)
    figures = [figure(f"limit: three processes write and flush {LARGE_BYTES >> 10} KiB", "MiB/s", limits)]
    claims = []
    for number, name in enumerate(protocols):
        figures.append(
            figure(f"{name}: {LARGE_BYTES >> 10} KiB, {IN_FLIGHT} in flight", "MiB/s", rates[name])
        )
        beside = ratios(rates[name], limits[number :: len(protocols)])
        claims.append(at_least(THROUGHPUT_MIN, f"{name}: throughput beside its limit", "", beside))
    note = (
        f"limit of throughput: three processes append and flush the same bytes ({PER_FLUSH} entries a flush), no "
        f"protocol and no client; the slowest of them counts"
    )
    return Found(figures, claims, (note,))


def percentile(ascending: Sequence[float], percent: int) -> float:
    return ascending[min(len(ascending) * percent // 100, len(ascending) - 1)]
