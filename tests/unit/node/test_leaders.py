"""What nodes say to each other of whom they lead: also that it is nothing, and only for the life they said it in."""

from __future__ import annotations

import asyncio
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


def a_node(sent: list[tuple[int, Parcel]]) -> Any:
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
        send=lambda peer, parcel: sent.append((peer, parcel)),
    )


def test_a_node_that_leads_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else others would go by what it said before it was restarted, and nobody would be elected in its place."""
    monkeypatch.setattr(leaders, "TELL_EVERY_S", 0.0)
    sent: list[tuple[int, Parcel]] = []

    async def until_said() -> None:
        saying = asyncio.create_task(leaders.Leaders(a_node(sent)).run())
        async with asyncio.timeout(10.0):
            while not sent:
                await asyncio.sleep(0)
        saying.cancel()

    asyncio.run(until_said())
    assert (sent[0][0], sent[0][1].message) == (OTHER, Leads(()))


def test_what_a_node_said_is_over_with_its_life() -> None:
    told = leaders.Leaders(a_node([]))
    told.heard(OTHER, Leads(((PARTITION, 3),)))
    assert told.says_so(OTHER, PARTITION)
    told.lost(OTHER)
    assert not told.says_so(OTHER, PARTITION)
    told.heard(OTHER, Leads(()))
    assert not told.says_so(OTHER, PARTITION)
