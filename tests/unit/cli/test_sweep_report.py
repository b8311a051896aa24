"""The page of a sweep: violations first, protocols side by side, nothing from elsewhere, and its numbers."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from quorate.cli.entry import run
from quorate.cli.sweep_charts import Bar, bars, curves
from quorate.cli.sweep_command import tell
from quorate.cli.sweep_report import comparison, page_of
from quorate.cli.worlds import VIOLATIONS_SHOWN_MAX, Totals
from quorate.sim.measures import BUCKETS_COUNT, SHORTEST_S, bucket_of, upper_s
from quorate.sim.run import Plan, Violation, run_seed

pyspark = pytest.importorskip(
    "pyspark", reason="rows of a sweep are read by Spark, which is not installed here"
)

from quorate.spark.sweep_compare import Compared  # noqa: E402
from quorate.spark.sweep_parts import PART_SEEDS, Sweep, part_name, plans_of  # noqa: E402

SWEEP = Sweep(plans_of(Plan(0), ("raft", "isr")), 0, 2 * PART_SEEDS + 1)


def compared(protocol: str, *, quick: int, slow: int) -> Compared:
    latencies = [0] * BUCKETS_COUNT
    latencies[bucket_of(0.010)], latencies[bucket_of(2.0)] = quick, slow
    committed = quick + slow
    return Compared(
        protocol, 10, 0, 7200.0, 200, 150, committed, tuple(latencies), 900, 90_000, 30, 0, 5, (0.1, 0.2, 0.4)
    )


def test_latencies_fall_into_buckets_that_a_fifth_tells_apart() -> None:
    assert bucket_of(0.0) == 0
    assert bucket_of(1e9) == BUCKETS_COUNT - 1
    for seconds in (0.0001, 0.0003, 0.01, 0.5, 1.0, 9.0):
        assert seconds <= upper_s(bucket_of(seconds)) * (1 + 1e-9)
        assert upper_s(bucket_of(seconds)) <= max(seconds * 1.2, SHORTEST_S)
    assert all(one < two for one, two in pairwise(map(upper_s, range(BUCKETS_COUNT))))


def test_a_run_measures_what_it_cost_and_gave() -> None:
    verdict = run_seed(3, protocol="raft", faults="none", overrides={"seconds": 2.0})
    measured = verdict.measured
    assert 0 < measured.served <= measured.asked
    assert 0 < sum(measured.latencies) <= verdict.acknowledged
    assert measured.messages > sum(measured.latencies)
    assert measured.sent_bytes > 100 * sum(measured.latencies)
    assert measured.recovery_s > 0
    assert run_seed(3, protocol="raft", faults="none", overrides={"seconds": 2.0}).measured == measured


def test_shares_of_latencies_are_read_from_buckets() -> None:
    row = compared("raft", quick=98, slow=2)
    assert row.latency_s(0.5) == pytest.approx(0.010, rel=0.2)
    assert row.latency_s(0.99) == pytest.approx(2.0, rel=0.2)
    assert (row.availability, row.messages_per_commit, row.bytes_per_commit) == (0.75, 9.0, 900.0)


def test_violations_come_first_with_the_command_that_shows_them() -> None:
    found = Violation(7, "log-matching", "<two> logs", "quorate sim isr --seed 7")
    rows = [compared("raft", quick=98, slow=2), compared("isr", quick=50, slow=50)]
    page = page_of(SWEEP, [("isr", found)], rows)
    assert page.index("quorate sim isr --seed 7") < page.index("side by side")
    assert "&lt;two&gt; logs" in page
    assert "http" not in page
    assert "Nothing was violated" in page_of(SWEEP, [], rows)
    names, lines = comparison(rows)
    assert names == ["", "raft", "isr"]
    assert ["available", "75.00 %", "75.00 %"] in lines


def test_simulated_time_is_said_in_a_unit_that_fits() -> None:
    assert "4 h 00 min of simulated time" in page_of(SWEEP, [], [compared("raft", quick=1, slow=0)] * 2)
    short = replace(compared("raft", quick=1, slow=0), virtual_seconds=12.0)
    assert "12 s of simulated time" in page_of(SWEEP, [], [short])


def test_the_time_of_all_protocols_is_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [Totals("raft"), Totals("isr")]
    for totals in found:
        totals.taken = 40.0
    rows = [compared("raft", quick=98, slow=2), compared("isr", quick=50, slow=50)]
    tell(found, rows, "place", Path("page"), json=False)
    said = capsys.readouterr().out
    assert said.count("40 s") == 1
    assert "All of them in 40 s." in said


def violated(protocol: str, *seeds: int) -> Totals:
    """Brackets in what did not hold are no markup."""
    totals = Totals(protocol)
    totals.taken = 40.0
    totals.thrown["crashes"] = 3
    totals.sum.violations = [
        Violation(seed, "log-matching", "[n2] is long: " + 100 * "x", Plan(seed, protocol).command())
        for seed in seeds
    ]
    return totals


def told_of(protocol: str, seed: int) -> list[str]:
    return [
        f"  seed {seed}, log-matching: [n2] is long: " + 100 * "x",
        f"    quorate sim {protocol} --seed {seed} --faults all --nodes 3",
    ]


def again(protocol: str, seed: int) -> list[str]:
    command = f"quorate sim {protocol} --seed {seed} --faults all --nodes 3"
    return [f"Again, line by line:  {command} --trace", f"The shortest story:   {command} --shrink", ""]


def test_violations_of_two_protocols_are_told_first_each_with_its_own_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [violated("raft", 7), violated("isr", 7, 9)]
    rows = [compared("raft", quick=98, slow=2), compared("isr", quick=50, slow=50)]
    tell(found, rows, "place", Path("page"), json=False)
    said = capsys.readouterr().out.splitlines()
    first = [
        *("What did not hold in raft", *told_of("raft", 7), *again("raft", 7)),
        *("What did not hold in isr", *told_of("isr", 7), *told_of("isr", 9), *again("isr", 7)),
    ]
    assert said[: len(first)] == first
    assert said[len(first)].strip() == "The same worlds"


def test_violations_of_one_protocol_are_told_before_what_was_thrown_at_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell([violated("isr", 7, 9)], [compared("isr", quick=1, slow=0)], "place", Path("page"), json=False)
    said = capsys.readouterr().out.splitlines()
    first = ["What did not hold", *told_of("isr", 7), *told_of("isr", 9), *again("isr", 7)]
    assert said[: len(first)] == first
    assert said[len(first)].strip() == "What was thrown at it"
    assert not any("What held" in line for line in said)


def test_many_violations_of_one_protocol_leave_room_for_those_of_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [violated("raft", *range(VIOLATIONS_SHOWN_MAX + 5)), violated("isr", 7)]
    rows = [compared("raft", quick=98, slow=2), compared("isr", quick=50, slow=50)]
    tell(found, rows, "place", Path("page"), json=False)
    said = capsys.readouterr().out
    assert said.count("quorate sim raft") == VIOLATIONS_SHOWN_MAX + 2
    assert "… and 5 more (--json has them)" in said
    assert told_of("isr", 7)[1] in said


def test_violations_are_the_first_that_programs_read_of_a_protocol(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [violated("raft", 7), violated("isr", 9)]
    rows = [compared("raft", quick=98, slow=2), compared("isr", quick=50, slow=50)]
    tell(found, rows, "place", Path("page"), json=True)
    both = json.loads(capsys.readouterr().out)
    tell(found[1:], rows[1:], "place", Path("page"), json=True)
    assert json.loads(capsys.readouterr().out) == both[1]
    assert [list(each)[:3] for each in both] == 2 * [["protocol", "violations", "seeds"]]
    assert [each["compared"]["protocol"] for each in both] == ["raft", "isr"]
    commands = [violation["reproduce"] for each in both for violation in each["violations"]]
    assert commands == [Plan(7, "raft").command(), Plan(9, "isr").command()]


def test_pictures_are_whole_even_of_nothing() -> None:
    for picture in (
        bars([Bar("raft", 3.0, "3", "#000"), Bar("<isr>", 0.0, "0", "#111")]),
        bars([]),
        curves([("raft", "#000", [(0.0, 0.0), (1.0, 1.0)])], [(0.5, "10 ms")]),
    ):
        ElementTree.fromstring(picture)


def test_parts_cover_every_seed_of_every_protocol_once() -> None:
    parts = list(SWEEP.parts())
    for plan in SWEEP.plans:
        seeds = [seed for other, seeds in parts if other == plan for seed in seeds]
        assert seeds == list(range(2 * PART_SEEDS + 1))
    assert len({part_name(*part) for part in parts}) == len(parts) == 6
    assert [plan.protocol for plan, _ in parts[:2]] == ["raft", "isr"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name one protocol"),
        (("raft", "--protocols", "all"), "name one protocol"),
        (("--protocols", "raft,paxos"), "paxos"),
        (("--protocols", ","), "names nothing"),
    ],
)
def test_protocols_are_named_one_way(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", *words, "--seeds", "0:2"]) == 2
    assert said in capsys.readouterr().err


def test_parts_of_the_benchmark_on_spark_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "spark", "--only", "audits"]) == 2
    assert "audit" in capsys.readouterr().err
    assert run(["bench", "spark", "--protocol", "isr"]) == 2
    assert "no such parts" in capsys.readouterr().err
