"""Every request and response that is served, in both directions, over kio's schemas.

A message on the wire is a size (four bytes), a header and a body. Which header belongs to which version of
which body is kio's knowledge; the one exception that Kafka makes, that an ApiVersions response always has
the oldest header so that a client of any age can read it, is in its schemas too.
"""

from __future__ import annotations

import io
import struct
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec
from kio.index import load_request_schema, load_response_schema
from kio.schema.response_header.v0.header import ResponseHeader as PlainResponseHeader
from kio.serial import entity_writer

from quorate.wire.cursor import REQUEST_ELEMENTS_MAX, BadMessage, Buffer, Cursor, after_tags
from quorate.wire.entities import entity_reader

SIZE_BYTES = 4
NO_NAME = -1


class Api(IntEnum):
    """What a request asks for; the numbers are Kafka's."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60


VERSIONS: dict[Api, tuple[int, int]] = {
    # From 0: with 3 as the least, librdkafka silently stops compressing. Below 3 there are no v2 batches.
    Api.PRODUCE: (0, 11),
    Api.FETCH: (4, 16),
    Api.LIST_OFFSETS: (1, 7),
    Api.METADATA: (0, 13),
    Api.OFFSET_COMMIT: (2, 9),
    Api.OFFSET_FETCH: (1, 9),
    Api.FIND_COORDINATOR: (0, 6),
    Api.JOIN_GROUP: (0, 9),
    Api.HEARTBEAT: (0, 4),
    Api.LEAVE_GROUP: (0, 5),
    Api.SYNC_GROUP: (0, 5),
    Api.DESCRIBE_GROUPS: (0, 6),
    Api.LIST_GROUPS: (0, 5),
    Api.SASL_HANDSHAKE: (0, 1),
    Api.API_VERSIONS: (0, 4),
    Api.CREATE_TOPICS: (2, 7),
    Api.DELETE_TOPICS: (1, 6),
    Api.DELETE_RECORDS: (0, 2),
    Api.INIT_PRODUCER_ID: (0, 5),
    # From 4 on nodes ask each other, which here they do by letters; and what changes the epoch with each
    # transaction (KIP-890, part 2) is not served.
    Api.ADD_PARTITIONS_TO_TXN: (0, 3),
    Api.ADD_OFFSETS_TO_TXN: (0, 3),
    Api.END_TXN: (0, 3),
    Api.TXN_OFFSET_COMMIT: (0, 3),
    Api.DESCRIBE_PRODUCERS: (0, 0),
    Api.DESCRIBE_TRANSACTIONS: (0, 0),
    Api.LIST_TRANSACTIONS: (0, 1),
    Api.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    Api.DESCRIBE_ACLS: (1, 3),
    Api.CREATE_ACLS: (1, 3),
    Api.DELETE_ACLS: (1, 3),
    Api.DESCRIBE_CONFIGS: (1, 4),
    Api.ALTER_CONFIGS: (0, 2),
    Api.DESCRIBE_LOG_DIRS: (1, 4),
    Api.SASL_AUTHENTICATE: (0, 2),
    Api.CREATE_PARTITIONS: (0, 3),
    Api.DELETE_GROUPS: (0, 2),
    Api.ELECT_LEADERS: (0, 2),
    Api.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    Api.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    Api.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    Api.OFFSET_DELETE: (0, 0),
    Api.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    Api.ALTER_CLIENT_QUOTAS: (0, 1),
    Api.DESCRIBE_QUORUM: (0, 2),
    Api.DESCRIBE_CLUSTER: (0, 1),
}
"""The least and the greatest version of each that is served, and that is told to clients."""

FLEXIBLE_FROM: dict[Api, int] = {
    Api.PRODUCE: 9,
    Api.FETCH: 12,
    Api.LIST_OFFSETS: 6,
    Api.METADATA: 9,
    Api.OFFSET_COMMIT: 8,
    Api.OFFSET_FETCH: 6,
    Api.FIND_COORDINATOR: 3,
    Api.JOIN_GROUP: 6,
    Api.HEARTBEAT: 4,
    Api.LEAVE_GROUP: 4,
    Api.SYNC_GROUP: 4,
    Api.DESCRIBE_GROUPS: 5,
    Api.LIST_GROUPS: 3,
    Api.SASL_HANDSHAKE: 2,
    Api.API_VERSIONS: 3,
    Api.CREATE_TOPICS: 5,
    Api.DELETE_TOPICS: 4,
    Api.DELETE_RECORDS: 2,
    Api.INIT_PRODUCER_ID: 2,
    Api.ADD_PARTITIONS_TO_TXN: 3,
    Api.ADD_OFFSETS_TO_TXN: 3,
    Api.END_TXN: 3,
    Api.TXN_OFFSET_COMMIT: 3,
    Api.DESCRIBE_PRODUCERS: 0,
    Api.DESCRIBE_TRANSACTIONS: 0,
    Api.LIST_TRANSACTIONS: 0,
    Api.OFFSET_FOR_LEADER_EPOCH: 4,
    Api.DESCRIBE_ACLS: 2,
    Api.CREATE_ACLS: 2,
    Api.DELETE_ACLS: 2,
    Api.DESCRIBE_CONFIGS: 4,
    Api.ALTER_CONFIGS: 2,
    Api.DESCRIBE_LOG_DIRS: 2,
    Api.SASL_AUTHENTICATE: 2,
    Api.CREATE_PARTITIONS: 2,
    Api.DELETE_GROUPS: 2,
    Api.ELECT_LEADERS: 2,
    Api.INCREMENTAL_ALTER_CONFIGS: 1,
    Api.ALTER_PARTITION_REASSIGNMENTS: 0,
    Api.LIST_PARTITION_REASSIGNMENTS: 0,
    Api.OFFSET_DELETE: 1,
    Api.DESCRIBE_CLIENT_QUOTAS: 1,
    Api.ALTER_CLIENT_QUOTAS: 1,
    Api.DESCRIBE_QUORUM: 0,
    Api.DESCRIBE_CLUSTER: 0,
}
"""From which version on lengths are varints and structures end with tagged fields."""


class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """A request's header, and where its body starts in the frame."""

    api: int
    version: int
    correlation: int
    client_id: str | None
    body_at: int


class Request(NamedTuple):
    """A whole request; the body is one of kio's."""

    api: Api
    version: int
    correlation: int
    client_id: str | None
    body: Any


_REQUEST_HEAD = struct.Struct(">hhih")
"""The last number is how long the client's name is, which follows."""
_FLEXIBLE = frozenset(
    (int(api), version)
    for api, (least, greatest) in VERSIONS.items()
    for version in range(least, greatest + 1)
    if version >= FLEXIBLE_FROM[api]
)


def is_served(api: int, version: int) -> bool:
    least, greatest = VERSIONS.get(api, (0, -1))  # type: ignore[call-overload]
    return bool(least <= version <= greatest)


def is_flexible(api: int, version: int) -> bool:
    return version >= FLEXIBLE_FROM[api]  # type: ignore[index]


def request_class(api: Api, version: int) -> type[Any]:
    return load_request_schema(api, version)


def response_class(api: Api, version: int) -> type[Any]:
    return load_response_schema(api, version)


# ---- requests ----


def read_head(frame: Buffer) -> RequestHead:
    """The header of a request (a frame is a message without its size). Works for any api, known or not.

    An api or version that is not served may have tagged fields in its header; `body_at` is right only for
    those that are.
    """
    end, name_at = len(frame), _REQUEST_HEAD.size
    if end < name_at:
        raise BadMessage(f"the message ends at byte {end}, inside a field")
    api, version, correlation, name_bytes = _REQUEST_HEAD.unpack_from(frame)
    client_id, at = None, name_at
    if name_bytes != NO_NAME:
        at += name_bytes
        if not name_at <= at <= end:
            raise BadMessage(f"a client's name of {name_bytes} bytes, {end - name_at} are left")
        try:
            client_id = str(frame[name_at:at], "utf-8")
        except UnicodeDecodeError:
            raise BadMessage("the client's name is not UTF-8") from None
    if (api, version) in _FLEXIBLE:
        at = at + 1 if at < end and not frame[at] else after_tags(frame, at)
    return RequestHead(api, version, correlation, client_id, at)


def decode_request(frame: Buffer) -> Request:
    """A request that is served, whole; raises BadMessage for any other.

    Bytes behind it are ignored, as Kafka does: librdkafka leaves three there when it asks for all topics.
    """
    head = read_head(frame)
    if not is_served(head.api, head.version):
        raise BadMessage(f"request {head.api} version {head.version} is not served")
    api = Api(head.api)
    cursor = Cursor(frame, head.body_at, elements_max=REQUEST_ELEMENTS_MAX)
    body = entity_reader(request_class(api, head.version))(cursor)
    return Request(api, head.version, head.correlation, head.client_id, body)


def encode_request(api: Api, version: int, correlation: int, client_id: str | None, body: Any) -> bytes:
    assert isinstance(body, request_class(api, version)), (api, version, body)
    header = body.__header_schema__(
        request_api_key=api, request_api_version=version, correlation_id=correlation, client_id=client_id
    )
    return _sealed(header, body)


# ---- responses ----


def encode_response(api: Api, version: int, correlation: int, body: Any) -> bytes:
    assert isinstance(body, response_class(api, version)), (api, version, body)
    return _sealed(body.__header_schema__(correlation_id=correlation), body)


def decode_response(api: Api, version: int, frame: Buffer) -> tuple[int, Any]:
    """Correlation and body; raises BadMessage."""
    schema = response_class(api, version)
    cursor = Cursor(frame)
    correlation = cursor.i32()
    if schema.__header_schema__ is not PlainResponseHeader:
        cursor.skip_tags()
    body = entity_reader(schema)(cursor)
    cursor.finish()
    return correlation, body


def _sealed(header: Any, body: Any) -> bytes:
    buffer = io.BytesIO()
    buffer.write(bytes(SIZE_BYTES))
    entity_writer(type(header))(buffer, header)
    entity_writer(type(body))(buffer, body)
    size = buffer.tell() - SIZE_BYTES
    buffer.seek(0)
    buffer.write(size.to_bytes(SIZE_BYTES, "big"))
    return buffer.getvalue()
