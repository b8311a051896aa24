"""Changes of ensembles in the image: what is wanted, who holds replicas meanwhile, and who comes back as whom."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core.entry import Member
from quorate.machine.changing import Change
from quorate.machine.metadata import (
    ChangeEnsemble,
    CreateTopic,
    DeleteTopic,
    Metadata,
    NodeInfo,
    NoteReached,
    RegisterNode,
    Topic,
)
from tests.unit.machine.test_metadata import Log

ONE, TWO, THREE, FOUR = (Member(node, 1) for node in (1, 2, 3, 4))
ORDERS = Topic("orders", bytes(15) + b"o", "raft", ((ONE, TWO, THREE), (TWO, ONE, THREE)))


def info(node: int, incarnation: int = 1) -> NodeInfo:
    return NodeInfo(node, incarnation, "h", 9090 + node)


def wants(*nodes: int, partition: int = 0) -> ChangeEnsemble:
    return ChangeEnsemble(ORDERS.id, partition, nodes)


def reached(at: int, partition: int = 0) -> NoteReached:
    return NoteReached(ORDERS.id, partition, at)


@pytest.fixture
def log() -> Log:
    made = Log()
    made.settle(*(RegisterNode(info(node)) for node in (1, 2, 3, 4)), CreateTopic(ORDERS))
    return made


def topic(log: Log) -> Topic:
    return log.image.topics["orders"]


def test_what_is_wanted_stands_beside_what_is_until_it_is_reached(log: Log) -> None:
    at = log.settle(wants(2, 3, 4))
    new = Member(4, at)
    assert topic(log).ensembles == ORDERS.ensembles
    assert topic(log).changes == {0: Change((TWO, THREE, new), at)}
    assert set(topic(log).holders(0)) == {ONE, TWO, THREE, new}
    assert topic(log).holders(1) == ORDERS.ensembles[1]
    log.settle(reached(at))
    assert topic(log).ensembles == ((TWO, THREE, new), ORDERS.ensembles[1])
    assert topic(log).changes == {}
    assert log.image.by_id[ORDERS.id] is topic(log)


def test_the_same_command_again_changes_nothing(log: Log) -> None:
    log.settle(wants(2, 3, 4))
    before = log.image.snapshot()
    log.settle(wants(2, 3, 4))
    assert log.image.snapshot() == before


def test_only_the_newest_change_is_reached(log: Log) -> None:
    first = log.settle(wants(1, 2))
    second = log.settle(wants(1, 2, 3))
    third = log.settle(wants(1, 2))
    for late in (first, second):
        log.settle(reached(late))
        assert topic(log).changes[0].at == third
    log.settle(reached(third))
    assert topic(log).ensembles[0] == (ONE, TWO)


def test_a_change_that_is_given_up_keeps_its_newcomers_until_the_group_is_back(log: Log) -> None:
    """They may count already, and then nothing is agreed on without them."""
    at = log.settle(wants(1, 2, 4))
    back = log.settle(wants(1, 2, 3))
    assert topic(log).changes == {0: Change((ONE, TWO, THREE), back, (Member(4, at),))}
    assert Member(4, at) in topic(log).holders(0)
    log.settle(reached(back))
    assert topic(log).holders(0) == (ONE, TWO, THREE)


def test_a_newcomer_that_is_wanted_again_meanwhile_is_the_same(log: Log) -> None:
    at = log.settle(wants(1, 2, 4))
    log.settle(wants(1, 2, 3))
    log.settle(wants(4, 1, 2))
    assert topic(log).changes[0].wanted == (Member(4, at), ONE, TWO)


def test_who_has_left_comes_back_as_somebody_else(log: Log) -> None:
    log.settle(reached(log.settle(wants(1, 2))))
    at = log.settle(wants(1, 2, 3))
    assert topic(log).changes[0].wanted == (ONE, TWO, Member(3, at))
    log.settle(reached(at))
    log.settle(reached(log.settle(wants(1, 2))))
    assert topic(log).ensembles[0] == (ONE, TWO)
    again = log.settle(wants(1, 2, 3))
    assert again > at
    assert topic(log).changes[0].wanted[2] == Member(3, again)


def test_a_node_with_a_new_disk_is_put_in_place_of_the_one_it_was(log: Log) -> None:
    added = log.settle(wants(1, 2, 4, partition=1))
    log.settle(reached(added, partition=1))
    log.settle(RegisterNode(info(4, incarnation=1 << 50)), RegisterNode(info(3, incarnation=1 << 51)))
    assert not log.image.is_of_this_life(THREE)
    assert not log.image.is_of_this_life(Member(4, added))
    assert log.image.is_of_this_life(Member(4, 1 << 50))
    at = log.settle(wants(1, 2, 3))
    assert topic(log).changes[0].wanted == (ONE, TWO, Member(3, at))
    assert log.image.is_of_this_life(Member(3, at))


def test_an_order_of_nodes_needs_no_change_of_the_group(log: Log) -> None:
    log.settle(wants(3, 1, 2))
    assert topic(log).ensembles[0] == (THREE, ONE, TWO)
    assert topic(log).changes == {}


def test_an_order_that_was_held_up_does_not_undo_a_newer_one(log: Log) -> None:
    seen = log.image.version
    late = ChangeEnsemble(ORDERS.id, 0, (3,), seen)
    other = ChangeEnsemble(ORDERS.id, 1, (3,), seen)
    log.settle(reached(log.settle(ChangeEnsemble(ORDERS.id, 0, (1, 2), seen))))
    log.settle(late, other)
    assert topic(log).ensembles[0] == (ONE, TWO)
    assert topic(log).changes[1].wanted == (THREE,)
    log.settle(ChangeEnsemble(ORDERS.id, 0, (1,), log.image.version))
    assert topic(log).changes[0].wanted == (ONE,)


@pytest.mark.parametrize(
    "command",
    [
        ChangeEnsemble(bytes(16), 0, (1,)),
        wants(1, partition=2),
        wants(1, partition=-1),
        wants(),
        wants(1, 1),
        wants(1, 9),
        wants(1, 2, 3),
        reached(3),
        reached(3, partition=7),
        NoteReached(bytes(16), 0, 3),
    ],
    ids=[
        "unknown topic", "no such partition", "below zero", "nobody", "one twice", "unknown node", "as it is",
        "nothing wanted", "nothing there", "no topic",
    ],
)  # fmt: skip
def test_what_makes_no_sense_changes_nothing(log: Log, command: ChangeEnsemble | NoteReached) -> None:
    before = log.image.snapshot()
    log.settle(command)
    assert log.image.snapshot() == before


def test_changes_go_with_their_topic(log: Log) -> None:
    log.settle(reached(log.settle(wants(1, 2, 4), DeleteTopic(ORDERS.id))))
    assert log.image.topics == {}


def test_changes_and_lives_are_in_snapshots(log: Log) -> None:
    at = log.settle(RegisterNode(info(4, incarnation=1 << 50)), wants(1, 2, 4), wants(1, 2, 3))
    restored = Metadata()
    restored.restore(log.image.snapshot())
    assert restored.topics == log.image.topics
    assert restored.topics["orders"].changes[0].at == at
    assert not restored.is_of_this_life(Member(4, 3))


def test_an_image_from_before_there_were_changes_is_read(log: Log) -> None:
    old = msgspec.msgpack.decode(log.image.snapshot())
    del old["lives"]
    for each in old["topics"].values():
        del each["changes"]
        del each["changed"]
    restored = Metadata()
    restored.restore(msgspec.msgpack.encode(old))
    assert restored.topics == log.image.topics
    assert all(map(restored.is_of_this_life, ORDERS.ensembles[0]))
