"""What the driver of `quorate tier` commits: files and where they end, together; and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from shutil import rmtree
from time import time
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from pyspark.sql import DataFrame, Row

from quorate.cli.tier import became
from quorate.client.cluster import Cluster
from quorate.spark.lake import File, Lake, LakeTrouble
from quorate.spark.tier import Tiering
from quorate.spark.tier_files import write_files
from tests.unit.spark.test_tier_source import rows

ID, OTHER_ID = "0a" * 16, "0b" * 16


class Files:
    """What is collected of a batch."""

    def __init__(self, *files: File) -> None:
        self._files = files

    def collect(self) -> list[Row]:
        return [Row(topic="events", **file._asdict()) for file in self._files]


def keep(tiering: Tiering, files: list[File], ends: dict[int, int]) -> None:
    tiering.keep(cast(DataFrame, Files(*files)), {"events": ends})


def tiering_in(place: Path) -> Tiering:
    return Tiering(Lake(str(place)), {}, ("events",), ids={"events": ID})


def test_files_and_where_they_end_are_one_commit(tmp_path: Path) -> None:
    tiering = tiering_in(tmp_path)
    keep(tiering, list(write_files(iter([rows(0, 10)]), tiering.lake, "events", 0)), {0: 11, 1: 0})
    keep(tiering, [], {0: 13, 1: 0})
    table = tiering.lake.table("events", ID)
    assert table is not None
    assert (table.next_offset(0), table.next_offset(1)) == (13, None), (
        "control entries count, nothing does not"
    )
    assert [(file.first, file.last) for file in table.files()] == [(0, 9)]
    assert (tiering.rows_count, tiering.commits_count) == (10, 2)


def test_a_run_that_finds_nothing_commits_nothing_and_says_so(tmp_path: Path) -> None:
    keep(
        tiering_in(tmp_path),
        list(write_files(iter([rows(0, 10)]), Lake(str(tmp_path)), "events", 0)),
        {0: 10},
    )
    again = tiering_in(tmp_path)
    keep(again, [], {0: 10})
    table = again.lake.table("events", ID)
    assert table is not None
    assert (table.version, again.commits_count, became(again)) == (0, 0, "nothing new")
    keep(again, [], {0: 12})
    assert became(again) == "nothing new; 1 commit to note where it goes on, behind offsets without records"


def test_what_another_job_has_taken_meanwhile_is_refused(tmp_path: Path) -> None:
    late, quick = tiering_in(tmp_path), tiering_in(tmp_path)
    files = list(write_files(iter([rows(0, 20)]), late.lake, "events", 0))
    keep(quick, list(write_files(iter([rows(0, 10)]), quick.lake, "events", 0)), {0: 10})
    with pytest.raises(LakeTrouble, match="another job has written"):
        keep(late, files, {0: 20})
    table = late.lake.table("events", ID)
    assert table is not None
    assert (table.next_offset(0), [file.rows for file in table.files()]) == (10, [10])


def test_a_table_that_is_removed_while_it_is_kept_is_not_begun_in_the_middle(tmp_path: Path) -> None:
    tiering = tiering_in(tmp_path)
    keep(tiering, list(write_files(iter([rows(0, 10)]), tiering.lake, "events", 0)), {0: 10})
    rmtree(tmp_path / "events")
    files = list(write_files(iter([rows(10, 10)]), tiering.lake, "events", 0))
    with pytest.raises(LakeTrouble, match="was removed, or set back"):
        keep(tiering, files, {0: 20})
    assert tiering.lake.table("events", ID) is None
    keep(tiering_in(tmp_path), list(write_files(iter([rows(0, 20)]), tiering.lake, "events", 0)), {0: 20})
    table = tiering.lake.table("events", ID)
    assert table is not None
    assert table.next_offset(0) == 20


def test_a_table_that_cannot_be_read_is_said_in_one_line(tmp_path: Path) -> None:
    log = tmp_path / "events" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("of somebody else\n", encoding="utf-8")
    with pytest.raises(LakeTrouble, match="cannot be read") as raised:
        Lake(str(tmp_path)).table("events", ID)
    assert "\n" not in str(raised.value)


def test_a_table_whose_files_are_gone_is_not_tidied(tmp_path: Path) -> None:
    tiering = tiering_in(tmp_path)
    keep(tiering, list(write_files(iter([rows(0, 10)]), tiering.lake, "events", 0)), {0: 10})
    for file in tmp_path.glob("events/partition=0/*"):
        file.unlink()
    tiering.compact = True
    files = list(write_files(iter([rows(10, 10)]), tiering.lake, "events", 0))
    with pytest.raises(LakeTrouble, match="cannot be tidied"):
        keep(tiering, files, {0: 20})


def test_files_without_a_commit_go_when_nobody_can_be_about_to_commit_them(tmp_path: Path) -> None:
    tiering = tiering_in(tmp_path)
    tiering.vacuum_hours = 0
    old, young = (
        tmp_path / "events" / next(write_files(iter([rows(0, 10)]), tiering.lake, "events", 0)).path
        for _ in "ab"
    )
    for path, age_s in ((old, 25 * 3600), (young, 3600)):
        os.utime(path, (time() - age_s,) * 2)
    strangers = [
        tmp_path / "events" / name for name in ("notes.txt", "partition=0/more.parquet", "sums.parquet")
    ]
    for path in strangers:
        path.write_text("of somebody else", encoding="utf-8")
        os.utime(path, (time() - 25 * 3600,) * 2)
    (file,) = write_files(iter([rows(0, 10)]), tiering.lake, "events", 0)
    keep(tiering, [file], {0: 10})
    assert all(path.exists() for path in strangers)
    left = {path.name for path in tmp_path.rglob("*.parquet")} - {path.name for path in strangers}
    assert left == {young.name, Path(file.path).name}


class Log:
    """A cluster with one topic, of one partition, whose log begins somewhere."""

    def __init__(self, start: int) -> None:
        self.start = start

    def topics(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: SimpleNamespace(id=bytes.fromhex(ID), partitions=[Numbered(0)]) for name in names}

    def offsets(self, topic: str, wanted: dict[int, int]) -> dict[int, int]:
        return dict.fromkeys(wanted, self.start)


class Numbered(NamedTuple):
    number: int


def begin(tiering: Tiering, start: int, monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    monkeypatch.setattr("quorate.spark.tier.settings_of", lambda cluster, name: {})
    return tiering.begin(cast(Cluster, Log(start)))["events"]


def test_a_table_whose_log_is_lost_is_not_begun_anew_over_what_only_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiering = tiering_in(tmp_path)
    keep(tiering, list(write_files(iter([rows(5, 10)]), tiering.lake, "events", 0)), {0: 15})
    rmtree(tmp_path / "events" / "_delta_log")
    with pytest.raises(
        LakeTrouble, match="has files and no table: those of events-0 begin at offset 5"
    ) as said:
        begin(tiering_in(tmp_path), 6, monkeypatch)
    assert "\n" not in str(said.value)
    assert begin(tiering_in(tmp_path), 5, monkeypatch) == {0: 5}, "the log has all of it"


def test_what_a_first_job_left_that_was_killed_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiering = tiering_in(tmp_path)
    (file,) = write_files(iter([rows(50, 10)]), tiering.lake, "events", 0)
    (tmp_path / "events" / "partition=0" / f"{'0a' * 16}.parquet").write_bytes(b"PAR1 half")
    (tmp_path / "events" / "partition=0" / "more.parquet").write_bytes(b"of somebody else")
    assert tiering.lake.left("events") == {0: 50}
    assert begin(tiering, 50, monkeypatch) == {0: 50}
    keep(tiering, [file], {0: 60})
    table = tiering.lake.table("events", ID)
    assert table is not None
    assert (table.begun(0), table.begun(1)) == (50, None)
    assert begin(tiering_in(tmp_path), 55, monkeypatch) == {0: 60}


def test_of_two_jobs_that_both_create_a_table_the_second_is_told_so(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    one, other = (next(write_files(iter([rows(0, 10)]), lake, "events", 0)) for _ in range(2))
    lake.commit("events", ID, None, [one], {0: 10})
    with pytest.raises(LakeTrouble, match="another job has written"):
        lake.commit("events", ID, None, [other], {0: 10})
    with pytest.raises(LakeTrouble, match="is of topic 'events' with id"):
        lake.commit("events", OTHER_ID, None, [other], {0: 10})


@pytest.mark.parametrize("scheme", ["file://", "file:"])
def test_a_place_may_be_written_as_spark_writes_it(tmp_path: Path, scheme: str) -> None:
    lake = Lake(f"{scheme}{tmp_path}/a%20lake/")
    assert lake.uri == str(tmp_path / "a lake")
    (file,) = write_files(iter([rows(0, 10)]), lake, "events", 0)
    assert lake.commit("events", ID, None, [file], {0: 10}).next_offset(0) == 10


@pytest.mark.parametrize("topic_id", [ID, OTHER_ID])
def test_where_a_batch_ends_is_of_the_topic_that_was_begun_with(tmp_path: Path, topic_id: str) -> None:
    """As Spark writes it down: a version, what it knows about the batch, and the source's offset."""
    said: dict[str, Any] = {"events": {"0": 7, "1": 9}, "#ids": {"events": topic_id}, "#start": {}}
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text("v1\n{}\n" + json.dumps(said), encoding="utf-8")
    tiering = tiering_in(tmp_path)
    if topic_id == ID:
        assert tiering.ends_in(str(tmp_path), 3) == {"events": {0: 7, 1: 9}}
    else:
        with pytest.raises(LakeTrouble, match="was created anew"):
            tiering.ends_in(str(tmp_path), 3)
