"""Where a sweep is written: on this machine, whatever a platform's Hadoop takes a plain name for."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.cli import sweep_command
from quorate.cli.sweep_command import for_spark, run_parts
from quorate.cli.wrong import WrongUsage
from quorate.sim.run import Plan
from quorate.spark import sweep, sweep_parts
from quorate.spark.sweep_parts import Sweep, SweepFailed, part_name

PLAN = Plan(0, "raft")
SWEEP = Sweep((PLAN,), 0, 10)


def test_a_plain_name_is_told_to_spark_with_its_scheme(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert for_spark("out/a sweep") == f"file://{tmp_path}/out/a sweep"
    assert for_spark("s3a://bucket/sweep") == "s3a://bucket/sweep"
    assert for_spark("file:/x") == "file:/x"


class Parts:
    """Nothing is done yet."""

    def __init__(self, place: str) -> None:
        self.place = place

    def undone(self, wanted: Sweep) -> list[tuple[Plan, range]]:
        return list(wanted.parts())

    def where(self, plan: Plan, seeds: range) -> str:
        return f"{self.place}/{part_name(plan, seeds)}"


@pytest.mark.parametrize("there", [True, False], ids=["begun", "nothing written"])
def test_what_a_failed_sweep_leaves_is_removed_where_it_was_written(
    there: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "sweep"
    written: list[str] = []

    def fails(*_: object, out: str, **__: object) -> None:
        written.append(out)
        if there:
            (place / part_name(PLAN, SWEEP.seeds)).mkdir(parents=True)
        raise SweepFailed("the sweep failed: a node went")

    monkeypatch.setattr(sweep, "run_sweep", fails)
    monkeypatch.setattr(sweep_parts, "begun", lambda session, place, wanted, overwrite: Parts(place))
    with pytest.raises(WrongUsage, match="a node went"):
        run_parts(None, SWEEP, str(place), tasks=None, overwrite=False)  # type: ignore[arg-type]
    assert written == [f"file://{place}/{part_name(PLAN, SWEEP.seeds)}"]
    assert not place.exists()
    assert sweep_command.is_local(str(place))
