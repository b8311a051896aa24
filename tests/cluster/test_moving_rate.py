"""Copies are made at a rate (decision 018): no faster, at nobody's cost, and whoever counts is not held up by it.

Writers measure what it costs them, in one run: before copies are made, and meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import pytest

from quorate.core.entry import partition_of
from quorate.machine.metadata import REPLICATIONS
from tests.cluster.fault_support import Writer, written_to
from tests.cluster.growing import held_by
from tests.cluster.support import run
from tests.cluster.test_moves import FEW_COUNT, FEW_VALUE_BYTES, RELEASE, VALUE_BYTES, Moving, four_nodes

pytestmark = pytest.mark.cluster

SLOW_RATE = 256 << 10
COPIED_COUNT = 600
"""Entries: several reads of each node that gives."""
ROUNDS_COUNT = 5
"""Of a writer's writes, before copies are made; meanwhile there are as many, or more."""
SLOWER_AT_MOST = 5
"""Copies cost something, and others use this machine; at that rate, writers would be slower by far more."""
PAUSE_MAX_S = 3.0


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


class Written(NamedTuple):
    """How it went for writers that always have something to send."""

    writes_per_s: float
    longest_pause_s: float


async def written(writers: Sequence[Writer], goes_on: Callable[[], bool] = lambda: False) -> Written:
    """Some rounds of each writer's, and more while that goes on, without a break: how the slowest topic goes, and
    the longest that the clients of any wait."""
    begun, counts = monotonic(), [len(writer.told_at) for writer in writers]

    async def some(writer: Writer) -> None:
        rounds_count = 0
        while rounds_count < ROUNDS_COUNT or goes_on():
            await writer.go_on()
            rounds_count += 1

    await asyncio.gather(*map(some, writers))
    rates, pauses = [], []
    for writer, count in zip(writers, counts, strict=True):
        times = [begun, *writer.told_at[count:]]
        rates.append((len(times) - 1) / (times[-1] - begun))
        pauses.append(max(after - before for before, after in pairwise(times)))
    return Written(min(rates), max(pauses))


@pytest.mark.proof
def test_writers_do_not_starve_while_copies_are_made_under_a_rate(tmp_path: Path) -> None:
    """A copy more of everything, at a rate far below what is written; how writers fare before and meanwhile."""

    async def main() -> None:
        async with four_nodes(tmp_path) as moving:
            writers = [load for load in moving.loads if isinstance(load, Writer)]
            before = await written(writers)
            await moving.holds_back(True)  # So that no topic is done before the last is ordered.
            for kind in REPLICATIONS:
                await moving.types(f"topic add {kind} --node 4 --no-wait")
            copying = asyncio.create_task(copied(moving))
            meanwhile = await written(writers, lambda: not copying.done())
            await copying
            assert await moving.changing() == set(REPLICATIONS), "all of it was while copies were made"
            assert meanwhile.writes_per_s > before.writes_per_s / SLOWER_AT_MOST, (before, meanwhile)
            assert meanwhile.longest_pause_s < PAUSE_MAX_S, (before, meanwhile)
            await moving.types(RELEASE)
            await moving.until_still()
            for kind in REPLICATIONS:
                await moving.types(f"topic remove {kind} --node 4")

    run(main())


async def copied(moving: Moving) -> None:
    """At that rate, until so many entries have arrived in the copies that are made on node 4."""
    await moving.types(f"cluster alter --config quorate.moving.rate={SLOW_RATE}")

    async def are_copied() -> bool | None:
        return await copied_count(moving) >= COPIED_COUNT or None

    await moving.cluster.until(are_copied, f"{COPIED_COUNT} entries to be copied")


async def copied_count(moving: Moving) -> int:
    image = await moving.client.image(next(iter(moving.cluster.nodes)), current=True)
    statuses = await moving.cluster.answers(moving.client)
    copies = [
        held_by(statuses, partition_of(topic.id, number)).get(4)
        for topic in image.topics
        for number in topic.changes
    ]
    return sum(copy.head.offset for copy in copies if copy is not None)


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
