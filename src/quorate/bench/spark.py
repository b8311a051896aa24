"""What runs on Spark, on two cores of this machine: neither Spark's start is counted nor its first time.

Ratios are taken within one run; each part says what it is compared with.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from quorate.bench import machine, spark_audit, spark_reading, spark_sweep, spark_tiering, spark_writing
from quorate.bench.report import Claim, Figure, Report, Say

PARTS = {
    "read": spark_reading.reads,
    "write": spark_writing.writes,
    "audit": spark_audit.audits,
    "sweep": spark_sweep.sweeps,
    "tier": spark_tiering.tiers,
}
"""Each takes a place for its files, whether a look is enough, and whom to tell."""


def run(
    say: Say = lambda _: None,
    *,
    directory: Path | None = None,
    quick: bool = False,
    only: tuple[str, ...] = (),
) -> Report:
    figures: list[Figure] = []
    claims: list[Claim] = []
    for name, measure in PARTS.items():
        if only and name not in only:
            continue
        with TemporaryDirectory(
            prefix="quorate-bench-", dir=directory, ignore_cleanup_errors=True
        ) as scratch:
            found, claimed = measure(Path(scratch), quick, say)
        figures += found
        claims += claimed
    words = [
        "quorate bench spark",
        *(["--quick"] if quick else []),
        *([f"--only {','.join(only)}"] if only else []),
    ]
    return Report(
        bench="spark",
        title="what runs on Spark, local[2]",
        command=" ".join(words),
        machine=machine.describe(),
        figures=tuple(figures),
        claims=tuple(claims),
        notes=(
            "read: from a cluster on the same cores; beside it a Python source yields ready Arrow batches",
            "write: micro-batches of a stream, each a transaction; beside them the same into a sink that counts",
            spark_audit.NOTE,
            "sweep: the same seeds with one core and with two, in turns",
            "tier: from a cluster on the same cores, with the start of its query, without that of Spark's session",
            "tier: beside it Spark writes the same rows, from memory, to Parquet",
        ),
    )
