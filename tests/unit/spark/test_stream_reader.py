"""The stream reader over a node that answers as told: what Spark asks it, in the order that Spark asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from quorate.client import TopicReplaced
from quorate.spark.options import WrongOption
from quorate.spark.source import QuorateSource, RangePartition, StreamReader
from quorate.wire.messages import Api
from tests.unit.client.scripted import OTHER_ID, TOPIC_ID, Answer, Frame, ScriptedNode, metadata, offsets

ALL = ReadAllAvailable()


class Node:
    """Serves partitions, whose ends a test moves."""

    def __init__(self) -> None:
        self.ends = [10]
        self.topic_id = TOPIC_ID
        self.scripted = ScriptedNode(self.answer)
        self.readers: list[StreamReader] = []

    def answer(self, frame: Frame) -> Answer:
        if frame.api == Api.METADATA:
            count = len(self.ends)
            return metadata(frame, self.scripted, topic_id=self.topic_id, partitions_count=count)
        earliest = frame.body.topics[0].partitions[0].timestamp == -2
        return offsets(frame, *(0 if earliest else end for end in self.ends))


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    with node.scripted:
        yield node
        for reader in node.readers:
            reader.stop()


def reader(node: Node, **options: str) -> StreamReader:
    source = QuorateSource({"bootstrap": node.scripted.bootstrap, "subscribe": "t", **options})
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamReader)
    node.readers.append(made)
    return made


def ranges(reader: StreamReader, start: dict[str, object], end: dict[str, object]) -> list[tuple[int, int]]:
    planned = reader.partitions(start, end)
    assert all(isinstance(each, RangePartition) for each in planned)
    return [(each.wanted.first, each.wanted.end) for each in planned if isinstance(each, RangePartition)]


def test_a_new_query_begins_at_the_end(node: Node) -> None:
    stream = reader(node)
    start = stream.initialOffset()
    assert start["t"] == {"0": 10}
    assert stream.latestOffset(start, ALL) == start, "nothing new: the very same offset"
    node.ends = [15]
    end = stream.latestOffset(start, ALL)
    assert end["t"] == {"0": 15}
    assert ranges(stream, start, end) == [(10, 15)]


def test_the_beginning_is_asked_for_twice_and_is_the_same(node: Node) -> None:
    stream = reader(node)
    start = stream.initialOffset()
    node.ends = [99]
    assert stream.initialOffset() == start


def test_the_first_batch_replayed_in_a_new_process_reads_the_same(node: Node) -> None:
    first = reader(node)
    start = first.initialOffset()
    node.ends = [15]
    end = first.latestOffset(start, ALL)
    node.ends = [40]
    again = reader(node)
    later_start = again.initialOffset()
    assert later_start["t"] == {"0": 40}, "beyond the end of the batch that is replayed"
    assert ranges(again, later_start, end) == [(10, 15)]
    assert ranges(again, end, again.latestOffset(end, ALL)) == [(15, 40)]


def test_a_leader_that_is_behind_takes_nothing_back(node: Node) -> None:
    stream = reader(node, startingOffsets="earliest")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    node.ends = [4]
    assert stream.latestOffset(end, ALL) == end
    assert reader(node).latestOffset(end, ALL) == end, "nor in a new process"


def test_nor_while_another_partition_goes_on(node: Node) -> None:
    node.ends = [10, 10]
    start = reader(node, startingOffsets="earliest").initialOffset()
    end = reader(node).latestOffset(start, ALL)
    node.ends = [4, 12]
    assert reader(node).latestOffset(end, ALL)["t"] == {"0": 10, "1": 12}


def test_a_partition_that_was_added_is_read_from_its_beginning(node: Node) -> None:
    stream = reader(node)
    start = stream.initialOffset()
    node.ends = [12, 5]
    end = stream.latestOffset(start, ALL)
    assert ranges(stream, start, end) == [(10, 12), (0, 5)]


def test_limits_are_kept_and_ignored_when_spark_says_so(node: Node) -> None:
    stream = reader(node, startingOffsets="earliest", maxOffsetsPerTrigger="3")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(3)
    start = stream.initialOffset()
    assert stream.latestOffset(start, limit)["t"] == {"0": 3}
    assert stream.latestOffset(start, ALL)["t"] == {"0": 10}


def test_available_now_ends_where_the_log_ended_then(node: Node) -> None:
    stream = reader(node, startingOffsets="earliest")
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    node.ends = [50]
    end = stream.latestOffset(start, ALL)
    assert end["t"] == {"0": 10}
    assert stream.latestOffset(end, ALL) == end


def test_a_checkpoint_of_another_topic_of_that_name_is_refused(node: Node) -> None:
    end = reader(node).initialOffset()
    node.topic_id = OTHER_ID
    with pytest.raises(TopicReplaced):
        reader(node).latestOffset(end, ALL)


def test_a_stream_has_no_end(node: Node) -> None:
    with pytest.raises(WrongOption, match="a stream has no end"):
        reader(node, endingOffsets='{"t": {"0": 5}}')
