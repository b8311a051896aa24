"""The parts of `quorate bench spark` that need no cluster: an audit, a sweep."""

from __future__ import annotations

from itertools import repeat
from pathlib import Path
from shutil import copytree

from quorate.bench.report import Say, at_least, figure, ratios
from quorate.bench.spark_stage import CORES, REPETITIONS, Found
from quorate.bench.spark_stage import session_of as _session
from quorate.bench.turns import in_turns, seconds
from quorate.bench.wal_store import OpenStore, payload_of
from quorate.core.entry import Member
from quorate.host.replicas import ReplicaRecord, encode_record

COPIES = 3
ENTRY_BYTES = 16 << 10
MIB = 1 << 20


# ---- audit ----


def audits(place: Path, quick: bool, say: Say) -> Found:
    from quorate.audit.replica import places_in
    from quorate.spark.audit import audit

    size_mib = 128 if quick else 1024
    say(f"writing {COPIES} copies of a log of {size_mib} MiB")
    member = Member(1, 1)
    state = encode_record(ReplicaRecord("raft", member, (member,)))
    first = place / "n1"
    first.mkdir()
    with OpenStore(first, partitions=1, state=state) as opened:
        opened.append(repeat(payload_of(ENTRY_BYTES), size_mib * MIB // ENTRY_BYTES), in_flight=64)
        opened.rest()
        (log,) = opened.logs.values()
        opened.store.note_commit(log.partition, log.offset - 1)
        opened.append(repeat(payload_of(ENTRY_BYTES), 1), in_flight=1)
        opened.rest()
    for number in range(2, COPIES + 1):
        copytree(first, place / f"n{number}")
    places = [found for directory in sorted(place.iterdir()) for found in places_in(directory)]
    rates = []
    with _session(CORES) as session:
        for repetition in range((1 if quick else REPETITIONS) + 1):
            say(
                f"auditing, {repetition} of {1 if quick else REPETITIONS}"
                if repetition
                else "auditing, to warm up"
            )
            taken: list[int] = []

            def once(taken: list[int] = taken) -> None:
                report = audit(session, places, lambda _: None)
                assert not report.findings, report.findings
                taken.append(report.bytes_count)

            took_s = seconds(once)
            if repetition:
                rates.append(taken[0] / 1e6 / took_s / CORES)
    return [], [at_least(200, "audit: log read and compared by a core", "MB/s", rates)]


# ---- sweep ----


def sweeps(place: Path, quick: bool, say: Say) -> Found:
    from quorate.sim.run import Plan
    from quorate.spark.sweep import run_sweep

    seeds = range(8 if quick else 40)

    def swept(cores: int) -> float:
        with _session(cores) as session:
            out = str(place / "rows.parquet")
            plan, tell = Plan(0), lambda done: None
            run_sweep(session, plan, range(1000, 1000 + cores), tasks_count=cores, out=out, progress=tell)
            return seconds(
                lambda: run_sweep(session, plan, seeds, tasks_count=len(seeds) // 2, out=out, progress=tell)
            )

    sides = {"one core": lambda: swept(1), "two cores": lambda: swept(2)}
    taken = in_turns(sides, 1 if quick else REPETITIONS, lambda text: say(f"sweep: {text}"))
    rates = [len(seeds) / took_s for took_s in taken["two cores"]]
    return [figure("sweep: worlds a second", "", rates)], [
        at_least(1.7, "sweep: two cores beside one", "times", ratios(taken["one core"], taken["two cores"]))
    ]
