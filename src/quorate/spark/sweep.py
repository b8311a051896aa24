"""The simulator over many seeds, on Spark: one row a seed, kept as Parquet.

A sweep is a data source of its own: its partitions are ranges of seeds, and a task runs its seeds one after the
other. A seed gives the same verdict wherever it runs, so that a sweep over a cluster finds what a loop would,
and each row carries the command that shows its world again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pyspark import InheritableThread
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from quorate.sim.chaos import Toll
from quorate.sim.run import DECIDED, IN_SYNC, OPERATED, Plan, Verdict, run_plan
from quorate.spark.session import reason_of
from quorate.spark.sweep_parts import SweepFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TASK_SEEDS = 10
"""A task of some seconds: long beside what starting it costs, short enough to show progress."""
TASKS_MAX = 100_000
FILE_ROWS = 1_000_000
VIOLATIONS_KEPT_MAX = 1_000
POLL_S = 0.5
CANCEL_S = 2.0
NAME = "quorate-sweep"

COUNTS = "events steps acknowledged reads elections truncations crashes partitions damaged".split()
COUNTS += OPERATED + IN_SYNC + DECIDED
MEASURED = "asked served messages sent_bytes truncated".split()
TOLL_COUNTS = Toll.__struct_fields__
SCHEMA = StructType(
    [
        StructField("seed", LongType()),
        StructField("protocol", StringType()),
        StructField("faults", StringType()),
        StructField("nodes", IntegerType()),
        *(StructField(name, LongType()) for name in COUNTS),
        *(StructField(name, LongType()) for name in MEASURED),
        StructField("latencies", ArrayType(LongType())),
        StructField("recovery_s", DoubleType()),
        StructField("virtual_seconds", DoubleType()),
        StructField("took_seconds", DoubleType()),
        *(StructField(f"thrown_{name}", LongType()) for name in TOLL_COUNTS),
        StructField("invariant", StringType()),
        StructField("detail", StringType()),
        StructField("reproduce", StringType()),
    ]
)


class SeedRange(InputPartition):
    def __init__(self, first: int, end: int) -> None:
        super().__init__((first, end))


class SweepSource(DataSource):
    """Options: `plan` as JSON, `first` and `end` of the seeds, `tasks`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return SweepReader(self.options)


class SweepReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.plan = options["plan"]
        self.seeds = range(int(options["first"]), int(options["end"]))
        self.tasks_count = int(options["tasks"])

    def partitions(self) -> Sequence[InputPartition]:
        first, length, count = self.seeds.start, len(self.seeds), self.tasks_count
        edges = [first + length * step // count for step in range(count + 1)]
        return [SeedRange(edges[step], edges[step + 1]) for step in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        plan = msgspec.json.decode(self.plan, type=Plan)
        rows = [row_of_seed(msgspec.structs.replace(plan, seed=seed)) for seed in range(*partition.value)]
        yield pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(SCHEMA, timezone="UTC"))


def row_of_seed(plan: Plan) -> dict[str, Any]:
    began = perf_counter()
    verdict = run_plan(plan)
    return row_of(plan, verdict) | {"took_seconds": perf_counter() - began}


def row_of(plan: Plan, verdict: Verdict) -> dict[str, Any]:
    """All but the time that it took, which is the only thing that differs between two runs."""
    found = verdict.violations[0] if verdict.violations else None
    return {
        "seed": plan.seed,
        "protocol": plan.protocol,
        "faults": ",".join(plan.faults) or "none",
        "nodes": plan.nodes,
        **{name: getattr(verdict, name) for name in COUNTS},
        **{name: getattr(verdict.measured, name) for name in MEASURED},
        "latencies": list(verdict.measured.latencies),
        "recovery_s": verdict.measured.recovery_s,
        "virtual_seconds": verdict.seconds,
        **{f"thrown_{name}": getattr(verdict.toll, name) for name in TOLL_COUNTS},
        "invariant": found.invariant if found else None,
        "detail": found.detail if found else None,
        "reproduce": plan.command(),
    }


# ---- running it ----


def tasks_for(seeds: range) -> int:
    return min(max(-(-len(seeds) // TASK_SEEDS), 1), TASKS_MAX)


def run_sweep(
    session: SparkSession,
    plan: Plan,
    seeds: range,
    *,
    tasks_count: int,
    out: str,
    progress: Callable[[int], None],
) -> None:
    """Write one row a seed to `out`; `progress` is told now and then how many tasks are done.

    Raises SweepFailed. An interrupt cancels what runs, and is passed on.
    """
    options = {
        "plan": msgspec.json.encode(plan).decode(),
        "first": str(seeds.start),
        "end": str(seeds.stop),
        "tasks": str(tasks_count),
    }
    writing = _Writing(session, options, files_count=-(-len(seeds) // FILE_ROWS), out=out)
    ended = Event()
    watching = InheritableThread(target=_watch, args=(session, tasks_count, ended, progress), daemon=True)
    writing.start()
    watching.start()
    try:
        writing.over.wait()
    except BaseException:
        # What tasks say when they are cancelled is news to nobody.
        session.sparkContext.setLogLevel("OFF")
        session.sparkContext.cancelAllJobs()
        raise
    finally:
        ended.set()
        watching.join(CANCEL_S)
    if writing.error is not None:
        raise SweepFailed(f"the sweep failed: {reason_of(writing.error)}") from writing.error
    progress(tasks_count)


class _Writing(InheritableThread):
    """Apart from the thread that a person interrupts, which must not be talking with Java then."""

    def __init__(self, session: SparkSession, options: dict[str, str], *, files_count: int, out: str) -> None:
        super().__init__(target=self._write, daemon=True)
        self.over = Event()
        self.error: Exception | None = None
        self._session = session
        self._options = options
        self._files_count = files_count
        self._out = out

    def _write(self) -> None:
        try:
            self._session.dataSource.register(SweepSource)
            rows = self._session.read.format(NAME).options(**self._options).load()
            sorted_rows = rows.repartition(self._files_count).sortWithinPartitions("seed")
            sorted_rows.write.mode("overwrite").parquet(self._out)
        except Exception as error:  # told to whoever waits
            self.error = error
        finally:
            self.over.set()


def _watch(session: SparkSession, tasks_count: int, ended: Event, progress: Callable[[int], None]) -> None:
    done = 0
    while not ended.wait(POLL_S):
        # While the file is written, the stage that ran the seeds is over, and is not told of.
        done = max(done, _tasks_done(session, tasks_count))
        progress(done)


def _tasks_done(session: SparkSession, tasks_count: int) -> int:
    """Of the stage that runs seeds; the one that writes the file has other tasks."""
    tracker = session.sparkContext.statusTracker()
    for stage in tracker.getActiveStageIds():
        info = tracker.getStageInfo(stage)
        if info is not None and info.numTasks == tasks_count:
            return int(info.numCompletedTasks)
    return 0


# ---- what came of it ----


class SweepResult(NamedTuple):
    seeds: int
    sums: dict[str, int]
    """Of every count, and of what was thrown under `thrown_…`."""
    virtual_seconds: float
    violations: list[tuple[int, str, str, str]]
    """Seed, invariant, detail, and the command that shows it; the first ones by seed."""
    violations_count: int


def summarize(session: SparkSession, out: str, protocol: str | None = None) -> SweepResult:
    """Summed up where the rows are: only totals and violations come here."""
    from pyspark.sql import functions

    rows = session.read.parquet(out)
    if protocol is not None:
        rows = rows.where(functions.col("protocol") == protocol)
    names = [*COUNTS, *(f"thrown_{name}" for name in TOLL_COUNTS)]
    (total,) = rows.agg(
        functions.count("seed").alias("seeds"),
        functions.sum("virtual_seconds").alias("virtual_seconds"),
        functions.count("invariant").alias("violations"),
        *(functions.sum(name).alias(name) for name in names),
    ).collect()
    violated = (
        rows.where("invariant is not null")
        .orderBy("seed")
        .select("seed", "invariant", "detail", "reproduce")
        .limit(VIOLATIONS_KEPT_MAX)
        .collect()
    )
    return SweepResult(
        seeds=total["seeds"],
        sums={name: total[name] or 0 for name in names},
        virtual_seconds=total["virtual_seconds"] or 0.0,
        violations=[tuple(row) for row in violated],
        violations_count=total["violations"],
    )
