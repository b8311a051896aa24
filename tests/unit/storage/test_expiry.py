"""Logs whose start moves: segments that go, and what is missing below a snapshot and is filled in."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from quorate.core.entry import EntryId, Snapshot, Span
from quorate.storage.frame import Frame
from quorate.storage.index import UNKNOWN_TIME
from quorate.storage.segment import segment_base
from quorate.storage.settings import TINY
from tests.unit.storage.harness import P0, World, ids

DATA = b"machine"


@pytest.fixture
def world() -> World:
    made = World(3)
    made.open()
    made.create()
    made.run()
    return made


def segments(world: World) -> list[int]:
    names = world.disk.list_now(world.store._logs[P0].directory)
    return sorted(base for base in map(segment_base, names) if base is not None)


def fill(world: World, count: int = 60) -> list[Frame]:
    frames = [world.append(P0, [200])[0] for _ in range(count)]
    world.run()
    return frames


def test_stretches_are_the_segments_with_their_last_entries_sizes_and_times(world: World) -> None:
    frames = fill(world)
    stretches = world.store.stretches(P0)
    assert len(stretches) > 2
    assert stretches[0].segment == 0
    assert stretches[-1].last == frames[-1].header.id
    for stretch, following in pairwise(stretches):
        assert stretch.last.offset + 1 == following.segment
    assert sum(stretch.size for stretch in stretches) == sum(frame.size for frame in frames)
    checksums = {frame.header.id: frame.checksum for frame in frames}
    assert all(checksums[stretch.last] == stretch.checksum for stretch in stretches)


def test_the_newest_time_of_a_segment_is_known_over_a_restart_from_its_footer(world: World) -> None:
    fill(world, 200)
    world.reopen()
    sealed = [stretch for stretch in world.store.stretches(P0) if stretch.newest is None]
    assert sealed
    for stretch in sealed:
        got: list[int] = []
        world.store.newest_time(P0, stretch.segment, got.append)
        world.run()
        assert got == [1_000 + stretch.last.offset]
    got = []
    world.store.newest_time(P0, 12345, got.append)
    world.run()
    assert got == [UNKNOWN_TIME]


def test_segments_end_by_size_and_by_time_as_a_log_is_told(world: World) -> None:
    world.store.shape(P0, segment_bytes=700, segment_ms=None)
    fill(world, 4)  # Each some 300 bytes, a millisecond after the one before.
    assert [stretch.segment for stretch in world.store.stretches(P0)] == [0, 2]
    world.store.shape(P0, segment_bytes=None, segment_ms=2)
    fill(world, 6)
    assert [stretch.segment for stretch in world.store.stretches(P0)] == [0, 2, 5, 8]
    world.reopen()
    assert len(world.read()) == 10


def test_a_log_of_which_nothing_is_left_goes_on_in_another_file(world: World) -> None:
    frames = fill(world)
    world.store.remove_prefix(P0, world.io(P0), frames[-1].header.id, frames[-1].checksum)
    world.run()
    assert segments(world) == []
    world.append(P0, [10])
    world.run()
    world.reopen()
    assert world.store.recovered(P0).base == frames[-1].header.id
    assert ids(world.read(60)) == ["1-60"]


def other_copy(count: int) -> list[Frame]:
    """The same log, somewhere else."""
    world = World(9)
    world.open()
    world.create()
    return fill(world, count)


def behind_snapshot(world: World, frames: list[Frame], start: int, last: int) -> None:
    """Install a snapshot at one entry, with the log to start behind another."""
    snapshot = Snapshot(frames[last].header.id, frames[last].checksum, len(DATA))
    world.store.stage_chunk(P0, world.io(P0), 0, DATA)
    begins = frames[start].header.id, frames[start].checksum
    world.store.install_snapshot(P0, world.io(P0), snapshot, keep=False, start=begins)
    world.run()


def test_a_log_that_snapshots_replaced_twice_comes_back_from_the_journal(world: World) -> None:
    fill(world, 5)
    world.store.note_commit(P0, 4)
    fill(world, 1)
    world.power_loss()  # What comes back is carried in the journal's first record.
    world.open()
    for last in (EntryId(8, 9), EntryId(8, 12)):
        snapshot = Snapshot(last, 77, len(DATA))
        world.store.stage_chunk(P0, world.io(P0), 0, DATA)
        world.store.install_snapshot(P0, world.io(P0), snapshot, keep=False, start=(EntryId(0, -1), 0))
        world.run()
    world.reopen()
    found = world.store.recovered(P0)
    assert found.head == EntryId(8, 12)
    assert found.faulty == (Span(EntryId(0, -1), EntryId(8, 12)),)


def test_what_is_missing_below_an_installed_snapshot_is_filled_in_from_the_front(world: World) -> None:
    frames = other_copy(60)
    behind_snapshot(world, frames, 9, 39)
    for _ in range(2):
        world.reopen()
        recovered = world.store.recovered(P0)
        assert (recovered.base, recovered.head) == (EntryId(1, 9), EntryId(1, 39))
        assert recovered.faulty == (Span(EntryId(1, 9), EntryId(1, 39)),)
    world.store.append(P0, world.io(P0), frames[40:50])
    world.store.repair(P0, world.io(P0), frames[10:25])
    world.run()
    world.reopen()
    assert world.store.recovered(P0).faulty == (Span(EntryId(1, 24), EntryId(1, 39)),)
    world.store.repair(P0, world.io(P0), frames[25:40])
    world.store.append(P0, world.io(P0), frames[50:])
    world.run()
    for _ in range(3):
        world.reopen()
        assert world.store.recovered(P0).faulty == ()
        assert ids(world.read(10)) == ids(frames[10:])
        assert world.check() == []


def test_entries_behind_what_is_missing_are_whole_after_every_restart() -> None:
    """A repaired entry was carried by the journal as if nothing behind it had reached its segment (seed 8)."""
    frames = other_copy(70)
    world = World(3, msgspec.structs.replace(TINY, write_back_bytes=0))
    world.open()
    world.create()
    world.run()
    behind_snapshot(world, frames, 9, 39)
    world.store.append(P0, world.io(P0), frames[40:60])
    world.run()
    for at in range(10, 20):
        world.store._write_back._make_room(1)  # A generation in which all is in its segments.
        world.run()
        world.store.repair(P0, world.io(P0), frames[at : at + 1])
        world.run()
        world.reopen()
        world.store.append(P0, world.io(P0), frames[50 + at : 51 + at])
        world.run()
        world.reopen()
        assert world.store.recovered(P0).faulty == (Span(EntryId(1, at), EntryId(1, 39)),)
        assert ids(world.read(40)) == ids(frames[40 : 51 + at])


def test_the_start_moves_on_inside_of_what_is_missing(world: World) -> None:
    frames = other_copy(60)
    behind_snapshot(world, frames, 9, 39)
    world.store.repair(P0, world.io(P0), frames[10:15])
    world.run()
    to = frames[20].header.id
    assert world.store.fault_over(P0, to) is None
    world.store.remove_prefix(P0, world.io(P0), to, frames[20].checksum)
    world.run()
    world.reopen()
    recovered = world.store.recovered(P0)
    assert (recovered.base, recovered.faulty) == (to, (Span(to, EntryId(1, 39)),))
    world.store.repair(P0, world.io(P0), frames[21:40])
    world.store.append(P0, world.io(P0), frames[40:])
    world.run()
    world.reopen()
    assert ids(world.read(21)) == ids(frames[21:])
    assert 10 not in segments(world)


def test_no_log_starts_inside_of_damage_with_good_entries_behind_it_in_the_same_file() -> None:
    world = World(3, msgspec.structs.replace(TINY, segment_bytes=1 << 20, tail_bytes=0))
    world.open()
    world.create()
    frames = fill(world, 200)
    log = world.store._logs[P0]
    sizes = [frame.size for frame in frames]
    for place in (20, 21):
        world.disk.flip(log.file(0), sum(sizes[:place]) + 70, 1)
    (span,) = world.check()
    assert (span.before.offset, span.last.offset) == (19, 21)
    inside, behind = frames[20].header.id, frames[21].header.id
    fault = world.store.fault_over(P0, inside)
    assert fault is not None
    assert (fault.last, fault.last_checksum) == (behind, frames[21].checksum)
    assert world.store.fault_over(P0, behind) is None
    assert world.store.fault_over(P0, frames[22].header.id) is None
    world.store.remove_prefix(P0, world.io(P0), behind, frames[21].checksum)
    world.run()
    world.reopen()
    assert world.store.recovered(P0).faulty == ()
    assert ids(world.read(22)) == ids(frames[22:])
