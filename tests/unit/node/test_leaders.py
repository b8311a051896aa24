"""What nodes say to each other of what they lead: also that it is nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from quorate.core.entry import Member, partition_of
from quorate.host import Parcel
from quorate.host.parcel import Leads
from quorate.node import leaders

TOPIC = bytes(range(16))
PARTITION = partition_of(TOPIC, 0)
OTHER = 2


def a_node(send: Callable[[int, Parcel], None]) -> Any:
    """Just started: it leads nothing, and there is an overseen topic that it may have led before."""
    overseen = SimpleNamespace(
        id=TOPIC, ensembles=[(Member(1, 1), Member(OTHER, 1))], is_overseen=lambda number: True
    )
    image = SimpleNamespace(
        version=1,
        topics={"orders": overseen},
        by_id={TOPIC: overseen},
        nodes={1: None, OTHER: None},
        is_of_this_life=lambda member: True,
        is_deleted=lambda topic: False,
    )
    return SimpleNamespace(
        id=1,
        incarnation=1,
        peers=(OTHER,),
        config=SimpleNamespace(voters=(1, OTHER)),
        metadata=SimpleNamespace(image=image, leaders_version=0),
        host=SimpleNamespace(hosted={}),
        is_leader=lambda partition: False,
        send=send,
    )


def test_a_node_that_leads_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else others would go by what it said before it was restarted, and nobody would be elected in its place."""
    monkeypatch.setattr(leaders, "TELL_EVERY_S", 0.0)

    async def first_said() -> tuple[int, Parcel]:
        said: asyncio.Queue[tuple[int, Parcel]] = asyncio.Queue()
        node = a_node(lambda peer, parcel: said.put_nowait((peer, parcel)))
        saying = asyncio.create_task(leaders.Leaders(node).run())
        async with asyncio.timeout(10.0):
            first = await said.get()
        saying.cancel()
        return first

    peer, parcel = asyncio.run(first_said())
    assert (peer, parcel.message) == (OTHER, Leads(()))


def test_the_last_that_a_node_said_counts() -> None:
    told = leaders.Leaders(a_node(lambda peer, parcel: None))
    told.heard(OTHER, Leads(((PARTITION, 3),)))
    assert told.says_so(OTHER, PARTITION)
    told.heard(OTHER, Leads(()))
    assert not told.says_so(OTHER, PARTITION)
