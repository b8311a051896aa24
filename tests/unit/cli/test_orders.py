"""Whom a command asks what the cluster is: nobody's old answer counts while another node knows better."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from quorate.cli import orders
from quorate.cli.orders import NOBODY_LEADS, Orders
from quorate.cli.wrong import NotYet, WrongUsage
from quorate.core.entry import EntryId, Member, Membership, Partition, Wanted
from quorate.machine.metadata import METADATA, NodeInfo
from quorate.node.client import Client, OutcomeUnknown, Unreachable
from quorate.node.config import Address
from quorate.node.requests import Image, ReplicaStatus, Status

SILENT = None


class Nodes:
    """A cluster whose nodes answer like this, or do not."""

    def __init__(self, *answers: Image | Unreachable | None) -> None:
        self.answers = dict(enumerate(answers, 1))
        self.asked: list[int] = []
        self.known: dict[int, Address] = {}
        self.replicas: tuple[ReplicaStatus, ...] = ()

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(self.answers)

    def know(self, node: int, address: Address) -> None:
        self.known[node] = address

    async def transfer(self, partition: Partition, to: int, *, timeout_s: float) -> None:
        raise OutcomeUnknown(f"node {to} knows of no leader; {timeout_s} s are over")

    async def status(self, node: int) -> Status:
        return Status(node, (), 0, self.replicas)

    async def image(self, node: int, topics: tuple[str, ...] | None = None, *, current: bool) -> Image:
        assert current
        self.asked.append(node)
        answer = self.answers[node]
        if answer is SILENT:
            await asyncio.get_running_loop().create_future()
        if isinstance(answer, Unreachable):
            raise answer
        assert isinstance(answer, Image)
        return answer


def orders_to(nodes: Nodes) -> Orders:
    return Orders(cast(Client, nodes))


def current(node: int, version: int = 7) -> Image:
    return Image(node, version, (NodeInfo(4, 1, "h", 9),), (), is_current=True)


def old(node: int, version: int) -> Image:
    return Image(node, version, (), ())


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "SOON_S", 0.01)
    monkeypatch.setattr(orders, "TIMEOUT_S", 0.1)


def test_one_node_is_asked_if_it_answers_and_the_same_again() -> None:
    nodes = Nodes(SILENT, current(2), current(3))

    async def look_twice() -> None:
        given = orders_to(nodes)
        assert (await given.image()).node == 2
        assert (await given.image()).node == 2

    asyncio.run(look_twice())
    assert nodes.asked == [1, 2, 2]
    assert nodes.known == {4: Address("h", 9)}


def test_an_old_answer_gives_way_to_a_current_one() -> None:
    nodes = Nodes(old(1, 5), Unreachable("gone"), current(3))
    assert asyncio.run(orders_to(nodes).image(even_old=True)) == current(3)


def test_where_no_majority_answers_orders_are_refused_and_a_look_shows_what_is_known() -> None:
    nodes = Nodes(old(1, 5), old(2, 6), Unreachable("gone"))
    assert asyncio.run(orders_to(nodes).image(even_old=True)) == old(2, 6)
    with pytest.raises(WrongUsage) as refused:
        asyncio.run(orders_to(nodes).image())
    assert str(refused.value) == NOBODY_LEADS


def test_votes_are_as_they_are_settled_and_where_nothing_can_be_as_the_leader_says() -> None:
    """Nothing can be settled while both ensembles count and one of them is gone: who leads takes that back."""
    one, two = Member(1, 1), Member(2, 1)
    settled = Membership((one,), version=3)
    joint = Membership((one, two), outgoing=(one,), wanted=Wanted((one, two), (), 4), version=4)
    leader = ReplicaStatus(METADATA, "leader", 1, 2, EntryId(2, 3), 3, 0, membership=joint)
    nodes = Nodes(Image(1, 7, (), (), (), settled, is_current=True))

    async def voters() -> dict[int, int]:
        given = orders_to(nodes)
        await given.image(even_old=True)
        return await given.voters()

    assert asyncio.run(voters()) == {1: 1}
    nodes.answers[1] = Image(1, 7, (), (), (), settled)
    with pytest.raises(WrongUsage, match="nobody leads"):
        asyncio.run(voters())
    nodes.replicas = (leader,)
    assert asyncio.run(voters()) == {1: 1, 2: 1}


def test_where_nobody_answers_it_is_said_why() -> None:
    nodes = Nodes(Unreachable("node 1 at h:1: connection refused"))
    with pytest.raises(WrongUsage) as refused:
        asyncio.run(orders_to(nodes).image())
    assert str(refused.value) == "the cluster does not answer: node 1 at h:1: connection refused; is it up?"


def test_an_order_of_which_nobody_heard_may_yet_be_done() -> None:
    with pytest.raises(NotYet, match=r"nobody who leads answers .* It may yet be done"):
        asyncio.run(orders_to(Nodes()).transfer(METADATA, "events/0", 2))
