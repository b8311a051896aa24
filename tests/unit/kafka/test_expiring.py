"""One timer tells all requests whose time is over, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quorate.kafka.expiring import Expiring


class Request:
    def __init__(self, told: list[Request], all_told: asyncio.Event, awaited_count: int) -> None:
        self._told, self._all_told, self._awaited_count = told, all_told, awaited_count

    def expire(self) -> None:
        self._told.append(self)
        if len(self._told) == self._awaited_count:
            self._all_told.set()


def test_who_asked_for_less_is_told_first_whoever_came_first() -> None:
    async def run() -> None:
        told: list[Request] = []
        all_told = asyncio.Event()
        turns = 0

        def in_turn(do: Callable[[], None]) -> None:
            nonlocal turns
            turns += 1
            do()

        expiring = Expiring(in_turn)
        slow, answered, quick, late = (Request(told, all_told, 3) for _ in range(4))
        expiring.begin(slow, 60)
        expiring.begin(answered, 1)
        expiring.begin(quick, 1)
        expiring.end(answered, 1)
        expiring.begin(late, 120)
        await asyncio.wait_for(all_told.wait(), 10)
        assert told == [quick, slow, late]
        assert turns <= 3
        assert not expiring._waiting

    asyncio.run(run())


def test_a_request_that_comes_after_all_were_told_is_told_too() -> None:
    async def run() -> None:
        told: list[Request] = []
        expiring = Expiring(lambda do: do())
        for count in (1, 2):
            all_told = asyncio.Event()
            expiring.begin(Request(told, all_told, count), 1)
            await asyncio.wait_for(all_told.wait(), 10)
        assert len(told) == 2

    asyncio.run(run())


def test_nobody_is_told_after_the_end() -> None:
    async def run() -> None:
        told: list[Request] = []
        expiring = Expiring(lambda do: do())
        request = Request(told, asyncio.Event(), 1)
        expiring.begin(request, 1)
        expiring.close()
        expiring.end(request, 1)
        other_told = asyncio.Event()
        other = Expiring(lambda do: do())
        other.begin(Request([], other_told, 1), 30)
        await asyncio.wait_for(other_told.wait(), 10)
        assert not told

    asyncio.run(run())
