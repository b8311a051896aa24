"""Placement over any nodes, racks and topics: copies apart, load even, and the same wherever it is computed."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

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
from quorate.node.placement import place, rack_of

RACKS = ("", "a", "b", "c")
nodes = st.lists(st.sampled_from(RACKS), min_size=1, max_size=9)
"""A rack for each node."""


def image_of(racks: list[str], *topics: Topic) -> Metadata:
    image = Metadata()
    commands: list[Command] = [
        *(RegisterNode(NodeInfo(node, 1, "h", node, rack=rack)) for node, rack in enumerate(racks, 1)),
        *map(CreateTopic, topics),
    ]
    for offset, command in enumerate(commands):
        image.settle(Header(1, offset), 0, command_batch(command))
    return image


def members(nodes: list[int]) -> tuple[Member, ...]:
    return tuple(Member(node, 1) for node in nodes)


@given(nodes, st.integers(1, 30), st.data())
def test_copies_are_on_different_nodes_in_as_many_racks_as_there_are(
    racks: list[str], partitions: int, data: st.DataObject
) -> None:
    copies = data.draw(st.integers(1, len(racks)))
    image = image_of(racks)
    ensembles = place(image, partitions, copies, heard=image.nodes)
    assert len(ensembles) == partitions
    racks_count = len({rack_of(info) for info in image.nodes.values()})
    for ensemble in ensembles:
        assert len(set(ensemble)) == copies
        used = Counter(rack_of(image.nodes[node]) for node in ensemble)
        assert len(used) == min(copies, racks_count)
        # No rack has two more than another that has a node to spare.
        for rack, other in product(used, used):
            spare = [n for n, info in image.nodes.items() if rack_of(info) == other and n not in ensemble]
            assert used[rack] <= used[other] + 1 or not spare


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 40), st.data())
def test_where_racks_are_alike_every_node_holds_as_much_as_the_others(
    racks_count: int, rack_nodes_count: int, partitions: int, data: st.DataObject
) -> None:
    racks = [f"r{number % racks_count}" for number in range(racks_count * rack_nodes_count)]
    copies = data.draw(st.integers(1, len(racks)))
    ensembles = place(image_of(racks), partitions, copies, heard=range(1, len(racks) + 1))
    held = Counter(node for ensemble in ensembles for node in ensemble)
    led = Counter(ensemble[0] for ensemble in ensembles)
    for counts in (held, led):
        loads = [counts[node] for node in range(1, len(racks) + 1)]
        assert max(loads) - min(loads) <= 1


@given(nodes, st.integers(1, 10), st.data())
def test_it_goes_on_from_what_is_there_as_if_it_had_been_placed_at_once(
    racks: list[str], partitions: int, data: st.DataObject
) -> None:
    copies = data.draw(st.integers(1, len(racks)))
    heard = data.draw(st.sets(st.integers(1, len(racks))))
    cut = data.draw(st.integers(0, partitions))
    whole = place(image_of(racks), partitions, copies, heard=heard)
    first = [Topic("first", bytes(16), "raft", tuple(map(members, whole[:cut])))] if cut else []
    assert place(image_of(racks, *first), partitions - cut, copies, heard=heard) == whole[cut:]


@given(nodes, st.integers(1, 10), st.data())
def test_silent_nodes_hold_only_what_nobody_else_can(
    racks: list[str], partitions: int, data: st.DataObject
) -> None:
    copies = data.draw(st.integers(1, len(racks)))
    heard = data.draw(st.sets(st.integers(1, len(racks))))
    for ensemble in place(image_of(racks), partitions, copies, heard=heard):
        assert len(heard.intersection(ensemble)) == min(copies, len(heard))
        assert ensemble[0] in heard or not heard
