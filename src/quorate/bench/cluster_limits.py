"""What this machine allows, without any protocol: round trips on loopback, flushes, raw writes side by side.

python -m quorate.bench.cluster_limits echo                              a process that answers
python -m quorate.bench.cluster_limits write FILE BYTES COUNT SECONDS    one that writes and flushes
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import cast

import uvloop

FLUSH = getattr(os, "fdatasync", os.fsync)
WRITERS_COUNT = 3
PROCESS_TIMEOUT_S = 30.0


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class _Caller(asyncio.Protocol):
    """Sends, and sends again as soon as the answer is whole."""

    def __init__(self, message: bytes, seconds: float) -> None:
        self.found: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._message = message
        self._end = perf_counter() + seconds
        self._arrived = 0
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._arrived = 0
        self._sent_at = perf_counter()
        self._transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        self._arrived += len(data)
        if self._arrived < len(self._message):
            return
        now = perf_counter()
        self.found.append(now - self._sent_at)
        if now < self._end:
            self._send()
        elif not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the process that answers is gone"))


async def round_trips(message: bytes, *, seconds: float) -> list[float]:
    """Seconds there and back to another process, one at a time, ascending."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, "echo", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        port = int(await asyncio.wait_for(process.stdout.readline(), PROCESS_TIMEOUT_S))
        return await ask(port, message, seconds=seconds)
    finally:
        process.kill()
        await process.wait()


async def ask(port: int, message: bytes, *, seconds: float) -> list[float]:
    """Seconds until an answer as long as the message is there, one at a time, ascending."""
    loop = asyncio.get_running_loop()
    transport, caller = await loop.create_connection(lambda: _Caller(message, seconds), "127.0.0.1", port)
    await asyncio.wait_for(caller.done, seconds + PROCESS_TIMEOUT_S)
    transport.close()
    return sorted(caller.found)


def flushes(directory: Path, payload: bytes, *, seconds: float) -> list[float]:
    """Seconds to write a payload into an allocated file and flush it, one at a time, ascending."""
    file = directory / "flushes"
    size = 16 << 20
    file.write_bytes(bytes(size))
    fd = os.open(file, os.O_WRONLY)
    try:
        os.fsync(fd)
        found = []
        at = 0
        now = perf_counter()
        end = now + seconds
        while now < end:
            began = now
            os.pwrite(fd, payload, at)
            FLUSH(fd)
            now = perf_counter()
            found.append(now - began)
            at = (at + len(payload)) % (size - len(payload))
        return sorted(found)
    finally:
        os.close(fd)
        file.unlink()


def raw_writes(directory: Path, *, payload_bytes: int, per_flush: int, seconds: float) -> float:
    """Payloads per second that each of three processes appends and flushes, side by side; the slowest."""
    writers = []
    try:
        for number in range(WRITERS_COUNT):
            command = [sys.executable, "-m", __name__, "write", str(directory / f"raw-{number}")]
            command += [str(payload_bytes), str(per_flush), str(seconds)]
            writers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for writer in writers:  # All are up before any begins.
            assert writer.stdout is not None
            writer.stdout.readline()
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write(b"go\n")
            writer.stdin.flush()
        return min(float(writer.communicate(timeout=PROCESS_TIMEOUT_S)[0]) for writer in writers)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
        for number in range(WRITERS_COUNT):
            (directory / f"raw-{number}").unlink(missing_ok=True)


def write(file: Path, payload_bytes: int, per_flush: int, seconds: float) -> None:
    payload = os.urandom(payload_bytes)
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    print("ready", flush=True)
    sys.stdin.readline()
    written_count = 0
    began = perf_counter()
    while perf_counter() - began < seconds:
        os.writev(fd, [payload] * per_flush)
        FLUSH(fd)
        written_count += per_flush
    print(written_count / (perf_counter() - began))
    os.close(fd)


async def echo() -> None:
    server = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(echo())
    else:
        write(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
