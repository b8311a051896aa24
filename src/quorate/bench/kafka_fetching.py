"""Lean clients that fetch: catching up, asking for what is not there, and waiting.

Answers go into one buffer that is there from the start. Whoever catches up asks for what comes next when an
answer is there wholly, as Kafka's clients do: one request at a time. Of its batches it looks at the headers.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import cast

from quorate.bench.cluster_processes import NodeProcess
from quorate.node.__main__ import have_descriptors
from quorate.wire import fetch
from quorate.wire.fetch import FetchRequest, WantedPartition, WantedTopic

VERSION = 12
ANSWER_BYTES = 32 << 20
PARTITION_BYTES = 8 << 20
TICKS = 100
"""A second, in which the system counts what a process has used."""
_SIZE = struct.Struct(">i")


def request_of(topic: str, offset: int, *, wait_ms: int = 0) -> bytes:
    wanted = WantedTopic(topic, bytes(16), [WantedPartition(0, offset, PARTITION_BYTES)])
    return bytes(
        fetch.encode_request(VERSION, 1, "bench", FetchRequest(wait_ms, 1, PARTITION_BYTES, [wanted]))
    )


class Reader:
    """One connection, blocking."""

    def __init__(self, node: NodeProcess) -> None:
        self._socket = socket.create_connection(node.address, timeout=30)
        self._buffer = memoryview(bytearray(ANSWER_BYTES))

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, content: bytes) -> None:
        self._socket.sendall(content)

    def receive(self) -> memoryview:
        """One answer without its size, until the next one is read."""
        self._fill(_SIZE.size)
        size: int = _SIZE.unpack_from(self._buffer)[0]
        self._fill(size)
        return self._buffer[:size]

    def _fill(self, size: int) -> None:
        got = 0
        while got < size:
            count = self._socket.recv_into(self._buffer[got:size])
            if not count:
                raise ConnectionResetError("the node closed the connection")
            got += count


def catch_up(node: NodeProcess, topic: str, end: int) -> float:
    """From the first record to the end: megabytes a second."""
    position, bytes_count = 0, 0
    with Reader(node) as reader:
        began = perf_counter()
        while position < end:
            reader.send(request_of(topic, position))
            answer = reader.receive()
            _, _, (topic_found,) = fetch.parse_response(answer, VERSION)
            (found,) = topic_found.partitions
            assert found.batches, f"nothing at offset {position} of {end}"
            bytes_count += found.batches_bytes
            last = found.batches[-1]
            position = int.from_bytes(last[:8], "big") + int.from_bytes(last[23:27], "big") + 1
        seconds = perf_counter() - began
    return bytes_count / seconds / 1e6


def empty(node: NodeProcess, topic: str, end: int, count: int) -> float:
    """Microseconds of the node's processor for one fetch that finds nothing and does not wait."""
    request = request_of(topic, end)
    with Reader(node) as reader:
        before = used_s(node)
        for _ in range(count):
            reader.send(request)
            reader.receive()
        return (used_s(node) - before) / count * 1e6


def waiting(
    node: NodeProcess, topic: str, end: int, *, consumers: int, seconds: float, wait_ms: int
) -> float:
    """The share of one core, in percent, that a node uses while so many consumers wait for more."""
    request = request_of(topic, end, wait_ms=wait_ms)

    class Waiter(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._transport = cast(asyncio.Transport, transport)
            self._transport.write(request)

        def data_received(self, data: bytes) -> None:
            self._transport.write(request)  # An empty answer is small, and comes whole.

    async def main() -> float:
        have_descriptors()
        loop = asyncio.get_running_loop()
        with ExitStack() as opened:
            for _ in range(consumers):
                transport, _waiter = await loop.create_connection(Waiter, *node.address)
                opened.callback(transport.abort)
            await asyncio.sleep(wait_ms / 1000)  # All have asked.
            before, began = used_s(node), perf_counter()
            await asyncio.sleep(seconds)
            return (used_s(node) - before) / (perf_counter() - began) * 100

    return asyncio.run(main())


def used_s(node: NodeProcess) -> float:
    """Of the processor, so far."""
    assert node.process is not None
    stat = Path(f"/proc/{node.process.pid}/stat").read_text(encoding="utf-8")
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
