"""A broker that only acknowledges: what a Kafka client reaches at best, with Python and a socket on the other side.

It parses each Produce request as ours does, keeps nothing, and answers with the next offset. It has one partition.
`python -m quorate.bench.kafka_acknowledging` says its port and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from datetime import timedelta
from typing import Any, cast

import uvloop
from kio.schema.errors import ErrorCode

from quorate import batch
from quorate.wire import produce
from quorate.wire.entities import make
from quorate.wire.messages import VERSIONS, Api, decode_request, encode_response, read_head, response_class

TOPIC = "acknowledged"
_SIZE = struct.Struct(">i")


class Acknowledging(asyncio.Protocol):
    port = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._arrived = bytearray()
        self._next_offset = 0

    def data_received(self, data: bytes) -> None:
        arrived = self._arrived
        arrived += data
        at, answers = 0, []
        while len(arrived) - at >= _SIZE.size:
            end = at + _SIZE.size + _SIZE.unpack_from(arrived, at)[0]
            if end > len(arrived):
                break
            answers.append(self._answer(bytes(arrived[at + _SIZE.size : end])))
            at = end
        del arrived[:at]
        self._transport.write(b"".join(answers))

    def _answer(self, frame: bytes) -> bytes | bytearray:
        head = read_head(frame)
        if head.api == Api.PRODUCE:
            request = produce.parse_request(frame, head.body_at, head.version)
            topics = [
                (topic.name, [self._taken(each.number, each.records) for each in topic.partitions])
                for topic in request.topics
            ]
            return produce.encode_response(head.version, head.correlation, topics)
        api = Api(head.api)
        body = make(response_class(api, head.version), self._values(api, frame))
        return encode_response(api, head.version, head.correlation, body)

    def _taken(self, number: int, records: memoryview | None) -> produce.PartitionAnswer:
        assert records is not None
        first = self._next_offset
        self._next_offset += batch.parse_batch_header(records).record_count
        return produce.PartitionAnswer(number, 0, first, 0)

    def _values(self, api: Api, frame: bytes) -> dict[str, Any]:
        values: dict[str, Any] = {"throttle_time": timedelta(0), "error_code": ErrorCode.none}
        if api == Api.API_VERSIONS:
            # As ours does: by what it finds here, a client chooses the format of its batches.
            served = [
                {"api_key": each, "min_version": least, "max_version": greatest}
                for each, (least, greatest) in VERSIONS.items()
            ]
            return values | {"api_keys": served}
        if api == Api.INIT_PRODUCER_ID:
            return values | {"producer_id": 1, "producer_epoch": 0}
        decode_request(frame)
        partition = {
            "error_code": ErrorCode.none,
            "partition_index": 0,
            "leader_id": 1,
            "leader_epoch": 1,
            "replica_nodes": (1,),
            "isr_nodes": (1,),
            "offline_replicas": (),
        }
        topic = {
            "error_code": ErrorCode.none,
            "name": TOPIC,
            "topic_id": None,
            "is_internal": False,
            "partitions": [partition],
        }
        broker = {"node_id": 1, "host": "127.0.0.1", "port": self.port, "rack": None}
        return values | {"brokers": [broker], "cluster_id": "none", "controller_id": 1, "topics": [topic]}


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Acknowledging, "127.0.0.1", 0)
    Acknowledging.port = server.sockets[0].getsockname()[1]
    print(Acknowledging.port, flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
