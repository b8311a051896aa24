"""Lines into a topic, for `quorate produce`: read by a thread, sent by aiokafka's producer, counted as they are
answered.

A thread of its own reads, from the bare descriptor: Ctrl-C must end a command that waits for somebody to type.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from quorate.cli import say
from quorate.cli.record_lines import BadLine, Header, Outgoing, Parse
from quorate.cli.wrong import WrongUsage
from quorate.cli.wrong import in_words as reason
from quorate.client.security import Security

CHUNK_BYTES = 256 << 10
LINE_BYTES_MAX = 16 << 20
"""As much as the largest batch of any topic; a file without line ends is not read into memory whole."""
BATCH_BYTES = 128 << 10
LINGER_MS = 5
STOP_S = 10.0
"""After Ctrl-C, for what is under way."""
TELL_EVERY_S = 2.0
NOT_ALL = 1
NOWHERE = -1


class Settings(NamedTuple):
    topic: str
    partitions_count: int
    partition: int | None
    headers: tuple[Header, ...]
    compression: str | None
    acks: str
    is_compacted: bool


class Written:
    """What has become of the records so far."""

    def __init__(self) -> None:
        self.began = monotonic()
        self.sent_count = 0
        self.written: Counter[int] = Counter()
        """By partition."""
        self.bytes_count = 0
        self.failed_count = 0
        self.first_failure = ""

    def answered(self, future: asyncio.Future[Any]) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is None:
            written = future.result()  # None with --acks 0: nobody says where it is.
            self.written[NOWHERE if written is None else written.partition] += 1
        else:
            self.failed_count += 1
            self.first_failure = self.first_failure or in_words(error)

    def summary(self) -> str:
        count, seconds = sum(self.written.values()), monotonic() - self.began
        where = f" into {len(self.written)} partitions" if len(self.written) > 1 else ""
        rate = f", {count / seconds:,.0f}/s" if seconds >= 1 and count else ""
        return f"{records(count)} written{where}, {self.bytes_count:,} bytes in {seconds:.1f} s{rate}"


def write_all(servers: str, settings: Settings, descriptor: int, parse: Parse, *, size: int = 0) -> int:
    """Every line of what the descriptor brings; the exit code. `size`: how much that will be, if it is known."""
    from quorate.cli.access import access

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # What goes wrong is told below, in one line.
    written, is_over = Written(), False
    try:
        asyncio.run(_write(written, servers, settings, descriptor, parse, size, access().security))
        is_over = True
    except KafkaError as error:
        raise WrongUsage(f"{servers}: {in_words(error)}") from error
    finally:
        if is_over or written.sent_count:
            say.progress_line(written.summary())
    if written.failed_count:
        was = "was" if written.failed_count == 1 else "were"
        say.progress_line(f"{records(written.failed_count)} {was} not written: {written.first_failure}")
        return NOT_ALL
    return 0


async def _write(
    written: Written,
    servers: str,
    settings: Settings,
    descriptor: int,
    parse: Parse,
    size: int,
    security: Security | None,
) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=servers,
        client_id="quorate-produce",
        acks=settings.acks if settings.acks == "all" else int(settings.acks),
        enable_idempotence=settings.acks == "all",
        compression_type=settings.compression,
        max_batch_size=BATCH_BYTES,
        max_request_size=LINE_BYTES_MAX,
        linger_ms=LINGER_MS,
        **security_of(security),
    )
    await producer.start()
    try:
        told, number, read_bytes = monotonic(), 0, 0
        async for lines in _lines_of(descriptor):
            for line in lines:
                number += 1
                read_bytes += len(line) + 1
                try:
                    record = parse(line)
                    if record.partition is not None and record.partition >= settings.partitions_count:
                        raise BadLine(f"there is no partition {record.partition}")
                    if record.key is None and settings.is_compacted:
                        raise BadLine(f"topic {settings.topic} is compacted: give keys with -k or --json")
                except BadLine as bad:
                    raise WrongUsage(f"line {number}: {bad}; what came before it is written") from None
                await _send(producer, settings, record, written)
            if monotonic() - told >= TELL_EVERY_S:
                told = monotonic()
                share = f"{read_bytes / size:4.0%}  " if size else ""
                say.progress_line(f"   {share}{records(sum(written.written.values()))}")
            if written.failed_count:
                break
        await producer.flush()
    finally:
        with suppress(TimeoutError, KafkaError):
            await asyncio.wait_for(producer.stop(), STOP_S)


async def _send(producer: AIOKafkaProducer, settings: Settings, record: Outgoing, written: Written) -> None:
    partition = record.partition if settings.partition is None else settings.partition
    written.sent_count += 1
    written.bytes_count += len(record.key or b"") + len(record.value or b"")
    try:
        future = await producer.send(
            settings.topic,
            record.value,
            key=record.key,
            partition=partition,
            timestamp_ms=record.timestamp,
            headers=[*settings.headers, *record.headers],
        )
    except KafkaError as error:
        written.failed_count += 1
        written.first_failure = written.first_failure or in_words(error)
    else:
        future.add_done_callback(written.answered)


async def _lines_of(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Whole lines, as many as have come; the last one may lack its end."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(maxsize=2)

    def read() -> None:
        with suppress(RuntimeError):  # The loop is closed: nobody wants more.
            while True:
                chunk: bytes | OSError
                try:
                    chunk = os.read(descriptor, CHUNK_BYTES)
                except OSError as error:
                    chunk = error
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
                if not chunk or isinstance(chunk, OSError):
                    return

    threading.Thread(target=read, daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise WrongUsage(f"cannot read the lines: {reason(chunk)}; name a file with --file") from chunk
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise WrongUsage(f"a line is longer than {LINE_BYTES_MAX} bytes; is this a file with lines?")
        if lines:
            yield lines
    if rest:
        yield [rest]


def security_of(security: Security | None) -> dict[str, Any]:
    """As aiokafka wants to be told."""
    if security is None:
        return {}
    names = {
        (False, False): "PLAINTEXT",
        (True, False): "SSL",
        (False, True): "SASL_PLAINTEXT",
        (True, True): "SASL_SSL",
    }
    told: dict[str, Any] = {"security_protocol": names[security.tls, bool(security.user)]}
    if security.tls:
        told["ssl_context"] = security.context()
    if security.user:
        told["sasl_mechanism"] = security.mechanism
        told["sasl_plain_username"], told["sasl_plain_password"] = security.user, security.password
    return told


def records(count: int) -> str:
    return say.counted(count, "record")


def in_words(error: BaseException) -> str:
    """aiokafka's errors say their number, name and description; the last says most."""
    said = str(error).split("] ", 1)[-1].split(": ", 1)[-1]
    return said.strip() or type(error).__name__
