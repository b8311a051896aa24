"""A cluster's client at its worst: leaders move, nodes die, answers are strange. Over real sockets."""

from __future__ import annotations

import socket
from datetime import timedelta
from threading import Barrier
from time import monotonic
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.produce.v9 import response as produce_schema

from quorate.batch import encode_records, stamp
from quorate.client import (
    EARLIEST,
    LATEST,
    Cluster,
    OffsetOutOfRange,
    Refused,
    TopicReplaced,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
)
from quorate.client.cluster import parse_bootstrap
from quorate.wire.messages import Api, encode_response
from tests.unit.client.scripted import (
    OTHER_ID,
    TOPIC_ID,
    Answer,
    Broker,
    Frame,
    Metadata,
    Partition,
    ScriptedNode,
    Topic,
    fetched,
    metadata,
    offsets,
)

BATCH = bytes(stamp(encode_records([(None, b"a"), (None, b"b")]), offset=5, epoch=1))


def test_topics_tell_ids_and_leaders() -> None:
    with ScriptedNode(lambda frame: metadata(frame, node)) as node, Cluster(node.bootstrap) as cluster:
        (topic,) = cluster.topics(["events"]).values()
    assert topic.id == TOPIC_ID
    assert [(part.number, part.leader) for part in topic.partitions] == [(0, 7)]


def test_offsets_come_from_the_leader() -> None:
    asked: list[int] = []

    def answer(frame: Frame) -> Answer:
        if frame.api == Api.METADATA:
            return metadata(frame, node)
        asked.append(frame.body.topics[0].partitions[0].timestamp)
        return offsets(frame, 42 if asked[-1] == LATEST else -1)

    with ScriptedNode(answer) as node, Cluster(node.bootstrap) as cluster:
        assert cluster.offsets("events", {0: LATEST}) == {0: 42}
        assert cluster.offsets("events", {0: 1_000}) == {0: None}
    assert asked == [LATEST, 1_000]


def test_a_leader_that_moved_is_followed() -> None:
    def old(frame: Frame) -> Answer:
        if frame.api == Api.METADATA:
            return metadata(frame, leads[0])
        leads[0] = new_node
        return fetched(frame, [], error=ErrorCode.not_leader_or_follower)

    def new(frame: Frame) -> Answer:
        return (
            metadata(frame, new_node)
            if frame.api == Api.METADATA
            else fetched(frame, [BATCH], high_watermark=7)
        )

    with ScriptedNode(old) as old_node, ScriptedNode(new) as new_node, Cluster(old_node.bootstrap) as cluster:
        leads = [old_node]
        found = cluster.fetch("events", 0, 5)
    assert [bytes(batch) for batch in found.batches] == [BATCH]
    assert found.high_watermark == 7
    assert old_node.asked == [Api.METADATA, Api.FETCH, Api.METADATA]
    assert new_node.asked == [Api.FETCH]


def test_a_leader_that_hangs_up_is_asked_again() -> None:
    def answer(frame: Frame) -> Answer:
        if frame.api == Api.METADATA:
            return metadata(frame, node)
        return None if node.asked.count(Api.LIST_OFFSETS) == 1 else offsets(frame, 9)

    with ScriptedNode(answer) as node, Cluster(node.bootstrap) as cluster:
        assert cluster.offsets("events", {0: EARLIEST}) == {0: 9}


def test_a_partition_without_leader_is_waited_for() -> None:
    def answer(frame: Frame) -> Answer:
        if frame.api == Api.METADATA:
            return metadata(frame, node if node.asked.count(Api.METADATA) > 2 else None)
        return offsets(frame, 3)

    with ScriptedNode(answer) as node, Cluster(node.bootstrap) as cluster:
        assert cluster.offsets("events", {0: LATEST}) == {0: 3}


def test_one_node_of_the_list_is_enough() -> None:
    with (
        ScriptedNode(lambda frame: metadata(frame, node)) as node,
        Cluster(f"127.0.0.1:{closed_port()},{node.bootstrap}") as cluster,
    ):
        assert list(cluster.topics(["events"])) == ["events"]


def test_nobody_there_is_said_in_one_line() -> None:
    address = f"127.0.0.1:{closed_port()}"
    with Cluster(address, timeout_s=0.2) as cluster, pytest.raises(Unreachable) as raised:
        cluster.topics(["events"])
    said = str(raised.value)
    assert address in said
    assert "within 0.2 s" in said
    assert "connection refused" in said
    assert "\n" not in said


def test_an_unknown_topic_is_asked_for_more_than_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorate.client.cluster.UNKNOWN_GRACE_S", 0.1)
    with (
        ScriptedNode(lambda frame: metadata(frame, node, known=False)) as node,
        Cluster(node.bootstrap) as cluster,
        pytest.raises(UnknownTopic, match="no topic 'evnts'"),
    ):
        cluster.topics(["evnts"])
    assert len(node.asked) > 1


def test_a_topic_that_was_just_made_is_found() -> None:
    def answer(frame: Frame) -> Answer:
        return metadata(frame, node, known=len(node.asked) > 1)

    with ScriptedNode(answer) as node, Cluster(node.bootstrap) as cluster:
        assert list(cluster.topics(["events"])) == ["events"]


def test_a_topic_made_anew_is_not_taken_for_the_old_one() -> None:
    with (
        ScriptedNode(lambda frame: metadata(frame, node, topic_id=OTHER_ID)) as node,
        Cluster(node.bootstrap) as cluster,
    ):
        cluster.expect("events", TOPIC_ID)
        with pytest.raises(TopicReplaced):
            cluster.topics(["events"])


def test_fetch_names_the_topic_by_its_id() -> None:
    ids: list[bytes] = []

    def answer(frame: Frame) -> Answer:
        if frame.api == Api.METADATA:
            return metadata(frame, node)
        ids.append(frame.body.topics[0].id)
        return fetched(frame, [])

    with ScriptedNode(answer) as node, Cluster(node.bootstrap) as cluster:
        assert cluster.fetch("events", 0, 0).batches == []
    assert ids == [TOPIC_ID]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ErrorCode.offset_out_of_range, OffsetOutOfRange),
        (ErrorCode.topic_authorization_failed, Refused),
    ],
)
def test_what_trying_again_does_not_mend_is_raised_at_once(error: ErrorCode, kind: type[Exception]) -> None:
    def answer(frame: Frame) -> Answer:
        return metadata(frame, node) if frame.api == Api.METADATA else fetched(frame, [], error=error)

    with ScriptedNode(answer) as node, Cluster(node.bootstrap) as cluster, pytest.raises(kind):
        cluster.fetch("events", 0, 5)
    assert node.asked == [Api.METADATA, Api.FETCH]


def test_a_partition_that_is_not_there_is_named() -> None:
    with (
        ScriptedNode(lambda frame: metadata(frame, node)) as node,
        Cluster(node.bootstrap) as cluster,
        pytest.raises(UnknownPartition, match="no partition 4; it has 1"),
    ):
        cluster.fetch("events", 4, 0)


def test_an_answer_to_another_question_is_not_believed() -> None:
    def answer(frame: Frame) -> Answer:
        if frame.api == Api.LIST_OFFSETS and node.asked.count(Api.LIST_OFFSETS) == 1:
            frame.correlation += 1
            return offsets(frame, 1)
        return metadata(frame, node) if frame.api == Api.METADATA else offsets(frame, 2)

    with ScriptedNode(answer) as node, Cluster(node.bootstrap) as cluster:
        assert cluster.offsets("events", {0: LATEST}) == {0: 2}


def test_an_answer_of_absurd_size_is_not_waited_for() -> None:
    def answer(frame: Frame) -> Answer:
        return b"\x7f\xff\xff\xff" if len(node.asked) == 1 else metadata(frame, node)

    with ScriptedNode(answer) as node, Cluster(node.bootstrap) as cluster:
        assert list(cluster.topics(["events"])) == ["events"]


def test_addresses_are_read_with_ports_and_brackets() -> None:
    assert parse_bootstrap("a:1, [::1]:9092") == [("a", 1), ("::1", 9092)]


@pytest.mark.parametrize("text", ["", "a", "a:", ":1", "a:b", "a:0", "a:70000", "a:1,"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_bootstrap(text)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_node_that_hangs_is_not_waited_for_while_another_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorate.client.cluster.TRY_S", 60.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as hangs,
        ScriptedNode(lambda frame: metadata(frame, node)) as node,
        Cluster(f"127.0.0.1:{hangs.getsockname()[1]},{node.bootstrap}", timeout_s=60) as cluster,
    ):
        began = monotonic()
        cluster.topics(["events"])
        assert monotonic() - began < 20  # Half of the time would be its share.


# ---- nodes that are behind ----


@pytest.mark.parametrize(
    "lacks",
    [{"known": False}, {"topic_id": OTHER_ID}, {"partitions_count": 1}],
    ids=["the topic", "that it was made anew", "a partition"],
)
def test_of_what_a_node_does_not_know_yet_another_is_asked(lacks: dict[str, Any]) -> None:
    """The one that is behind never learns it: nobody but another can say it."""
    current: dict[str, Any] = {"partitions_count": 2}
    with (
        ScriptedNode(lambda frame: metadata(frame, other, **{**current, **lacks})) as behind,
        ScriptedNode(lambda frame: metadata(frame, other, **current)) as other,
        Cluster(f"{behind.bootstrap},{other.bootstrap}") as cluster,
    ):
        cluster.expect("events", TOPIC_ID)
        (topic,) = cluster.topics(["events"], {"events": 2}).values()
        assert (topic.id, len(topic.partitions)) == (TOPIC_ID, 2)
        assert behind.asked == other.asked == [Api.METADATA]
        cluster.topics(["events"], {"events": 2})
        assert len(other.asked) == 2, "the one that was behind is not the first to be asked"


def test_where_one_node_knows_of_no_leader_another_is_asked() -> None:
    """One that is cut off goes on answering, and does not learn who leads."""

    def answer(frame: Frame) -> Answer:
        return metadata(frame, other) if frame.api == Api.METADATA else offsets(frame, 3)

    with (
        ScriptedNode(lambda frame: metadata(frame, None)) as cut_off,
        ScriptedNode(answer) as other,
        Cluster(f"{cut_off.bootstrap},{other.bootstrap}") as cluster,
    ):
        assert cluster.offsets("events", {0: LATEST}) == {0: 3}
    assert cut_off.asked == [Api.METADATA]


def test_a_partition_that_one_node_does_not_know_yet_is_fetched_from() -> None:
    def answer(frame: Frame) -> Answer:
        if frame.api == Api.METADATA:
            return metadata(frame, node, partitions_count=min(node.asked.count(Api.METADATA), 2))
        return offsets(frame, 3, 4)

    with ScriptedNode(answer) as node, Cluster(node.bootstrap) as cluster:
        assert cluster.offsets("events", {1: LATEST}) == {1: 4}


def test_fewer_partitions_stand_where_all_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorate.client.cluster.UNKNOWN_GRACE_S", 0.1)
    with ScriptedNode(lambda frame: metadata(frame, node)) as node, Cluster(node.bootstrap) as cluster:
        (topic,) = cluster.topics(["events"], {"events": 2}).values()
    assert len(topic.partitions) == 1
    assert len(node.asked) > 1


def test_a_topic_that_nobody_asked_for_may_be_made_anew() -> None:
    ids = [TOPIC_ID, OTHER_ID]
    with (
        ScriptedNode(lambda frame: metadata(frame, node, topic_id=ids.pop(0), every="events")) as node,
        Cluster(node.bootstrap) as cluster,
    ):
        assert [cluster.every_topic()["events"].id for _ in range(2)] == [TOPIC_ID, OTHER_ID]


# ---- producing ----


def two_leaders(frame: Frame, *nodes: ScriptedNode) -> Answer:
    """Partition 0 is led by node 0, partition 1 by node 1."""
    brokers = tuple(
        Broker(node_id=number, host=str(node.host), port=node.port) for number, node in enumerate(nodes)
    )
    partitions = tuple(
        Partition(error_code=ErrorCode.none, partition_index=number, leader_id=number)
        for number in range(len(nodes))
    )
    topic = Topic(
        error_code=ErrorCode.none, name="events", topic_id=UUID(bytes=TOPIC_ID), partitions=partitions
    )
    body = Metadata(throttle_time=timedelta(0), brokers=brokers, topics=(topic,))
    return encode_response(Api.METADATA, frame.version, frame.correlation, body)


def produced(frame: Frame, error: ErrorCode = ErrorCode.none) -> Answer:
    schema: Any = produce_schema
    parts = tuple(
        schema.PartitionProduceResponse(
            index=part.index, error_code=error, base_offset=40 + part.index, record_errors=()
        )
        for part in frame.body.topic_data[0].partition_data
    )
    body = schema.ProduceResponse(
        responses=(schema.TopicProduceResponse(name="events", partition_responses=parts),),
        throttle_time=timedelta(0),
    )
    return encode_response(Api.PRODUCE, frame.version, frame.correlation, body)


def test_batches_for_several_leaders_are_under_way_together() -> None:
    both_asked = Barrier(2, timeout=30)

    def answer(frame: Frame) -> Answer:
        if frame.api == Api.METADATA:
            return two_leaders(frame, one, other)
        both_asked.wait()
        return produced(frame)

    with (
        ScriptedNode(answer) as one,
        ScriptedNode(answer) as other,
        Cluster(one.bootstrap, timeout_s=20) as cluster,
    ):
        assert cluster.produce("events", {0: BATCH, 1: BATCH}) == {0: 40, 1: 41}


def test_only_what_was_not_answered_is_sent_again() -> None:
    sent: list[int] = []

    def answer(frame: Frame) -> Answer:
        if frame.api == Api.METADATA:
            return two_leaders(frame, one, other)
        (part,) = frame.body.topic_data[0].partition_data
        sent.append(part.index)
        return None if part.index == 0 and sent.count(0) == 1 else produced(frame)

    with ScriptedNode(answer) as one, ScriptedNode(answer) as other, Cluster(one.bootstrap) as cluster:
        assert cluster.produce("events", {0: BATCH, 1: BATCH}) == {0: 40, 1: 41}
    assert sorted(sent) == [0, 0, 1]


def test_after_a_refusal_no_answer_is_taken_for_another() -> None:
    refused: list[int] = []

    def answer(frame: Frame) -> Answer:
        if frame.api == Api.METADATA:
            return two_leaders(frame, one, other)
        (part,) = frame.body.topic_data[0].partition_data
        if part.index == 0 and not refused:
            refused.append(0)
            return produced(frame, ErrorCode.message_too_large)
        return produced(frame)

    with ScriptedNode(answer) as one, ScriptedNode(answer) as other, Cluster(one.bootstrap) as cluster:
        with pytest.raises(Refused, match="message_too_large"):
            cluster.produce("events", {0: BATCH, 1: BATCH})
        assert cluster.produce("events", {0: BATCH, 1: BATCH}) == {0: 40, 1: 41}
