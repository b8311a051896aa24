"""Nodes on real sockets that answer as a test tells them: what a cluster does at its worst, on demand."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v7 import response as offsets_schema
from kio.schema.metadata.v12 import response as metadata_schema

from quorate.wire import fetch, tables
from quorate.wire.messages import Api, decode_request, encode_response, read_head

# kio's numbers are types of their own, which plain ones satisfy at run time.
Metadata: Any = metadata_schema.MetadataResponse
Broker: Any = metadata_schema.MetadataResponseBroker
Topic: Any = metadata_schema.MetadataResponseTopic
Partition: Any = metadata_schema.MetadataResponsePartition
Offsets: Any = offsets_schema.ListOffsetsResponse
OffsetsTopic: Any = offsets_schema.ListOffsetsTopicResponse
OffsetsPartition: Any = offsets_schema.ListOffsetsPartitionResponse

TOPIC_ID = bytes(range(16))
OTHER_ID = bytes(range(16, 32))
Answer = bytes | None
"""None: the connection is closed without an answer."""


class Frame:
    """A request: which api, and its body."""

    def __init__(self, frame: bytes) -> None:
        head = read_head(frame)
        self.api, self.version, self.correlation = head.api, head.version, head.correlation
        self.body: Any
        if self.api in (tables.TABLES_API, tables.TABLES_SCAN_API):
            self.body = tables.decode_request(frame[head.body_at :])
        elif self.api == Api.FETCH:
            self.body = fetch.parse_request(frame, head.body_at, head.version)
        else:
            self.body = decode_request(frame).body


class ScriptedNode:
    """`answer` is called in a thread of the connection; whatever it returns is sent."""

    def __init__(self, answer: Callable[[Frame], Answer]) -> None:
        self.asked: list[int] = []
        self.connections_count = 0

        class Handler(socketserver.StreamRequestHandler):
            def handle(handler) -> None:  # noqa: N805
                self.connections_count += 1
                while size := handler.rfile.read(4):
                    frame = Frame(handler.rfile.read(int.from_bytes(size, "big")))
                    self.asked.append(frame.api)
                    answered = answer(frame)
                    if answered is None:
                        return
                    handler.wfile.write(answered)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host, self.port = self._server.server_address[:2]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def bootstrap(self) -> str:
        return f"{self.host!s}:{self.port}"


def metadata(
    frame: Frame,
    leader: ScriptedNode | None,
    *,
    topic_id: bytes = TOPIC_ID,
    known: bool = True,
    partitions_count: int = 1,
    every: str = "",
) -> bytes:
    """One topic, whose partitions are led by node 7 at that address or by nobody. `every`: if all are asked for."""
    name = every if frame.body.topics is None else frame.body.topics[0].name
    leads = leader is not None
    brokers = (Broker(node_id=7, host=str(leader.host), port=leader.port),) if leader is not None else ()
    partitions = tuple(
        Partition(error_code=ErrorCode.none, partition_index=number, leader_id=7 if leads else -1)
        for number in range(partitions_count)
    )
    topic = Topic(
        error_code=ErrorCode.none if known else ErrorCode.unknown_topic_or_partition,
        name=name,
        topic_id=UUID(bytes=topic_id),
        partitions=partitions if known else (),
    )
    body = Metadata(throttle_time=timedelta(0), brokers=brokers, topics=(topic,))
    return encode_response(Api.METADATA, frame.version, frame.correlation, body)


def offsets(frame: Frame, *by_partition: int, error: ErrorCode = ErrorCode.none) -> bytes:
    """The offset of each partition that was asked for."""
    (topic,) = frame.body.topics
    partitions = tuple(
        OffsetsPartition(
            partition_index=asked.partition_index,
            error_code=error,
            timestamp=-1,
            offset=by_partition[asked.partition_index],
        )
        for asked in topic.partitions
    )
    body = Offsets(throttle_time=timedelta(0), topics=(OffsetsTopic(name=topic.name, partitions=partitions),))
    return encode_response(Api.LIST_OFFSETS, frame.version, frame.correlation, body)


def fetched(
    frame: Frame,
    batches: list[bytes],
    *,
    high_watermark: int = 0,
    error: ErrorCode = ErrorCode.none,
    aborted: Sequence[tuple[int, int]] = (),
) -> bytes:
    partition = fetch.FetchedPartition(
        0, int(error), high_watermark, 0, batches, sum(map(len, batches)), aborted=aborted
    )
    topic = fetch.FetchedTopic("", frame.body.topics[0].id, [partition])
    buffers, _ = fetch.encode_response(frame.version, frame.correlation, [topic])
    return b"".join(map(bytes, buffers))
