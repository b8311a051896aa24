"""Three real processes on TCP with real flushes, for each of the four protocols, beside what the machine allows.

The nodes run as `quorate up` starts them, and what is measured is what a Kafka client sees. Limits are measured
in the same run, in turns with the cluster's own figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from quorate.bench import (
    cluster_commits,
    cluster_idle,
    cluster_kills,
    cluster_moving,
    cluster_open,
    cluster_turning,
    machine,
)
from quorate.bench.cluster_kafka import NODES, KafkaCluster
from quorate.bench.cluster_stage import FULL, QUICK, Found, Plan, Stage
from quorate.bench.report import Claim, Figure, Report, Say
from quorate.machine.metadata import REPLICATIONS

PARTS: dict[str, Callable[[Stage], Found]] = {
    "latency": cluster_commits.latency,
    "throughput": cluster_commits.throughput,
    "idle": cluster_idle.idle,
    "kills": cluster_kills.kills,
    "open": cluster_open.opened,
    "moving": cluster_moving.moving,
    "turning": cluster_turning.turning,
}


def run(
    say: Say = lambda _: None,
    *,
    directory: Path | None = None,
    quick: bool = False,
    only: Sequence[str] = (),
    protocol: str | None = None,
    plan: Plan | None = None,
) -> Report:
    """`only`: some of `PARTS`, all if empty; `protocol`: one of them, all if None."""
    plan = plan or (QUICK if quick else FULL)
    parts = tuple(only) or tuple(PARTS)
    protocols = tuple(REPLICATIONS) if protocol is None else (protocol,)
    figures: list[Figure] = []
    claims: list[Claim] = []
    notes = [
        f"{NODES} node processes with a metadata group, settings by default, and the client, on these cores",
        "the client speaks Kafka's protocol to the leader (acks=all), with one prebuilt request",
    ]
    with machine.scratch(directory) as place:
        described = machine.describe(place)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for part in parts:
                found = _measured(PARTS[part], runner, place, protocols, plan, say)
                figures += found.figures
                claims += found.claims
                notes += found.notes
    command = "quorate bench cluster" + " --quick" * quick
    command += f" --only {','.join(only)}" if only else ""
    command += f" --protocol {protocol}" if protocol is not None else ""
    title = "three processes, real sockets, real flushes, four protocols"
    return Report("cluster", title, command, described, tuple(figures), tuple(claims), notes=tuple(notes))


def _measured(
    part: Callable[[Stage], Found],
    runner: asyncio.Runner,
    place: Path,
    protocols: tuple[str, ...],
    plan: Plan,
    say: Say,
) -> Found:
    """Each on a cluster of its own, so that none is heir to what another left behind."""
    with machine.scratch(place) as below, KafkaCluster(below) as cluster:
        say(f"starting {NODES} nodes")
        cluster.start()
        runner.run(cluster.until_registered())
        for protocol in protocols:
            cluster.create(protocol, protocol)
        found = part(Stage(runner, cluster, below, protocols, plan, say))
        for node in cluster.nodes.values():
            if node.process is not None:
                node.stop()
    return found
