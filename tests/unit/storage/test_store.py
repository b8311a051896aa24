"""A store on a simulated disk: orders, rounds, restarts, damage, a full disk."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from quorate.core.entry import EntryId, NoOp
from quorate.storage.disk import Flush, Operation, Unlink, Write
from quorate.storage.errors import ForeignDirectory
from quorate.storage.segment import directory_of, segment_file
from quorate.storage.settings import TINY
from tests.unit.storage.harness import P0, P1, World, ids


@pytest.fixture
def world() -> World:
    made = World(1)
    made.open()
    made.create(P0)
    made.create(P1)
    made.run()
    return made


def persisted(world: World) -> dict[bytes, int]:
    return {answer[1]: answer[2] for answer in world.answers if answer[0] == "persisted"}


# --- orders and rounds ---


def test_nothing_is_said_to_be_durable_before_its_flush(world: World) -> None:
    world.answers.clear()
    world.append(P0, [10])
    world.store.pump(world.now)
    assert world.answers == []
    world.run()
    assert persisted(world) == {P0: 2}


def test_what_gathers_while_a_round_is_flushed_goes_into_the_next_together(world: World) -> None:
    sequence = world.store._shared.journal.sequence
    world.append(P0, [10])
    world.store.pump(world.now)
    for _ in range(5):
        world.append(P0, [10])
        world.append(P1, [10])
    world.run()
    assert world.store._shared.journal.sequence == sequence + 2


def test_entries_are_read_back_as_they_were_written(world: World) -> None:
    written = world.append(P0, [10, 200, 3_000, 0])
    world.run()
    assert [frame.head for frame in world.read()] == [frame.head for frame in written]
    assert [bytes(frame.payload) for frame in world.read()] == [bytes(frame.payload) for frame in written]


def test_frames_that_do_not_continue_the_chain_are_refused(world: World) -> None:
    first = world.append(P0, [10])
    world.run()
    world.store.append(P0, world.io(P0), first)
    failed = [answer for answer in world.run() if answer[0] == "failed"]
    assert "chain broken" in failed[0][3]


# --- restarts ---


def test_a_restart_finds_logs_states_and_cuts(world: World) -> None:
    world.append(P0, [10, 10, 10])
    world.cut(EntryId(1, 0))
    world.append(P0, [20], epoch=2)
    world.save(b"epoch 2")
    world.run()
    world.reopen()
    recovered = world.store.recovered(P0)
    assert ids(world.read()) == ["1-0", "2-1"]
    assert (recovered.head, recovered.state, recovered.faulty) == (EntryId(2, 1), b"epoch 2", ())
    assert recovered.epochs == ((1, 0), (2, 1))


def test_control_entries_come_back_decoded(world: World) -> None:
    world.append(P0, [0, 10])
    world.run()
    world.reopen()
    assert world.store.recovered(P0).headers[0].control == NoOp(1)


def test_control_entries_of_an_order_too_big_for_a_round_come_back_decoded(world: World) -> None:
    """Seed 6 of `all`: such an order goes around the journal, and only headers stay there."""
    world.append(P0, [0] + [900] * 12)
    world.run()
    world.reopen()
    assert world.store.recovered(P0).headers[0].control == NoOp(1)


def test_a_torn_round_is_dropped_and_what_was_durable_stays(world: World) -> None:
    world.append(P0, [10])
    world.run()
    for _ in range(20):
        torn = World(1, files=world.disk.durable_files())
        torn.open()
        assert ids(torn.read()) == ["1-0"]
        torn.append(P0, [100] * 5)
        torn.store.pump(torn.now)
        torn.power_loss()
        torn.open()
        assert torn.store.recovered(P0).faulty == ()
        assert ids(torn.read())[0] == "1-0"


def test_many_generations_lose_nothing(world: World) -> None:
    """The journal is used over and over: segments are flushed before its space is."""
    for number in range(400):
        world.append(P0, [150])
        if number % 7 == 0:
            world.run()
    world.run()
    assert world.store._shared.journal.generation > 3
    world.power_loss()
    world.open()
    assert len(world.read()) == 400


def test_a_directory_with_something_else_in_it_is_refused() -> None:
    world = World(1, files={"letter.txt": b"dear"})
    with pytest.raises(ForeignDirectory):
        world.open()


def test_a_prefix_that_is_removed_stays_removed_and_the_rest_is_there(world: World) -> None:
    for _ in range(60):
        world.append(P0, [200])
    world.run()
    world.store.remove_prefix(P0, world.io(P0), EntryId(1, 39))
    world.run()
    world.reopen()
    assert world.store.recovered(P0).base == EntryId(1, 39)
    assert ids(world.read(40))[0] == "1-40"
    assert world.read(0, 39) == []


def test_opening_removes_files_only_when_what_says_so_is_on_the_disk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that reads still saw, though its flush had failed, led to a removal; then the
    next flush failed, too, and neither the record nor the segments were there any more."""
    world.append(P0, [200])
    world.run()
    world.crash()
    stale = segment_file(directory_of(P0), 99)
    world.disk.run_now([Write(stale, 0, (b"cut, and not unlinked yet",))])
    done: list[object] = []
    run_now = world.disk.run_now

    def watched(operations: Sequence[Operation]) -> None:
        done.extend(operations)
        run_now(operations)

    monkeypatch.setattr(world.disk, "run_now", watched)
    world.open()
    removed = [place for place, operation in enumerate(done) if operation == Unlink(stale)]
    flushed = [place for place, operation in enumerate(done) if isinstance(operation, Flush)]
    assert removed
    assert max(flushed) < min(removed)


# --- damage ---


def test_damage_is_a_faulty_span_with_the_ids_around_it_and_is_repaired_in_place(world: World) -> None:
    frames = world.append(P0, [100, 100, 100, 100])
    world.run()
    world.crash()
    for file in world.disk.files():
        at = world.disk.content(file).find(frames[1].head)
        while at >= 0:
            world.disk.flip(file, at + 90, 1)
            at = world.disk.content(file).find(frames[1].head, at + 1)
    world.open()
    world.check()
    spans = world.store._logs[P0].spans
    assert [(span.before, span.last) for span in spans] == [(EntryId(1, 0), EntryId(1, 1))]
    assert ids(world.read()) == ["1-0"]
    world.store.repair(P0, world.io(P0), [frames[1]])
    world.run()
    assert ids(world.read()) == ["1-0", "1-1", "1-2", "1-3"]
    world.reopen()
    assert ids(world.read()) == ["1-0", "1-1", "1-2", "1-3"]


def test_a_journal_that_is_cut_short_is_damage_not_novelty(world: World) -> None:
    world.append(P0, [100] * 3)
    world.run()
    world.crash()
    letter = world.store._shared.journal.letter
    world.disk.truncate_to(f"journal.{letter}", 64)
    world.open()
    recovered = world.store.recovered(P0)
    assert recovered.head == EntryId(1, 2)
    assert recovered.faulty or ids(world.read()) == ["1-0", "1-1", "1-2"]


def test_a_sealed_segment_that_is_cut_into_and_sealed_again_is_read_by_its_new_index(world: World) -> None:
    for _ in range(40):
        world.append(P0, [220])
    world.run()
    world.read()
    world.cut(EntryId(1, 15))
    world.run()
    for _ in range(40):
        world.append(P0, [90], epoch=2)
    world.run()
    assert len(world.read()) == 16 + 40


def test_a_cut_into_a_damaged_place_tells_of_the_damage(world: World) -> None:
    for _ in range(60):
        world.append(P0, [200])
    world.run()
    world.reopen()
    log = world.store._logs[P0]
    segment = log.segments[0]
    content = world.disk.content(log.file(segment.base))
    world.disk.flip(log.file(segment.base), content.find(b"QfrA", 300) + 20, 3)
    target = EntryId(1, 4)
    world.cut(target)
    kinds = [answer[0] for answer in world.run()]
    assert "damaged" in kinds or "persisted" in kinds
    assert "failed" not in kinds or "damaged" in kinds


# --- a disk that says no ---


def test_a_failed_flush_is_final(world: World) -> None:
    world.disk.fail_next_flush()
    world.append(P0, [10])
    answers = world.run()
    assert [answer[0] for answer in answers] == ["fatal"]
    world.append(P0, [10])
    assert world.run() == []


def test_what_is_seen_after_a_failed_flush_is_durable_before_anybody_acts_on_it(world: World) -> None:
    """Seed 14 of `all`: reads still see what was dropped; the power goes right after the restart."""
    world.disk.fail_next_flush()
    world.save(b"vote")
    world.run()
    world.reopen()
    seen = world.store.recovered(P0).state
    world.power_loss()
    world.open()
    assert world.store.recovered(P0).state == seen


def test_a_full_disk_refuses_data_keeps_states_and_recovers_by_itself() -> None:
    world = World(3, msgspec.structs.replace(TINY, journal_bytes=16 << 10))
    world.open()
    world.create(P0)
    world.run()
    world.disk.set_full(True)
    refused = 0
    for number in range(300):
        world.append(P0, [300])
        world.store.pump(world.now)
        for _ in range(6):
            world.step()
        failed = [answer for answer in world.answers if answer[0] == "failed"]
        if len(failed) > refused:
            refused = len(failed)
            world.cut(world.store._logs[P0].head)
        if refused and number % 10 == 0:
            world.save(b"vote %d" % number)
    assert refused, "the journal is not endless"
    assert not any(answer[0] == "fatal" for answer in world.answers)
    world.disk.set_full(False)
    for _ in range(200):
        world.step()
    world.append(P0, [300])
    world.run()
    head = world.store._logs[P0].head
    world.power_loss()
    world.open()
    assert world.store.recovered(P0).head == head


def test_memory_does_not_grow_with_what_was_appended(world: World) -> None:
    for number in range(6_000):
        world.append(P0, [30])
        if number % 40 == 39:
            world.run()
            world.store.remove_prefix(P0, world.io(P0), world.store._logs[P0].head)
    world.run()
    memory = world.store._shared.memory
    assert memory.bytes <= TINY.tail_bytes
    assert len(memory.oldest) <= memory.tidy_at
