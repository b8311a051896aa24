"""What is said of many moves, and who leads after them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from quorate.cli import moving, say
from quorate.cli.electing import elect
from quorate.cli.wrong import WrongUsage
from quorate.core.entry import EntryId, Member, Partition
from quorate.machine.changing import Change
from quorate.machine.cluster import Cluster, drained_nodes, drained_setting
from quorate.machine.metadata import NodeInfo, Topic
from quorate.machine.turning import Turned
from quorate.node.plans import Nodes, NoPlace, Where, rebalanced
from quorate.node.requests import Image, ReplicaStatus, Status

ONE, TWO, THREE, FOUR = (Member(node, 1) for node in (1, 2, 3, 4))
INFOS = tuple(NodeInfo(node, 1, "h", 9000 + node, rack="ab"[node % 2]) for node in (1, 2, 3, 4))
LIVES = {1: 0, 2: 1, 3: 2, 4: 30}


def image_of(*topics: Topic, config: dict[str, str] | None = None) -> Image:
    return Image(1, 90, INFOS, topics, cluster=Cluster(2, config or {}), lives=LIVES)


MOVING = Topic(
    "t",
    bytes(16),
    "raft",
    ((ONE, TWO, THREE), (TWO, THREE, ONE)),
    changes={0: Change((FOUR, TWO, THREE), 70)},
)


def test_bytes_are_said_in_the_unit_that_fits() -> None:
    assert [say.bytes_count(count) for count in (0, 1023, 1024, 20 << 20, 1_500_000, 3 << 30)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "20 MiB",
        "1.43 MiB",
        "3 GiB",
    ]


def test_plans_are_made_from_what_is_wanted() -> None:
    image = image_of(MOVING)
    assert moving.layout_of(image) == {("t", 0): [4, 2, 3], ("t", 1): [2, 3, 1]}
    assert moving.open_changes(image) == [("t", 0)]
    assert moving.open_changes(image, of=[("t", 1)]) == []
    assert moving.holding(image, 1) == [("t", 0), ("t", 1)], "it still counts in the first"
    assert moving.holding(image, 4) == [("t", 0)]


HALF_TURNED = Topic(
    "t",
    bytes(16),
    "coordinated",
    ((ONE, TWO), (ONE, TWO)),
    turned={1: Turned(1, "raft", EntryId(3, 99), 3, 1)},
)
"""On its way to raft: its first partition still has an operator."""


def test_an_operator_is_a_partitions_own_while_its_topic_turns() -> None:
    assert moving.operated(image_of(HALF_TURNED)) == {("t", 0)}
    layout = {("t", number): [1, 2] for number in range(4)}
    nodes = Nodes({1: "a", 2: "b"}, [1, 2])
    plan = rebalanced(layout, nodes, chosen={("t", 0), ("t", 1)})
    assert [plan["t", number] for number in (0, 1)] == [[1, 2], [1, 2]], "nobody is preferred there"
    assert sorted(plan["t", number][0] for number in (2, 3)) == [1, 2]


def test_leaders_are_handed_over_wherever_no_operator_chooses_them() -> None:
    transferred = []

    class Cluster:
        async def statuses(self) -> dict[int, object]:
            copies = [
                ReplicaStatus(partition, "leader", 2, 3, EntryId(3, 9), 9, 0, TWO)
                for partition in HALF_TURNED.partitions()
            ]
            return {1: Status(1, (), 0, ()), 2: Status(2, (), 0, tuple(copies))}

        async def transfer(self, _: Partition, name: str, to: int) -> int:
            transferred.append((name, to))
            return to

    both = [(HALF_TURNED, 0), (HALF_TURNED, 1)]
    elected = asyncio.run(elect(Cluster(), both))  # type: ignore[arg-type]
    assert transferred == [("t/1", 1)]
    assert elected.leads == {("t", 0): 2, ("t", 1): 1}


def test_who_is_drained_or_silent_gets_nothing_and_a_new_directory_is_somebody_else() -> None:
    drained = {drained_setting(2): "1", drained_setting(4): "3"}
    assert drained_nodes(drained, LIVES) == [2], "node 4 was made anew since"
    nodes = moving.nodes_of(image_of(config=drained), [1, 2, 4], leaves=[1])
    assert (nodes.takes, nodes.leaves) == ([4], [1, 2])
    assert nodes.racks == {1: "rack b", 2: "rack a", 3: "rack b", 4: "rack a"}


def test_where_there_is_no_place_it_is_said_which_partition_and_what_would_help() -> None:
    layout, nodes = {("t", 0): [1, 2, 3]}, Nodes({1: "", 2: "", 3: ""}, [2, 3], [1])
    said = str(moving.no_place(nodes, layout, NoPlace(("t", 0), 1)))
    assert said == (
        "t/0: it has copies on nodes 2, 3, and no other node that answers may have one; add a node, or have fewer "
        "copies: `quorate topic alter t --replicas 2`"
    )


def test_lost_disks_are_a_persons_decision_first() -> None:
    image = Image(1, 90, INFOS, (MOVING,), (("t", 1, 3),))
    moving.expect_disks(image, but=3)
    with pytest.raises(WrongUsage, match=r"t/1: the disk of node 3 is lost; .*`quorate cluster replace 3`"):
        moving.expect_disks(image)


def test_a_plan_is_told_a_line_for_each_partition() -> None:
    before = {("a", 0): [1, 2], ("a", 1): [1, 2], ("b", 0): [1, 2]}
    after = {("a", 0): [1, 2], ("a", 1): [2, 1], ("b", 0): [1, 3]}
    assert moving.told(before, after) == [
        "a/1: node 2 is preferred as its leader instead of node 1",
        "b/0: 1, 2 → 1, 3",
    ]


class Ordered:
    """As much of a cluster as whoever calls off sees of it."""

    def __init__(self, image: Image) -> None:
        self.seen, self.stands = image, ""
        self.changed: list[tuple[int, list[int]]] = []

    async def change_topic(self, _: Topic, number: int, nodes: list[int]) -> None:
        self.changed.append((number, nodes))


def called_off(image: Image) -> tuple[tuple[list[Where], list[Where]], list[tuple[int, list[int]]]]:
    orders = Ordered(image)
    told = asyncio.run(moving.call_off(orders, moving.open_changes(image)))  # type: ignore[arg-type]
    return told, orders.changed


def test_called_off_a_partition_stays_on_the_nodes_that_count() -> None:
    assert called_off(image_of(MOVING)) == (([("t", 0)], []), [(0, [1, 2, 3])])


def test_what_was_called_off_before_is_waited_for() -> None:
    back = msgspec.structs.replace(MOVING, changes={0: Change((ONE, TWO, THREE), 80, (FOUR,))})
    assert called_off(image_of(back)) == (([("t", 0)], []), [])


def test_a_new_disk_in_place_of_a_lost_one_has_nothing_to_go_back_to() -> None:
    anew = msgspec.structs.replace(MOVING, changes={0: Change((ONE, TWO, Member(3, 70)), 70)})
    image = msgspec.structs.replace(image_of(anew), lost_now=(("t", 0, 3),))
    assert called_off(image) == (([], [("t", 0)]), [])


def test_only_a_drain_that_is_called_off_ends_the_mark_of_its_node() -> None:
    """Node 1 is about to be left, node 4 was emptied before, and what leaves a lost disk goes on."""
    marks = {drained_setting(node): str(LIVES[node]) for node in (1, 4)}
    image = image_of(MOVING, config=marks)
    assert moving.being_drained(image) == [1]
    assert moving.being_drained(msgspec.structs.replace(image, lost_now=(("t", 0, 1),))) == []
    assert moving.being_drained(image_of(MOVING)) == []
