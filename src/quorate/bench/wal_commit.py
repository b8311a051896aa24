"""Group commit beside raw writes: large entries against the disk's pace, small ones against a flush each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from shutil import rmtree
from time import perf_counter

from quorate.bench.report import Claim, Figure, Say, at_least, figure, ratios
from quorate.bench.turns import in_turns
from quorate.bench.wal_store import OpenStore, payload_of

LARGE_BYTES, SMALL_BYTES = 64 << 10, 256
IN_FLIGHT = 64
PARTITIONS = 100
MIB = 1 << 20


def large_entries(
    directory: Path, say: Say, *, count: int, repetitions: int
) -> tuple[list[Figure], list[Claim]]:
    """64 KiB entries through the store, and the same bytes raw with as many flushes."""
    # As they arrive: each in a buffer of its own, which is given away.
    payloads = [bytearray(payload_of(LARGE_BYTES)) for _ in range(count)]
    bytes_count = sum(map(len, payloads))
    flushes: list[int] = []

    def store() -> float:
        with fresh(directory) as place, OpenStore(place, partitions=1) as opened:
            flushes_before = opened.disk.flushes
            began = perf_counter()
            opened.append(payloads, in_flight=IN_FLIGHT)
            seconds = perf_counter() - began
            flushes.append(opened.disk.flushes - flushes_before)
        return bytes_count / seconds / MIB

    def raw() -> float:
        with fresh(directory) as place:
            seconds = write_raw(place / "raw", payloads, flushes=flushes[-1])
        return bytes_count / seconds / MIB

    say(f"{count:,} entries of 64 KiB, {IN_FLIGHT} in flight")
    store()  # The first run on a new stretch of disk pays for finding it.
    rates = in_turns({"64 KiB entries, group commit": store, "the same bytes, raw": raw}, repetitions, say)
    grouped, plain = rates["64 KiB entries, group commit"], rates["the same bytes, raw"]
    return (
        [
            figure("64 KiB entries, group commit", "MiB/s", grouped),
            figure("the same bytes raw, as many flushes", "MiB/s", plain),
            figure("flushes for them", "", flushes[1:]),
        ],
        [at_least(0.85, "64 KiB entries: group commit beside raw", "", ratios(grouped, plain))],
    )


def small_entries(
    directory: Path, say: Say, *, count: int, repetitions: int
) -> tuple[list[Figure], list[Claim]]:
    """256 B entries over many partitions through the store, and one write and flush per entry.

    What is promised is beside a file per partition, as logs are kept without a journal. One file for all is
    what a disk can do at best, and is shown, too.
    """
    payload = payload_of(SMALL_BYTES)
    raw_count = max(count // 20, PARTITIONS)
    per_flush: list[float] = []

    def store() -> float:
        with fresh(directory) as place, OpenStore(place, partitions=PARTITIONS) as opened:
            flushes_before = opened.disk.flushes
            began = perf_counter()
            opened.append(repeat(payload, count), in_flight=IN_FLIGHT)
            seconds = perf_counter() - began
            per_flush.append(count / (opened.disk.flushes - flushes_before))
        return count / seconds

    def alone() -> float:
        with fresh(directory) as place, OpenStore(place, partitions=PARTITIONS) as opened:
            began = perf_counter()
            opened.append(repeat(payload, raw_count), in_flight=1)
            return raw_count / (perf_counter() - began)

    def raw(files: int) -> float:
        with fresh(directory) as place:
            return raw_count / flush_each(place, payload, count=raw_count, files=files)

    say(f"{count:,} entries of 256 B over {PARTITIONS} partitions, {IN_FLIGHT} in flight")
    store()
    sides = {
        "group commit": store,
        "a flush per entry": lambda: raw(PARTITIONS),
        "a flush per entry, in one file": lambda: raw(1),
        "the store, one entry at a time": alone,
    }
    grouped, each, in_one, one_by_one = in_turns(sides, repetitions, say).values()
    return (
        [
            figure(f"256 B entries, {PARTITIONS} partitions, {IN_FLIGHT} in flight", "entries/s", grouped),
            figure("one write and flush per entry", "entries/s", each),
            figure("one write and flush per entry, all in one file", "entries/s", in_one),
            figure("the store, one entry at a time", "entries/s", one_by_one),
            figure("group commit beside that, one at a time", "times", ratios(grouped, one_by_one)),
            figure("entries per flush", "", per_flush[1:]),
        ],
        [at_least(20, "256 B entries: group commit beside one flush each", "times", ratios(grouped, each))],
    )


def write_raw(file: Path, payloads: Sequence[bytes | bytearray], *, flushes: int) -> float:
    """Seconds to append `count` payloads to a new file, with `flushes` flushes spread evenly over them."""
    flush = getattr(os, "fdatasync", os.fsync)
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        began = perf_counter()
        written = 0
        for number in range(1, flushes + 1):
            until = len(payloads) * number // flushes
            while written < until:
                many = payloads[written : min(until, written + IOV_MAX)]
                sent = os.writev(fd, many)
                assert sent == sum(map(len, many))
                written += len(many)
            flush(fd)
        return perf_counter() - began
    finally:
        os.close(fd)


def flush_each(directory: Path, payload: bytes, *, count: int, files: int) -> float:
    """Seconds to append `count` payloads to so many files in turn, each flushed before the next."""
    flush = getattr(os, "fdatasync", os.fsync)
    descriptors = [
        os.open(directory / f"{number}.log", os.O_WRONLY | os.O_CREAT, 0o644) for number in range(files)
    ]
    try:
        began = perf_counter()
        for number in range(count):
            fd = descriptors[number % files]
            os.write(fd, payload)
            flush(fd)
        return perf_counter() - began
    finally:
        for fd in descriptors:
            os.close(fd)


IOV_MAX = 256


@contextmanager
def fresh(directory: Path) -> Iterator[Path]:
    """A directory of a side's own; removed, and the removal settled, before the other side's turn."""
    path = directory / "side"
    path.mkdir()
    os.sync()
    try:
        yield path
    finally:
        rmtree(path)
