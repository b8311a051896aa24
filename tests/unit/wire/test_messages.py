"""Every request and response that is served: written by kio, read by us, and the same again."""

from __future__ import annotations

import dataclasses
import io
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from quorate.wire.cursor import REQUEST_ELEMENTS_MAX, BadMessage
from quorate.wire.messages import (
    SIZE_BYTES,
    VERSIONS,
    Api,
    RequestHead,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    is_served,
    read_head,
    request_class,
    response_class,
)
from tests.unit.wire.making import KIO_FROM, entities

SERVED = [
    (api, version)
    for api, (least, greatest) in VERSIONS.items()
    for version in range(max(least, KIO_FROM.get(api, 0)), greatest + 1)
]


@pytest.mark.parametrize(("api", "version"), SERVED)
def test_request_comes_back_as_it_was_written(api: Api, version: int) -> None:
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(body=entities(request_class(api, version)), client_id=st.none() | st.text(max_size=20))
    def check(body: Any, client_id: str | None) -> None:
        message = encode_request(api, version, 77, client_id, body)
        assert int.from_bytes(message[:SIZE_BYTES], "big") == len(message) - SIZE_BYTES
        assert decode_request(message[SIZE_BYTES:]) == (api, version, 77, client_id, body)

    check()


@pytest.mark.parametrize(("api", "version"), SERVED)
def test_response_comes_back_as_it_was_written(api: Api, version: int) -> None:
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(body=entities(response_class(api, version)))
    def check(body: Any) -> None:
        message = encode_response(api, version, -3, body)
        assert int.from_bytes(message[:SIZE_BYTES], "big") == len(message) - SIZE_BYTES
        assert decode_response(api, version, message[SIZE_BYTES:]) == (-3, body)

    check()


@pytest.mark.parametrize(("api", "version"), SERVED)
def test_request_cut_anywhere_is_a_bad_message(api: Api, version: int) -> None:
    @settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
    @given(body=entities(request_class(api, version)))
    def check(body: Any) -> None:
        frame = encode_request(api, version, 1, "client", body)[SIZE_BYTES:]
        for length in range(0, len(frame), 1 + len(frame) // 50):
            with pytest.raises(BadMessage):
                decode_request(frame[:length])

    check()


@settings(max_examples=300, deadline=None)
@given(served=st.sampled_from(SERVED), noise=st.binary(max_size=60))
def test_noise_is_read_or_refused_and_nothing_else(served: tuple[Api, int], noise: bytes) -> None:
    api, version = served
    start = api.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff"
    try:
        decode_request(start + noise)
    except BadMessage:
        pass


def test_two_billion_elements_in_a_few_bytes_are_refused_before_anything_is_made() -> None:
    start = Api.METADATA.to_bytes(2, "big")
    old, flexible = start + (4).to_bytes(2, "big"), start + (9).to_bytes(2, "big")
    with pytest.raises(BadMessage, match="2147483647 elements"):
        decode_request(old + bytes(4) + b"\xff\xff" + b"\x7f\xff\xff\xff" + bytes(30))
    with pytest.raises(BadMessage, match="4294967294 elements"):
        decode_request(flexible + bytes(4) + b"\xff\xff\0" + b"\xff\xff\xff\xff\x0f" + bytes(30))


def test_millions_of_tiny_elements_are_refused_before_the_first_is_read() -> None:
    start = Api.METADATA.to_bytes(2, "big") + (1).to_bytes(2, "big") + bytes(4) + b"\xff\xff"
    name = b"\0\1a"
    most = decode_request(start + REQUEST_ELEMENTS_MAX.to_bytes(4, "big") + REQUEST_ELEMENTS_MAX * name)
    assert len(most.body.topics) == REQUEST_ELEMENTS_MAX
    many = REQUEST_ELEMENTS_MAX + 1
    with pytest.raises(
        BadMessage, match=f"{many} elements at byte 14; {REQUEST_ELEMENTS_MAX} more are taken"
    ):
        decode_request(start + many.to_bytes(4, "big") + many * name)


def test_unserved_versions_are_known_by_their_head_and_refused() -> None:
    assert not is_served(Api.METADATA, 99)
    assert not is_served(7, 0)
    frame = (7).to_bytes(2, "big") + bytes(2) + (5).to_bytes(4, "big") + b"\0\2me"
    assert read_head(frame) == RequestHead(7, 0, 5, "me", len(frame))
    with pytest.raises(BadMessage, match="request 7 version 0 is not served"):
        decode_request(frame)


def test_api_versions_response_has_the_oldest_header_in_every_version() -> None:
    for version in range(5):
        body = response_class(Api.API_VERSIONS, version)
        fields = {field.name for field in dataclasses.fields(body)}
        kwargs: dict[str, Any] = {"error_code": ErrorCode.none, "api_keys": ()}
        if "throttle_time" in fields:
            kwargs["throttle_time"] = timedelta(0)
        message = encode_response(Api.API_VERSIONS, version, 9, body(**kwargs))
        # Size and correlation, and then the body: no tagged fields in between.
        assert message[8:10] == b"\0\0"
        assert len(message) == 8 + body_size(body(**kwargs))


def body_size(body: Any) -> int:
    buffer = io.BytesIO()
    entity_writer(type(body))(buffer, body)
    return len(buffer.getvalue())


def test_what_librdkafka_leaves_behind_a_request_for_all_topics_is_ignored() -> None:
    """Recorded from librdkafka 2.16: the null list is written as four bytes, where one would do."""
    frame = bytes.fromhex("0003000d000000030007 72646b61666b61 00 00000000 010000")
    request = decode_request(frame)
    assert request[:4] == (Api.METADATA, 13, 3, "rdkafka")
    assert request.body.topics is None
