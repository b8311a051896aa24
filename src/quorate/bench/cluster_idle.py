"""What partitions cost that nobody writes to: processor time while nothing happens, and what others wait for it.

For each protocol a second cluster, with a thousand idle partitions, runs beside the one that every part has.
Commits of 256 B, one at a time, are measured in both, in turns.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter, sleep

from quorate.bench import machine
from quorate.bench.cluster_commits import commit_times, percentile
from quorate.bench.cluster_kafka import KafkaCluster
from quorate.bench.cluster_stage import Found, Stage
from quorate.bench.report import at_most, figure, ratios
from quorate.bench.turns import in_turns

SHARE_MAX = 5.0
"""Percent of one core, all nodes together."""
LATENCY_MAX = 1.5
"""Beside that with one partition."""
SETTLE_S = 5.0
"""After the last partition got its leader, until all of them are at rest."""
IDLE = "idle"


def idle(stage: Stage) -> Found:
    figures, claims = [], []
    count = stage.plan.idle_partitions
    for name in stage.protocols:
        share, alone, crowded = _beside_idle(stage, name)
        beside = f"{name}: commit of 256 B, p50, one partition"
        figures.append(figure(beside, "ms", alone))
        figures.append(figure(f"{name}: the same with {count:,} idle ones beside it", "ms", crowded))
        claims.append(at_most(SHARE_MAX, f"{name}: {count:,} idle partitions, of one core", "%", [share]))
        claims.append(
            at_most(LATENCY_MAX, f"{name}: latency beside them", "times", ratios(crowded, alone)),
        )
    note = (
        f"idle: processor time of all three nodes over {stage.plan.idle_seconds:g} s in which nobody asks them "
        f"anything; latency in turns with that of a cluster that has one partition of each protocol"
    )
    return Found(figures, claims, (note,))


def _beside_idle(stage: Stage, name: str) -> tuple[float, list[float], list[float]]:
    """Percent of a core while nothing happens; latencies (p50, ms) without and with idle partitions."""
    runner, cluster, place, _, plan, say = stage
    with machine.scratch(place) as below, KafkaCluster(below) as other:
        say(f"{name}: making {plan.idle_partitions:,} partitions that nobody will write to")
        other.start()
        runner.run(other.until_registered())
        other.create(name, name)
        other.create(IDLE, name, partitions=plan.idle_partitions)
        say(f"{name}: nothing happens for {plan.idle_seconds:g} s")
        sleep(SETTLE_S)
        share = _share_of_a_core(other, plan.idle_seconds)

        def middle(of: KafkaCluster) -> float:
            return 1000 * percentile(commit_times(runner, of, name, seconds=plan.seconds), 50)

        for each in (cluster, other):  # They get warm.
            middle(each)
        sides = {"one partition": lambda: middle(cluster), "with idle ones": lambda: middle(other)}
        found = in_turns(sides, plan.repetitions, lambda what: say(f"{name}: latency, {what}"))
        for node in other.nodes.values():
            node.stop()
    return share, found["one partition"], found["with idle ones"]


def _share_of_a_core(cluster: KafkaCluster, seconds: float) -> float:
    began, before = perf_counter(), _processor_seconds(cluster)
    sleep(seconds)
    return 100 * (_processor_seconds(cluster) - before) / (perf_counter() - began)


def _processor_seconds(cluster: KafkaCluster) -> float:
    """Of all nodes since they began, in user and in kernel mode."""
    ticks = 0
    for node in cluster.nodes.values():
        assert node.process is not None
        # The process's name comes first, in parentheses, and may hold anything.
        fields = Path(f"/proc/{node.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
