"""The simulated disk: without faults it is a disk, and with them it does to bytes what real disks do."""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Callable, Sequence
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.sim.disk import SimDisk, SimDiskSettings
from quorate.storage.disk import (
    Allocate,
    DiskFailed,
    DiskFull,
    Flush,
    FlushDirectory,
    Operation,
    ReadAt,
    Rename,
    Truncate,
    Unlink,
    Write,
)
from quorate.storage.real_disk import RealDisk


class Clock:
    """The smallest world: things happen when their time has come."""

    def __init__(self) -> None:
        self.now = 0.0
        self.numbers = count()
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []

    def schedule(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.agenda, (self.now + delay, next(self.numbers), action))

    def run(self) -> None:
        while self.agenda:
            self.now, _, action = heapq.heappop(self.agenda)
            action()


class World:
    """A disk, its clock, and what its jobs have answered."""

    def __init__(self, seed: int = 1, files: dict[str, bytes] | None = None) -> None:
        self.clock = Clock()
        self.disk = SimDisk.from_files(files or {}, Random(seed), self.clock.schedule)
        self.answers: list[tuple[str, Exception | None, list[bytes]]] = []

    def submit(self, lane: str, *operations: Operation) -> None:
        self.disk.submit(lane, operations, lambda error, results: self.answers.append((lane, error, results)))

    def now(self, *operations: Operation) -> None:
        self.disk.run_now(operations)

    def contents(self) -> dict[str, bytes]:
        return {file: self.disk.content(file) for file in self.disk.files()}


def write(file: str, at: int, content: bytes) -> Write:
    return Write(file, at, (content,))


def after_power_loss(seeds: int, prepare: Callable[[World], None]) -> list[dict[str, bytes]]:
    outcomes = []
    for seed in range(seeds):
        world = World(seed)
        prepare(world)
        world.disk.power_loss()
        outcomes.append(world.contents())
    return outcomes


# Jobs


def test_a_job_does_nothing_before_its_time_and_everything_then() -> None:
    world = World()
    world.submit("lane", Write("file", 0, (b"one", b"two")), ReadAt("file", 2, 2))
    assert world.disk.size_now("file") is None
    assert world.answers == []
    world.clock.run()
    assert world.answers == [("lane", None, [b"et"])]
    assert world.disk.read_now("file", 0, 100) == b"onetwo"


def test_jobs_of_a_lane_wait_for_each_other_and_lanes_do_not() -> None:
    orders = set()
    for seed in range(20):
        world = World(seed)
        for number in range(3):
            world.submit("a", write("a", number, b"%d" % number), ReadAt("a", 0, 9))
            world.submit("b", write("b", number, b"%d" % number), ReadAt("b", 0, 9))
        world.clock.run()
        for lane in "ab":
            assert [r for name, _, r in world.answers if name == lane] == [[b"0"], [b"01"], [b"012"]]
        orders.add("".join(lane for lane, _, _ in world.answers))
    assert len(orders) > 3


def test_a_slow_disk_takes_a_hundred_times_as_long() -> None:
    world = World()
    world.submit("lane", write("file", 0, b"x"))
    world.clock.run()
    assert 0.0001 <= world.clock.now <= 0.002
    world.disk.set_slow(True)
    began = world.clock.now
    world.submit("lane", write("file", 0, b"x"))
    world.clock.run()
    assert 0.01 <= world.clock.now - began <= 0.2
    world.disk.heal()
    began = world.clock.now
    world.submit("lane", write("file", 0, b"x"))
    world.clock.run()
    assert world.clock.now - began <= 0.002


def test_the_first_failing_operation_ends_its_job() -> None:
    world = World()
    world.submit("lane", write("a", 0, b"x"), ReadAt("missing", 0, 1), write("b", 0, b"x"))
    world.clock.run()
    [(_, error, results)] = world.answers
    assert isinstance(error, DiskFailed)
    assert results == []
    assert world.disk.files() == ["a"]


def test_a_completion_may_submit_and_crash() -> None:
    world = World()
    world.disk.submit("lane", (write("a", 0, b"x"),), lambda *_: world.submit("lane", ReadAt("a", 0, 1)))
    world.clock.run()
    assert world.answers == [("lane", None, [b"x"])]
    world.disk.submit("lane", (), lambda *_: world.disk.crash())
    world.submit("lane", ReadAt("a", 0, 1))
    world.clock.run()
    assert len(world.answers) == 1


# The process dies


def test_a_crash_keeps_what_was_written_and_forgets_who_waited() -> None:
    world = World()
    world.now(write("file", 0, b"unflushed"))
    world.submit("lane", write("file", 0, b"UNFLUSHED"), Flush(("file",)))
    world.disk.crash()
    world.clock.run()
    assert world.answers == []
    assert world.disk.content("file") in (b"unflushed", b"UNFLUSHED")
    world.submit("lane", ReadAt("file", 0, 2))
    world.clock.run()
    assert len(world.answers) == 1


def test_a_crash_leaves_any_prefix_of_the_job_in_flight_and_none_of_those_behind() -> None:
    seen = set()
    for seed in range(200):
        world = World(seed)
        world.submit("lane", write("a", 0, b"a"), write("b", 0, b"b" * 1500), write("c", 0, b"c"))
        world.submit("lane", write("never", 0, b"x"))
        world.disk.crash()
        sizes = tuple(world.disk.size_now(file) for file in ("a", "b", "c", "never"))
        assert sizes[3] is None
        seen.add(sizes[:3])
    assert {(None, None, None), (1, None, None), (1, 512, None), (1, 1500, None), (1, 1500, 1)} <= seen
    assert not {sizes for sizes in seen if sizes[1] and not sizes[0]}


# The power goes


def test_flushed_files_with_flushed_names_survive_everything() -> None:
    def prepare(world: World) -> None:
        world.now(write("p/x/file", 0, b"safe"), Flush(("p/x/file",)), FlushDirectory("p/x"))

    assert after_power_loss(20, prepare) == [{"p/x/file": b"safe"}] * 20


def test_a_file_whose_name_was_not_flushed_may_be_gone_with_its_flushed_bytes() -> None:
    outcomes = after_power_loss(40, lambda world: world.now(write("file", 0, b"safe"), Flush(("file",))))
    assert {} in outcomes
    assert {"file": b"safe"} in outcomes


def test_unflushed_writes_are_kept_or_lost_each_for_itself() -> None:
    def prepare(world: World) -> None:
        world.now(Allocate("file", 4), Flush(("file",)), FlushDirectory("."))
        world.now(*(write("file", at, b"x") for at in range(4)))

    outcomes = {outcome["file"] for outcome in after_power_loss(500, prepare)}
    assert len(outcomes) == 16


def test_a_large_write_is_torn_at_sectors() -> None:
    def prepare(world: World) -> None:
        world.now(Allocate("file", 2048), Flush(("file",)), FlushDirectory(""))
        world.now(write("file", 500, b"x" * 1000))

    outcomes = {outcome["file"] for outcome in after_power_loss(500, prepare)}
    pieces = [(500, 512), (512, 1024), (1024, 1500)]
    expected = set()
    for kept in range(8):
        content = bytearray(2048)
        for number, (start, end) in enumerate(pieces):
            if kept >> number & 1:
                content[start:end] = b"x" * (end - start)
        expected.add(bytes(content))
    assert outcomes == expected


def test_names_are_lost_from_the_end_and_replaced_in_one_piece() -> None:
    def prepare(world: World) -> None:
        world.now(write("state", 0, b"old"), Flush(("state",)), FlushDirectory(""))
        world.now(write("temp", 0, b"new"), Flush(("temp",)), Rename("temp", "state"), Unlink("state"))

    outcomes = after_power_loss(60, prepare)
    assert {tuple(outcome.items()) for outcome in outcomes} == {
        (("state", b"old"),),
        (("state", b"old"), ("temp", b"new")),
        (("state", b"new"),),
        (),
    }


def test_directories_lose_their_names_independently() -> None:
    outcomes = after_power_loss(60, lambda world: world.now(write("a/f", 0, b""), write("b/f", 0, b"")))
    assert {tuple(outcome) for outcome in outcomes} == {(), ("a/f",), ("b/f",), ("a/f", "b/f")}


def test_a_truncation_is_lost_unless_flushed() -> None:
    def prepare(world: World) -> None:
        world.now(write("file", 0, b"long"), Flush(("file",)), FlushDirectory(""), Truncate("file", 1))

    assert {outcome["file"] for outcome in after_power_loss(40, prepare)} == {b"long", b"l"}


def test_the_power_takes_part_of_the_job_in_flight_too() -> None:
    def prepare(world: World) -> None:
        world.now(Allocate("file", 1), Flush(("file",)), FlushDirectory(""))
        world.submit("lane", write("file", 0, b"x"), Flush(("file",)))

    assert {outcome["file"] for outcome in after_power_loss(40, prepare)} == {b"\0", b"x"}


def test_after_power_loss_cached_and_durable_are_the_same() -> None:
    for seed in range(30):
        world = World(seed)
        world.now(write("a", 0, b"x" * 3000), Rename("a", "b"), write("d/c", 5, b"y"), Flush(("d/c",)))
        world.disk.power_loss()
        assert world.contents() == world.disk.durable_files()


def test_a_wiped_disk_is_empty_and_usable() -> None:
    world = World()
    world.now(write("p/file", 0, b"x"), Flush(("p/file",)), FlushDirectory("p"))
    world.submit("lane", write("late", 0, b"x"))
    world.disk.wipe()
    world.clock.run()
    assert world.disk.files() == []
    assert world.disk.list_now("") == []
    assert world.answers == []
    world.now(write("p/file", 0, b"y"))
    assert world.contents() == {"p/file": b"y"}


# Full


def test_a_full_disk_refuses_growth_and_takes_overwrites_reads_and_unlinks() -> None:
    world = World()
    world.now(Allocate("journal", 100), write("log", 0, b"x" * 50))
    world.disk.set_full(True)
    for operation in (
        write("log", 50, b"y"),
        write("log", 49, b"yy"),
        write("new", 0, b"y"),
        Allocate("other", 1),
        Truncate("log", 51),
    ):
        with pytest.raises(DiskFull):
            world.now(operation)
    assert world.disk.content("log") == b"x" * 50
    assert world.disk.size_now("other") is None
    world.now(write("journal", 99, b"y"), ReadAt("log", 0, 1), Flush(("journal",)), Truncate("log", 20))
    world.now(write("log", 20, b"z" * 30))
    world.now(Unlink("log"), write("new", 0, b"y" * 50))
    with pytest.raises(DiskFull):
        world.now(write("new", 50, b"y"))
    world.disk.set_full(False)
    world.now(write("new", 50, b"y"))


def test_capacity_counts_all_files_in_use() -> None:
    world = World(files={"a": b"x" * 10})
    world.disk.set_full(25)
    world.now(write("b", 0, b"y" * 15))
    with pytest.raises(DiskFull):
        world.now(write("a", 10, b"x"))
    world.now(Rename("b", "a"), write("a", 15, b"y" * 10))
    with pytest.raises(DiskFull):
        world.now(write("a", 25, b"y"))
    world.disk.power_loss()
    world.now(write("a", 10, b"y"))


# A flush that fails


def test_a_failed_flush_drops_its_pages_and_the_next_one_lies() -> None:
    world = World()
    world.now(Allocate("file", 4), Flush(("file",)), FlushDirectory(""), write("file", 0, b"lost"))
    world.disk.fail_next_flush("file")
    with pytest.raises(DiskFailed, match="file"):
        world.now(Flush(("file",)))
    assert world.disk.content("file") == b"lost"
    world.now(Flush(("file",)))
    assert world.disk.durable_files() == {"file": b"\0\0\0\0"}
    world.now(write("file", 1, b"!"), Flush(("file",)))
    world.disk.power_loss()
    assert world.contents() == {"file": b"\0!\0\0"}


def test_a_named_failure_waits_for_its_file_and_spares_the_others() -> None:
    world = World()
    world.now(write("a", 0, b"a"), write("b", 0, b"b"), FlushDirectory(""))
    world.disk.fail_next_flush("b")
    world.now(Flush(("a",)))
    with pytest.raises(DiskFailed):
        world.now(Flush(("a", "b")))
    assert world.disk.durable_files() == {"a": b"a", "b": b""}


def test_an_unnamed_failure_hits_the_next_flush_whatever_it_is_of() -> None:
    world = World()
    world.now(write("a", 0, b"a"), write("b", 0, b"b"), FlushDirectory(""))
    world.disk.fail_next_flush()
    with pytest.raises(DiskFailed):
        world.now(Flush(("a", "b")))
    assert world.disk.durable_files() == {"a": b"", "b": b""}
    world.disk.fail_next_flush()
    world.disk.heal()
    world.now(Flush(("a",)))


def test_dropped_pages_may_be_read_anew_by_the_next_process() -> None:
    seen = set()
    for seed in range(20):
        world = World(seed)
        world.now(Allocate("file", 3), Flush(("file",)), write("file", 0, b"ab"), write("file", 3, b"long"))
        world.disk.fail_next_flush()
        with pytest.raises(DiskFailed):
            world.now(Flush(("file",)))
        world.now(write("file", 1, b"!"))
        world.disk.crash()
        seen.add(world.disk.content("file"))
    assert seen == {b"a!\0long", b"\0!\0long", b"a!\0\0\0\0\0", b"\0!\0\0\0\0\0"}


# Damage


def test_damage_is_seen_by_reads_and_survives_flushes_and_power_loss() -> None:
    damages: dict[str, Callable[[SimDisk], None]] = {
        "abcdefgi": lambda disk: disk.flip("file", 7, 0),
        "ab\0\0\0fgh": lambda disk: disk.zero("file", 2, 3),
        "efcdabgh": lambda disk: disk.swap("file", 0, 4, 2),
        "abcde": lambda disk: disk.truncate_to("file", 5),
    }
    for expected, damage in damages.items():
        for flushed in (True, False):
            world = World(files={"file": b"12345678"})
            world.now(write("file", 0, b"abcd"), write("file", 4, b"efgh"))
            if flushed:
                world.now(Flush(("file",)))
            damage(world.disk)
            assert world.disk.content("file").decode() == expected
            world.now(Flush(("file",)))
            world.disk.power_loss()
            assert world.disk.content("file").decode() == expected


def test_damage_changes_what_is_durable_without_flushing_anything() -> None:
    world = World(files={"file": b"\0\0\0\0"})
    world.now(write("file", 0, b"ab"))
    world.disk.flip("file", 3, 1)
    assert world.disk.durable_files() == {"file": b"\0\0\0\x02"}


# Copies


def test_a_disk_made_from_files_holds_them_flushed() -> None:
    files = {"journal.a": b"j", "partitions/x-0/0.log": b"log", "partitions/x-0/1.log": b""}
    world = World(files=files)
    assert world.disk.durable_files() == files
    assert world.disk.list_now("partitions") == ["x-0"]
    assert world.disk.list_now("partitions/x-0") == ["0.log", "1.log"]
    world.disk.power_loss()
    assert world.contents() == files
    copy = World(files=world.disk.durable_files())
    copy.disk.zero("journal.a", 0, 1)
    assert world.contents() == files


# For any story

names = st.sampled_from(["a", "b", "d/c", "d/e"])
operations = st.one_of(
    st.builds(write, names, st.integers(0, 1500), st.binary(max_size=40).map(lambda part: part * 30)),
    st.builds(lambda *files: Flush(files), names),
    st.builds(FlushDirectory, st.sampled_from(["", "d"])),
    st.builds(Allocate, names, st.integers(0, 2000)),
    st.sampled_from([Rename("a", "b"), Rename("b", "a"), Rename("d/c", "d/e"), Rename("a", "a")]),
    st.builds(Unlink, names),
    st.builds(Truncate, names, st.integers(0, 2000)),
    st.builds(ReadAt, names, st.integers(0, 1500), st.integers(0, 1500)),
)


def attempt(disk: SimDisk | RealDisk, operation: Operation) -> bytes | str:
    """What an operation reads, or how it fails."""
    try:
        if isinstance(operation, ReadAt):
            return disk.read_now(operation.file, operation.at, operation.length)
        disk.run_now((operation,))
    except DiskFailed:
        return "failed"
    return "done"


@given(st.lists(operations, max_size=12))
def test_without_faults_it_behaves_as_the_real_disk_does(story: Sequence[Operation]) -> None:
    world = World()
    with tempfile.TemporaryDirectory() as directory, RealDisk.polled(directory) as real:
        for operation in (FlushDirectory(""), Allocate("d/x", 0), *story):
            assert attempt(world.disk, operation) == attempt(real, operation)
        for place in ("", "d"):
            assert world.disk.list_now(place) == real.list_now(place)
        for file in world.disk.files():
            assert world.disk.size_now(file) == real.size_now(file)
            assert world.disk.content(file) == real.read_now(file, 0, 10_000)


@given(st.lists(operations, max_size=12), st.integers(0, 1 << 30))
def test_what_was_flushed_and_not_touched_since_survives_power_loss(
    story: Sequence[Operation], seed: int
) -> None:
    world = World(seed)
    for operation in story:
        attempt(world.disk, operation)
    world.now(*(Flush((file,)) for file in world.disk.files()))
    world.now(*(FlushDirectory(place) for place in ("", *(["d"] if "d" in world.disk.list_now("") else []))))
    before = world.contents()
    assert world.disk.durable_files() == before
    world.disk.power_loss()
    assert world.contents() == before


@given(st.lists(operations, max_size=12), st.integers(0, 1 << 30))
def test_the_same_seed_loses_the_same_bytes(story: Sequence[Operation], seed: int) -> None:
    outcomes = []
    for _ in range(2):
        world = World(seed)
        for number, operation in enumerate(story):
            world.submit(f"lane {number % 2}", operation, operation)
            if number == 6:
                world.clock.run()
        world.disk.power_loss()
        outcomes.append((world.contents(), world.clock.now, len(world.answers)))
    assert outcomes[0] == outcomes[1]


@given(st.lists(operations, max_size=12), st.integers(0, 1 << 30))
def test_room_is_counted_right_whatever_happens(story: Sequence[Operation], seed: int) -> None:
    world = World(seed)
    for number, operation in enumerate(story):
        attempt(world.disk, operation)
        if number == 8:
            world.disk.power_loss()
    world.disk.set_full(sum(map(len, world.contents().values())) + 5)
    world.now(write("fresh", 0, b"12345"))
    with pytest.raises(DiskFull):
        world.now(write("fresh", 5, b"6"))


def test_settings_draw_latency_and_sector_size() -> None:
    clock = Clock()
    settings = SimDiskSettings(latency_min=2.0, latency_max=2.0, slow_factor=3.0, sector_bytes=4096)
    disk = SimDisk(Random(1), clock.schedule, settings)
    disk.set_slow(True)
    disk.submit("lane", (), lambda *_: None)
    clock.run()
    assert clock.now == 6.0
