"""Produce by hand says exactly what kio says, in every version."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from quorate.wire.cursor import BadMessage
from quorate.wire.entities import make
from quorate.wire.messages import (
    SIZE_BYTES,
    VERSIONS,
    Api,
    decode_response,
    encode_request,
    read_head,
    request_class,
)
from quorate.wire.produce import (
    NO_TIMESTAMP,
    PartitionAnswer,
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    Requests,
    encode_response,
    parse_request,
)
from tests.unit.wire.making import KIO_FROM, entities

BY_KIO = range(KIO_FROM[Api.PRODUCE], VERSIONS[Api.PRODUCE][1] + 1)
SMALL = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
INT64 = st.integers(-(2**63), 2**63 - 1)
ANSWERS = st.builds(
    PartitionAnswer,
    number=st.integers(0, 2**31 - 1),
    error=st.sampled_from([int(code) for code in ErrorCode]),
    offset=INT64,
    log_start=INT64,
    message=st.none() | st.text(max_size=200),
    append_time=st.just(NO_TIMESTAMP) | st.integers(0, 1 << 42),
)


@pytest.mark.parametrize("version", BY_KIO)
def test_requests_are_read_as_kio_wrote_them(version: int) -> None:
    @SMALL
    @given(body=entities(request_class(Api.PRODUCE, version)))
    def check(body: Any) -> None:
        frame = bytearray(encode_request(Api.PRODUCE, version, 5, "me", body)[SIZE_BYTES:])
        request = parse_request(frame, read_head(frame).body_at, version)
        assert request.transactional_id == body.transactional_id
        assert request.acks == body.acks
        assert request.timeout_ms == round(body.timeout.total_seconds() * 1000)
        assert [
            (topic.name, [(part.number, part.records) for part in topic.partitions])
            for topic in request.topics
        ] == [
            (topic.name, [(part.index, part.records) for part in topic.partition_data])
            for topic in body.topic_data
        ]

    check()


@pytest.mark.parametrize("version", BY_KIO)
def test_requests_of_one_connection_are_read_as_each_by_itself(version: int) -> None:
    """Whatever came before: the same again, another partition or batch of the topic, or something else."""

    def frame_of(body: Any) -> bytearray:
        return bytearray(encode_request(Api.PRODUCE, version, 5, "me", body)[SIZE_BYTES:])

    def only(body: Any, number: int, records: bytes) -> Any:
        topic = body.topic_data[0]
        part = replace(topic.partition_data[0], index=number, records=records)
        return replace(body, topic_data=(replace(topic, partition_data=(part,)),))

    @SMALL
    @given(
        bodies=st.lists(entities(request_class(Api.PRODUCE, version)), min_size=1, max_size=3),
        batches=st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=90)), max_size=4),
        cut=st.integers(0, 40),
    )
    def check(bodies: list[Any], batches: list[tuple[int, bytes]], cut: int) -> None:
        frames = []
        for body in bodies:
            frames.append(frame_of(body))
            if body.topic_data and body.topic_data[0].partition_data:
                frames += [frame_of(only(body, number, records)) for number, records in batches]
        frames.append(frames[-1][: max(len(frames[-1]) - cut, 0)])
        requests = Requests()
        for frame in frames:
            assert _told(requests.parse, frame, version) == _told(parse_request, frame, version)

    check()


def _told(parse: Any, frame: bytearray, version: int) -> Any:
    """What was read, or that nothing could be."""
    try:
        request = parse(frame, read_head(frame).body_at, version)
    except BadMessage:
        return BadMessage
    topics = [
        (topic.name, [(part.number, part.records) for part in topic.partitions]) for topic in request.topics
    ]
    return request.transactional_id, request.acks, request.timeout_ms, topics


def moment(time_ms: int) -> datetime | None:
    """As kio has it."""
    if time_ms == NO_TIMESTAMP:
        return None
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)


@pytest.mark.parametrize("version", BY_KIO)
def test_responses_are_read_by_kio_as_they_were_meant(version: int) -> None:
    @SMALL
    @given(topics=st.lists(st.tuples(st.text(max_size=200), st.lists(ANSWERS, max_size=3)), max_size=3))
    def check(topics: list[tuple[str, list[PartitionAnswer]]]) -> None:
        message = encode_response(version, 42, topics)
        assert int.from_bytes(message[:SIZE_BYTES], "big") == len(message) - SIZE_BYTES
        correlation, body = decode_response(Api.PRODUCE, version, message[SIZE_BYTES:])
        assert correlation == 42
        assert [topic.name for topic in body.responses] == [name for name, _ in topics]
        for topic, (_, answers) in zip(body.responses, topics, strict=True):
            for part, answer in zip(topic.partition_responses, answers, strict=True):
                assert (part.index, part.error_code) == (answer.number, answer.error)
                assert part.base_offset == answer.offset
                assert part.log_append_time == moment(answer.append_time)
                assert getattr(part, "log_start_offset", answer.log_start) == answer.log_start
                assert getattr(part, "error_message", answer.message) == answer.message

    check()


def old_request(version: int) -> bytes:
    """As clients of before record batches write it; kio has no schema for it."""
    head = Api.PRODUCE.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff"
    records = b"sixteen bytes, \0"
    return (
        head
        + b"\xff\xff"  # acks
        + (1500).to_bytes(4, "big")
        + (1).to_bytes(4, "big")
        + b"\0\5topic"
        + (1).to_bytes(4, "big")
        + (7).to_bytes(4, "big")
        + len(records).to_bytes(4, "big")
        + records
    )


@pytest.mark.parametrize("version", [0, 1, 2])
def test_requests_of_before_record_batches_are_read_too(version: int) -> None:
    frame = old_request(version)
    request = parse_request(frame, read_head(frame).body_at, version)
    partition = ProducedPartition(7, memoryview(b"sixteen bytes, \0"))
    assert request == ProduceRequest(None, -1, 1500, [ProducedTopic("topic", [partition])])


@pytest.mark.parametrize(("version", "size"), [(0, 4 + 2 + 1 + 4 + 14), (1, 29), (2, 37)])
def test_responses_of_before_record_batches(version: int, size: int) -> None:
    message = encode_response(version, 1, [("t", [PartitionAnswer(0, 43)])])
    assert len(message) == 4 + 4 + size


def test_records_are_writable_views_of_what_was_received() -> None:
    frame = bytearray(old_request(0))
    request = parse_request(frame, read_head(frame).body_at, 0)
    records = request.topics[0].partitions[0].records
    assert records is not None
    records[:7] = b"SIXTEEN"
    assert b"SIXTEEN bytes" in frame


@pytest.mark.parametrize("version", [0, 3, 8, 9, 11])
def test_a_request_cut_anywhere_is_a_bad_message(version: int) -> None:
    frame = old_request(version)
    if version >= 3:
        body = request_class(Api.PRODUCE, version)
        made = make_request(body)
        frame = encode_request(Api.PRODUCE, version, 5, "me", made)[SIZE_BYTES:]
    at = read_head(frame).body_at
    parse_request(frame, at, version)
    for length in range(at, len(frame)):
        with pytest.raises(BadMessage):
            parse_request(frame[:length], at, version)
    assert parse_request(frame + b"more", at, version) == parse_request(frame, at, version)


def make_request(entity: type[Any]) -> Any:
    partitions = [{"index": 3, "records": b"records"}, {"index": 4, "records": None}]
    topics = [{"name": "one", "partition_data": partitions}]
    return make(
        entity,
        {"transactional_id": None, "acks": -1, "timeout": timedelta(seconds=1), "topic_data": topics},
    )


@settings(max_examples=400, deadline=None)
@given(version=st.integers(*VERSIONS[Api.PRODUCE]), noise=st.binary(max_size=80))
def test_noise_is_read_or_refused_and_nothing_else(version: int, noise: bytes) -> None:
    try:
        parse_request(noise, 0, version)
    except BadMessage:
        pass


@pytest.mark.parametrize("version", [0, 11])
def test_a_list_longer_than_the_request_is_refused_before_anything_is_made(version: int) -> None:
    start = b"\xff\xff" + bytes(4) if version == 0 else b"\0" + b"\xff\xff" + bytes(4)
    count = b"\x7f\xff\xff\xff" if version == 0 else b"\xff\xff\xff\xff\x0f"
    with pytest.raises(BadMessage, match="elements cannot be in"):
        parse_request(start + count + bytes(20), 0, version)
