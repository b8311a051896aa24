"""Three nodes as `quorate up` starts them, with a topic of each protocol; and a client as lean as a limit's.

What a figure is compared with costs its own client next to nothing. So does ours: a Produce request is built
once and sent again as soon as its answer is whole, with another correlation id and nothing else done to it.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import cast

import msgspec

from quorate.bench.cluster_processes import (
    POLL_S,
    START_TIMEOUT_S,
    Cluster,
    ClusterFailed,
    NodeProcess,
    free_ports,
)
from quorate.client import cluster as client
from quorate.client.admin import create_topic
from quorate.wire.entities import make
from quorate.wire.messages import Api, encode_request, request_class

NODES = 3
REPLICATION = "quorate.replication"
PRODUCE_VERSION = 7
ACKS_ALL = -1
ANSWER_TIMEOUT_S = 30.0
TOPIC_TIMEOUT_S = READY_TIMEOUT_S = 120.0
"""A machine that is busy with something else takes long to start processes."""
TRIES = 5
_CORRELATION_AT = 8
_NUMBER = struct.Struct(">i")
_NONE = b"\0\0"


class NotProduced(ClusterFailed):
    """A node refused what it must take, or is gone."""


class KafkaCluster(Cluster):
    """Nodes 1, 2 and 3, all in the metadata group, with every setting as it is by default."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, nodes=NODES, partitions=0, metadata_voters=NODES)
        for node in self.nodes.values():
            node.command = (sys.executable, "-m", "quorate.kafka")
            config = msgspec.json.decode(node.config.read_bytes())
            config["http"] = node.http = f"127.0.0.1:{free_ports(1)[0]}"
            node.config.write_bytes(msgspec.json.encode(config))

    @property
    def bootstrap(self) -> str:
        return ",".join(str(node.address) for node in self.nodes.values())

    @contextmanager
    def asked(self, timeout_s: float = ANSWER_TIMEOUT_S) -> Iterator[client.Cluster]:
        with client.Cluster(self.bootstrap, client_id="bench", timeout_s=timeout_s) as found:
            yield found

    def create(self, name: str, replication: str, *, partitions: int = 1) -> None:
        """With a copy on every node; it has its leaders when this returns."""
        with self.asked(TOPIC_TIMEOUT_S) as asked:
            config = {REPLICATION: replication}
            create_topic(asked, name, partitions_count=partitions, replicas_count=NODES, config=config)

    def leader(self, topic: str) -> NodeProcess:
        """Of its first partition, as soon as there is one."""
        deadline = monotonic() + START_TIMEOUT_S
        with self.asked() as asked:
            while monotonic() < deadline:
                node = asked.topics([topic])[topic].partitions[0].leader
                if node > 0:
                    return self.nodes[node]
                sleep(POLL_S)
        raise ClusterFailed(f"waited {START_TIMEOUT_S} s for a leader of {topic}")

    async def until_registered(self) -> None:
        """Every node knows every node."""
        async with self.client() as asked:

            async def known() -> bool | None:
                found = await self.statuses(asked)
                return all(status.registered == tuple(self.nodes) for status in found) or None

            await self.until(known, "every node to be registered", READY_TIMEOUT_S)


def produce_request(topic: str, batch: bytes) -> bytearray:
    """Of one batch, flushed by a quorum before it is answered."""
    partition = {"index": 0, "records": batch}
    values = {
        "transactional_id": None,
        "acks": ACKS_ALL,
        "timeout": timedelta(seconds=ANSWER_TIMEOUT_S),
        "topic_data": [{"name": topic, "partition_data": [partition]}],
    }
    body = make(request_class(Api.PRODUCE, PRODUCE_VERSION), values)
    return bytearray(encode_request(Api.PRODUCE, PRODUCE_VERSION, 0, "bench", body))


class Producing(asyncio.Protocol):
    """Keeps so many requests under way on one connection, for a while.

    Answers come in the order of requests, and all have one length: a size, a correlation id, the topic's name,
    the partition, its error and its offset, and times.
    """

    def __init__(
        self, topic: str, batch: bytes, *, in_flight: int, seconds: float, count_max: int | None = None
    ) -> None:
        self.found: list[float] = []
        """Seconds from sending to the whole answer, of each request."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._topic = topic
        self._request = produce_request(topic, batch)
        self._in_flight = in_flight
        self._error_at = 4 + 4 + 4 + 2 + len(topic.encode()) + 4 + 4
        self._answer_bytes = self._error_at + 2 + 8 + 8 + 8 + 4
        self._arrived = bytearray()
        self._sent_at: list[float] = []
        self._sent_count = 0
        self._seconds = seconds
        self._end = 0.0
        self._count_max = sys.maxsize if count_max is None else count_max

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._end = perf_counter() + self._seconds
        for _ in range(min(self._in_flight, self._count_max)):
            self._send()

    def stop(self) -> None:
        """What is under way is the last."""
        self._end = 0.0

    def _send(self) -> None:
        request = self._request
        _NUMBER.pack_into(request, _CORRELATION_AT, self._sent_count)
        self._sent_count += 1
        self._sent_at.append(perf_counter())
        self._transport.write(bytes(request))

    def data_received(self, data: bytes) -> None:
        size = self._answer_bytes
        if self._arrived or len(data) != size:
            self._arrived += data
            while len(self._arrived) >= size and not self.done.done():
                answer = bytes(self._arrived[:size])
                del self._arrived[:size]
                self._answered(answer)
        else:
            self._answered(data)

    def _answered(self, answer: bytes) -> None:
        now = perf_counter()
        number = len(self.found)
        self.found.append(now - self._sent_at[number])
        at = self._error_at
        if answer[at : at + 2] != _NONE or _NUMBER.unpack_from(answer, 4)[0] != number:
            self._fail(answer)
        elif now < self._end and self._sent_count < self._count_max:
            self._send()
        elif len(self.found) == self._sent_count and not self.done.done():
            self.done.set_result(None)

    def _fail(self, answer: bytes) -> None:
        code = int.from_bytes(answer[self._error_at : self._error_at + 2], "big", signed=True)
        name = client.error_code(code).name if code else "an answer out of order"
        if not self.done.done():
            self.done.set_exception(NotProduced(f"{self._topic}: {name} ({code})"))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(NotProduced(f"{self._topic}: {error or 'the node hung up'}"))


async def lead_and_produce(
    cluster: KafkaCluster,
    topic: str,
    batch: bytes,
    *,
    in_flight: int,
    seconds: float,
    count_max: int | None = None,
) -> list[float]:
    """Seconds from sending to hearing that it is settled, of each, in the order of sending; to whoever leads.

    Where another begins to lead meanwhile, as on a machine that is busy with something else, it is begun anew.
    """
    for _ in range(TRIES):
        leader = await asyncio.to_thread(cluster.leader, topic)
        producing = Producing(topic, batch, in_flight=in_flight, seconds=seconds, count_max=count_max)
        try:
            return await _produced(leader, producing, seconds)
        except (NotProduced, OSError) as error:
            why = error
    raise ClusterFailed(f"{TRIES} times in a row the leader did not take it all: {why}")


async def _produced(node: NodeProcess, producing: Producing, seconds: float) -> list[float]:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: producing, *node.address)
    try:
        await asyncio.wait_for(producing.done, seconds + ANSWER_TIMEOUT_S)
    finally:
        transport.close()
    return producing.found
