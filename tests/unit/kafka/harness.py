"""One real node that serves Kafka clients, in this process and event loop, and a client that sends any bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Self

import uvloop

from quorate.bench.cluster_processes import free_ports
from quorate.core.raft import Tuning
from quorate.kafka import guests
from quorate.node import Node, NodeConfig
from quorate.node.config import check_config
from quorate.node.directory import format_directory
from quorate.node.listeners import ListenerConfig
from quorate.wire import fetch
from quorate.wire.entities import make
from quorate.wire.fetch import FetchedPartition, FetchRequest, WantedPartition, WantedTopic
from quorate.wire.messages import (
    SIZE_BYTES,
    VERSIONS,
    Api,
    decode_response,
    encode_request,
    request_class,
)

TIMEOUT_S = 10.0
POLL_S = 0.005
QUICK = Tuning(election_timeout_s=0.05, heartbeat_s=0.02)


class Served:
    """The node, what it said, and a way to talk to it."""

    def __init__(self, node: Node, port: int, said: list[str]) -> None:
        self.node = node
        self.port = port
        self.said = said

    async def connect(self) -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        return Connection(reader, writer)


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    # --- bytes ---

    async def send(self, content: bytes | bytearray) -> None:
        self.writer.write(content)
        await self.writer.drain()

    async def receive(self) -> bytes:
        """One response, without its size."""
        async with asyncio.timeout(TIMEOUT_S):
            size = int.from_bytes(await self.reader.readexactly(SIZE_BYTES), "big")
            return await self.reader.readexactly(size)

    async def is_closed(self) -> bool:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.reader.read(1) == b""

    # --- requests ---

    def request(self, api: Api, values: dict[str, Any], version: int | None = None) -> bytes:
        self._correlation += 1
        chosen = VERSIONS[api][1] if version is None else version
        body = make(request_class(api, chosen), values)
        return encode_request(api, chosen, self._correlation, "test", body)

    async def ask(self, api: Api, values: dict[str, Any], version: int | None = None) -> Any:
        await self.send(self.request(api, values, version))
        chosen = VERSIONS[api][1] if version is None else version
        correlation, body = decode_response(api, chosen, await self.receive())
        assert correlation == self._correlation
        return body

    async def create(self, name: str, *, partitions: int = 1, copies: int = -1, **config: str) -> Any:
        settings = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": copies,
            "assignments": [],
            "configs": settings,
        }
        values = {"topics": [topic], "timeout": timedelta(seconds=5), "validate_only": False}
        (answer,) = (await self.ask(Api.CREATE_TOPICS, values)).topics
        return answer

    async def produce(
        self,
        topic: str,
        batch: bytes | None,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int | None = None,
    ) -> Any:
        """The answer for the one partition."""
        body = await self.ask(Api.PRODUCE, produce_values(topic, batch, partition, acks), version)
        return body.responses[0].partition_responses[0]

    async def fetch(
        self,
        topic: str,
        offset: int,
        *,
        wait_ms: int = 0,
        bytes_min: int = 1,
        bytes_max: int = 1 << 20,
        partition_bytes_max: int = 1 << 20,
        leader_epoch: int = -1,
        version: int = 12,
    ) -> FetchedPartition:
        wanted = WantedPartition(0, offset, partition_bytes_max, leader_epoch)
        request = FetchRequest(wait_ms, bytes_min, bytes_max, [WantedTopic(topic, bytes(16), [wanted])])
        return (await self.fetch_all(request, version))[0]

    async def fetch_all(self, request: FetchRequest, version: int = 12) -> list[FetchedPartition]:
        self._correlation += 1
        await self.send(fetch.encode_request(version, self._correlation, "test", request))
        correlation, error, topics = fetch.parse_response(await self.receive(), version)
        assert (correlation, error) == (self._correlation, 0)
        return [partition for topic in topics for partition in topic.partitions]


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if holds():
                return
            await asyncio.sleep(POLL_S)


def produce_values(topic: str, batch: bytes | None, partition: int = 0, acks: int = -1) -> dict[str, Any]:
    records = [{"index": partition, "records": batch}]
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": timedelta(seconds=5),
        "topic_data": [{"name": topic, "partition_data": records}],
    }


def serve(
    directory: Path,
    test: Callable[[Served], Coroutine[Any, Any, None]],
    listeners: Callable[[int], dict[str, ListenerConfig]] | None = None,
    **settings: Any,
) -> None:
    """Run a test against a node that is ready; the node must end well.

    `listeners`: those that it has, by the port that the test connects to.
    """

    async def main() -> None:
        (port,) = free_ports(1)
        config = NodeConfig(
            cluster="test",
            node=1,
            directory=str(directory / "n1"),
            listen="" if listeners else f"127.0.0.1:{port}",
            listeners=listeners(port) if listeners else {},
            voters=(1,),
            raft=QUICK,
            **settings,
        )
        check_config(config)
        format_directory(config, replaces=False, rng=Random())
        said: list[str] = []
        node = Node(config, log=lambda event: said.append(str(event)), guests=guests)
        running = asyncio.ensure_future(node.run())
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await until(lambda: running.done() or any("registered" in line for line in said))
                assert not running.done(), said
            await test(Served(node, port, said))
        finally:
            if not running.done():
                node.stop()
            await running

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
