"""Rows of a partition as Parquet files: their bounds are those of the rows, and their sizes are true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from quorate.batch import encode_records, stamp
from quorate.client.ranges import Range
from quorate.spark import tier_files
from quorate.spark.lake import IN_FILES, File, Lake
from quorate.spark.source import RangePartition
from quorate.spark.tier_files import write_files
from quorate.spark.tier_source import TierSource
from quorate.wire.messages import Api
from tests.unit.client.scripted import TOPIC_ID, Answer, Frame, ScriptedNode, fetched, metadata


def rows(first: int, count: int) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {
        "key": [b"k%d" % (number % 3) if number % 2 else None for number in range(count)],
        "value": [b"v%08d" % number for number in range(first, first + count)],
        "offset": list(range(first, first + count)),
        "timestamp": [number * 1000 if number % 5 else None for number in range(count)],
        "timestampType": [0] * count,
        "headers": [[{"key": "a", "value": b"1"}] if number % 7 == 0 else None for number in range(count)],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[each.name], each.type) for each in IN_FILES], schema=IN_FILES
    )


def read(lake: Lake, path: str) -> pa.Table:
    return pq.read_table(Path(lake.place("events")) / path, partitioning=None)


def test_batches_of_a_partition_become_one_file(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    batches = [rows(10, 100), rows(110, 50), rows(170, 3)]
    (file,) = write_files(iter(batches), lake, "events", 4)
    assert (file.partition, file.rows, file.first, file.last) == (4, 153, 10, 172)
    assert file.path.startswith("partition=4/")
    assert file.size == (Path(lake.place("events")) / file.path).stat().st_size
    assert read(lake, file.path) == pa.Table.from_batches(batches)
    assert pq.read_metadata(Path(lake.place("events")) / file.path).num_row_groups == 1


def test_nothing_is_no_file(tmp_path: Path) -> None:
    assert list(write_files(iter(()), Lake(str(tmp_path)), "events", 0)) == []
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_file_that_is_large_enough_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_files, "GROUP_BYTES_TARGET", 1)
    monkeypatch.setattr(tier_files, "FILE_BYTES_TARGET", 1)
    lake = Lake(str(tmp_path))
    files = list(write_files(iter([rows(0, 10), rows(10, 10)]), lake, "events", 0))
    assert [(file.first, file.last) for file in files] == [(0, 9), (10, 19)]
    assert len({file.path for file in files}) == 2


def test_a_place_is_the_same_wherever_a_task_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Lake("lake/").place("events") == str(tmp_path / "lake" / "events")
    assert Lake("s3://bucket/lake/").place("events") == "s3://bucket/lake/events"


def test_what_a_task_tells_is_the_file_with_the_records_of_its_range(tmp_path: Path) -> None:
    batch = bytes(stamp(encode_records([(b"k", b"%d" % number) for number in range(10)]), offset=5, epoch=1))

    def answer(frame: Frame) -> Answer:
        return metadata(frame, node) if frame.api == Api.METADATA else fetched(frame, [batch])

    with ScriptedNode(answer) as node:
        options = {"bootstrap": node.bootstrap, "subscribe": "events", "tiered": "true"}
        source = TierSource({**options, "lake": str(tmp_path)})
        reader = source.streamReader(StructType())
        told = list(reader.read(RangePartition(Range("events", 0, 6, 12), TOPIC_ID.hex())))
    (row,) = pa.Table.from_batches(told).to_pylist()
    assert list(row) == [column.split()[0] for column in source.schema().split(", ")]
    assert row.pop("topic") == "events"
    file = File(**row)
    assert (file.partition, file.rows, file.first, file.last) == (0, 6, 6, 11)
    held = read(Lake(str(tmp_path)), file.path)
    assert held["offset"].to_pylist() == list(range(6, 12))
    assert held["value"].to_pylist() == [b"%d" % number for number in range(1, 7)]


def test_a_task_without_a_range_tells_nothing(tmp_path: Path) -> None:
    options = {"bootstrap": "127.0.0.1:1", "subscribe": "events", "tiered": "true", "lake": str(tmp_path)}
    reader = TierSource(options).streamReader(StructType())
    assert list(reader.read(InputPartition(None))) == []
