"""Topics that are altered: what the commands make of the image, and what they leave alone."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core.entry import Header, Member
from quorate.machine import metadata
from quorate.machine.metadata import (
    AddPartitions,
    AlterTopic,
    ChangeEnsemble,
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

ONE, TWO = Member(1, 1), Member(2, 1)
ID = bytes(15) + b"o"
ORDERS = Topic("orders", ID, "raft", ((ONE, TWO),), {"max.message.bytes": "2000"})


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

    @property
    def orders(self) -> Topic:
        return self.image.by_id[ID]


@pytest.fixture
def log() -> Log:
    made = Log()
    nodes = (NodeInfo(1, 1, "h", 1, rack="a"), NodeInfo(2, 1, "h", 2))
    made.settle(*map(RegisterNode, nodes), CreateTopic(ORDERS))
    return made


def test_settings_are_what_was_said_last_and_others_stay(log: Log) -> None:
    assert log.settle(AlterTopic(ID, {"min.insync.replicas": "2"}))
    assert log.orders.config == {"max.message.bytes": "2000", "min.insync.replicas": "2"}
    assert log.settle(AlterTopic(ID, {"min.insync.replicas": "1", "max.message.bytes": None}))
    assert log.orders.config == {"min.insync.replicas": "1"}
    assert log.image.topics["orders"] is log.orders


def test_what_is_so_already_changes_nothing(log: Log) -> None:
    assert not log.settle(AlterTopic(ID, {"max.message.bytes": "2000", "min.insync.replicas": None}))
    assert not log.settle(AlterTopic(bytes(16), {"max.message.bytes": "3000"}))


def test_partitions_come_behind_those_that_are_there(log: Log) -> None:
    more = ((TWO,), (ONE, TWO))
    assert log.settle(AddPartitions(ID, 1, more))
    assert log.orders.ensembles == ((ONE, TWO), *more)


def test_an_addition_that_is_repeated_or_too_late_adds_nothing(log: Log) -> None:
    addition = AddPartitions(ID, 1, ((ONE,),))
    assert log.settle(addition)
    assert not log.settle(addition)
    assert not log.settle(AddPartitions(ID, 5, ((ONE,),)))
    assert len(log.orders.ensembles) == 2


def test_additions_that_cannot_be_are_left_alone(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Topic("bank", bytes(15) + b"b", "raft", ((ONE,),), {KIND: TABLES})
    log.settle(CreateTopic(tables))
    assert not log.settle(AddPartitions(tables.id, 1, ((ONE,),)))
    assert not log.settle(AddPartitions(ID, 1, ()))
    assert not log.settle(AddPartitions(ID, 1, ((),)))
    assert not log.settle(AddPartitions(ID, 1, ((Member(9, 1),),)))
    monkeypatch.setattr(metadata, "PARTITIONS_COUNT_MAX", 3)
    assert not log.settle(AddPartitions(ID, 1, ((ONE,), (ONE,))))
    assert log.settle(AddPartitions(ID, 1, ((ONE,),)))
    log.settle(DeleteTopic(ID))
    assert not log.settle(AddPartitions(ID, 2, ((ONE,),)))


def test_an_open_change_outlives_an_alteration(log: Log) -> None:
    log.settle(ChangeEnsemble(ID, 0, (1,)))
    change = log.orders.changes[0]
    log.settle(AlterTopic(ID, {"max.message.bytes": "5000"}), AddPartitions(ID, 1, ((TWO,),)))
    assert log.orders.changes == {0: change}
    assert log.orders.ensembles == ((ONE, TWO), (TWO,))


def test_what_was_altered_is_in_snapshots_and_older_ones_can_be_read(log: Log) -> None:
    log.settle(AlterTopic(ID, {"max.message.bytes": "5000"}), AddPartitions(ID, 1, ((TWO,),)))
    restored = Metadata()
    restored.restore(log.image.snapshot())
    assert restored.by_id[ID] == log.orders
    assert restored.nodes[1].rack == "a"
    old = msgspec.msgpack.decode(log.image.snapshot(), strict=False)
    for info in old["nodes"].values():
        del info["rack"]
    restored.restore(msgspec.msgpack.encode(old))
    assert restored.nodes[1].rack == ""
