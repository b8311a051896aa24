"""When a node ends because others turn it away: never because of one that is itself astray."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from quorate.node.codec import FOR_GOOD, OTHER_CLUSTER
from quorate.node.config import NodeConfig
from quorate.node.node import Node
from quorate.node.unwanted import Unwanted

STRANGER = f"refused: {OTHER_CLUSTER} 'theirs', not 'mine'"


class Turned:
    """A node with two peers that is turned away."""

    def __init__(self, *, knows: dict[int, object]) -> None:
        peers = {2: "h:2", 3: "h:3"}
        self.config = NodeConfig("mine", 1, "data", "h:1", peers=peers, voters=(1, 2, 3))
        self.metadata = SimpleNamespace(image=SimpleNamespace(nodes=knows))
        self.failed: list[str] = []
        self.unwanted = Unwanted(cast(Node, self))

    def fail(self, why: str) -> None:
        self.failed.append(why)


def test_a_new_node_that_all_say_is_of_another_cluster_ends() -> None:
    node = Turned(knows={})
    assert not node.unwanted.refused(2, STRANGER)
    assert not node.unwanted.refused(2, STRANGER)
    assert node.unwanted.refused(3, STRANGER)
    (why,) = node.failed
    assert why.startswith(STRANGER)
    assert "remove data, and make it with their --cluster" in why


def test_a_node_that_has_been_of_its_cluster_goes_on() -> None:
    node = Turned(knows={1: object()})
    assert not any(node.unwanted.refused(peer, STRANGER) for peer in (2, 3))
    assert node.failed == []


@pytest.mark.parametrize("reason", FOR_GOOD)
def test_what_is_for_good_is_so_whoever_says_it(reason: str) -> None:
    node = Turned(knows={1: object()})
    assert node.unwanted.refused(2, f"refused: node 1 {reason}")
    assert len(node.failed) == 1
