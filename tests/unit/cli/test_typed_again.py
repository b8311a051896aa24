"""A command that is typed again when all is so says that, with exit code 0: whoever interrupts is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from quorate.cli import orders
from quorate.cli.entry import run
from quorate.cli.wrong import WrongUsage
from quorate.core.entry import EntryId, Member, Membership, Partition, partition_of
from quorate.machine.cluster import AlterCluster
from quorate.machine.metadata import METADATA, Command, NodeInfo, Topic
from quorate.node.requests import Image, ReplicaStatus, Status

Result = TypeVar("Result")

TRIO = tuple(Member(node, 1) for node in (1, 2, 3))
INFOS = tuple(NodeInfo(node, 1, "h", 9000 + node) for node in (1, 2, 3, 5))
TOPICS = tuple(
    Topic(kind, bytes(15) + bytes([number]), kind, (TRIO,))
    for number, kind in enumerate(("raft", "coordinated"))
)

CHOSEN = "an operator chooses who leads coordinated, by what is in its copies' logs"


class Cluster:
    """Four nodes, of which three vote and copy everything, and node 1 leads; node 4 was forgotten."""

    def __init__(self) -> None:
        self.seen = Image(1, 9, INFOS, TOPICS, metadata=Membership(TRIO), is_current=True)
        self.voters_change = False
        self.silent: tuple[int, ...] = ()
        self.settled: list[Command] = []

    def advise(self, *, again: str, off: str = "") -> None:
        assert again.startswith("quorate ")

    async def image(self, topics: Sequence[str] | None = None) -> Image:
        return self.seen

    async def topic(self, name: str, *, even_old: bool = False) -> Topic:
        return next(topic for topic in self.seen.topics if topic.name == name)

    async def voters(self) -> dict[int, int]:
        return {member.node: member.incarnation for member in TRIO}

    async def statuses(self) -> dict[int, Status]:
        partitions = (METADATA, *(partition_of(topic.id, 0) for topic in TOPICS))
        leads = tuple(
            ReplicaStatus(each, "leader", 1, 1, EntryId(1, 0), 0, 0, TRIO[0], Membership(TRIO))
            for each in partitions
        )
        found = {info.node: Status(info.node, (), 0, leads if info.node == 1 else ()) for info in INFOS}
        return {node: status for node, status in found.items() if node not in self.silent}

    async def transfer(self, partition: Partition, what: str, to: int) -> int:
        return to or 2

    async def forget(self, node: int) -> None:
        if node != 4:
            raise WrongUsage(f"node {node}: nobody knows it")

    async def settle(self, what: str, command: Command) -> None:
        self.settled.append(command)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    there = Cluster()

    def carry_out(_: str, work: Callable[[Any], Awaitable[Result]]) -> Result:
        async def done() -> Result:
            return await work(there)

        return asyncio.run(done())

    monkeypatch.setattr(orders, "carry_out", carry_out)
    return there


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cluster replace 2", "nothing is left to do: node 2 counts everywhere"),
        ("cluster replace 2 --no-wait", "nothing is left to do: node 2 counts everywhere"),
        ("cluster replace 5 --with 2", "nothing is left to do: node 5 has no copy and no vote"),
        ("cluster decommission 4", "node 4 has no copies and no vote, and is forgotten already"),
        ("cluster forget 4", "node 4 is forgotten already"),
        ("cluster transfer --to 1", "the metadata group is led by node 1 already"),
        ("cluster transfer --to 2", "the metadata group is led by node 2"),
        ("topic transfer raft/0 --to 1", "raft/0 is led by node 1 already"),
        ("topic transfer raft/0 --to 3", "raft/0 is led by node 3"),
        ("topic transfer coordinated", "coordinated/0 is led by node 2"),
        ("topic replace raft --node 2", "raft/0 is on nodes 1, 2, 3 already"),
        ("topic elect raft", "raft/0 is led by node 1 already"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_what_is_so_is_said_to_be_so(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 0
    assert capsys.readouterr().out == f"{said}\n"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("cluster decommission 9", "there is no node 9; there are: 1, 2, 3, 5"),
        ("cluster forget 9", "there is no node 9; there are: 1, 2, 3, 5"),
        ("cluster replace 9 --with 5", "node 9 has no copy of anything, and no vote in the metadata group"),
        (
            "topic elect coordinated",
            f"{CHOSEN}; nobody is preferred; `quorate topic transfer coordinated` lets another lead",
        ),
        (
            "topic transfer coordinated --to 2",
            f"{CHOSEN}; leave --to out to let another lead",
        ),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_what_never_was_so_is_refused(line: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2
    assert capsys.readouterr() == ("", f"quorate: {why}\n")


@pytest.mark.parametrize("line", ["cluster replace 2", "topic replace raft --node 2"])
def test_a_node_that_is_silent_may_have_lost_its_disk(
    line: str, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.silent = (2,)
    assert run(line.split()) == 2
    said = capsys.readouterr().err
    assert "node 2 has the disk that it had, and does not answer; name another node with --with, or" in said


def test_a_decommission_that_ended_just_before_its_last_step_leaves_no_setting(cluster: Cluster) -> None:
    assert run(["cluster", "decommission", "4"]) == 0
    assert cluster.settled == [AlterCluster({"quorate.node.4.drained": None})]
