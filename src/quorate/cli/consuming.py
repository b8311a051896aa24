"""Records out of a topic, for `quorate consume`: alone, partition by partition, or as a member of a group.

Alone it reads with the project's own client up to where each partition ended when it began, exactly; who follows
goes round all partitions from there. In a group aiokafka's consumer reads, and what was printed is committed.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from time import sleep
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatch

from quorate.batch import BadBatch, parse_batch_header
from quorate.cli.orders import reached
from quorate.cli.producing import in_words, security_of
from quorate.cli.record_lines import Incoming, Show
from quorate.cli.times import as_ms
from quorate.cli.wrong import WrongUsage
from quorate.client import EARLIEST, LATEST, Cluster
from quorate.client.ranges import Range, batches_between
from quorate.wire.opening import TooLarge, opened

PAUSE_S = 0.05
"""Between two rounds that brought nothing."""
POLL_MS = 200
COMMIT_S = 5.0
STOP_S = 10.0


class Wanted(NamedTuple):
    topic: str
    partitions: tuple[int, ...]
    """None of them: all."""
    start: int | datetime
    count_max: int | None
    follow: bool
    show: Show


class Printer:
    """Lines to stdout, until enough are there."""

    def __init__(self, wanted: Wanted) -> None:
        self._show = wanted.show
        self.left = wanted.count_max

    @property
    def is_done(self) -> bool:
        return self.left == 0

    def print(self, record: Incoming) -> None:
        sys.stdout.buffer.write(self._show(record) + b"\n")
        if self.left is not None:
            self.left -= 1

    def flush(self) -> None:
        sys.stdout.buffer.flush()


# ---- alone ----


def read_alone(servers: str, wanted: Wanted) -> int:
    printer = Printer(wanted)
    with reached(servers) as cluster:
        there = len(cluster.topics([wanted.topic])[wanted.topic].partitions)
        for number in wanted.partitions:
            if number >= there:
                raise WrongUsage(f"topic {wanted.topic} has no partition {number}; it has {there}, from 0 on")
        numbers = wanted.partitions or tuple(range(there))
        ends = _offsets(cluster, wanted.topic, numbers, LATEST)
        positions = _starts(cluster, wanted, numbers, ends)
        try:
            for number in numbers:
                span = Range(wanted.topic, number, positions[number], ends[number])
                if _print_range(cluster, span, printer):
                    return 0
                positions[number] = max(positions[number], ends[number])
            printer.flush()
            if wanted.follow:
                _follow(cluster, wanted.topic, positions, printer)
        except KeyboardInterrupt:
            if not wanted.follow:
                raise
        finally:
            printer.flush()
    return 0


def _offsets(cluster: Cluster, topic: str, numbers: tuple[int, ...], place: int) -> dict[int, int]:
    found = cluster.offsets(topic, dict.fromkeys(numbers, place), committed=True)
    return {number: offset or 0 for number, offset in found.items()}


def _starts(
    cluster: Cluster, wanted: Wanted, numbers: tuple[int, ...], ends: dict[int, int]
) -> dict[int, int]:
    """Where to begin in each partition; behind the last record, where none is so late."""
    if wanted.start == LATEST:
        return dict(ends)
    first = _offsets(cluster, wanted.topic, numbers, EARLIEST)
    if wanted.start == EARLIEST:
        return first
    if isinstance(wanted.start, datetime):
        time_ms = as_ms(wanted.start, "--from")
        found = cluster.offsets(wanted.topic, dict.fromkeys(numbers, time_ms))
        return {number: ends[number] if offset is None else offset for number, offset in found.items()}
    for number in numbers:
        if wanted.start > ends[number]:
            raise WrongUsage(
                f"--from {wanted.start}: partition {number} ends before offset {ends[number]}; "
                "--from end --follow waits there"
            )
    return {number: max(wanted.start, first[number]) for number in numbers}


def _follow(cluster: Cluster, topic: str, positions: dict[int, int], printer: Printer) -> None:
    """Until enough came, or somebody has seen enough."""
    while True:
        brought = False
        for number, end in _offsets(cluster, topic, tuple(positions), LATEST).items():
            if end > positions[number]:
                brought = True
                if _print_range(cluster, Range(topic, number, positions[number], end), printer):
                    return
                positions[number] = end
        printer.flush()
        if not brought:
            sleep(PAUSE_S)


def _print_range(cluster: Cluster, span: Range, printer: Printer) -> bool:
    """Whether enough was printed by now."""
    for batch in batches_between(cluster, span, missing_is_error=False, committed=True):
        _print_batch(printer, span, batch)
        if printer.is_done:
            return True
    return False


def _print_batch(printer: Printer, span: Range, batch: memoryview) -> None:
    for record in _records(span, batch):
        printer.print(record)
        if printer.is_done:
            return


def _records(span: Range, batch: memoryview) -> Iterator[Incoming]:
    """Those of a batch that lie in the range."""
    header = parse_batch_header(batch)
    if header.is_control or not header.record_count:
        return
    try:
        for record in DefaultRecordBatch(bytes(opened(batch))):
            if span.first <= record.offset < span.end:
                yield Incoming(
                    span.topic,
                    span.partition,
                    record.offset,
                    -1 if record.timestamp is None else record.timestamp,
                    record.key,
                    record.value,
                    tuple(record.headers),
                )
    except (BadBatch, TooLarge, KafkaError, ValueError) as error:
        raise WrongUsage(
            f"{span.topic}-{span.partition}: the batch at offset {header.base_offset} cannot be opened: {error}; "
            f"go on behind it with --from {header.base_offset + header.offsets_count}"
        ) from error


# ---- in a group ----


def read_in_group(servers: str, wanted: Wanted, group: str) -> int:
    from quorate.cli.access import access

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    with reached(servers) as cluster:
        there = len(cluster.topics([wanted.topic])[wanted.topic].partitions)
        ends = _offsets(cluster, wanted.topic, tuple(range(there)), LATEST)
    reset = "earliest" if wanted.start == EARLIEST else "latest"
    consumer_settings = security_of(access().security) | {"auto_offset_reset": reset, "group_id": group}

    async def main() -> None:
        consumer = AIOKafkaConsumer(
            wanted.topic,
            bootstrap_servers=servers,
            client_id="quorate-consume",
            enable_auto_commit=False,
            isolation_level="read_committed",
            **consumer_settings,
        )
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stopped.set)
        try:
            await consumer.start()
            await _read_on(consumer, wanted, ends, Printer(wanted), stopped)
        finally:
            with suppress(TimeoutError, KafkaError):
                await asyncio.wait_for(consumer.stop(), STOP_S)

    try:
        asyncio.run(main())
    except KafkaError as error:
        raise WrongUsage(f"group {group}: {in_words(error)}") from error
    return 0


async def _read_on(
    consumer: AIOKafkaConsumer, wanted: Wanted, ends: dict[int, int], printer: Printer, stopped: asyncio.Event
) -> None:
    """Until enough came, the ends are reached that were there at the beginning, or somebody has seen enough."""
    while not stopped.is_set() and not printer.is_done:
        found = await consumer.getmany(timeout_ms=POLL_MS, max_records=printer.left)
        for partition, records in found.items():
            for record in records:
                headers = tuple(record.headers)
                printer.print(
                    Incoming(
                        record.topic,
                        partition.partition,
                        record.offset,
                        record.timestamp,
                        record.key,
                        record.value,
                        headers,
                    )
                )
        if found:
            printer.flush()
            await asyncio.wait_for(consumer.commit(), COMMIT_S)
        elif not wanted.follow and consumer.assignment():
            positions = {each: await consumer.position(each) for each in consumer.assignment()}
            if all(position >= ends[each.partition] for each, position in positions.items()):
                return
