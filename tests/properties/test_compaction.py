"""What survives compaction, against a dictionary; and logs that are compacted while processes and power end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from quorate.batch import CONTROL, Record, decode_records, encode_records, parse_batch_header
from quorate.core.entry import Header, Kind, NoOp
from quorate.core.generation import Generation
from quorate.storage import building
from quorate.storage.disk import Work
from quorate.storage.frame import Frame
from quorate.storage.segment import Made, parse_footer
from quorate.storage.settings import TINY, StoreSettings
from quorate.storage.surviving import Survivors
from tests.unit.storage.harness import P0, World

Row = tuple[int, bytes | None, bytes | None]
"""Offset, key and value of a record."""

ANOTHER = StoreSettings(
    **{name: getattr(TINY, name) for name in TINY.__struct_fields__ if name != "segment_bytes"},
    segment_bytes=1300,
)
"""As another replica's might be, whose segments end elsewhere."""


class Keyed(World):
    """A store whose records have keys."""

    def write(self, rng: Random, *, epoch: int) -> list[Frame]:
        """One entry: a no-op of a leader now and then, mostly a batch."""
        offset = self.store.head(P0).offset + 1
        if rng.random() < 0.1:
            made = self.store.seal(P0, [Header(epoch, offset, kind=Kind.CONTROL, control=NoOp(1))], [])
        else:
            count = rng.choice((1, 1, 2, 5))
            records = [
                Record(
                    rng.choice((None, b"a", b"b", b"c", b"d%d" % rng.randrange(6))),
                    None if rng.random() < 0.2 else rng.randbytes(rng.choice((0, 5, 60))),
                    1_000 + offset + place,
                )
                for place in range(count)
            ]
            payload = encode_records(records, timestamp=1_000 + offset)
            crc = int.from_bytes(payload[17:21], "big")
            made = self.store.seal(P0, [Header(epoch, offset, count, len(payload), crc=crc)], [payload])
        self.store.append(P0, self.io(P0), made)
        return made

    def generation(self, *, upto: Frame, deleted_upto: int, ends: list[int]) -> Generation:
        log = self.store._logs[P0]
        return Generation(
            log.base, log.base_checksum, upto.header.id, upto.checksum, deleted_upto, tuple(ends)
        )

    def prepare(self, generation: Generation) -> int | None:
        told: list[int | None] = []
        survivors = Survivors(upto=generation.upto, deleted_upto=generation.deleted_upto)
        self.store.compactor.prepare(P0, generation, survivors, told.append)
        while not told:
            assert self.step()
        return told[0]

    def swap(self, generation: Generation) -> None:
        for _ in range(1000):
            if self.store.compactor.swap(P0, generation) is not None:
                self.run()
                return
            self.run()
        raise AssertionError("it never swaps")

    def rows(self) -> list[Row]:
        return rows_of(self.read())


def rows_of(frames: list[Frame]) -> list[Row]:
    return [
        (record.offset, record.key, record.value)
        for frame in frames
        if not parse_batch_header(frame.payload).attributes & CONTROL
        for record in decode_records(frame.payload)
    ]


def expected(rows: list[Row], *, upto: int, deleted_upto: int) -> list[Row]:
    """By the book: a dictionary of where each key was last."""
    newest = {key: offset for offset, key, _ in rows if key is not None and offset <= upto}
    return [
        (offset, key, value)
        for offset, key, value in rows
        if offset > upto
        or key is None
        or (newest[key] == offset and not (value is None and offset <= deleted_upto))
    ]


def two_of_one_log(seed: int, count: int) -> tuple[Keyed, Keyed, list[Frame]]:
    """The same log on two disks, whose segments end elsewhere."""
    rng = Random(seed)
    one, other = Keyed(seed, TINY), Keyed(seed + 1, ANOTHER)
    frames: list[Frame] = []
    epoch = 1
    for world in (one, other):
        world.open()
        world.create()
    for _ in range(count):
        epoch += rng.random() < 0.05
        made = one.write(rng, epoch=epoch)
        other.store.append(P0, other.io(P0), made)
        frames += made
        if rng.random() < 0.2:
            one.run()
            other.run()
    one.run()
    other.run()
    return one, other, frames


def some_ends(rng: Random, frames: list[Frame], upto: int, before: list[int]) -> list[int]:
    """Where files end: none of those before is divided, and where there were two there may be one."""
    places = [
        frame.header.last
        for frame in frames
        if before[-1:] < [frame.header.last] and frame.header.last < upto
    ]
    kept = [end for end in before if rng.random() < 0.7]
    return [*kept, *sorted(rng.sample(places, min(len(places), rng.randrange(3)))), upto]


@given(st.integers(0, 1 << 32))
def test_survivors_of_any_sequence_of_generations_are_those_of_the_last_alone(seed: int) -> None:
    compact_again_and_again(seed)


def compact_again_and_again(seed: int) -> None:
    rng = Random(seed)
    one, other, frames = two_of_one_log(seed, rng.choice((20, 60)))
    written = rows_of(frames)
    ends: list[int] = []
    deleted_upto = -1
    place = -1
    for turn in range(rng.randint(1, 3)):
        place = rng.randrange(place + 1, len(frames)) if place + 1 < len(frames) else place
        if ends and frames[place].header.last == ends[-1]:
            break
        upto = frames[place]
        ends = some_ends(rng, frames, upto.header.last, ends)
        deleted_upto = rng.randint(deleted_upto, upto.header.last)
        generation = one.generation(upto=upto, deleted_upto=deleted_upto, ends=ends)
        crc = one.prepare(generation)
        assert crc is not None
        one.swap(generation)
        survivors = expected(written, upto=upto.header.last, deleted_upto=deleted_upto)
        assert one.rows() == survivors
        assert not one.check()
        if turn == 0 and rng.random() < 0.5:
            continue  # The other was away, and hears of a later one only.
        assert other.prepare(generation) == crc
        other.swap(generation)
        assert other.rows() == survivors
        assert not other.check()
    one.reopen()
    assert one.rows() == expected(written, upto=ends[-1], deleted_upto=deleted_upto)
    one.write(rng, epoch=100)
    one.run()
    assert chained(one.read())


@pytest.mark.parametrize("seed", range(10))
def test_what_takes_long_is_done_by_a_thread_of_the_disk_and_nothing_else_is_different(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    works: list[Work] = []

    def noted(task: Callable[[], None]) -> Work:
        works.append(Work(task))
        return works[-1]

    monkeypatch.setattr(building, "Work", noted)
    compact_again_and_again(seed)
    assert not works, "a few records"
    monkeypatch.setattr(building, "RECORDS_AT_ONCE_MAX", 1)
    compact_again_and_again(seed)
    assert works


def chained(frames: list[Frame]) -> bool:
    return all(
        two.prev == one.header.id and two.prev_checksum == one.checksum for one, two in pairwise(frames)
    )


@given(st.integers(0, 1 << 32))
def test_footers_say_from_what_compaction_made_a_file_and_the_same_on_every_replica(seed: int) -> None:
    rng = Random(seed)
    one, other, frames = two_of_one_log(seed, 40)
    place = rng.randrange(len(frames))
    last = frames[place].header.last
    deleted_upto = rng.randint(-1, last)
    ends = some_ends(rng, frames, last, [])
    generation = one.generation(upto=frames[place], deleted_upto=deleted_upto, ends=ends)
    for world in (one, other):
        assert world.prepare(generation) is not None
        world.swap(generation)
    origins = origins_of(one)
    assert origins == origins_of(other)
    assert {(origin.upto, origin.deleted_upto) for origin in origins} == {(last, deleted_upto)}
    assert sum(origin.entries_count for origin in origins) == place + 1
    left = [row for row in one.rows() if row[0] <= last]
    assert sum(origin.records_count for origin in origins) == len(left)


def origins_of(world: Keyed) -> list[Made]:
    """Of its compacted files, in order; each has the checksum that its footer says."""
    log, found = world.store._logs[P0], []
    for segment in log.segments:
        if segment.compacted >= 0:
            content = world.disk.content(log.file(segment.base))
            made = parse_footer(content[segment.size :], P0).made
            assert made is not None
            assert made.crc == crc32c(content[: segment.size])
            found.append(made)
    return found


@given(st.integers(0, 1 << 32))
def test_an_end_at_any_step_leaves_the_log_as_it_was_or_compacted(seed: int) -> None:
    rng = Random(seed)
    world, _, frames = two_of_one_log(seed, 50)
    written = rows_of(frames)
    upto = frames[rng.randrange(len(frames))]
    deleted_upto = rng.randint(-1, upto.header.last)
    ends = some_ends(rng, frames, upto.header.last, [])
    generation = world.generation(upto=upto, deleted_upto=deleted_upto, ends=ends)
    crcs: list[int | None] = []
    told: list[int | None] = []
    durable: list[bool] = []
    after = expected(written, upto=upto.header.last, deleted_upto=deleted_upto)
    for _ in range(rng.randint(1, 3)):
        survivors = Survivors(upto=generation.upto, deleted_upto=deleted_upto)
        told = []
        if world.store._logs[P0].compacted_upto < generation.upto:
            world.store.compactor.prepare(P0, generation, survivors, told.append)
        swapped = False
        for _ in range(rng.randrange(60)):
            world.step()
            if told and not swapped:
                swapped = world.store.compactor.swap(P0, generation) is not None
            if swapped and world.store._logs[P0].durable.segments[0].compacted >= 0:
                durable.append(True)
            if rng.random() < 0.1:
                written += rows_of(world.write(rng, epoch=world.store.head(P0).epoch))
                world.store.pump(world.now)
        crcs += told
        lost = rng.random() < 0.6
        if lost:
            world.power_loss()
        else:
            world.crash()
        world.open()
        found = world.rows()
        written = written[: len([row for row in written if row[0] <= world.store.head(P0).offset])]
        after = expected(written, upto=upto.header.last, deleted_upto=deleted_upto)
        compacted = world.store._logs[P0].compacted_upto == generation.upto
        assert found == (after if compacted else written)
        assert compacted or not durable
        assert not world.check()
    if world.store._logs[P0].compacted_upto < generation.upto:
        crcs.append(world.prepare(generation))
        world.swap(generation)
    assert world.rows() == after
    assert not world.check()
    assert len({crc for crc in crcs if crc is not None}) <= 1


@given(st.integers(0, 1 << 32))
def test_damage_in_a_compacted_file_is_mended_with_what_a_peer_of_the_same_generation_has(seed: int) -> None:
    rng = Random(seed)
    one, other, frames = two_of_one_log(seed, 40)
    upto = frames[rng.randrange(len(frames))]
    generation = one.generation(upto=upto, deleted_upto=-1, ends=some_ends(rng, frames, upto.header.last, []))
    for world in (one, other):
        assert world.prepare(generation) is not None
        world.swap(generation)
    rows = one.rows()
    log = one.store._logs[P0]
    segment = rng.choice([found for found in log.segments if found.compacted >= 0])
    name = log.file(segment.base)
    content = bytearray(one.disk.content(name))
    at = rng.randrange(segment.size)
    content[at] ^= 1 << rng.randrange(8)
    one.crash()
    files = {each: one.disk.content(each) for each in one.disk.files()}
    files[name] = bytes(content)
    mended = Keyed(seed, TINY, files)
    mended.open()
    for span in mended.check():
        found = [
            frame
            for frame in other.read()
            if span.before.offset < frame.header.offset and frame.header.last <= span.last.offset
        ]
        mended.store.repair(P0, mended.io(P0), found)
        mended.run()
    assert not mended.check()
    assert mended.rows() == rows
    assert mended.disk.content(name) == other.disk.content(name) or segment.base < 0


@given(st.integers(0, 1 << 32))
def test_what_was_prepared_before_a_crash_is_found_again_though_the_log_is_damaged_since(seed: int) -> None:
    rng = Random(seed)
    world, _, frames = two_of_one_log(seed, 40)
    upto = frames[rng.randrange(10, len(frames))]
    generation = world.generation(upto=upto, deleted_upto=-1, ends=[upto.header.last])
    crc = world.prepare(generation)
    assert crc is not None
    world.run()
    world.crash()
    files = {each: world.disk.content(each) for each in world.disk.files()}
    name = min(each for each in files if each.endswith("/" + "0" * 20 + ".log"))
    content = bytearray(files[name])
    if len(content) > frames[0].size:
        content[rng.randrange(frames[0].size)] ^= 1
    files[name] = bytes(content)
    mended = Keyed(seed, TINY, files)
    mended.open()
    mended.check()
    assert mended.prepare(generation) == crc
    mended.swap(generation)
    assert not mended.check()
    assert mended.rows() == expected(rows_of(frames), upto=upto.header.last, deleted_upto=-1)
