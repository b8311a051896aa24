"""What holds for the whole cluster: levels that only rise, settings, and homes that stay."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core.entry import Header, Member, partition_of
from quorate.machine import metadata
from quorate.machine.cluster import COMMAND_LEVELS, LEVELS, AlterCluster, RaiseLevel, SetHome
from quorate.machine.levels import level_of
from quorate.machine.metadata import (
    AddPartitions,
    AlterTopic,
    Command,
    CreateTopic,
    DeleteTopic,
    Metadata,
    NodeInfo,
    RegisterNode,
    Topic,
    command_batch,
)
from quorate.machine.purpose import KIND, TABLES

ONE = Member(1, 1)
PLAIN = Topic("plain", bytes(15) + b"p", "raft", ((ONE,),))
GROUPS = Topic("groups", bytes(15) + b"g", "raft", ((ONE,),) * 4, {KIND: "groups"})
BANK = Topic("bank", bytes(15) + b"b", "raft", ((ONE,),), {KIND: TABLES})


class Log:
    """Feeds an image as a host does, and keeps count of offsets."""

    def __init__(self) -> None:
        self.image = Metadata()
        self.offset = 0

    def settle(self, *commands: Command) -> bool:
        """Whether they changed anything."""
        before = self.image.version
        for command in commands:
            payload = command_batch(command)
            self.image.settle(Header(1, self.offset, size=len(payload)), 0, payload)
            self.offset += 1
        return self.image.version != before


def registered(node: int, knows: int) -> RegisterNode:
    return RegisterNode(NodeInfo(node, 1, "h", 9092, knows=knows))


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_new_cluster_goes_by_what_its_first_node_knows(log: Log) -> None:
    log.settle(registered(1, 2), registered(2, 3))
    assert log.image.cluster.level == 2


def test_the_level_rises_when_every_registered_node_knows_it(log: Log) -> None:
    log.settle(registered(1, 1), registered(2, 2))
    assert not log.settle(RaiseLevel(2))
    log.settle(registered(1, 3))
    assert log.settle(RaiseLevel(2))
    assert log.image.cluster.level == 2
    assert not log.settle(RaiseLevel(3)), "node 2 does not know it"


def test_the_level_never_falls(log: Log) -> None:
    log.settle(registered(1, 3))
    assert not log.settle(RaiseLevel(2))
    assert log.image.cluster.level == 3


def test_who_knows_less_than_everybody_goes_by_is_not_registered(log: Log) -> None:
    log.settle(registered(1, 2))
    assert not log.settle(registered(2, 1))
    assert list(log.image.nodes) == [1]
    assert not log.settle(registered(1, 1)), "its code was taken back"
    assert log.image.nodes[1].knows == 2


def test_an_image_from_before_there_were_levels_is_of_the_first(log: Log) -> None:
    log.settle(registered(1, 1))
    told = msgspec.msgpack.decode(log.image.snapshot())
    del told["cluster"]
    del told["nodes"][1]["knows"]
    older = Metadata()
    older.restore(msgspec.msgpack.encode(told))
    assert (older.cluster.level, older.nodes[1].knows) == (1, 1)


def test_settings_of_the_cluster_are_set_and_reset(log: Log) -> None:
    assert log.settle(AlterCluster({"num.partitions": "4", "quorate.replication": "isr"}))
    assert not log.settle(AlterCluster({"num.partitions": "4"}))
    assert log.settle(AlterCluster({"num.partitions": None}))
    assert log.image.cluster.config == {"quorate.replication": "isr"}


def test_a_home_stays_as_it_is(log: Log) -> None:
    log.settle(registered(1, 2), CreateTopic(GROUPS), CreateTopic(BANK), CreateTopic(PLAIN))
    assert log.image.home_of("groups", "readers") is None
    assert not log.settle(SetHome("groups", BANK.id)), "tables hold no groups"
    assert not log.settle(SetHome("groups", PLAIN.id)), "nor do records"
    assert not log.settle(SetHome("transactions", GROUPS.id))
    assert not log.settle(SetHome("kings", GROUPS.id))
    assert log.settle(SetHome("groups", GROUPS.id))
    assert not log.settle(SetHome("groups", GROUPS.id))
    assert not log.settle(DeleteTopic(GROUPS.id))
    assert not log.settle(AddPartitions(GROUPS.id, 4, ((ONE,),)))
    assert log.image.home_of("transactions", "readers") is None
    homes = {log.image.home_of("groups", f"group-{number}") for number in range(100)}
    assert homes == {partition_of(GROUPS.id, number) for number in range(4)}


def test_all_of_it_is_in_a_snapshot(log: Log) -> None:
    log.settle(registered(1, 2), CreateTopic(GROUPS), SetHome("groups", GROUPS.id), AlterCluster({"a": "b"}))
    other = Metadata()
    other.restore(log.image.snapshot())
    assert other.cluster == log.image.cluster
    assert other.home_of("groups", "g") == log.image.home_of("groups", "g")


def test_every_command_has_a_level() -> None:
    tags = {kind.__struct_config__.tag for kind in metadata.Command.__args__}
    assert tags == set(COMMAND_LEVELS)
    assert set(COMMAND_LEVELS.values()).issubset(LEVELS)


@pytest.mark.parametrize(
    ("command", "level"),
    [
        (CreateTopic(PLAIN), 1),
        (CreateTopic(GROUPS), 2),
        (CreateTopic(BANK), 2),
        (CreateTopic(msgspec.structs.replace(PLAIN, replication="isr")), 2),
        (AlterTopic(GROUPS.id, {}), 2),
        (DeleteTopic(GROUPS.id), 1),
    ],
)
def test_what_came_later_needs_a_higher_level(command: Command, level: int) -> None:
    assert level_of(command) == level
