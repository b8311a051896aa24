"""What is read of a table and what of the log: all that is wanted, or an error."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from quorate.spark import source, tiered
from quorate.spark.asking import Found
from quorate.spark.lake import Lake
from quorate.spark.options import Positions, WrongOption, parse_options
from quorate.spark.tier_files import write_files
from quorate.spark.tiered import FilePartition, TieredReader
from tests.unit.spark.test_tier_source import rows

ID = "0a" * 16
TABLE_ENDS, LOG_ENDS = 10, 15


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(str(tmp_path))
    lake.commit(
        "events", ID, None, list(write_files(iter([rows(0, 10)]), lake, "events", 0)), {0: TABLE_ENDS}
    )
    return lake


def planned(
    monkeypatch: pytest.MonkeyPatch, lake: Lake, *, log_begins: int, end: int = LOG_ENDS, **options: str
) -> list[tuple[bool, int, int]]:
    """Whether it is of a file, from where, and up to where."""
    ends: Positions = {"events": {0: end}}
    monkeypatch.setattr(source, "connected", lambda options: nullcontext())
    monkeypatch.setattr(tiered, "find", lambda cluster, selection: Found({"events": ID}, {"events": (0,)}))
    monkeypatch.setattr(tiered, "resolve", lambda *asked, **more: ends)
    monkeypatch.setattr(tiered, "earliest", lambda cluster, topic, numbers: {0: log_begins})
    given = {"bootstrap": "127.0.0.1:1", "subscribe": "events", "tiered": "true", "lake": lake.uri, **options}
    tasks = TieredReader(parse_options(given), StructType()).partitions()
    return [(isinstance(task, FilePartition), *task.value[-2:]) for task in tasks]


def test_the_log_is_read_from_where_the_table_ends(monkeypatch: pytest.MonkeyPatch, lake: Lake) -> None:
    assert planned(monkeypatch, lake, log_begins=3) == [(True, 0, 10), (False, 10, 15)]
    with pytest.raises(WrongOption, match="what lies between is in neither"):
        planned(monkeypatch, lake, log_begins=11)


def test_a_hole_behind_what_is_wanted_is_no_error(monkeypatch: pytest.MonkeyPatch, lake: Lake) -> None:
    ending = '{"events": {"0": 8}}'
    assert planned(monkeypatch, lake, log_begins=12, end=8, endingOffsets=ending) == [(True, 0, 8)]


@pytest.mark.parametrize(
    ("options", "end"),
    [({}, LOG_ENDS), ({"endingOffsets": '{"events": {"0": 2}}'}, 2)],
)
def test_a_start_behind_the_end_is_an_error(
    monkeypatch: pytest.MonkeyPatch, lake: Lake, options: dict[str, str], end: int
) -> None:
    starting = '{"events": {"0": 16}}'
    with pytest.raises(WrongOption, match=f"would start at offset 16 and end at {end}, before it"):
        planned(monkeypatch, lake, log_begins=0, end=end, startingOffsets=starting, **options)
