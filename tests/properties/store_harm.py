"""One thing goes wrong with one file of a store at rest; then everything must be found out and put right.

Nobody may read anything but what was written, no log may be shorter than it was, and no state older, without the
store saying so. And what peers would send must make it whole.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from quorate.core.entry import Partition, Span
from quorate.storage.frame import FRAME_MAGIC, Frame
from quorate.storage.settings import StoreSettings
from quorate.storage.store import RecoveredLog
from tests.properties.store_model import PARTITIONS, Picture, entry_of
from tests.unit.storage.harness import World

Files = dict[str, bytes]


class Rest(msgspec.Struct):
    """A store at rest: what lies on its disk, and what that must mean."""

    files: Files
    pictures: dict[Partition, Picture]
    written: dict[Partition, dict[int, Frame]]
    settings: StoreSettings


def flipped(files: Files, name: str, at: int, bit: int) -> Files:
    content = bytearray(files[name])
    content[at] ^= 1 << bit
    return {**files, name: bytes(content)}


def truncated(files: Files, name: str, size: int) -> Files:
    return {**files, name: files[name][:size]}


def zeroed(files: Files, name: str, at: int, length: int) -> Files:
    content = files[name]
    length = min(length, len(content) - at)
    return {**files, name: content[:at] + bytes(length) + content[at + length :]}


def swapped(files: Files, name: str, first: int, second: int, length: int) -> Files:
    content = bytearray(files[name])
    length = min(length, abs(first - second), len(content) - max(first, second))
    one, two = content[first : first + length], content[second : second + length]
    content[first : first + length], content[second : second + length] = two, one
    return {**files, name: bytes(content)}


def removed(files: Files, name: str) -> Files:
    return {other: content for other, content in files.items() if other != name}


def frames_in(content: bytes) -> list[tuple[int, int]]:
    """(start, end) of whatever starts like a frame, up to the next that does."""
    starts = []
    at = content.find(FRAME_MAGIC)
    while at >= 0:
        starts.append(at)
        at = content.find(FRAME_MAGIC, at + 1)
    return list(pairwise([*starts, len(content)]))


def examine(rest: Rest, files: Files) -> World:
    """Open the damaged files, and compare with what must be there; let peers repair; compare again."""
    world = World(0, rest.settings, files)
    world.open()
    whole = []
    for partition in PARTITIONS:
        picture = rest.pictures[partition]
        assert (partition in world.store.partitions()) == picture.exists
        recovered = world.store.recovered(partition) if picture.exists else None
        if recovered is None or (recovered.state_damaged and recovered.base != picture.base):
            continue  # A replica that does not count, and will be sent a snapshot.
        compare(world, partition, picture, recovered)
        world.check(partition)
        read_all(world, partition, picture)
        repair(world, partition, picture, rest.written[partition])
        whole.append(partition)
    world.reopen()
    for partition in whole:
        recovered = world.store.recovered(partition)
        assert not recovered.faulty
        assert not recovered.state_damaged
        compare(world, partition, rest.pictures[partition], recovered)
        assert not world.check(partition)
    return world


def compare(world: World, partition: Partition, picture: Picture, recovered: RecoveredLog) -> None:
    assert recovered.state_damaged or recovered.state == picture.state
    assert recovered.base == picture.base
    if not recovered.state_damaged:
        assert recovered.head == picture.head
    known = dict(picture.entries)
    for header in recovered.headers:
        assert header.id in known
    for span in recovered.faulty:
        assert span.before == picture.base or span.before in known
        assert span.last in known
    read_all(world, partition, picture)


def read_all(world: World, partition: Partition, picture: Picture) -> None:
    """Whatever can be read is what was written, and everything else is known to be faulty."""
    expected = dict(picture.entries)
    head = world.store._logs[partition].head
    first = picture.base.offset + 1
    while first <= head.offset:
        span = span_at(world, partition, first)
        if span is not None:
            first = span.last.offset + 1
            continue
        frames = world.read(first, partition=partition)
        for frame in frames:
            assert entry_of(frame) in picture.entries, f"{frame} was never written"
        if frames:
            first = frames[-1].header.last + 1
        else:
            assert span_at(world, partition, first) is not None, f"{first} is neither there nor faulty"
    assert not expected or head in expected or head == picture.base


def span_at(world: World, partition: Partition, offset: int) -> Span | None:
    for span in world.store._logs[partition].spans:
        if span.before.offset < offset <= span.last.offset:
            return span
    return None


def repair(world: World, partition: Partition, picture: Picture, written: dict[int, Frame]) -> None:
    """What a peer with an intact log would send, in two parts."""
    log = world.store._logs[partition]
    for span in log.spans:
        missing = [
            written[checksum]
            for entry, checksum in picture.entries
            if span.before.offset < entry.offset <= span.last.offset
        ]
        half = len(missing) // 2
        for frames in (missing[:half], missing[half:]):
            if frames:
                world.store.repair(partition, world.io(partition), frames)
                answers = world.run()
                assert ("persisted", partition, world.ios[partition]) in answers, answers
    assert not log.spans
    if log.head != picture.head or log.state_damaged:  # A replica that does not count is brought up to date.
        world.save(picture.state, partition)
        frames = world.read(picture.base.offset + 1, partition=partition)
        shared = [entry_of(frame) for frame in frames if entry_of(frame) in picture.entries]
        world.cut(shared[-1][0] if shared else picture.base, partition)
        rest = [written[checksum] for _, checksum in picture.entries[len(shared) :]]
        if rest:
            world.store.append(partition, world.io(partition), rest)
        world.run()
    frames = world.read(picture.base.offset + 1, partition=partition)
    assert tuple(map(entry_of, frames)) == picture.entries
