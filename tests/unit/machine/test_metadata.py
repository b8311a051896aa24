"""The metadata image: what each command makes of it, and what it refuses."""

from __future__ import annotations

import msgspec
import pytest

from quorate import batch
from quorate.core.entry import Header, Kind, Member
from quorate.machine import metadata
from quorate.machine.metadata import (
    METADATA_TOPIC,
    PRODUCER_IDS_BLOCK,
    Command,
    CreateTopic,
    DeleteTopic,
    Metadata,
    NodeInfo,
    RegisterNode,
    TakeProducerIds,
    Topic,
    command_batch,
)

ONE = NodeInfo(1, 1, "127.0.0.1", 9092)
TWO = NodeInfo(2, 1, "127.0.0.1", 9093)
ORDERS = Topic("orders", bytes(15) + b"o", "raft", ((Member(1, 1), Member(2, 1)),) * 2)


class Log:
    """Feeds an image as a host does, and keeps count of offsets."""

    def __init__(self) -> None:
        self.image = Metadata()
        self.offset = 0

    def settle(self, *commands: Command) -> int:
        """The offset of the last one."""
        for command in commands:
            self.settle_payload(command_batch(command))
        return self.offset - 1

    def settle_payload(self, payload: bytes, kind: Kind = Kind.RECORDS) -> None:
        self.image.settle(Header(1, self.offset, kind=kind, size=len(payload)), 0, payload)
        self.offset += 1


@pytest.fixture
def log() -> Log:
    made = Log()
    made.settle(RegisterNode(ONE), RegisterNode(TWO))
    return made


def test_a_node_is_known_by_what_it_said_last(log: Log) -> None:
    moved = NodeInfo(2, 7, "10.0.0.2", 9092)
    at = log.settle(RegisterNode(moved))
    assert log.image.nodes == {1: ONE, 2: moved}
    assert log.image.version == at


def test_saying_the_same_again_changes_nothing(log: Log) -> None:
    before = log.image.version
    log.settle(RegisterNode(TWO))
    assert log.image.version == before


def test_another_disk_of_the_same_life_is_not_registered(log: Log) -> None:
    """It was made anew without saying that it replaces one: what that promised is forgotten."""
    first, again, replaced = (
        NodeInfo(3, 1, "h", 1, disk=7), NodeInfo(3, 1, "h", 1, disk=8), NodeInfo(3, 99, "h", 1, disk=8),
    )  # fmt: skip
    log.settle(RegisterNode(first), RegisterNode(again))
    assert log.image.nodes[3] == first
    log.settle(RegisterNode(replaced))
    assert log.image.nodes[3] == replaced


def test_a_replaced_disk_does_not_take_its_place_back(log: Log) -> None:
    """Nor is anything that was made since taken for lost, as if the disk had been replaced once more."""
    lives = [NodeInfo(2, incarnation, "h", 1) for incarnation in (1, 1 << 50, 1 << 51)]
    at = log.settle(*map(RegisterNode, lives))
    for life in lives[:2]:
        log.settle(RegisterNode(msgspec.structs.replace(life, port=2)))
        assert log.image.is_replaced(2, incarnation=life.incarnation)
    assert log.image.nodes[2] == lives[2]
    assert log.image.version == at
    assert log.image.is_of_this_life(Member(2, at))
    assert not log.image.is_replaced(2, incarnation=1 << 51)
    assert not log.image.is_replaced(2, incarnation=1 << 52)
    assert not log.image.is_replaced(1, incarnation=1)


def test_a_disk_that_was_not_replaced_may_move(log: Log) -> None:
    replacing = NodeInfo(2, 1 << 50, "h", 1)
    log.settle(RegisterNode(replacing))
    moved = msgspec.structs.replace(replacing, port=2)
    log.settle(RegisterNode(moved))
    assert log.image.nodes[2] == moved


def test_replaced_disks_are_in_snapshots(log: Log) -> None:
    log.settle(*(RegisterNode(NodeInfo(2, incarnation, "h", 1)) for incarnation in (1 << 50, 1 << 51)))
    restored = Metadata()
    restored.restore(log.image.snapshot())
    assert restored.is_replaced(2, incarnation=1 << 50)


def test_an_image_from_before_replaced_disks_were_remembered_knows_the_first(log: Log) -> None:
    log.settle(RegisterNode(NodeInfo(2, 1 << 50, "h", 1)))
    old = msgspec.msgpack.decode(log.image.snapshot(), strict=False)
    del old["replaced"]
    restored = Metadata()
    restored.restore(msgspec.msgpack.encode(old))
    assert restored.is_replaced(2, incarnation=1)
    assert not restored.is_replaced(1, incarnation=1)
    assert not restored.is_replaced(2, incarnation=1 << 50)


def test_replaced_disks_have_a_bound(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten, but for the first."""
    monkeypatch.setattr(metadata, "REPLACED_KEPT_MAX", 2)
    log.settle(*(RegisterNode(NodeInfo(2, incarnation, "h", 1)) for incarnation in range(11, 15)))
    assert [n for n in (1, *range(11, 16)) if log.image.is_replaced(2, incarnation=n)] == [1, 12, 13]


def test_of_two_topics_of_one_name_the_first_is_created(log: Log) -> None:
    second = Topic("orders", bytes(15) + b"p", "raft", ((Member(1, 1),),))
    log.settle(CreateTopic(ORDERS), CreateTopic(second))
    assert log.image.topics == {"orders": ORDERS}
    assert log.image.by_id == {ORDERS.id: ORDERS}


def test_a_deleted_topic_is_remembered_and_its_id_never_comes_back(log: Log) -> None:
    log.settle(CreateTopic(ORDERS), DeleteTopic(ORDERS.id), CreateTopic(ORDERS))
    assert log.image.topics == {}
    assert log.image.is_deleted(ORDERS.id)


def test_what_was_never_created_is_not_deleted(log: Log) -> None:
    log.settle(DeleteTopic(ORDERS.id))
    assert not log.image.is_deleted(ORDERS.id)


@pytest.mark.parametrize(
    "topic",
    [
        Topic("t", METADATA_TOPIC, "raft", ((Member(1, 1),),)),
        Topic("t", b"short", "raft", ((Member(1, 1),),)),
        Topic("t", bytes(16), "raft", ()),
        Topic("t", bytes(16), "raft", ((),)),
        Topic("t", bytes(16), "raft", ((Member(3, 1),),)),
    ],
    ids=["the group's own id", "no id", "no partitions", "no copies", "unknown node"],
)
def test_a_topic_that_cannot_be_is_not_created(log: Log, topic: Topic) -> None:
    log.settle(CreateTopic(topic))
    assert log.image.topics == {}


def test_partitions_have_a_bound(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "PARTITIONS_COUNT_MAX", 3)
    other = Topic("other", bytes(15) + b"x", "raft", ORDERS.ensembles)
    log.settle(CreateTopic(ORDERS), CreateTopic(other))
    assert list(log.image.topics) == ["orders"]


def test_no_two_nodes_ever_get_the_same_producer_id(log: Log) -> None:
    blocks = []
    for node in (1, 2, 1):
        at = log.settle(TakeProducerIds(node))
        block = log.image.producer_ids(node, at)
        assert block is not None
        blocks.append(block)
    ids = [producer_id for block in blocks for producer_id in block]
    assert len(set(ids)) == len(ids) == 3 * PRODUCER_IDS_BLOCK


def test_a_block_is_known_only_by_the_command_that_took_it(log: Log) -> None:
    first = log.settle(TakeProducerIds(1))
    log.settle(TakeProducerIds(1))
    assert log.image.producer_ids(1, first) is None


@pytest.mark.parametrize("payload", [b"", b"nonsense", batch.encode_records([(None, b"\xc1")])])
def test_what_cannot_be_read_changes_nothing(log: Log, payload: bytes) -> None:
    before = log.image.snapshot()
    log.settle_payload(payload)
    log.settle_payload(batch.encode_control(7, b""), Kind.CONTROL)
    assert log.image.snapshot() == before


def test_a_restored_image_is_the_one_that_was_saved(log: Log) -> None:
    other = Topic("other", bytes(15) + b"x", "raft", ORDERS.ensembles, {"max.message.bytes": "1000"})
    log.settle(CreateTopic(ORDERS), CreateTopic(other), DeleteTopic(ORDERS.id), TakeProducerIds(1))
    restored = Metadata()
    restored.restore(log.image.snapshot())
    assert restored.snapshot() == log.image.snapshot()
    assert restored.by_id == {other.id: other}
    assert restored.is_deleted(ORDERS.id)
    assert restored.version == log.image.version
