"""Shards in the image: whoever has not seen the newest version changes nothing."""

from __future__ import annotations

import msgspec
import pytest

from quorate.batch import encode_records
from quorate.core.coordinated import Shard, Status
from quorate.core.entry import Header, Member, Partition, partition_of
from quorate.core.isr import Birth, PartitionState
from quorate.core.isr.state import newborn
from quorate.machine.metadata import Metadata, command_batch
from quorate.machine.shards import Stored, WriteShard

PARTITION = partition_of(bytes(16), 3)
FIRST = Shard(0, Status.ELECTION, (Member(1, 1), Member(2, 1)))
SECOND = Shard(1, Status.STEADY, (Member(1, 1), Member(2, 1)), Member(2, 1))


def settle(
    image: Metadata,
    offset: int,
    version: int,
    shard: Shard | PartitionState,
    partition: Partition = PARTITION,
) -> None:
    payload = command_batch(WriteShard(partition, version, shard))
    image.settle(Header(1, offset, size=len(payload)), 0, payload)


@pytest.mark.behaviour("OX-2", "OX-3")
def test_write_that_has_not_seen_the_newest_version_changes_nothing() -> None:
    image = Metadata()
    settle(image, 0, 0, FIRST)
    settle(image, 1, 1, SECOND)
    settle(image, 2, 1, FIRST)
    settle(image, 3, 0, FIRST)
    settle(image, 4, 3, FIRST)
    assert image.shard(PARTITION) == Stored(2, 1, SECOND)


def test_shards_of_two_partitions_have_versions_of_their_own() -> None:
    image = Metadata()
    other = partition_of(bytes(16), 4)
    settle(image, 0, 0, FIRST)
    settle(image, 1, 0, SECOND, other)
    assert image.shard(PARTITION) == Stored(1, 0, FIRST)
    assert image.shard(other) == Stored(1, 1, SECOND)


@pytest.mark.parametrize(
    "shard",
    [
        3,
        None,
        {},
        {"type": "isr", "epoch": 1},
        {"type": "coordinated", "epoch": 1, "status": "steady", "ensemble": [[2, 1], [1, 1]]},
        {"type": "coordinated", "epoch": 1, "status": "steady", "ensemble": []},
    ],
)
def test_what_is_no_state_changes_nothing(shard: object) -> None:
    """Every replica of the metadata group applies the same entry: one that failed on it would fail on all."""
    image = Metadata()
    command = msgspec.to_builtins(WriteShard(PARTITION, 0, FIRST)) | {"shard": shard}
    payload = encode_records([(None, msgspec.msgpack.encode(command))], timestamp=0)
    image.settle(Header(1, 0, size=len(payload)), 0, payload)
    assert image.shard(PARTITION) is None


def test_shards_are_in_snapshots() -> None:
    image, copy = Metadata(), Metadata()
    settle(image, 0, 0, FIRST)
    copy.restore(image.snapshot())
    settle(copy, 1, 1, SECOND)
    assert copy.shard(PARTITION) == Stored(2, 1, SECOND)
    assert image.shard(PARTITION) == Stored(1, 0, FIRST)


@pytest.mark.behaviour("LB-2")
def test_states_of_isr_are_kept_beside_shards() -> None:
    image, copy = Metadata(), Metadata()
    other = partition_of(bytes(16), 4)
    state = newborn(Birth((Member(1, 1), Member(2, 1)), min_isr=2), Member(2, 1))
    settle(image, 0, 0, state)
    settle(image, 1, 0, FIRST, other)
    settle(image, 2, 1, state.with_isr([Member(2, 1)]))
    settle(image, 3, 1, state)
    copy.restore(image.snapshot())
    for each in (image, copy):
        assert each.shard(PARTITION) == Stored(2, 2, state.with_isr([Member(2, 1)]))
        assert each.shard(other) == Stored(1, 1, FIRST)
