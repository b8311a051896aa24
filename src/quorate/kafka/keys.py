"""Where a topic is compacted every record must have a key: one without would stay for ever, and stand for nothing.

These are the only batches of clients that are opened before they are taken. A small one is looked into at once; a
large one in a thread, and whatever comes behind it for the same partition waits, so that the order stays.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatch

from quorate import batch
from quorate.core.entry import Partition
from quorate.wire.cursor import Buffer
from quorate.wire.opening import TooLarge, opened

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

AT_ONCE_BYTES_MAX = 16 << 10
"""Opened. What may be larger is looked into by a thread."""
WAITING_BYTES_MAX = 64 << 20
"""Of batches that wait to be looked into, over all connections, and also when whoever sent them is gone."""
UNREADABLE = "its records cannot be read, and the topic is compacted: their keys must be known"

Go = Callable[[str], None]
"""Told why a batch cannot be taken; "": it can."""


class Keys:
    """One for each broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[Partition, deque[tuple[Buffer, Go]]] = {}
        self._waiting_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_crowded(self) -> bool:
        return self._waiting_bytes > WAITING_BYTES_MAX

    def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()

    def when_looked(self, partition: Partition, records: Buffer, go: Go) -> None:
        """Call `go` at once where the batch is small, or when it was looked into."""
        waiting = self._waiting.get(partition)
        if waiting is not None:
            self._waiting_bytes += len(records)
            waiting.append((records, go))
            return
        try:
            go(why_not_keyed(records, AT_ONCE_BYTES_MAX))
        except TooLarge:
            self._waiting_bytes += len(records)
            self._waiting[partition] = deque([(records, go)])
            task = asyncio.get_running_loop().create_task(self._look(partition))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _look(self, partition: Partition) -> None:
        waiting = self._waiting[partition]
        while waiting:
            records, go = waiting[0]
            async with self._broker.opening:
                try:
                    why = await asyncio.to_thread(_why_not, records)
                except Exception as error:  # Ours; whoever waits behind it must not wait for ever.
                    self._broker.node.log_bug(error)
                    why = UNREADABLE

            def tell(go: Go = go, why: str = why, looked_bytes: int = len(records)) -> None:
                waiting.popleft()
                self._waiting_bytes -= looked_bytes
                if not waiting:
                    del self._waiting[partition]
                go(why)

            self._broker.in_turn(tell)


def _why_not(records: Buffer) -> str:
    try:
        return why_not_keyed(records)
    except TooLarge as large:
        return str(large)


def why_not_keyed(records: Buffer, bytes_max: int | None = None) -> str:
    """Why a compacted topic does not take a batch; "": it does. Raises TooLarge."""
    if bytes_max is not None and len(records) > bytes_max:
        raise TooLarge("to be looked into by a thread")
    try:
        plain = opened(records) if bytes_max is None else opened(records, bytes_max)
        for number, record in enumerate(DefaultRecordBatch(bytes(plain))):
            if record.key is None:
                return f"record {number} of the batch has no key, and the topic is compacted"
    except (batch.BadBatch, KafkaError, ValueError, OverflowError):
        return UNREADABLE
    return ""
