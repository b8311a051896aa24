"""Reads of entries that went straight to their segment and wait there for the journal's next generation."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core.entry import Span
from quorate.storage.disk import Done, Operation, ReadAt
from quorate.storage.frame import Frame
from quorate.storage.log import Log
from quorate.storage.settings import KIB, TINY
from tests.unit.storage.harness import P0, World, ids

LARGE, SMALL = 1_500, 10
ROOMY = msgspec.structs.replace(TINY, segment_bytes=64 * KIB, read_bytes=16 * KIB)


def written(*sizes: int) -> tuple[World, Log]:
    """One entry of each size, none of which is in memory if it can be read."""
    world = World(5, ROOMY)
    world.open()
    world.create(P0)
    for size in sizes:
        world.append(P0, [size])
        world.run()
    log = world.store._logs[P0]
    log._clear_tail()
    return world, log


def read_once(world: World, first: int = 0, last: int = 100, bytes_max: int = 1 << 20) -> list[Frame]:
    got: list[list[Frame]] = []
    world.store.read(P0, first, last, bytes_max, got.append)
    while not got:
        assert world.step()
    return got[0]


def told(world: World) -> list[Span]:
    world.run()
    return [what[2] for what in world.answers if what[0] == "damaged"]


def place_of(log: Log, offset: int) -> tuple[str, int]:
    frame, segment, position, _, is_large = log.lazy[offset]
    assert is_large
    assert frame.header.offset == offset
    return log.file(segment), position


def test_large_entries_that_lie_behind_one_another_are_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world, log = written(*[LARGE] * 6)
    assert len(log.lazy) == 6
    reads: list[Operation] = []
    submit = world.disk.submit

    def counted(lane: str, operations: list[Operation], done: Done) -> None:
        reads.extend(operation for operation in operations if type(operation) is ReadAt)
        submit(lane, operations, done)

    monkeypatch.setattr(world.disk, "submit", counted)
    assert ids(read_once(world)) == ["1-0", "1-1", "1-2", "1-3", "1-4", "1-5"]
    assert len(reads) == 1
    assert ids(read_once(world, 2, 4)) == ["1-2", "1-3", "1-4"]


def test_a_stretch_of_large_entries_is_no_longer_than_what_is_asked_for_and_what_is_read_at_once() -> None:
    world, _ = written(*[LARGE] * 14)
    assert ids(read_once(world, bytes_max=2 * LARGE + 500)) == ["1-0", "1-1"]
    assert ids(read_once(world, bytes_max=1)) == ["1-0"], "one always comes"
    at_once = read_once(world)
    assert 1 < len(at_once) < 14
    assert sum(frame.size for frame in at_once) <= ROOMY.read_bytes
    assert len(world.read()) == 14


def test_a_stretch_ends_where_an_entry_is_not_in_its_segment_yet() -> None:
    world, _ = written(LARGE, LARGE, SMALL, SMALL, LARGE, LARGE)
    assert ids(read_once(world)) == ["1-0", "1-1"]
    assert ids(world.read()) == ["1-0", "1-1", "1-2", "1-3", "1-4", "1-5"]
    assert told(world) == []


def test_damage_inside_of_a_stretch_is_told_of_the_entry_that_has_it() -> None:
    world, log = written(*[LARGE] * 5)
    file, position = place_of(log, 2)
    world.disk.flip(file, position + 700, 4)
    assert ids(read_once(world)) == ["1-0", "1-1"], "what is good before it is given"
    (span,) = told(world)
    assert (span.before.offset, span.last.offset) == (1, 2)
    assert read_once(world, 2) == []
    assert ids(world.read(3)) == ["1-3", "1-4"]
    assert told(world) == [span], "and of no other"


def test_damage_at_the_front_of_a_stretch_is_told_of_the_first_entry_only() -> None:
    world, log = written(*[LARGE] * 4)
    world.disk.flip(*place_of(log, 0), 1)
    assert read_once(world) == []
    (span,) = told(world)
    assert span.last.offset == 0
    assert ids(world.read(1)) == ["1-1", "1-2", "1-3"]


def test_intact_frames_in_each_others_places_are_damage() -> None:
    world, log = written(*[LARGE] * 4)
    file, first = place_of(log, 1)
    _, second = place_of(log, 2)
    world.disk.swap(file, first, second, second - first)
    assert ids(read_once(world)) == ["1-0"]
    for offset in (1, 2):
        assert read_once(world, offset) == []
    assert [span.last.offset for span in told(world)] == [1, 2]
    assert ids(world.read(3)) == ["1-3"]


def test_a_cut_while_a_stretch_is_read_leaves_nothing_of_what_was_cut() -> None:
    world, log = written(*[LARGE] * 4)
    got: list[list[Frame]] = []
    world.store.read(P0, 0, 100, 1 << 20, got.append)
    world.cut(log.lazy[1][0].header.id)
    world.append(P0, [LARGE], epoch=2)
    world.run()
    assert got
    assert ids(got[0]) in (["1-0", "1-1"], ["1-0", "1-1", "2-2"])
    assert ids(world.read()) == ["1-0", "1-1", "2-2"]
    assert told(world) == []
