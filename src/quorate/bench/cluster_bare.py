"""Three processes that agree on bytes, and nothing else: no protocol, no checksums, no log that anybody could read.

What a commit takes at least where nodes are written in Python and share a few processors with their client: what
Quorate takes beyond that is what its promises cost. Each process writes and flushes as a node does, what has
gathered at a time; the first one answers as soon as it and another have flushed.

python -m quorate.bench.cluster_bare FILE BYTES [PORT PORT]     PORTs: of those that follow; without, one that does
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import uvloop

from quorate.bench.cluster_limits import FLUSH, PROCESS_TIMEOUT_S, ask
from quorate.storage.kernel_flush import KernelFlush

FILE_BYTES = 16 << 20
ACKNOWLEDGED = b"f"
"""A byte for each message that is flushed, in their order."""


async def commits(directory: Path, message: bytes, *, seconds: float) -> list[float]:
    """Seconds until two of three processes have flushed a message, one at a time, ascending."""
    with ExitStack() as stack:
        ports: list[int] = []
        for number in (3, 2, 1):
            file = directory / f"bare-{number}"
            stack.callback(file.unlink, missing_ok=True)
            known = ports if number == 1 else ()
            command = [sys.executable, "-m", __name__, str(file), str(len(message)), *map(str, known)]
            ports.append(stack.enter_context(_listening(command)))
        return await ask(ports[-1], message, seconds=seconds)


@contextmanager
def _listening(command: list[str]) -> Iterator[int]:
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            if not said:
                raise ConnectionError(f"a bare process ended before it listened: {' '.join(command)}")
            yield int(said)
        finally:
            process.kill()
            process.wait(PROCESS_TIMEOUT_S)


class _File:
    """Writes at once, and flushes what has gathered while the last flush ran."""

    def __init__(self, file: Path, flushed: Callable[[int], None]) -> None:
        """`flushed` is told how many messages are on the disk by now."""
        file.write_bytes(bytes(FILE_BYTES))
        self._fd = os.open(file, os.O_WRONLY)
        os.fsync(self._fd)
        self._flushed = flushed
        self._at = self._written_count = self._flushing_count = 0
        self._loop = asyncio.get_running_loop()
        self._kernel: KernelFlush | None = None
        if hasattr(os, "eventfd"):
            event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._kernel = KernelFlush.open(event_fd)
            self._loop.add_reader(event_fd, self._look, event_fd)

    def write(self, messages: bytes, count: int) -> None:
        if self._at + len(messages) > FILE_BYTES:
            self._at = 0
        os.pwrite(self._fd, messages, self._at)
        self._at += len(messages)
        self._written_count += count
        if not self._flushing_count:
            self._begin()

    def _begin(self) -> None:
        self._flushing_count = self._written_count
        if self._kernel is None:
            self._loop.run_in_executor(None, FLUSH, self._fd).add_done_callback(self._thread_done)
        else:
            assert self._kernel.begin(self._fd) is not None

    def _look(self, event_fd: int) -> None:
        os.eventfd_read(event_fd)
        assert self._kernel is not None
        for _, error in self._kernel.done():
            assert error is None, error
            self._done()

    def _thread_done(self, flushed: asyncio.Future[None]) -> None:
        flushed.result()
        self._done()

    def _done(self) -> None:
        count, self._flushing_count = self._flushing_count, 0
        if self._written_count > count:
            self._begin()
        self._flushed(count)


class _Connection(asyncio.Protocol):
    def __init__(self, received: Callable[[bytes], None]) -> None:
        self._received = received

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received(data)


class _Messages:
    """All have one length; what is not whole yet is kept."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._rest = b""

    def whole(self, data: bytes) -> tuple[bytes, int]:
        if self._rest:
            data = self._rest + data
        count = len(data) // self._size
        end = count * self._size
        self._rest = data[end:]
        return data[:end], count


class _Process:
    """What both kinds share: a file, and one connection from whoever sends messages."""

    def __init__(self, file: Path, size: int) -> None:
        self._messages = _Messages(size)
        self._file = _File(file, self.flushed)
        self._client: _Connection

    def accepted(self) -> _Connection:
        self._client = _Connection(self.received)
        return self._client

    def received(self, data: bytes) -> None:
        raise NotImplementedError

    def flushed(self, count: int) -> None:
        raise NotImplementedError


class _Follower(_Process):
    def __init__(self, file: Path, size: int) -> None:
        super().__init__(file, size)
        self._said_count = 0

    def received(self, data: bytes) -> None:
        messages, count = self._messages.whole(data)
        if count:
            self._file.write(messages, count)

    def flushed(self, count: int) -> None:
        self._client.transport.write(ACKNOWLEDGED * (count - self._said_count))
        self._said_count = count


class _Leader(_Process):
    def __init__(self, file: Path, size: int) -> None:
        super().__init__(file, size)
        self._answer = bytes(size)
        self._flushed = [0, 0, 0]
        self._answered_count = 0
        self._followers: list[_Connection] = []

    async def follow(self, port: int) -> None:
        place = len(self._followers) + 1
        loop = asyncio.get_running_loop()
        _, follower = await loop.create_connection(
            lambda: _Connection(lambda data: self._count(place, self._flushed[place] + len(data))),
            "127.0.0.1",
            port,
        )
        self._followers.append(follower)

    def received(self, data: bytes) -> None:
        messages, count = self._messages.whole(data)
        if count:
            for follower in self._followers:
                follower.transport.write(messages)
            self._file.write(messages, count)

    def flushed(self, count: int) -> None:
        self._count(0, count)

    def _count(self, place: int, count: int) -> None:
        self._flushed[place] = count
        settled_count = sorted(self._flushed)[1]
        if settled_count > self._answered_count:
            self._client.transport.write(self._answer * (settled_count - self._answered_count))
            self._answered_count = settled_count


async def run(file: Path, size: int, followers: list[int]) -> None:
    process: _Process
    if followers:
        process = leader = _Leader(file, size)
        for port in followers:
            await leader.follow(port)
    else:
        process = _Follower(file, size)
    server = await asyncio.get_running_loop().create_server(process.accepted, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(Path(sys.argv[1]), int(sys.argv[2]), [int(port) for port in sys.argv[3:]]))
