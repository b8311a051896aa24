"""What a former leader had and nobody else has is kept beside its log, for people, and for nobody else (TT-27)."""

from __future__ import annotations

import msgspec
import pytest

from quorate.core.entry import EntryId
from quorate.storage.aside import ASIDE_FILES_MAX, aside_id
from quorate.storage.frame import Frame, parse
from quorate.storage.segment import directory_of, segment_base
from quorate.storage.settings import TINY, StoreSettings
from tests.unit.storage.harness import P0, World, ids

AROUND = msgspec.structs.replace(TINY, journal_entry_max=1)
"""Entries go straight to their segments."""
SMALL_SEGMENTS = msgspec.structs.replace(TINY, segment_bytes=600)


def cut_aside(world: World, to: EntryId) -> list[str]:
    notes: list[str] = []
    world.store.cut(P0, world.io(P0), to, aside=notes.append)
    world.run()
    return notes


def asides(world: World) -> list[str]:
    return [name for name in world.disk.list_now(directory_of(P0)) if aside_id(name) is not None]


def frames_in(content: bytes) -> list[Frame]:
    found = []
    position = 0
    while position < len(content):
        frame, _ = parse(content, position, P0)
        found.append(frame)
        position += frame.size
    return found


@pytest.mark.behaviour("TT-27")
@pytest.mark.parametrize("settings", [TINY, AROUND, SMALL_SEGMENTS])
@pytest.mark.parametrize("read_back", [False, True])
def test_what_is_cut_is_kept_as_it_was(settings: StoreSettings, read_back: bool) -> None:
    world = World(settings=settings)
    world.open()
    world.create()
    kept = world.append(sizes=(10, 20))
    gone = world.append(sizes=(30, 0, 400, 50, 20), epoch=3)
    world.run()
    if read_back:
        world.reopen()
        world.run()
        world.store._shared.memory.shrink(0)
    assert cut_aside(world, kept[-1].header.id) == []
    assert asides(world) == ["aside-3-2.log"]
    found = frames_in(world.disk.content(f"{directory_of(P0)}/aside-3-2.log"))
    assert found == gone
    assert ids(world.read()) == ids(kept)


@pytest.mark.behaviour("TT-27")
def test_it_is_on_the_disk_before_the_cut_is() -> None:
    world = World()
    world.open()
    world.create()
    gone = world.append(sizes=(10, 20))
    world.run()
    world.store.cut(P0, world.io(P0), EntryId(0, -1), aside=lambda _: None)
    answered = len(world.answers)
    while len(world.answers) == answered:
        world.step()
    world.power_loss()
    world.open()
    assert world.read() == []
    assert frames_in(world.disk.content(f"{directory_of(P0)}/aside-1-0.log")) == gone


@pytest.mark.behaviour("TT-27")
def test_nobody_takes_it_for_a_part_of_the_log() -> None:
    world = World()
    world.open()
    world.create()
    world.append(sizes=(10, 20))
    world.run()
    cut_aside(world, EntryId(0, -1))
    again = world.append(sizes=(30,), epoch=2)
    world.run()
    assert segment_base(asides(world)[0]) is None
    world.reopen()
    world.run()
    assert ids(world.read()) == ids(again)
    assert world.check() == []
    assert asides(world) == ["aside-1-0.log"]
    world.store.delete(P0)
    world.run()
    assert world.disk.list_now(directory_of(P0)) == []


def test_only_so_many_are_kept() -> None:
    world = World()
    world.open()
    world.create()
    for epoch in range(1, ASIDE_FILES_MAX + 4):
        world.append(sizes=(10,), epoch=epoch)
        world.run()
        cut_aside(world, EntryId(0, -1))
    wanted = range(4, ASIDE_FILES_MAX + 4)
    assert {aside_id(name) for name in asides(world)} == {(epoch, 0) for epoch in wanted}


def test_a_full_disk_loses_the_copy_and_not_the_cut() -> None:
    world = World()
    world.open()
    world.create()
    world.append(sizes=(10, 20))
    world.run()
    world.disk.set_full(True)
    notes: list[str] = []
    world.store.cut(P0, world.io(P0), EntryId(0, -1), aside=notes.append)
    world.store.pump(world.now)
    while ("persisted", P0, world.ios[P0]) not in world.answers:
        world.step()
    assert ["without a copy" in note for note in notes] == [True]
    assert asides(world) == []
    assert world.store.head(P0) == EntryId(0, -1)


def test_what_cannot_be_read_any_more_is_cut_without_a_copy() -> None:
    world = World(settings=AROUND)
    world.open()
    world.create()
    world.append(sizes=(10, 20, 30))
    world.run()
    file = next(name for name in world.disk.files() if name.startswith(directory_of(P0)))
    world.disk.flip(file, 300, 1)
    world.store._shared.memory.shrink(0)
    notes = cut_aside(world, EntryId(0, -1))
    assert notes == [f"{directory_of(P0)}: offsets 1 to 2 are cut, and could not be set aside"]
    assert [len(frames_in(world.disk.content(f"{directory_of(P0)}/{name}"))) for name in asides(world)] == [1]


@pytest.mark.parametrize(
    "name", ["aside-1-2", "aside-1.log", "aside-a-1.log", "00000000000000000000.log", "aside--1.log"]
)
def test_other_names_are_not_of_that_kind(name: str) -> None:
    assert aside_id(name) is None
