"""The benchmarks as programs: what they report, and that bounds decide. Figures are for `quorate bench`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quorate.bench import core, machine, report, turns, wal_commit, wal_open
from quorate.bench.wal_store import payload_of
from quorate.cli.entry import run


def test_sides_are_measured_in_turns() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    samples = turns.in_turns({"a": lambda: side("a"), "b": lambda: side("b")}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert samples == {"a": [1.0, 4.0, 5.0], "b": [2.0, 3.0, 6.0]}


@pytest.mark.parametrize(
    ("claim", "held"),
    [
        (report.at_least(20, "", "", [10, 20, 40]), True),
        (report.at_least(20, "", "", [10, 19, 40]), False),
        (report.at_most(2.5, "", "", [1, 2.5, 9]), True),
        (report.at_most(2.5, "", "", [1, 2.6, 9]), False),
        (report.within(10, "", [0.91, 1.05, 1.5]), True),
        (report.within(10, "", [0.5, 0.89, 1.5]), False),
    ],
)
def test_a_claim_holds_if_its_median_does(claim: report.Claim, held: bool) -> None:
    assert claim.held is held


def test_a_figure_has_its_spread() -> None:
    assert report.figure("x", "s", [3, 1, 2]) == report.Figure("x", "s", 2, 1, 3, 3)


def test_core_measures_every_step_for_both_sizes() -> None:
    found = core.run(repetitions=2, rounds=50)
    names = [figure.name for figure in found.figures]
    assert [name for name in names if name.startswith("step(")] == [
        f"step({kind}), {size}" for kind in core.STEPS for size in ("1 B", "1 MiB")
    ]
    assert all(figure.min > 0 for figure in found.figures)


def test_core_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "core", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bench"] == "core"
    assert found["command"].startswith("quorate bench core")
    assert all({"name", "median", "min", "max", "wanted", "held"} <= set(claim) for claim in found["claims"])


def test_raw_writing_writes_everything(tmp_path: Path) -> None:
    payload = payload_of(256)
    assert wal_commit.write_raw(tmp_path / "raw", [payload] * 1000, flushes=7) > 0
    assert (tmp_path / "raw").read_bytes() == payload * 1000


def test_a_little_of_every_figure_of_the_log(tmp_path: Path) -> None:
    def say(_: str) -> None:
        pass

    figures, (claim,) = wal_commit.large_entries(tmp_path, say, count=8, repetitions=1)
    assert [figure.unit for figure in figures] == ["MiB/s", "MiB/s", ""]
    assert claim.wanted == "≥ 0.85"
    figures, (claim,) = wal_commit.small_entries(tmp_path, say, count=200, repetitions=1)
    assert figures[-1].median > 1  # entries per flush: they were committed in groups
    assert claim.wanted == "≥ 20"
    figures, claims = wal_open.long_logs(tmp_path, say, long_mib=2, short_mib=1, repetitions=1)
    assert all(figure.median > 0 for figure in figures)
    assert [claim.wanted for claim in claims] == ["≤ 1.1", "≤ 1", "≤ 2.5"]


def test_flushing_each_entry_writes_everything(tmp_path: Path) -> None:
    payload = payload_of(256)
    assert wal_commit.flush_each(tmp_path, payload, count=7, files=3) > 0
    written = [file.read_bytes() for file in sorted(tmp_path.iterdir())]
    assert written == [payload * 3, payload * 2, payload * 2]


@pytest.mark.parametrize("size", [256, 16 << 10, 64 << 10])
def test_payloads_have_the_size_they_are_called_by(size: int) -> None:
    assert size - 2 <= len(payload_of(size)) <= size


def test_the_machine_is_described_without_its_name() -> None:
    described = machine.describe(Path.cwd())
    assert {"cores", "processor", "system", "python", "filesystem"} <= set(described)


def test_a_scratch_directory_is_gone_afterwards(tmp_path: Path) -> None:
    with machine.scratch(tmp_path) as place:
        (place / "file").write_bytes(b"x")
    assert not list(tmp_path.iterdir())


def test_a_missed_bound_is_an_exit_code_only_when_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missed = report.at_least(2, "a promise", "", [1.0])
    made = report.Report("core", "", "quorate bench core", {}, (), (missed,))
    monkeypatch.setattr(core, "run", lambda *_, **__: made)
    assert run(["bench", "core"]) == 0
    assert "missed" in capsys.readouterr().out
    assert run(["bench", "core", "--check"]) == 1
