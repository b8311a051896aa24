"""A node that takes nothing any more costs the others no memory, however much is written meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest
from confluent_kafka import Producer

from quorate.bench.cluster_processes import POLL_S, START_TIMEOUT_S
from quorate.cli.demo_cluster import DemoCluster
from tests.cluster.person import Operator

pytestmark = pytest.mark.cluster

PROTOCOLS = ("raft", "coordinated", "isr", "confirm")
VALUE = os.urandom(256 << 10)
GROWTH_BYTES_MAX = 192 << 20
"""What is kept for readers and for links, of all four topics, and room for requests on their way: what comes and
goes, and does not grow with what is written."""
SLOW = 3


def rss(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def written(bootstrap: str, bytes_count: int, pids: list[int]) -> int:
    """Write so much to all topics, acknowledged; the most that a process had meanwhile."""
    errors: list[str] = []
    config = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 0,
        "queue.buffering.max.kbytes": 32 << 10,
        "message.timeout.ms": 240_000,
        "log_level": 0,
    }
    producer = Producer(config)
    most = max(map(rss, pids))
    for number in range(bytes_count // len(VALUE)):
        while True:
            try:
                producer.produce(
                    PROTOCOLS[number % len(PROTOCOLS)],
                    VALUE,
                    on_delivery=lambda error, _: errors.append(str(error)) if error else None,
                )
                break
            except BufferError:
                producer.poll(POLL_S)
        producer.poll(0)
        most = max(most, *map(rss, pids))
    while producer.flush(POLL_S):
        most = max(most, *map(rss, pids))
    assert not errors, errors[0]
    return most


@pytest.mark.proof
@pytest.mark.parametrize("mib", [128, 1024])
def test_a_peer_that_stands_still_while_much_is_written_costs_no_memory(mib: int) -> None:
    with DemoCluster(keep=False) as cluster:
        cluster.start()
        person = Operator(cluster.bootstrap)
        for protocol in PROTOCOLS:
            person.does(f"topic create {protocol} --replication {protocol}")
        others = [cluster.node_pid(node) for node in (1, 2)]
        before = written(cluster.bootstrap, 32 << 20, others)
        with standing_still(cluster.node_pid(SLOW)):
            most = written(cluster.bootstrap, mib << 20, others)
        assert most - before < GROWTH_BYTES_MAX, f"{before >> 20} MiB before, {most >> 20} MiB meanwhile"
        until_caught_up(person)


def until_caught_up(person: Operator) -> None:
    deadline = monotonic() + START_TIMEOUT_S
    for protocol in PROTOCOLS:
        while True:
            (partition,) = person.shows(f"topic describe {protocol}")["partitions"]
            if all(copy.get("in_sync") and not copy["lag"] for copy in partition["copies"]):
                break
            assert monotonic() < deadline, partition
            sleep(POLL_S)
