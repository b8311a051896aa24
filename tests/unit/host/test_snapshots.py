"""Snapshots of machines: taken in pieces, restored once, and never mixed up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quorate.core import effects, events
from quorate.core.entry import EntryId, Membership, Rollback, Snapshot, Standing
from quorate.host import feeder
from quorate.host import manifest as manifests
from quorate.host.manifest import Manifest
from quorate.storage.settings import TINY
from tests.unit.host.puppet import ME, PARTITION, POISON, InBits, Stage, Watchful, use_puppet

MANIFEST = Manifest(EntryId(3, 17), 0xFEEDFACE, b"tally", b"", Standing(Membership((ME,)), 5))


def made(monkeypatch: pytest.MonkeyPatch, machine: type[Any]) -> Stage:
    use_puppet(monkeypatch, machine)
    stage = Stage()
    stage.add()
    return stage


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return made(monkeypatch, InBits)


def peers_snapshot(*values: bytes) -> tuple[Snapshot, bytes]:
    """As a peer has it that has settled these, in epoch 5."""
    machine = Watchful()
    machine.settled = [(5, offset, value) for offset, value in enumerate(values)]
    machine.upto = len(values) - 1
    last = EntryId(5, machine.upto)
    tally = msgspec.msgpack.encode({"last": machine.upto})
    data = manifests.encode_manifest(Manifest(last, 7, tally, machine.snapshot()))
    return Snapshot(last, 7, len(data)), data


def take(stage: Stage) -> None:
    stage.order(lambda _: effects.TakeSnapshot())


def big(stage: Stage) -> None:
    """Enough that its snapshot has several pieces, and several blocks."""
    stage.machine.settled = [(1, -number, b"%060d" % number) for number in range(3_000)]


@pytest.mark.parametrize("length", [0, 1, 70_000])
def test_a_manifest_around_pieces_is_the_manifest(length: int) -> None:
    machine = bytes(length)
    pieced = manifests.head(MANIFEST, length) + machine + manifests.tail(MANIFEST)
    assert msgspec.msgpack.decode(pieced, type=Manifest) == msgspec.structs.replace(MANIFEST, machine=machine)
    if length > 65_535:
        assert pieced == manifests.encode_manifest(msgspec.structs.replace(MANIFEST, machine=machine))
    assert len(manifests.head(MANIFEST, length)) == len(manifests.head(MANIFEST, 0))


def test_a_snapshot_is_taken_piece_by_piece_and_is_the_state_of_when_it_was_begun(stage: Stage) -> None:
    big(stage)
    stage.take(b"a", b"b")
    stage.settle()
    stage.commit(0)
    expected = list(stage.machine.settled)
    take(stage)
    assert stage.machine.pieces == 1
    stage.jobs.pop(0)()
    assert stage.machine.pieces == 2
    stage.commit(1)
    stage.settle()
    assert stage.machine.closed == 1
    (taken,) = stage.puppet.of(events.SnapshotTaken)
    assert taken.snapshot.last == EntryId(1, 0)
    stage.restart()
    assert stage.puppet.snapshot == taken.snapshot
    assert [tuple(entry) for entry in stage.machine.settled] == expected
    assert stage.hosted.taking is None


@pytest.mark.behaviour("TT-30")
def test_a_snapshot_ends_where_what_is_settled_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is fed in small pieces from the disk, and stands between a Rollback and what it takes back."""
    monkeypatch.setattr(feeder, "FEED_BYTES_MAX", 1)
    use_puppet(monkeypatch, InBits)
    stage = Stage(msgspec.structs.replace(TINY, journal_entry_max=1))
    stage.add()
    stage.take(b"a", b"b", b"c", Rollback(1))
    stage.settle()
    stage.restart()
    stage.commit(3)
    while stage.hosted.applied.offset < 1:
        stage.jobs.pop(0)()
    assert stage.hosted.applied.offset == 1
    take(stage)
    (failed,) = stage.puppet.of(events.SnapshotFailed)
    assert "rollback" in failed.reason
    stage.settle()
    take(stage)
    stage.settle()
    assert [taken.snapshot.last.offset for taken in stage.puppet.of(events.SnapshotTaken)] == [3]


def test_a_snapshot_on_its_way_ends_with_its_replica(stage: Stage) -> None:
    big(stage)
    stage.take(b"a")
    stage.settle()
    stage.commit(0)
    machine = stage.machine
    take(stage)
    stage.jobs.pop(0)()
    piece = stage.jobs.pop(0)  # It is slow, and reaches the disk after everything else.
    stage.host.remove(stage.now, PARTITION)
    stage.settle()
    piece()
    stage.settle()
    assert (machine.pieces, machine.closed) == (2, 1)
    assert not [name for name in stage.disk.files() if name.startswith("partitions/")]


def test_a_snapshot_on_its_way_is_given_up_when_another_state_comes(stage: Stage) -> None:
    big(stage)
    stage.take(b"a")
    stage.settle()
    stage.commit(0)
    take(stage)
    stage.jobs.pop(0)()
    machine = stage.machine
    snapshot, data = peers_snapshot(b"x", b"y")
    stage.install(snapshot, data)
    while stage.hosted.restoring is None:
        stage.jobs.pop()()  # All but the snapshot's own.
    held, stage.jobs[:] = list(stage.jobs), stage.jobs[-1:]
    stage.jobs.pop()()
    assert stage.hosted.restoring is None
    assert machine.closed == 1
    assert [value for _, _, value in machine.settled] == [b"x", b"y"]
    assert stage.puppet.of(events.SnapshotFailed)
    for job in held[:-1]:
        job()
    stage.settle()
    assert stage.puppet.snapshot == snapshot
    assert not stage.puppet.of(events.SnapshotTaken)
    assert not [name for name in stage.disk.files() if name.endswith("/saving")]


def test_a_full_disk_ends_a_snapshot_and_nothing_else(stage: Stage) -> None:
    big(stage)
    stage.take(b"a")
    stage.settle()
    stage.commit(0)
    take(stage)
    stage.disk.set_full(True)
    stage.settle()
    assert stage.puppet.of(events.SnapshotFailed)
    stage.disk.set_full(False)
    stage.settle()
    take(stage)
    stage.settle()
    assert stage.puppet.of(events.SnapshotTaken)


def counted_reads(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[Snapshot]:
    reads: list[Snapshot] = []
    read = stage.host.store.read_snapshot

    def counting(partition: Any, snapshot: Snapshot, *rest: Any) -> None:
        reads.append(snapshot)
        read(partition, snapshot, *rest)

    monkeypatch.setattr(stage.host.store, "read_snapshot", counting)
    return reads


def until_durable(stage: Stage) -> None:
    while stage.hosted.restoring is None:
        stage.jobs.pop(0)()


def test_a_snapshot_that_is_being_restored_is_read_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = counted_reads(stage, monkeypatch)
    snapshot, data = peers_snapshot(b"x", b"y")
    stage.install(snapshot, data)
    until_durable(stage)
    held, stage.jobs[:] = list(stage.jobs), []
    for number in range(3):
        stage.puppet.epoch = 6
        stage.take(b"%d" % number, epoch=6)
        stage.settle()
    assert reads == [snapshot]
    for job in held:
        job()
    stage.settle()
    assert [value for _, _, value in stage.machine.local] == [b"x", b"y", b"0", b"1", b"2"]


def test_a_snapshot_is_restored_though_the_next_one_cannot_be_installed(stage: Stage) -> None:
    """The first is durable and being read when a second is ordered, for which the disk has no room."""
    first, data = peers_snapshot(b"x", b"y")
    stage.install(first, data)
    until_durable(stage)
    held, stage.jobs[:] = list(stage.jobs), []
    stage.disk.set_full(True)
    stage.install(*peers_snapshot(b"x", b"y", b"z"))
    while not stage.puppet.of(events.Failed):
        stage.jobs.pop(0)()
    for job in held:
        job()
    stage.settle()
    assert [value for _, _, value in stage.machine.settled] == [b"x", b"y"]


def test_a_stuck_machine_is_replaced_by_any_snapshot(stage: Stage) -> None:
    stage.take(b"a", b"b", b"c")
    stage.settle()
    stage.commit(2)
    stage.take(POISON)
    assert stage.hosted.halted is not None
    stage.install(*peers_snapshot(b"x"))
    stage.settle()
    assert stage.hosted.halted is None
    assert [value for _, _, value in stage.machine.local] == [b"x"]


def test_what_was_above_a_log_that_was_replaced_is_taken_back(stage: Stage) -> None:
    """The snapshot brings no more than what is settled here, so the machine stays as it is: but for that."""
    stage.take(b"a", b"b", epoch=5)
    stage.settle()
    stage.commit(0)
    stage.install(*peers_snapshot(b"a"))
    stage.settle()
    assert [value for _, _, value in stage.machine.local] == [b"a"]
    stage.take(b"c", epoch=6)
    assert [value for _, _, value in stage.machine.local] == [b"a", b"c"]


def test_the_store_gives_no_piece_of_another_snapshot(stage: Stage) -> None:
    stage.take(b"a", b"b")
    stage.settle()
    stage.commit(0)
    take(stage)
    stage.settle()
    older = stage.puppet.snapshot
    stage.commit(1)
    take(stage)
    stage.settle()
    newer = stage.puppet.snapshot
    assert older is not None
    assert newer is not None
    assert older != newer
    got: list[bytes | None] = []
    store = stage.host.store
    store.read_snapshot(PARTITION, older, 0, 10, got.append)
    store.read_snapshot(PARTITION, newer, 0, 10, got.append)
    stage.settle()
    assert [piece is None for piece in got] == [True, False]
    assert not stage.puppet.of(events.SnapshotLost)


def test_small_machines_are_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = made(monkeypatch, Watchful)
    stage.take(b"a")
    stage.settle()
    stage.commit(0)
    take(stage)
    stage.settle()
    (taken,) = stage.puppet.of(events.SnapshotTaken)
    stage.restart()
    assert stage.puppet.snapshot == taken.snapshot
    assert [value for _, _, value in stage.machine.settled] == [b"a"]


def test_a_snapshot_that_is_written_late_leaves_nothing_of_a_removed_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file in a directory that nobody knows would keep another replica of that name from being made."""
    stage = made(monkeypatch, Watchful)
    stage.take(b"a")
    stage.settle()
    stage.commit(0)
    take(stage)
    late = stage.jobs.pop(0)
    stage.host.remove(stage.now, PARTITION)
    stage.settle()
    late()
    stage.settle()
    assert not [name for name in stage.disk.files() if name.startswith("partitions/")]
