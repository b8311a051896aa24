"""How the cluster's tests run: real processes with short times, in one event loop per test."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from quorate.batch import encode_records
from quorate.bench.cluster_load import Ledger
from quorate.bench.cluster_processes import POLL_S, START_TIMEOUT_S, Cluster, NodeProcess
from quorate.machine.metadata import REPLICATIONS

Result = TypeVar("Result")

TRIES_MAX = 4
"""A machine that is busy may look too late."""
LOOK_EVERY_S = 0.001
"""At what is over within milliseconds."""
QUICK_RAFT = {"election_timeout_s": 0.5, "heartbeat_s": 0.1}


def run(main: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def cluster_of(directory: Path, *, partitions: int, nodes: int = 3) -> Cluster:
    return Cluster(directory, nodes=nodes, partitions=partitions, raft=QUICK_RAFT)


def sampled(*always: str) -> list[Any]:
    """All four protocols in a proof; these in every run."""
    proof = pytest.mark.proof
    return [pytest.param(each, marks=() if each in always else proof) for each in REPLICATIONS]


def batch_of(value: bytes) -> bytes:
    return encode_records([(None, value)])


async def until_acknowledged(ledger: Ledger, count: int) -> None:
    """So many more, with the load going on."""
    wanted = ledger.acknowledged_count + count
    await until(lambda: ledger.acknowledged_count >= wanted, f"{count} more acknowledgements")


async def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {START_TIMEOUT_S} s for {what}"
        await asyncio.sleep(POLL_S)


async def until_caught(
    what: str, attempt: Callable[[], Awaitable[Result | None]], tries_max: int = TRIES_MAX
) -> Result:
    """What an attempt has caught; as often as it sees itself that it came too late, it is made again."""
    for _ in range(tries_max):
        if caught := await attempt():
            return caught
    raise AssertionError(f"{what} in {tries_max} attempts")


def freeze_when(holds: Callable[[], bool], send: Callable[[signal.Signals], None], what: str) -> None:
    """A process, by what sends it a signal, stands still as soon as this is seen; it blocks: use a thread."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {START_TIMEOUT_S} s for {what}"
        time.sleep(LOOK_EVERY_S)
    send(signal.SIGSTOP)


async def expect_nothing_lost(cluster: Cluster, ledger: Ledger) -> None:
    for node in cluster.nodes:
        found = await ledger.compare(node)
        assert found.lost == ()
        assert found.foreign == ()
        assert found.acknowledged_count > 0
        assert found.entries_read_count == found.acknowledged_count + found.unknown_kept_count


def expect_no_traceback(*nodes: NodeProcess) -> None:
    for node in nodes:
        assert "Traceback" not in node.output.read_text(encoding="utf-8")
