"""Fetch by hand says exactly what kio says, in every version and in both directions."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from msgspec import structs

from quorate.batch import encode_records
from quorate.wire import fetch
from quorate.wire.cursor import BadMessage
from quorate.wire.fetch import (
    NO_TOPIC_ID,
    FetchedPartition,
    FetchedTopic,
    FetchRequest,
    WantedPartition,
    WantedTopic,
)
from quorate.wire.messages import (
    SIZE_BYTES,
    VERSIONS,
    Api,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_head,
    request_class,
    response_class,
)
from tests.unit.wire.making import entities

LEAST, GREATEST = VERSIONS[Api.FETCH]
EVERY = range(LEAST, GREATEST + 1)
SMALL = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
BATCHES = st.lists(
    st.lists(st.tuples(st.none(), st.binary(max_size=200)), min_size=1, max_size=3).map(encode_records),
    max_size=3,
)


@st.composite
def fetched_partitions(draw: st.DrawFn) -> FetchedPartition:
    batches = draw(BATCHES)
    error = draw(st.sampled_from([int(code) for code in ErrorCode]))
    size = sum(map(len, batches))
    aborted = draw(st.lists(st.tuples(INT64, INT64), max_size=3))
    return FetchedPartition(
        draw(INT32), error, draw(INT64), draw(INT64), batches, size, None, draw(INT64), aborted
    )


def name_or_id(version: int, name: str, topic_id: bytes) -> tuple[str, bytes]:
    return ("", topic_id) if version >= 13 else (name, NO_TOPIC_ID)


def same_topic(version: int, topic: Any, name: str, topic_id: bytes) -> bool:
    if version < 13:
        return bool(topic.topic == name)
    return bool((topic.topic_id or uuid.UUID(int=0)).bytes == topic_id)


@pytest.mark.parametrize("version", EVERY)
def test_requests_are_read_as_kio_wrote_them(version: int) -> None:
    @SMALL
    @given(body=entities(request_class(Api.FETCH, version)))
    def check(body: Any) -> None:
        frame = encode_request(Api.FETCH, version, 5, "me", body)[SIZE_BYTES:]
        request = fetch.parse_request(frame, read_head(frame).body_at, version)
        assert request.wait_ms == round(body.max_wait.total_seconds() * 1000)
        assert (request.bytes_min, request.bytes_max) == (body.min_bytes, body.max_bytes)
        assert request.isolation == body.isolation_level
        for topic, theirs in zip(request.topics, body.topics, strict=True):
            assert same_topic(version, theirs, topic.name, topic.id)
            for wanted, asked in zip(topic.partitions, theirs.partitions, strict=True):
                assert wanted.number == asked.partition
                assert wanted.offset == asked.fetch_offset
                assert wanted.bytes_max == asked.partition_max_bytes
                assert wanted.leader_epoch == getattr(asked, "current_leader_epoch", -1)
                assert wanted.last_epoch == getattr(asked, "last_fetched_epoch", -1)

    check()


FEW = st.integers(0, 3)
WANTED = st.builds(WantedPartition, FEW, FEW, st.just(100), FEW, FEW)
ASKED = st.builds(
    FetchRequest,
    st.integers(0, 2),
    st.just(1),
    st.just(100),
    st.lists(
        st.builds(
            WantedTopic, st.sampled_from(("a", "b")), st.just(NO_TOPIC_ID), st.lists(WANTED, max_size=2)
        )
    ),
    st.sampled_from((0, 1)),
    st.integers(0, 1),
    st.integers(-1, 3),
    st.lists(
        st.tuples(st.just("a"), st.just(NO_TOPIC_ID), st.lists(st.integers(0, 3), max_size=2)), max_size=2
    ),
)


@settings(max_examples=100, deadline=None)
@given(
    several=st.lists(
        st.tuples(st.sampled_from((4, 7, 11, 12, 16)), ASKED, st.integers(-2, 2)), min_size=2, max_size=8
    )
)
def test_a_request_of_a_connection_is_read_as_if_it_were_the_first(
    several: list[tuple[int, FetchRequest, int]],
) -> None:
    requests = fetch.Requests()
    for version, request, more in several:
        frame = fetch.encode_request(version, 1, "me", request)[SIZE_BYTES:]
        frame = frame[:more] if more < 0 else frame + bytes(more)  # Cut off, or with something behind it.
        at = read_head(frame).body_at
        try:
            alone = fetch.parse_request(frame, at, version)
        except BadMessage:
            with pytest.raises(BadMessage):
                requests.parse(frame, at, version)
            continue
        assert requests.parse(frame, at, version) == alone
        assert requests.parse(bytes(frame), at, version) == alone


def test_what_the_next_request_names_again_is_not_read_again() -> None:
    def asked(session_epoch: int, partitions: int = 1) -> FetchRequest:
        wanted = [WantedPartition(number, 5, 100) for number in range(partitions)]
        topics = [WantedTopic("topic", NO_TOPIC_ID, wanted)]
        return FetchRequest(1, 1, 1, topics, session=7, session_epoch=session_epoch)

    def read(request: FetchRequest) -> FetchRequest:
        frame = fetch.encode_request(12, 1, "me", request)[SIZE_BYTES:]
        found = requests.parse(frame, read_head(frame).body_at, 12)
        assert found == structs.replace(request, forgotten=[])
        return found

    requests = fetch.Requests()
    assert read(asked(1)).topics is read(asked(2)).topics
    assert read(asked(3, 2)).topics is not read(asked(4)).topics
    many = fetch.NAMED_BYTES_MAX // 8
    assert read(asked(5, many)).topics is not read(asked(6, many)).topics, "what is long is not kept"


def carried(version: int, part: WantedPartition) -> WantedPartition:
    """What a version has room for."""
    part = part if version >= 9 else structs.replace(part, leader_epoch=-1)
    return part if version >= 12 else structs.replace(part, last_epoch=-1)


@pytest.mark.parametrize("version", EVERY)
def test_requests_are_read_by_kio_as_they_were_meant(version: int) -> None:
    wanted = st.builds(WantedPartition, INT32, INT64, INT32, INT32, INT32)
    forgotten = st.lists(
        st.tuples(st.text(max_size=20), st.binary(min_size=16, max_size=16), st.lists(INT32, max_size=3)),
        max_size=2,
    )
    topics = st.builds(
        WantedTopic, st.text(max_size=20), st.binary(min_size=16, max_size=16), st.lists(wanted)
    )

    @SMALL
    @given(
        request=st.builds(
            FetchRequest, INT32, INT32, INT32, st.lists(topics), st.integers(0, 1), INT32, INT32, forgotten
        )
    )
    def check(request: FetchRequest) -> None:
        message = fetch.encode_request(version, 9, "me", request)
        assert int.from_bytes(message[:SIZE_BYTES], "big") == len(message) - SIZE_BYTES
        decoded = decode_request(message[SIZE_BYTES:])
        assert decoded[:4] == (Api.FETCH, version, 9, "me")
        assert len(decoded.body.topics) == len(request.topics)
        # What kio reads is compared above; here, that nothing is lost on the way through.
        again = fetch.parse_request(message, SIZE_BYTES + read_head(message[SIZE_BYTES:]).body_at, version)
        assert again == structs.replace(
            request,
            topics=[
                WantedTopic(
                    *name_or_id(version, topic.name, topic.id),
                    [carried(version, part) for part in topic.partitions],
                )
                for topic in request.topics
            ],
            session=request.session if version >= 7 else 0,
            session_epoch=request.session_epoch if version >= 7 else -1,
            forgotten=[
                (*name_or_id(version, name, topic_id), numbers)
                for name, topic_id, numbers in request.forgotten
            ]
            if version >= 7
            else [],
        )

    check()


@pytest.mark.parametrize("version", EVERY)
def test_responses_are_read_by_kio_and_by_us_as_they_were_meant(version: int) -> None:
    topics_strategy = st.lists(
        st.builds(
            FetchedTopic,
            st.text(max_size=200),
            st.binary(min_size=16, max_size=16),
            st.lists(fetched_partitions(), max_size=3),
        ),
        max_size=3,
    )

    @SMALL
    @given(topics=topics_strategy)
    def check(topics: list[FetchedTopic]) -> None:
        buffers, size = fetch.encode_response(version, 42, topics)
        message = b"".join(buffers)
        assert len(message) == size
        assert int.from_bytes(message[:SIZE_BYTES], "big") == size - SIZE_BYTES
        correlation, body = decode_response(Api.FETCH, version, message[SIZE_BYTES:])
        assert correlation == 42
        for theirs, topic in zip(body.responses, topics, strict=True):
            assert same_topic(version, theirs, topic.name, topic.id)
            for part, fetched in zip(theirs.partitions, topic.partitions, strict=True):
                assert (part.partition_index, part.error_code) == (fetched.number, fetched.error)
                assert part.high_watermark == fetched.high_watermark
                assert part.last_stable_offset == fetched.last_stable
                assert getattr(part, "log_start_offset", fetched.log_start) == fetched.log_start
                assert part.records == b"".join(map(bytes, fetched.batches))
                aborted = [(each.producer_id, each.first_offset) for each in part.aborted_transactions]
                assert aborted == fetched.aborted
        correlation, error, ours = fetch.parse_response(message[SIZE_BYTES:], version)
        assert (correlation, error) == (42, 0)
        for read, topic in zip(ours, topics, strict=True):
            assert (read.name, read.id) == name_or_id(version, topic.name, topic.id)
            for got, fetched in zip(read.partitions, topic.partitions, strict=True):
                log_start = fetched.log_start if version >= 5 else -1
                assert got == structs.replace(fetched, log_start=log_start)

    check()


@pytest.mark.parametrize("version", EVERY)
def test_responses_of_any_broker_are_read_or_refused(version: int) -> None:
    """Kio writes what other brokers may: aborted transactions, tagged fields, records that are no batches."""

    @SMALL
    @given(body=entities(response_class(Api.FETCH, version)))
    def check(body: Any) -> None:
        frame = encode_response(Api.FETCH, version, 8, body)[SIZE_BYTES:]
        try:
            correlation, _, topics = fetch.parse_response(frame, version)
        except BadMessage as error:
            assert "record batch" in str(error)  # noqa: PT017 - the only thing that may be wrong with it
            return
        assert correlation == 8
        assert [len(topic.partitions) for topic in topics] == [len(t.partitions) for t in body.responses]

    check()


def test_batches_are_handed_through_without_a_copy() -> None:
    batch = encode_records([(None, b"value")])
    fetched = FetchedPartition(0, 0, 1, 0, [batch], len(batch))
    buffers, _ = fetch.encode_response(12, 1, [FetchedTopic("t", NO_TOPIC_ID, [fetched])])
    assert buffers[1] is batch


def test_a_batch_cut_off_at_the_end_is_left_out() -> None:
    first, second = encode_records([(None, b"one")]), encode_records([(None, b"two")])
    assert fetch.split_batches(memoryview(first + second[:-1])) == [first]
    assert fetch.split_batches(memoryview(first + second)) == [first, second]


def test_a_batch_that_says_it_is_shorter_than_any_batch_is_refused() -> None:
    batch = bytearray(encode_records([(None, b"one")]))
    batch[8:12] = (-12).to_bytes(4, "big", signed=True)
    with pytest.raises(BadMessage, match="0 bytes is too short"):
        fetch.split_batches(memoryview(batch))


@settings(max_examples=400, deadline=None)
@given(version=st.integers(LEAST, GREATEST), noise=st.binary(max_size=120))
def test_noise_is_read_or_refused_and_nothing_else(version: int, noise: bytes) -> None:
    for read in (
        lambda: fetch.parse_request(noise, 0, version),
        lambda: fetch.parse_response(noise, version),
    ):
        try:
            read()
        except BadMessage:
            pass


@pytest.mark.parametrize("version", EVERY)
def test_a_message_cut_anywhere_is_a_bad_message(version: int) -> None:
    topic_id = uuid.UUID(int=7).bytes
    wanted = WantedTopic("topic", topic_id, [WantedPartition(0, 5, 100)])
    frame = fetch.encode_request(version, 1, None, FetchRequest(1, 1, 1, [wanted]))[SIZE_BYTES:]
    at = read_head(frame).body_at
    for length in range(at, len(frame)):
        with pytest.raises(BadMessage):
            fetch.parse_request(frame[:length], at, version)
    batch = encode_records([(None, b"value")])
    part = FetchedPartition(0, 0, 1, 0, [batch], len(batch))
    buffers, _ = fetch.encode_response(version, 1, [FetchedTopic("topic", topic_id, [part])])
    response = b"".join(buffers)[SIZE_BYTES:]
    for length in range(len(response)):
        with pytest.raises(BadMessage):
            fetch.parse_response(response[:length], version)


@pytest.mark.parametrize("version", [4, 16])
def test_a_list_longer_than_the_request_is_refused_before_anything_is_made(version: int) -> None:
    start = bytes(4 + 13) if version == 4 else bytes(13 + 8)
    count = b"\x7f\xff\xff\xff" if version == 4 else b"\xff\xff\xff\xff\x0f"
    with pytest.raises(BadMessage, match="elements cannot be in"):
        fetch.parse_request(start + count + bytes(20), 0, version)
