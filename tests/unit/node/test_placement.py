"""Ensembles of new topics: even over the nodes, and the same wherever they are computed."""

from __future__ import annotations

from collections import Counter

from quorate.core.entry import Header, Member
from quorate.machine.metadata import (
    Command,
    CreateTopic,
    Metadata,
    NodeInfo,
    RegisterNode,
    Topic,
    command_batch,
)
from quorate.node.placement import place


def image_of(nodes_count: int, *topics: Topic) -> Metadata:
    image = Metadata()
    commands: list[Command] = [
        *(RegisterNode(NodeInfo(node, 1, "localhost", 9091 + node)) for node in range(1, nodes_count + 1)),
        *map(CreateTopic, topics),
    ]
    for offset, command in enumerate(commands):
        image.settle(Header(1, offset), 0, command_batch(command))
    return image


def test_replicas_and_leaders_are_spread_evenly() -> None:
    ensembles = place(image_of(5), 10, 3, heard=range(1, 6))
    assert all(len(set(ensemble)) == 3 for ensemble in ensembles)
    assert set(Counter(node for ensemble in ensembles for node in ensemble).values()) == {6}
    assert set(Counter(ensemble[0] for ensemble in ensembles).values()) == {2}


def test_nodes_that_hold_less_come_first() -> None:
    old = Topic("old", bytes(16), "raft", ((Member(1, 1), Member(2, 1)),))
    assert place(image_of(3, old), 1, 1, heard=(1, 2, 3)) == [[3]]


def test_copies_on_every_node_start_with_different_ones() -> None:
    assert [ensemble[0] for ensemble in place(image_of(3), 3, 3, heard=(1, 2, 3))] == [1, 2, 3]


def test_nodes_that_are_silent_get_copies_only_where_others_are_too_few() -> None:
    assert place(image_of(4), 2, 3, heard=(1, 3, 4)) == [[1, 3, 4], [3, 4, 1]]
    assert place(image_of(4), 2, 3, heard=(4, 3)) == [[3, 4, 1], [4, 3, 2]]
