"""The log on a real disk: group commit beside raw writes, opening a long log, checking every byte of it."""

from __future__ import annotations

from pathlib import Path

from quorate.bench import machine, wal_commit, wal_open
from quorate.bench.report import Report, Say


def run(say: Say = lambda _: None, *, directory: Path | None = None, quick: bool = False) -> Report:
    with machine.scratch(directory) as place:
        filesystem = machine.filesystem_of(place)
        large = wal_commit.large_entries(
            place, say, count=512 if quick else 4096, repetitions=2 if quick else 7
        )
        small = wal_commit.small_entries(
            place, say, count=2_000 if quick else 40_000, repetitions=2 if quick else 7
        )
        long = wal_open.long_logs(
            place,
            say,
            long_mib=64 if quick else 1024,
            short_mib=16 if quick else 64,
            repetitions=2 if quick else 5,
        )
        described = machine.describe(place)
    notes = [
        "the real store on a real disk; every append is flushed before it counts",
        "raw: one process appends the same payloads to a new file, with the same number of fdatasync calls",
        "opening: in a process of its own; checking and reading: from the page cache, so that work counts",
    ]
    if filesystem in machine.IN_MEMORY:
        notes.append(
            "this directory is in memory, where flushes cost nothing: choose another with --directory"
        )
    return Report(
        bench="wal",
        title="the log on this machine's disk",
        command="quorate bench wal" + (" --quick" if quick else ""),
        machine=described,
        figures=(*large[0], *small[0], *long[0]),
        claims=(*large[1], *small[1], *long[1]),
        notes=tuple(notes),
    )
