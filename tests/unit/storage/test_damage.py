"""Damage, and what is under way when it is found: rounds, repairs, cuts, early writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from quorate.core.entry import NOWHERE, EntryId, Span
from quorate.storage import replay
from quorate.storage.check import check_now
from quorate.storage.disk import Done, Operation, Write
from quorate.storage.frame import FRAME_HEAD_BYTES
from quorate.storage.log import Log
from quorate.storage.memory import Memory
from quorate.storage.settings import StoreSettings
from quorate.storage.write_back import checkpoint_of
from tests.unit.storage.harness import P0, P1, World, ids

STEPS_MAX = 2_000


@pytest.fixture
def world() -> World:
    made = World(3)
    made.open()
    made.create(P0)
    made.run()
    return made


def answer(world: World, ask: Callable[[Callable[[Any], None]], None]) -> Any:
    """What a question is answered with, within a bounded time."""
    answers: list[Any] = []
    ask(answers.append)
    for _ in range(STEPS_MAX):
        if answers or not world.step():
            break
    assert answers, "nobody answers"
    return answers[0]


def check(world: World) -> list[Span]:
    found: list[Span] = answer(world, lambda done: world.store.check(P0, done))
    return found


def hold(world: World, monkeypatch: pytest.MonkeyPatch, lane: str) -> Callable[[], None]:
    """Jobs of a lane wait until what is returned is called."""
    held: list[tuple[str, Sequence[Operation], Done]] = []
    submit = world.disk.submit

    def waiting(to: str, operations: Sequence[Operation], done: Done) -> None:
        if to == lane and operations:
            held.append((to, operations, done))
        else:
            submit(to, operations, done)

    monkeypatch.setattr(world.disk, "submit", waiting)

    def let_go() -> None:
        monkeypatch.undo()
        for job in held:
            submit(*job)

    return let_go


def test_damage_that_is_found_while_a_round_is_under_way_is_not_forgotten(world: World) -> None:
    for _ in range(40):
        world.append(P0, [300])
        world.run()
    world.store._write_back._start_pass()
    world.run()
    log = world.store._logs[P0]
    world.disk.flip(log.file(log.segments[0].base), 1_000, 3)
    world.append(P0, [300])
    world.store.pump(world.now)
    assert world.store._rounds.busy
    world.store._reader.tell(log, check_now(world.disk, log, 0, 4_096))
    world.run()
    assert log.durable.faulty == log.faulty != ()
    assert checkpoint_of(log).view.faulty == log.faulty
    assert check(world) == [], "it is known, and nobody has to wait for a repair"


def test_an_entry_that_is_being_cut_is_not_taken_for_a_damaged_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.append(P0, [10])
    world.append(P0, [2_000])
    world.run()
    let_go = hold(world, monkeypatch, "check")
    world.cut(EntryId(1, 0))
    world.store.pump(world.now)
    found: list[list[Span]] = []
    world.store.check(P0, found.append)
    for _ in range(30):
        world.step()
    world.append(P0, [2_100], epoch=2)
    world.run()
    let_go()
    world.run()
    assert found == [[]]
    assert ids(world.read()) == ["1-0", "2-1"]


def test_a_read_that_finds_the_front_of_a_longer_frame_ends(world: World) -> None:
    world.append(P0, [1_100])
    (longer,) = world.append(P0, [1_700])
    for _ in range(3):
        world.append(P0, [100])
        world.run()
    log = world.store._logs[P0]
    log._clear_tail()
    front = slice(0, FRAME_HEAD_BYTES)
    file = world.disk._files[log.file(0)]
    file.damage(lambda content: content.__setitem__(front, longer.head), (0, FRAME_HEAD_BYTES))
    assert answer(world, lambda done: world.store.read(P0, 0, 4, 1 << 20, done)) == []
    assert log.spans, "and the damage is known"


def test_a_check_of_very_many_segments_that_are_not_written_ends(world: World) -> None:
    for _ in range(400):
        world.append(P0, [3_900])
        world.run()
    assert len(world.store._logs[P0].segments) >= 400
    world.cut(EntryId(1, 398))
    assert check(world) == []


def test_large_entries_of_the_next_round_are_written_while_this_one_is_flushed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes: list[str] = []
    submit = world.disk.submit

    def noting(lane: str, operations: Sequence[Operation], done: Done) -> None:
        lanes.extend(lane for operation in operations if type(operation) is Write)
        submit(lane, operations, done)

    monkeypatch.setattr(world.disk, "submit", noting)
    world.append(P0, [3_000])
    world.store.pump(world.now)
    world.append(P0, [3_000])
    world.store.pump(world.now)
    assert lanes == ["journal", "journal", "early"]
    world.run()
    world.reopen()
    assert ids(world.read()) == ["1-0", "1-1"]


def test_nothing_is_written_early_over_what_is_being_cut(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.append(P0, [10])
    world.append(P0, [3_000])
    world.run()
    lanes: list[str] = []
    submit = world.disk.submit

    def noting(lane: str, operations: Sequence[Operation], done: Done) -> None:
        lanes.append(lane)
        submit(lane, operations, done)

    monkeypatch.setattr(world.disk, "submit", noting)
    world.cut(EntryId(1, 0))
    world.store.pump(world.now)
    world.append(P0, [3_000], epoch=2)
    world.store.pump(world.now)
    assert "early" not in lanes
    world.run()
    assert ids(world.read()) == ["1-0", "2-1"]


def test_an_early_write_without_room_is_repeated_by_its_round_which_says_so(world: World) -> None:
    world.append(P0, [3_000])
    world.store.pump(world.now)
    world.append(P0, [3_000])
    world.disk.set_full(True)
    world.store.pump(world.now)
    world.run()
    failed = [each for each in world.answers if each[0] == "failed"]
    assert failed
    world.disk.set_full(False)
    world.run()
    world.reopen()
    assert not world.store.recovered(P0).faulty


def test_marks_of_older_generations_in_the_same_file_are_not_believed(world: World) -> None:
    """A journal whose first round is damaged is searched as a whole (seed 61906 of `damage,wipe`)."""
    world.create(P1)
    while world.store._shared.journal.generation < 4:
        world.append(P0, [300])
        world.run()
    world.reopen()
    head = world.store._logs[P0].head
    world.append(P1, [300])  # A second round, about something else: the first is not torn.
    world.run()
    world.disk.flip(world.store._shared.journal.file, 4, 0)
    world.reopen()
    assert world.store.recovered(P0).head == head


def test_a_log_does_not_end_where_a_segment_starts_inside_of_what_is_lost() -> None:
    """Nobody knows what is in front of such a segment, settled or not."""
    log = Log(P0, StoreSettings(), Memory())
    log.lose(EntryId(4, 8), 7, 6, 100)
    log.commit = 8
    assert log.segments[-1].before == EntryId(0, 5)
    replay._distrust(log, EntryId(5, 9))
    assert log.head == NOWHERE
    with pytest.raises(AssertionError):
        rest = Log(P0, StoreSettings(), Memory())
        rest.lose(EntryId(4, 8), 7, 6, 100)
        rest.cut(EntryId(0, 5), 0, 0, 0)


def test_entries_that_the_journal_lost_are_missed_though_a_later_record_tells_where_the_log_ends(
    world: World,
) -> None:
    """A removed prefix is recorded with the log's end, and that record is kept in a second place."""
    for _ in range(6):
        world.append(P0, [20])
        world.run()
    world.append(P0, [20])
    world.store.remove_prefix(P0, world.io(P0), EntryId(1, 2))
    world.run()
    world.store.close()
    files = {name: world.disk.content(name) for name in world.disk.files()}
    journal = world.store._shared.journal.file
    for length in range(0, len(files[journal].rstrip(b"\0")), 16):
        opened = World(3, files=files | {journal: files[journal][:length]})
        opened.open()
        found = opened.store.recovered(P0)
        lost = {offset for span in found.faulty for offset in range(span.first_offset, span.last.offset + 1)}
        kept = set(range(found.base.offset + 1, found.head.offset + 1)) - lost
        readable = {offset for offset in kept if opened.read(offset, offset)}
        assert readable == kept, f"cut to {length} bytes"
