"""How soon a node with long logs is ready again: after a clean stop, and after a kill in the middle of writes.

The logs are written through the cluster, a share of each protocol's topic, so that every node has them. Before a
node starts again, what the system keeps of its files in memory is dropped.
"""

from __future__ import annotations

import os
import shutil
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic, perf_counter, sleep

from quorate.bench.cluster_kafka import NODES, lead_and_produce
from quorate.bench.cluster_processes import ClusterFailed, NodeProcess
from quorate.bench.cluster_stage import Found, Stage
from quorate.bench.report import at_most, figure
from quorate.bench.wal_store import payload_of
from quorate.node.address import parse_address

STOPPED_MAX_S, KILLED_MAX_S = 5.0, 20.0
BATCH_BYTES = 512 << 10
IN_FLIGHT = 8
SECONDS_AT_ONCE = 5.0
ROOM = 1.5
"""Times what is written, for the journal, for allocated segments, and for others."""
READY_TIMEOUT_S = 300.0
POLL_S = 0.01
GIB = 1 << 30


def opened(stage: Stage) -> Found:
    runner, cluster, place, protocols, plan, say = stage
    needed, free = int(NODES * plan.log_bytes * ROOM), shutil.disk_usage(place).free
    if free < needed:
        line = (
            f"open: left out, {needed / GIB:.1f} GiB are needed on this disk, and {free / GIB:.1f} are free"
        )
        say(line)
        return Found([], [], (line,))
    batch = payload_of(BATCH_BYTES)
    for name in protocols:
        missing = plan.log_bytes // len(protocols)
        while missing > 0:
            say(f"writing logs, {name}: {missing / GIB:.2f} GiB to go")
            count = min(-(-missing // len(batch)), plan.log_bytes)
            found = runner.run(
                lead_and_produce(
                    cluster, name, batch, in_flight=IN_FLIGHT, seconds=SECONDS_AT_ONCE, count_max=count
                )
            )
            missing -= len(found) * len(batch)
    node = cluster.leader(protocols[0])
    size = _bytes_of(node.directory)
    stopped, killed = [], []
    for repetition in range(plan.repetitions):
        say(f"a clean stop of node {node.node}, and its start, {repetition + 1} of {plan.repetitions}")
        node.stop()
        stopped.append(_start(node))
        say(f"kill -9 of node {node.node}, and its start, {repetition + 1} of {plan.repetitions}")
        for name in protocols:
            runner.run(lead_and_produce(cluster, name, batch, in_flight=IN_FLIGHT, seconds=plan.seconds))
        node.kill()
        killed.append(_start(node))
    return Found(
        [figure("a node's logs on its disk", "GiB", [size / GIB])],
        [
            at_most(STOPPED_MAX_S, "ready after a clean stop", "s", stopped),
            at_most(KILLED_MAX_S, "ready after kill -9", "s", killed),
        ],
        (
            "open: from starting the process until /ready says so, with none of its files in the system's memory",
        ),
    )


def _start(node: NodeProcess) -> float:
    """Seconds until clients may come."""
    _forget_files(node.directory)
    began = perf_counter()
    node.start()
    deadline = monotonic() + READY_TIMEOUT_S
    while not _is_ready(node):
        if not node.is_running or monotonic() > deadline:
            raise ClusterFailed(f"node {node.node} did not become ready: {node.said()}")
        sleep(POLL_S)
    return perf_counter() - began


def _is_ready(node: NodeProcess) -> bool:
    address = parse_address(node.http)
    connection = HTTPConnection(address.host, address.port, timeout=POLL_S * 100)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _forget_files(directory: Path) -> None:
    """As after the machine was started anew."""
    for file in directory.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            try:
                os.fsync(fd)
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def _bytes_of(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
