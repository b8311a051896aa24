"""A long log: what opening it costs in time, reads and memory, and what checking every byte of it costs."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from time import perf_counter

import msgspec
from crc32c import crc32c

from quorate.bench.machine import resident_bytes
from quorate.bench.report import Claim, Figure, Say, at_most, figure, ratios
from quorate.bench.turns import in_turns, seconds
from quorate.bench.wal_store import OpenStore, payload_of
from quorate.core.entry import Span

ENTRY_BYTES = 16 << 10
JOURNALED_ENTRIES = 256
READ_BYTES = 1 << 20
MIB = 1 << 20
MEMORY_GROWTH_MAX_MIB = 1
"""What an open log of 1 GiB may take more than one of 64 MiB: a thousandth of what it is longer."""


class Opened(msgspec.Struct, frozen=True):
    """What a process found when it opened a store: printed by the child, read by the parent."""

    seconds: float
    bytes_read: int
    memory_bytes: int
    entries: int


def long_logs(
    directory: Path, say: Say, *, long_mib: int, short_mib: int, repetitions: int
) -> tuple[list[Figure], list[Claim]]:
    long, short = directory / "long", directory / "short"
    for path, size in ((long, long_mib), (short, short_mib)):
        say(f"writing a log of {size} MiB")
        build(path, size)
    opened: dict[Path, list[Opened]] = {long: [], short: []}

    def opening(path: Path) -> Callable[[], float]:
        def measured() -> float:
            opened[path].append(measure_in_a_process(path))
            return opened[path][-1].seconds

        return measured

    names = {f"opening {long_mib} MiB": long, f"opening {short_mib} MiB": short}
    in_turns({name: opening(path) for name, path in names.items()}, repetitions, say)
    checks = check_beside_reading(long, say, repetitions)
    seconds_of = {name: [found.seconds for found in opened[path]] for name, path in names.items()}
    read = {path: [found.bytes_read / MIB for found in opened[path]] for path in opened}
    memory = {path: [found.memory_bytes / MIB for found in opened[path]] for path in opened}
    grown = [one - other for one, other in zip(memory[long], memory[short], strict=True)]
    of_long, of_short = f"{long_mib} MiB", f"{short_mib} MiB"
    figures = [
        *(figure(name, "s", samples) for name, samples in seconds_of.items()),
        figure(f"read to open {of_long}", "MiB", read[long]),
        figure(f"read to open {of_short}", "MiB", read[short]),
        figure(f"memory to open {of_long}", "MiB", memory[long]),
        figure(f"memory to open {of_short}", "MiB", memory[short]),
        figure(f"checking {of_long}", "s", checks["check"]),
        figure("reading and checksumming the files", "s", checks["read"]),
    ]
    claims = [
        at_most(1.1, f"read to open {of_long} beside {of_short}", "times", ratios(read[long], read[short])),
        at_most(MEMORY_GROWTH_MAX_MIB, f"memory of {of_long} over that of {of_short}", "MiB", grown),
        at_most(
            2.5,
            "a full check beside reading and checksumming",
            "times",
            ratios(checks["check"], checks["read"]),
        ),
    ]
    return figures, claims


def build(path: Path, size_mib: int) -> None:
    """One partition with so many bytes of 16 KiB entries, and a little more.

    What the journal's current generation holds is replayed, into memory, when the store is opened. So every
    log ends at the same point of a generation: as many entries behind its beginning.
    """
    path.mkdir()
    payload = payload_of(ENTRY_BYTES)
    with OpenStore(path, partitions=1) as opened:
        opened.append(repeat(payload, size_mib * MIB // ENTRY_BYTES), in_flight=64)
        opened.rest()
        file = opened.disk.journal_file
        while opened.disk.journal_file == file:
            opened.append(repeat(payload, 32), in_flight=64)
            opened.rest()  # How far the segments are behind the journal must not depend on this machine.
        opened.append(repeat(payload, JOURNALED_ENTRIES), in_flight=64)
        opened.rest()


def measure_in_a_process(path: Path) -> Opened:
    """A process of its own: its memory is its own, and nothing is left from an earlier opening."""
    child = subprocess.run(
        [sys.executable, "-m", "quorate.bench.wal_open", str(path)], check=True, capture_output=True
    )
    return msgspec.json.decode(child.stdout, type=Opened)


def measure(path: Path) -> Opened:
    gc.collect()
    memory = resident_bytes()
    began = perf_counter()
    with OpenStore(path, partitions=1) as opened:
        taken = perf_counter() - began
        log = opened.store.recovered(next(iter(opened.logs)))
        return Opened(taken, opened.disk.bytes_read, resident_bytes() - memory, log.head.offset + 1)


def check_beside_reading(path: Path, say: Say, repetitions: int) -> dict[str, list[float]]:
    """Both find the files in the page cache, so that what is compared is work and not waiting."""
    with OpenStore(path, partitions=1) as opened:
        (partition,) = opened.logs

        def check() -> None:
            found: list[list[Span]] = []
            opened.store.check(partition, found.append)
            while not found:
                opened.store.pump()
                opened.disk.poll(None)
            assert found == [[]]

        def read() -> None:
            for file in sorted((path / "partitions").rglob("*.log")):
                read_and_checksum(file)

        read()
        return in_turns({"check": lambda: seconds(check), "read": lambda: seconds(read)}, repetitions, say)


def read_and_checksum(file: Path) -> int:
    checksum = 0
    buffer = bytearray(READ_BYTES)
    with memoryview(buffer) as view, open(file, "rb", buffering=0) as source:
        while count := source.readinto(buffer):
            checksum = crc32c(view[:count], checksum)
    return checksum


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(measure(Path(sys.argv[1]))))
