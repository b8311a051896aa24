"""The stream reader over a node that answers as told: what Spark asks it, in the order that Spark asks."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from time import monotonic

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from quorate.client import PartitionsGone, TopicGone, TopicReplaced, cluster
from quorate.spark import source
from quorate.spark.options import WrongOption
from quorate.spark.source import QuorateSource, RangePartition, StreamReader
from quorate.wire.messages import Api
from tests.unit.client.scripted import OTHER_ID, TOPIC_ID, Answer, Frame, ScriptedNode, metadata, offsets

ALL = ReadAllAvailable()


class Node:
    """Serves partitions, whose ends a test moves."""

    def __init__(self) -> None:
        self.ends = [10]
        self.starts = [0] * 9
        self.topic_id = TOPIC_ID
        self.known = True
        self.name = "t"
        self.behind: list[int] = []
        """How many partitions the next answers know of, before all of them are told again."""
        self.over = Event()
        """Of the test: no group has a coordinator before."""
        self.scripted = ScriptedNode(self.answer)
        self.readers: list[StreamReader] = []

    def answer(self, frame: Frame) -> Answer:
        if frame.api == Api.FIND_COORDINATOR:
            self.over.wait()
            return None
        if frame.api == Api.METADATA:
            count = self.behind.pop(0) if self.behind else len(self.ends)
            topics = frame.body.topics
            known = self.known and count > 0 and (topics is None or topics[0].name == self.name)
            return metadata(
                frame,
                self.scripted,
                topic_id=self.topic_id,
                partitions_count=count,
                known=known,
                every=self.name,
            )
        earliest = frame.body.topics[0].partitions[0].timestamp == -2
        return offsets(frame, *(self.starts if earliest else self.ends))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(cluster, "UNKNOWN_GRACE_S", 0.3)
    node = Node()
    with node.scripted:
        yield node
        node.over.set()
        for reader in node.readers:
            reader.stop()


def reader(node: Node, **options: str) -> StreamReader:
    source = QuorateSource({"bootstrap": node.scripted.bootstrap, "subscribe": "t", **options})
    schema = source.schema()
    assert isinstance(schema, StructType)
    made = source.streamReader(schema)
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


@pytest.mark.parametrize("is_before", [True, False], ids=["before it began", "since it began"])
def test_available_now_reads_of_a_topic_created_anew_what_was_there_when_it_began(
    node: Node, is_before: bool
) -> None:
    end = reader(node).latestOffset(reader(node, startingOffsets="earliest").initialOffset(), ALL)
    stream = reader(node, failOnDataLoss="false")
    if is_before:
        node.topic_id = OTHER_ID
    stream.prepareForTriggerAvailableNow()
    node.topic_id = OTHER_ID
    node.ends = [50]
    planned = stream.partitions(end, stream.latestOffset(end, ALL))
    assert [part.value for part in planned] == ([("t", 0, 0, 10)] if is_before else [])


def test_a_checkpoint_of_another_topic_of_that_name_is_refused(node: Node) -> None:
    end = reader(node).initialOffset()
    node.topic_id = OTHER_ID
    with pytest.raises(TopicReplaced):
        reader(node).latestOffset(end, ALL)


def test_a_partition_that_was_added_begins_at_what_is_kept_of_it(node: Node) -> None:
    stream = reader(node)
    start = stream.initialOffset()
    node.ends, node.starts = [12, 50], [0, 20]
    end = stream.latestOffset(start, ALL)
    assert ranges(stream, start, end) == [(10, 12), (20, 50)]
    node.ends, node.starts = [14, 60, 9], [0, 20, 7]
    later = stream.latestOffset(end, ALL)
    assert ranges(reader(node), end, later) == [(12, 14), (50, 60), (7, 9)]


def test_partitions_that_json_does_not_name_begin_as_usual(node: Node) -> None:
    node.ends = [10, 20]
    assert reader(node, startingOffsets='{"t": {"1": 5}}').initialOffset()["t"] == {"0": 10, "1": 5}
    with pytest.raises(WrongOption, match="names t-2; read are its partitions 0, 1"):
        reader(node, startingOffsets='{"t": {"2": 5}}').initialOffset()


def test_assigned_partitions_and_no_other(node: Node) -> None:
    node.ends = [10, 20, 30]
    stream = reader(node, subscribe="", assign='{"t": [2, 0]}', startingOffsets="earliest")
    start = stream.initialOffset()
    assert start["t"] == {"0": 0, "2": 0}
    assert stream.latestOffset(start, ALL)["t"] == {"0": 10, "2": 30}
    with pytest.raises(WrongOption, match="has no partition 3"):
        reader(node, subscribe="", assign='{"t": [3]}').initialOffset()


def test_too_little_is_waited_with_but_not_forever(node: Node) -> None:
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "8", "maxTriggerDelay": "1h"}
    stream = reader(node, **options)
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMinRows(8)
    first = stream.latestOffset(stream.initialOffset(), limit)
    assert first["t"] == {"0": 10}
    node.ends = [17]
    assert stream.latestOffset(first, limit) == first, "seven are too few, and it is early"
    assert stream.latestOffset(first, ALL)["t"] == {"0": 17}, "all that there is was asked for"
    node.ends = [18]
    assert stream.latestOffset(first, limit)["t"] == {"0": 18}
    hurried = reader(node, **options | {"maxTriggerDelay": "0"})
    assert hurried.latestOffset(first, limit)["t"] == {"0": 18}
    both = reader(node, **options, maxOffsetsPerTrigger="9")
    assert both.getDefaultReadLimit() == ReadMaxRows(9)


def test_another_topic_of_that_name_is_read_from_its_beginning_where_loss_is_accepted(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    stream = reader(node, startingOffsets="earliest", failOnDataLoss="false")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    node.topic_id, node.ends, node.starts = OTHER_ID, [7], [2]
    later = stream.latestOffset(end, ALL)
    assert later["t"] == {"0": 7}
    assert ranges(reader(node), end, later) == [(2, 7)]
    assert "data loss" in caplog.text
    assert "created anew" in caplog.text


def test_a_topic_that_is_gone_is_data_loss(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    end = reader(node, startingOffsets="earliest").initialOffset()
    node.known = False
    with pytest.raises(TopicGone):
        reader(node).latestOffset(end, ALL)
    assert reader(node, failOnDataLoss="false").latestOffset(end, ALL) == end
    assert "data loss" in caplog.text


def test_topics_are_matched_anew_and_missed(node: Node) -> None:
    matching = {"subscribe": "", "subscribePattern": "t|u.*", "startingOffsets": "earliest"}
    stream = reader(node, **matching)
    start = stream.initialOffset()
    assert start["t"] == {"0": 0}
    end = stream.latestOffset(start, ALL)
    node.name = "users"
    node.topic_id = OTHER_ID
    with pytest.raises(TopicGone, match="topic 't' was read and is not in the cluster any more"):
        stream.latestOffset(end, ALL)
    lossy = reader(node, **matching, failOnDataLoss="false")
    later = lossy.latestOffset(end, ALL)
    assert later["users"] == {"0": 10}
    assert later["t"] == {"0": 10}, "where reading it would go on"
    assert ranges(lossy, end, later) == [(0, 10)]
    asked = len(node.scripted.asked)
    assert lossy.latestOffset(later, ALL) == later
    assert len(node.scripted.asked) == asked + 2, "what is gone and was told is not looked for again"
    node.name, node.topic_id, node.ends = "t", TOPIC_ID, [12]
    back = lossy.latestOffset(later, ALL)
    assert ranges(lossy, later, back) == [(10, 12)], "what comes back is not read twice"
    assert back["users"] == {"0": 10}


# ---- answers that lack something ----


@pytest.mark.parametrize("loss", ["true", "false"])
@pytest.mark.parametrize("known", [0, 1], ids=["topic", "partition"])
@pytest.mark.parametrize(
    "selection",
    [{}, {"subscribe": "", "subscribePattern": "t"}, {"subscribe": "", "assign": '{"t": [0, 1]}'}],
    ids=["subscribe", "pattern", "assign"],
)
def test_a_node_that_is_behind_is_no_loss(
    node: Node, caplog: pytest.LogCaptureFixture, selection: dict[str, str], known: int, loss: str
) -> None:
    node.ends = [10, 10]
    stream = reader(node, startingOffsets="earliest", failOnDataLoss=loss, **selection)
    end = stream.latestOffset(stream.initialOffset(), ALL)
    node.ends, node.behind = [12, 10], [known, known]
    later = stream.latestOffset(end, ALL)
    assert not node.behind
    assert later["t"] == {"0": 12, "1": 10}
    assert ranges(stream, end, later) == [(10, 12)]
    assert not caplog.records


def test_partitions_that_vanish_are_data_loss(node: Node) -> None:
    node.ends = [10, 10]
    end = reader(node, startingOffsets="earliest").initialOffset()
    node.ends = [12]
    with pytest.raises(
        PartitionsGone, match="partitions 1 of topic 't' were read and are not in the cluster"
    ):
        reader(node).latestOffset(end, ALL)


@pytest.mark.parametrize("selection", ["subscribe", "assign"])
def test_where_loss_is_accepted_a_partition_that_comes_back_is_not_read_twice(
    node: Node, caplog: pytest.LogCaptureFixture, selection: str
) -> None:
    chosen = {"subscribe": "", "assign": '{"t": [0, 1]}'} if selection == "assign" else {}
    node.ends = [10, 10]
    stream = reader(node, startingOffsets="earliest", failOnDataLoss="false", **chosen)
    end = stream.latestOffset(stream.initialOffset(), ALL)
    node.ends = [12]
    without = stream.latestOffset(end, ALL)
    assert without["t"] == {"0": 12, "1": 10}
    assert ranges(stream, end, without) == [(10, 12)]
    assert "data loss" in caplog.text
    assert "partitions 1 of topic 't' were read" in caplog.text
    node.ends = [12, 15]
    back = reader(node, failOnDataLoss="false", **chosen).latestOffset(without, ALL)
    assert ranges(stream, without, back) == [(10, 15)]


@pytest.mark.parametrize("count", [1, 0], ids=["partition", "topic"])
def test_a_limit_keeps_the_place_of_what_is_gone(node: Node, count: int) -> None:
    matching = {"subscribe": "", "subscribePattern": "t|u", "failOnDataLoss": "false"}
    node.ends = [10, 10]
    stream = reader(node, startingOffsets="earliest", **matching)
    end = stream.latestOffset(stream.initialOffset(), ALL)
    if count:
        node.ends = [20]
    else:
        node.name, node.topic_id, node.ends = "u", OTHER_ID, [20]
    later = stream.latestOffset(end, ReadMaxRows(3))
    assert later["t"] == {"0": 13 if count else 10, "1": 10}


def test_the_group_hears_of_what_is_there(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[tuple[str, int], int]] = []
    monkeypatch.setattr(source, "set_positions", lambda _cluster, _group, flat: told.append(flat))
    node.ends = [10, 10]
    stream = reader(node, startingOffsets="earliest", failOnDataLoss="false", groupId="g")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    node.ends = [10]
    assert stream.latestOffset(end, ALL) == end
    assert told == [{("t", 0): 10}]


def test_what_is_wrong_is_said_when_it_is_asked_first_and_by_then_there_is_a_reader_to_stop() -> None:
    options = {"bootstrap": "127.0.0.1:1", "subscribe": "t", "endingTimestamp": "5"}
    source = QuorateSource(options)
    schema = source.schema()
    assert isinstance(schema, StructType)
    refused = source.streamReader(schema)
    for ask in (
        refused.initialOffset,
        lambda: refused.latestOffset({}, ALL),
        lambda: refused.partitions({}, {}),
    ):
        with pytest.raises(WrongOption, match="a stream has no end"):
            ask()
    refused.stop()


def test_a_group_without_a_coordinator_holds_up_one_batch_a_little_and_is_told_later(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(source, "REPORT_S", 0.3)
    stream = reader(node, startingOffsets="earliest", groupId="g")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    began = monotonic()
    for ends in range(11, 15):
        node.ends = [ends]
        end = stream.latestOffset(end, ALL)
        assert end["t"] == {"0": ends}
    assert monotonic() - began < 4.0, "and not the query's time-out, of 60 s"
    assert caplog.text.count("the positions of group 'g' are not written") == 1
    told: list[dict[tuple[str, int], int]] = []
    monkeypatch.setattr(source, "set_positions", lambda _cluster, _group, flat: told.append(flat))
    monkeypatch.setattr(source, "monotonic", lambda: monotonic() + source.REPORT_AGAIN_S)
    assert stream.latestOffset(end, ALL) == end
    assert told == [{("t", 0): 14}]


def test_the_group_of_a_query_that_ends_is_told_its_end_whatever_failed_before(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "REPORT_S", 0.3)
    stream = reader(node, startingOffsets="earliest", groupId="g")
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(stream.latestOffset(start, ReadMaxRows(3)), ReadMaxRows(3))
    assert end["t"] == {"0": 6}
    told: list[dict[tuple[str, int], int]] = []
    monkeypatch.setattr(source, "set_positions", lambda _cluster, _group, flat: told.append(flat))
    end = stream.latestOffset(end, ALL)
    assert (end["t"], told) == ({"0": 10}, []), "it has just failed"
    assert stream.latestOffset(end, ALL) == end
    assert told == [{("t", 0): 10}]
