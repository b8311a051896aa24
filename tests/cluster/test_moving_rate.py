"""Copies are made at a rate (decision 018): no faster, at nobody's cost, and whoever counts is not held up by it.

How much is read for copies is what nodes count (`quorate_moved_bytes_total`), with a rate and without one.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import pytest

from quorate.machine.metadata import REPLICATIONS
from tests.cluster.counted import numbers_of
from tests.cluster.fault_support import Writer, written_to
from tests.cluster.growing import FIRST
from tests.cluster.support import run
from tests.cluster.test_moves import FEW_COUNT, FEW_VALUE_BYTES, RELEASE, VALUE_BYTES, Moving, four_nodes

pytestmark = pytest.mark.cluster

SLOW_RATE = 128 << 10
"""Bytes a second from each node: far below what writers write, and what a busy machine copies."""
READ_BYTES_MAX = 1 << 20
"""What was begun is not broken off: one read (`message_bytes_max`) of each node is more than it may by then."""
MOVED_BYTES = 7 << 20
"""That much is to be seen: several reads of each node that gives."""
MOVED_TIMEOUT_S = 120.0


@pytest.mark.proof
def test_nothing_moves_faster_than_it_may_and_writes_go_on(tmp_path: Path) -> None:
    rate = 100 << 10

    async def main() -> None:
        async with four_nodes(tmp_path) as moving:
            writers = [load for load in moving.loads if isinstance(load, Writer)]
            written_bytes = VALUE_BYTES * sum(len(writer.acknowledged) for writer in writers)
            begun = monotonic()
            await moving.types(f"cluster drain 3 --no-wait --throttle {rate}")
            await moving.go_on()
            await moving.types("cluster drain 3")
            least_s = written_bytes / (3 * rate)
            # The end of a log is sent at once, if it is in memory.
            assert monotonic() - begun >= 0.5 * least_s, "three nodes send, and each keeps to it"

    run(main())


class Moved(NamedTuple):
    """What nodes read, for copies that do not count yet, since nothing was."""

    bytes_count: int
    span_s: float
    givers_count: int
    is_held_up: bool
    """Whether there was more to copy when clients had been answered; not asked where nothing holds it back."""

    def allowed_bytes(self, rate: int) -> float:
        return self.givers_count * (rate * self.span_s + READ_BYTES_MAX)


@pytest.mark.proof
def test_copies_are_made_at_a_rate_and_no_faster_and_clients_are_answered_meanwhile(tmp_path: Path) -> None:
    """A copy more of everything, and once more: without a rate more goes in a time than may at that one."""

    async def main() -> None:
        async with four_nodes(tmp_path) as moving:
            await moving.go_on()
            fast = await copied(moving, "off")
            slow = await copied(moving, f"{SLOW_RATE}")
            assert fast.bytes_count > fast.allowed_bytes(SLOW_RATE), fast
            assert slow.bytes_count <= slow.allowed_bytes(SLOW_RATE), slow
            assert slow.is_held_up, "what clients wait for waits for copies"
            assert slow.span_s > fast.span_s, (slow, fast)

    run(main())


async def copied(moving: Moving, rate: str) -> Moved:
    """Some of what goes to node 4, which has nothing then; with a rate, clients are answered before that is all."""
    await moving.holds_back(True)  # So that no topic is done before the last is ordered.
    for kind in REPLICATIONS:
        await moving.types(f"topic add {kind} --node 4 --no-wait")
    before, begun = sum(await moved_bytes(moving)), monotonic()
    released = asyncio.create_task(moving.types(f"cluster alter --config quorate.moving.rate={rate}"))

    async def are_moved() -> tuple[int, float] | None:
        bytes_count = sum(await moved_bytes(moving)) - before
        return (bytes_count, monotonic() - begun) if bytes_count >= MOVED_BYTES else None

    what = f"{MOVED_BYTES} bytes to be moved"
    moved = asyncio.create_task(moving.cluster.until(are_moved, what, timeout_s=MOVED_TIMEOUT_S))
    await released
    is_held_up = False
    if rate != "off":
        await moving.go_on()
        is_held_up = bool(await moving.changing())
    bytes_count, span_s = await moved
    await moving.types(RELEASE)
    await moving.until_still()
    for kind in REPLICATIONS:
        await moving.types(f"topic remove {kind} --node 4")
    return Moved(bytes_count, span_s, len(FIRST), is_held_up)


async def moved_bytes(moving: Moving) -> list[int]:
    """Of each node that gives, so far."""
    numbers = [await numbers_of(moving.cluster.nodes[node], "moved_bytes_total") for node in FIRST]
    return [moved for (moved,) in numbers]


@pytest.mark.proof
def test_a_copy_that_was_away_comes_back_into_the_isr_at_rate_zero(tmp_path: Path) -> None:
    """And so the next node of a rolling restart may go: as many stay in sync as clients insist on."""

    async def main() -> None:
        async with (
            written_to(tmp_path, value_bytes=FEW_VALUE_BYTES, more_count=FEW_COUNT) as (cluster, writers),
            cluster.client() as client,
        ):
            moving = Moving(cluster, client, writers)
            await moving.holds_back(True)
            cluster.nodes[3].kill()
            await until_in_sync(moving, 2)
            await moving.go_on()
            cluster.nodes[3].start()
            await cluster.until_registered(client)
            await until_in_sync(moving, 3)
            await moving.go_on()
            await moving.types("cluster alter --reset quorate.moving.rate")

    run(main())


async def until_in_sync(moving: Moving, count: int) -> None:
    """Of each partition of `isr`, so many copies."""

    async def are() -> bool | None:
        view = await moving.shows("topic describe isr")
        counts = [sum(copy.get("in_sync") is True for copy in each["copies"]) for each in view["partitions"]]
        return counts == [count] * len(counts) or None

    await moving.cluster.until(are, f"{count} copies to be in sync")
