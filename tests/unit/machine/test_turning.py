"""What the metadata group makes of turns: wanted, called off, noted by a leader, and over (017)."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core.coordinated import Shard, Status
from quorate.core.entry import EntryId, Header, Member, partition_of
from quorate.core.isr import PartitionState
from quorate.machine.levels import level_of
from quorate.machine.metadata import (
    ChangeEnsemble,
    CreateTopic,
    Metadata,
    NodeInfo,
    RegisterNode,
    Topic,
    command_batch,
)
from quorate.machine.shards import WriteShard
from quorate.machine.turning import NoteBarrier, TurnTopic

ID = bytes(15) + b"\7"
THREE = tuple(Member(node, 1) for node in (1, 2, 3))
BARRIER = EntryId(4, 17)


class Image:
    """An image, and the offset of its next command."""

    def __init__(self, replication: str = "raft", partitions: int = 2, **config: str) -> None:
        self.machine = Metadata()
        self.offset = 10
        for node in (1, 2, 3, 4):
            self.do(RegisterNode(NodeInfo(node, 1, "h", 9000 + node, knows=3)))
        self.do(CreateTopic(Topic("t", ID, replication, (THREE,) * partitions, dict(config))))

    def do(self, command: object) -> bool:
        payload = command_batch(command)  # type: ignore[arg-type]
        before = self.machine.version
        self.machine.settle(Header(1, self.offset, size=len(payload)), 0, payload)
        self.offset += 1
        return self.machine.version != before

    @property
    def topic(self) -> Topic:
        return self.machine.topics["t"]

    def wanted(self) -> str:
        return self.topic.turning.to if self.topic.turning is not None else ""

    def turn(self, to: str, seen: int | None = None) -> bool:
        return self.do(TurnTopic(ID, to, seen))

    def note(self, number: int = 0, *, at: int | None = None, epoch: int = 5, whole: int = 2) -> bool:
        wanted = self.topic.turning
        turn = at if at is not None else wanted.at if wanted is not None else -1
        return self.do(NoteBarrier(partition_of(ID, number), turn, BARRIER, epoch, THREE[0], THREE[:whole]))


def test_a_turn_is_wanted_until_every_partition_has_taken_it() -> None:
    image = Image()
    assert image.turn("isr")
    assert image.wanted() == "isr"
    assert image.note(0)
    assert [image.topic.protocol(number) for number in (0, 1)] == ["isr", "raft"]
    assert image.topic.replication == "raft"
    assert image.note(1)
    assert image.wanted() == ""
    assert image.topic.replication == "isr"
    assert image.topic.turned[0].barrier == BARRIER


@pytest.mark.parametrize("kind", ["groups", "transactions"])
def test_a_home_of_the_cluster_stays_as_it_is(kind: str) -> None:
    image = Image("raft", 2, **{"quorate.kind": kind})
    assert not image.turn("isr")


def test_a_turn_is_not_taken_before_a_majority_has_the_barrier() -> None:
    image = Image("isr")
    image.turn("raft")
    assert not image.note(whole=1)
    assert image.note(whole=2)


def test_a_barrier_of_an_earlier_turn_is_heard_once() -> None:
    image = Image(partitions=1)
    image.turn("confirm")
    at = image.topic.turning.at if image.topic.turning is not None else 0
    assert image.note()
    assert not image.note(at=at)
    assert image.topic.generation(0) == at


def test_a_turn_that_is_called_off_leaves_what_has_not_turned_and_brings_back_what_has() -> None:
    image = Image()
    image.turn("coordinated")
    first = image.topic.turning
    assert first is not None
    image.note(0)
    assert image.turn("raft")
    assert image.wanted() == "raft", "one is to be brought back"
    assert image.note(0, epoch=6)
    assert image.wanted() == ""
    assert {image.topic.protocol(number) for number in (0, 1)} == {"raft"}


def test_a_barrier_that_comes_after_its_turn_was_called_off_begins_the_same_protocol_anew() -> None:
    image = Image()
    image.turn("coordinated")
    first = image.topic.turning
    assert first is not None
    assert image.turn("raft")
    assert image.topic.turning is None
    assert image.note(1, at=first.at)
    assert (image.topic.protocol(1), image.topic.generation(1)) == ("raft", first.at)
    assert image.machine.shard(partition_of(ID, 1)) is None


def test_copies_stay_where_they_are_while_a_topic_turns_and_the_other_way_round() -> None:
    image = Image()
    image.turn("isr")
    assert not image.do(ChangeEnsemble(ID, 0, (2, 3, 4)))
    image = Image()
    assert image.do(ChangeEnsemble(ID, 0, (2, 3, 4)))
    assert not image.turn("isr")


def test_a_turn_that_was_held_up_does_not_undo_a_newer_one() -> None:
    image = Image()
    seen = image.machine.version
    image.turn("isr")
    assert not image.turn("confirm", seen=seen)
    assert image.turn("confirm", seen=image.machine.version)


@pytest.mark.parametrize("to", ["raft", "paxos"])
def test_what_is_so_already_or_unknown_changes_nothing(to: str) -> None:
    assert not Image().turn(to)


def test_who_oversees_begins_with_what_the_barrier_says() -> None:
    image = Image(partitions=1)
    image.turn("coordinated")
    image.note(epoch=5)
    stored = image.machine.shard(partition_of(ID, 0))
    assert stored is not None
    assert stored.shard == Shard(6, Status.ELECTION, THREE)
    image.turn("isr")
    image.note(epoch=8)
    stored = image.machine.shard(partition_of(ID, 0))
    assert stored is not None
    assert stored.shard == PartitionState(1, 10, THREE[0], THREE, THREE[:2], min_isr=2)
    image.turn("raft")
    assert not image.note(epoch=9), "by what is stored, somebody leads a later epoch"
    image.note(epoch=10)
    assert image.machine.shard(partition_of(ID, 0)) is None


def test_whoever_oversaw_the_protocol_before_writes_no_more() -> None:
    image = Image("coordinated", partitions=1)
    partition = partition_of(ID, 0)
    shard = Shard(3, Status.ELECTION, THREE)
    assert image.do(WriteShard(partition, 0, shard))
    image.turn("raft")
    image.note(epoch=5)
    assert not image.do(WriteShard(partition, 1, shard)), "a version that there was"
    assert not image.do(WriteShard(partition, 0, shard)), "there is none, and nobody oversees it"
    image.turn("coordinated")
    image.note(epoch=7)
    assert not image.do(WriteShard(partition, 0, shard))
    assert not image.do(WriteShard(partition, 1, shard))


def test_what_was_ever_void_is_remembered_for_copies_that_are_made_later() -> None:
    image = Image("confirm", partitions=1)
    for to, epoch in (("raft", 5), ("isr", 7)):
        image.turn(to)
        assert image.note(epoch=epoch)
        assert image.topic.turned[0].voids


def test_a_turn_survives_a_snapshot_of_the_image() -> None:
    image = Image()
    image.turn("isr")
    image.note(0)
    other = Metadata()
    other.restore(image.machine.snapshot())
    assert other.topics == image.machine.topics
    assert msgspec.to_builtins(other.topics["t"].turned)


def test_turns_came_with_feature_level_3() -> None:
    assert level_of(TurnTopic(ID, "raft")) == 3
    assert level_of(NoteBarrier(partition_of(ID, 0), 1, BARRIER, 1, THREE[0], THREE)) == 3
