"""Nodes that are gone for good: when they are forgotten, and what of them never comes back."""

from __future__ import annotations

import pytest

from quorate.core.entry import Member
from quorate.machine.metadata import (
    ChangeEnsemble,
    CreateTopic,
    DeleteTopic,
    ForgetNode,
    Metadata,
    NodeInfo,
    NoteReached,
    RegisterNode,
    Topic,
)
from tests.unit.machine.test_metadata import Log

ORDERS = Topic("orders", bytes(15) + b"o", "raft", ((Member(1, 1), Member(2, 1)),) * 2)
ANEW = 1 << 50


def info(node: int, incarnation: int = 1) -> NodeInfo:
    return NodeInfo(node, incarnation, "h", 9090 + node)


@pytest.fixture
def log() -> Log:
    made = Log()
    made.settle(*(RegisterNode(info(node)) for node in (1, 2, 3)), CreateTopic(ORDERS))
    return made


def test_a_node_without_copies_is_forgotten(log: Log) -> None:
    at = log.settle(ForgetNode(3))
    assert sorted(log.image.nodes) == [1, 2]
    assert log.image.version == at
    assert log.image.forgotten() == [3]


def test_forgetting_it_again_or_somebody_unknown_changes_nothing(log: Log) -> None:
    at = log.settle(ForgetNode(3))
    log.settle(ForgetNode(3), ForgetNode(9))
    assert log.image.version == at
    assert log.image.forgotten() == [3]


def test_a_node_that_has_a_copy_is_not_forgotten(log: Log) -> None:
    log.settle(ForgetNode(2))
    assert log.image.held_by(2) == ["orders/0", "orders/1"]
    assert not log.image.is_forgotten(2)
    log.settle(DeleteTopic(ORDERS.id), ForgetNode(2))
    assert log.image.is_forgotten(2)


def test_nor_one_that_is_to_have_a_copy_or_may_still_count(log: Log) -> None:
    added = log.settle(ChangeEnsemble(ORDERS.id, 0, (1, 2, 3)))
    log.settle(ForgetNode(3))
    assert log.image.held_by(3) == ["orders/0"]
    log.settle(NoteReached(ORDERS.id, 0, added))
    removed = log.settle(ChangeEnsemble(ORDERS.id, 0, (1, 2)))
    log.settle(ForgetNode(3))
    assert not log.image.is_forgotten(3)
    log.settle(NoteReached(ORDERS.id, 0, removed), ForgetNode(3))
    assert log.image.is_forgotten(3)


def test_an_order_that_was_held_up_does_not_forget_a_node_that_joined_again(log: Log) -> None:
    seen = log.image.version
    log.settle(RegisterNode(info(3, ANEW)), ForgetNode(3, seen))
    assert log.image.nodes[3] == info(3, ANEW)
    log.settle(ForgetNode(3, log.image.version))
    assert log.image.is_forgotten(3)


def test_that_a_node_has_moved_does_not_keep_it(log: Log) -> None:
    seen = log.image.version
    log.settle(RegisterNode(NodeInfo(3, 1, "elsewhere", 1)), ForgetNode(3, seen))
    assert log.image.is_forgotten(3)


def test_its_directory_never_comes_back_and_another_one_may(log: Log) -> None:
    at = log.settle(ForgetNode(3))
    log.settle(RegisterNode(info(3)))
    assert log.image.version == at
    assert log.image.is_replaced(3, incarnation=1)
    assert not log.image.is_replaced(3, incarnation=ANEW)
    log.settle(RegisterNode(info(3, ANEW)))
    assert log.image.nodes[3] == info(3, ANEW)
    assert log.image.forgotten() == []
    assert log.image.is_replaced(3, incarnation=1)


def test_nor_does_a_directory_made_as_if_it_were_the_first(log: Log) -> None:
    log.settle(RegisterNode(info(5, ANEW)), ForgetNode(5), RegisterNode(info(5)))
    assert log.image.is_replaced(5, incarnation=1)
    assert log.image.is_forgotten(5)


def test_nobody_copies_to_a_forgotten_node(log: Log) -> None:
    at = log.settle(ForgetNode(3))
    events = Topic("events", bytes(15) + b"e", "raft", ((Member(3, 1),),))
    log.settle(ChangeEnsemble(ORDERS.id, 0, (1, 2, 3)), CreateTopic(events))
    assert log.image.version == at


def test_the_forgotten_are_in_snapshots(log: Log) -> None:
    log.settle(ForgetNode(3))
    restored = Metadata()
    restored.restore(log.image.snapshot())
    assert restored.forgotten() == [3]
    assert restored.is_replaced(3, incarnation=1)
