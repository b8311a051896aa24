"""Where logs may start, as the image has it: it only rises."""

from __future__ import annotations

import msgspec

from quorate.core.entry import EntryId, Member, partition_of
from quorate.machine.changing import Start
from quorate.machine.metadata import (
    CreateTopic,
    DeleteTopic,
    LetStart,
    Metadata,
    NodeInfo,
    RegisterNode,
    Topic,
)
from quorate.machine.purpose import KIND, TABLES
from tests.unit.machine.test_altering import Log

ID = bytes(15) + b"o"
GROUP = bytes(15) + b"g"
P0, P1, P2 = (partition_of(ID, number) for number in range(3))
HERE = Start(EntryId(1, 9), 77, 10)
FURTHER = Start(EntryId(2, 19), 78, 20)


def made() -> Log:
    log = Log()
    ensemble = (Member(1, 1),)
    topic = Topic("orders", ID, "raft", (ensemble, ensemble))
    group = Topic("bank", GROUP, "raft", (ensemble,), {KIND: TABLES})
    log.settle(RegisterNode(NodeInfo(1, 1, "h", 1)), CreateTopic(topic), CreateTopic(group))
    return log


def test_starts_of_many_partitions_are_one_command() -> None:
    log = made()
    assert log.settle(LetStart(((P0, HERE), (P1, FURTHER))))
    assert log.orders.starts == {0: HERE, 1: FURTHER}


def test_a_start_never_falls() -> None:
    log = made()
    log.settle(LetStart(((P0, FURTHER),)))
    assert not log.settle(LetStart(((P0, HERE),)))
    assert not log.settle(LetStart(((P0, FURTHER),)))
    assert log.orders.starts == {0: FURTHER}
    assert log.settle(LetStart(((P0, HERE), (P1, HERE)))), "the other one rises all the same"
    assert log.orders.starts == {0: FURTHER, 1: HERE}


def test_what_readers_see_never_falls_either() -> None:
    log = made()
    wanted = msgspec.structs.replace(HERE, first=30)
    log.settle(LetStart(((P0, wanted),)))
    log.settle(LetStart(((P0, FURTHER),)))
    assert log.orders.starts == {0: msgspec.structs.replace(FURTHER, first=30)}


def test_what_is_not_there_and_tables_are_left_alone() -> None:
    log = made()
    assert not log.settle(LetStart(((P2, HERE), (partition_of(bytes(16), 0), HERE))))
    assert not log.settle(LetStart(((partition_of(GROUP, 0), HERE),)))
    log.settle(DeleteTopic(ID))
    assert not log.settle(LetStart(((P0, HERE),)))


def test_starts_outlive_a_snapshot_and_older_images_have_none() -> None:
    log = made()
    older = log.image.snapshot()
    log.settle(LetStart(((P0, HERE),)))
    restored = Metadata()
    restored.restore(log.image.snapshot())
    assert restored.by_id[ID].starts == {0: HERE}
    raw = msgspec.msgpack.decode(older)
    for topic in raw["topics"].values():
        del topic["starts"]
    restored.restore(msgspec.msgpack.encode(raw))
    assert restored.by_id[ID].starts == {}
