"""What is planned for a topic that is in a lake and in the log: which offsets of which, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from quorate.client.errors import OffsetsMissing
from quorate.spark.lake import Lake, LakeTrouble
from quorate.spark.options import WrongOption
from quorate.spark.source import QuorateSource, RangePartition
from quorate.spark.tier_files import write_files
from quorate.spark.tiered import FilePartition, TieredReader
from quorate.wire.messages import Api
from tests.unit.client.scripted import TOPIC_ID, Answer, Frame, ScriptedNode, metadata, offsets
from tests.unit.spark.test_tier_source import rows

LOG_START, LOG_END, TABLE_END = 50, 100, 80


class Node:
    """Has forgotten what is below LOG_START; whatever time is asked for, the log's first record is as young."""

    def __init__(self) -> None:
        self.start = LOG_START
        self.scripted = ScriptedNode(self.answer)

    def answer(self, frame: Frame) -> Answer:
        if frame.api == Api.METADATA:
            return metadata(frame, self.scripted)
        is_end = frame.body.topics[0].partitions[0].timestamp == -1
        return offsets(frame, LOG_END if is_end else self.start)


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    with node.scripted:
        yield node


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(str(tmp_path))
    files = list(write_files(iter([rows(0, TABLE_END)]), lake, "events", 0))
    lake.commit("events", TOPIC_ID.hex(), None, files, {0: TABLE_END})
    return lake


def planned(node: Node, lake: Lake, **options: str) -> list[tuple[str, int, int]]:
    given = {"bootstrap": node.scripted.bootstrap, "subscribe": "events", "tiered": "true", "lake": lake.uri}
    source = QuorateSource(given | options)
    schema = source.schema()
    assert isinstance(schema, StructType)
    reader = source.reader(schema)
    assert isinstance(reader, TieredReader)
    found = []
    for each in reader.partitions():
        if isinstance(each, FilePartition):
            found.append(("table", *each.value[3:]))
        else:
            assert isinstance(each, RangePartition)
            found.append(("log", each.wanted.first, each.wanted.end))
    return found


def test_all_is_the_table_and_the_log_from_where_it_ends(node: Node, lake: Lake) -> None:
    everything = [("table", 0, 80), ("log", 80, 100)]
    assert planned(node, lake) == everything
    assert planned(node, lake, startingOffsets='{"events": {"0": -2}}') == everything
    assert planned(node, lake, startingOffsets='{"events": {"0": 60}}') == [
        ("table", 60, 80),
        ("log", 80, 100),
    ]
    assert planned(node, lake, startingOffsets='{"events": {"0": 90}}') == [("log", 90, 100)]
    assert planned(node, lake, endingOffsets='{"events": {"0": 70}}') == [("table", 0, 70)]
    assert planned(node, lake, endingOffsets='{"events": {"0": -1}}') == everything


def test_what_ends_at_the_earliest_is_nothing_and_not_what_the_log_has_forgotten(
    node: Node, lake: Lake
) -> None:
    assert planned(node, lake, endingOffsets='{"events": {"0": -2}}') == []
    assert planned(node, lake, endingOffsets="earliest") == []


@pytest.mark.parametrize(
    "option",
    [
        {"endingTimestamp": "1000"},
        {"endingOffsetsByTimestamp": '{"events": {"0": 1000}}'},
        {"startingTimestamp": "1000"},
        {"startingOffsetsByTimestamp": '{"events": {"0": 1000}}'},
    ],
    ids=lambda option: next(iter(option)),
)
def test_times_are_refused_as_the_log_does_not_know_those_of_the_table(
    node: Node, lake: Lake, option: dict[str, str]
) -> None:
    with pytest.raises(WrongOption, match="times are the log's alone"):
        planned(node, lake, **option)


def test_offsets_are_checked_as_those_of_the_log(node: Node, lake: Lake) -> None:
    with pytest.raises(WrongOption, match="ends at offset 100, before 101"):
        planned(node, lake, startingOffsets='{"events": {"0": 101}}')
    with pytest.raises(WrongOption, match="before it"):
        planned(node, lake, startingOffsets='{"events": {"0": 60}}', endingOffsets='{"events": {"0": 10}}')
    with pytest.raises(WrongOption, match="names topic 'others'"):
        planned(node, lake, endingOffsets='{"others": {"0": 10}}')


def test_a_hole_between_table_and_log_is_an_error_that_is_no_options_fault(node: Node, lake: Lake) -> None:
    node.start = TABLE_END + 1
    with pytest.raises(LakeTrouble, match="what lies between is in neither"):
        planned(node, lake)
    node.start = TABLE_END
    assert planned(node, lake) == [("table", 0, 80), ("log", 80, 100)]


def test_numbers_below_the_beginning_of_the_table_are_data_loss(
    node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake = Lake(str(tmp_path / "begun"))
    files = list(write_files(iter([rows(30, 50)]), lake, "events", 0))
    lake.commit("events", TOPIC_ID.hex(), None, files, {0: TABLE_END}, {0: 25})
    below = '{"events": {"0": 20}}'
    with pytest.raises(OffsetsMissing, match="offsets 20 to 24 of events-0 are not in the log any more"):
        planned(node, lake, startingOffsets=below)
    with pytest.raises(OffsetsMissing, match="offsets 20 to 22 of"):
        planned(node, lake, startingOffsets=below, endingOffsets='{"events": {"0": 23}}')
    everything = [("table", 20, 80), ("log", 80, 100)]
    assert planned(node, lake, startingOffsets=below, failOnDataLoss="false") == everything
    assert "offsets 20 to 24" in caplog.text
    for begin in ("earliest", '{"events": {"0": -2}}', '{"events": {"0": 25}}'):
        first, last = planned(node, lake, startingOffsets=begin)
        assert (first[2], last) == (80, ("log", 80, 100)), "what has no record is not missing"


def test_a_table_that_does_not_say_where_it_begins_is_read_from_there(node: Node, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "older"))
    files = list(write_files(iter([rows(30, 50)]), lake, "events", 0))
    lake.commit("events", TOPIC_ID.hex(), None, files, {0: TABLE_END})
    assert planned(node, lake, startingOffsets='{"events": {"0": 20}}')[0] == ("table", 20, 80)


def test_a_hole_behind_what_is_wanted_is_no_error(node: Node, lake: Lake) -> None:
    node.start = TABLE_END + 10
    assert planned(node, lake, endingOffsets='{"events": {"0": 70}}') == [("table", 0, 70)]
