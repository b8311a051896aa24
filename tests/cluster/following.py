"""Who reads along while others write, through whatever happens: a Kafka consumer, committed records only.

Of each partition's records every number is known before it is read: writers leave none out, and keep their order.
So each record is judged as it comes. It is the next one: nothing twice, nothing left out, nothing of an earlier
time again, nothing that nobody sent. And where it stood then, it stands in the end, for whoever reads anew: what
was read was settled, and is never absent later.
"""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from tests.cluster.support import until

POLL_MS = 200
WAIT_MS = 100
"""A node keeps an answer back so long, unless there is much to say: readers cost little."""
ENOUGH_BYTES = 1 << 18
REQUEST_MS = 4_000
BACKOFF_MS = 50
METADATA_MS = 1_000
UNDER_WAY_COUNT = 1
"""A number may be read before its writer has noted that it is sent."""


class Record(Protocol):
    """What a consumer hands on."""

    offset: int
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Reader:
    """Follows topics from their beginnings, in a thread, up to the first record with which anything is wrong.

    It is of no group: a group would have the cluster make a topic of its own, and move that, too.
    """

    def __init__(
        self,
        bootstrap: str,
        sent_count: Mapping[str, Callable[[], int]],
        *,
        partitions_count: int,
        number_of: Callable[[Record], int],
    ) -> None:
        """By topic, how many numbers are sent by now: 0, 1, 2, and so on, to one partition after the other."""
        self.complaint = ""
        self._bootstrap = bootstrap
        self._sent_count = sent_count
        self._partitions_count = partitions_count
        self._number_of = number_of
        self._offsets = {
            TopicPartition(topic, number): array("q")
            for topic in sent_count
            for number in range(partitions_count)
        }
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._follow()))

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def read_count(self, topic: str) -> int:
        return sum(
            len(self._offsets[TopicPartition(topic, number)]) for number in range(self._partitions_count)
        )

    def has_read(self, topic: str, numbers_count: int) -> bool:
        """So many numbers; raises what is wrong with anything that was read so far."""
        assert not self.complaint, self.complaint
        assert self._thread.is_alive()
        return self.read_count(topic) >= numbers_count

    async def until_read(self, topic: str, numbers_count: int) -> None:
        await until(
            lambda: self.has_read(topic, numbers_count),
            f"a reader of {topic} to read {numbers_count} records",
        )

    async def expect_all(self, topic: str, placed: Sequence[tuple[int, int, int]]) -> None:
        """The partition, the number and the offset of each record, as whoever reads now finds it, in that order."""
        await self.until_read(topic, len(placed))
        for partition in range(self._partitions_count):
            found = [(number, offset) for where, number, offset in placed if where == partition]
            offsets = self._offsets[TopicPartition(topic, partition)]
            read = [(partition + self._partitions_count * at, offset) for at, offset in enumerate(offsets)]
            for wrong, what in (
                (set(read) - set(found), "not there any more"),
                (set(found) - set(read), "never read"),
            ):
                assert not wrong, f"{topic}/{partition}: (number, offset) {what}: {sorted(wrong)[:10]}"
            assert found == read, f"{topic}/{partition}: as much, and in another order or more than once"

    async def _follow(self) -> None:
        consumer: AIOKafkaConsumer[bytes, bytes] = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=None,
            isolation_level="read_committed",
            auto_offset_reset="none",  # A log that ends below what was read of it is a complaint.
            fetch_max_wait_ms=WAIT_MS,
            fetch_min_bytes=ENOUGH_BYTES,
            request_timeout_ms=REQUEST_MS,
            retry_backoff_ms=BACKOFF_MS,
            metadata_max_age_ms=METADATA_MS,
        )
        consumer.assign(list(self._offsets))
        await consumer.start()
        try:
            for partition in self._offsets:
                consumer.seek(partition, 0)
            while not self._is_over.is_set() and not self.complaint:
                for partition, records in (await consumer.getmany(timeout_ms=POLL_MS)).items():
                    wrong = self._what_is_wrong_with(partition, records)
                    self.complaint = self.complaint or wrong
        except KafkaError as error:
            self.complaint = f"a reader: {error!r}"
        finally:
            await consumer.stop()
        self._is_over.wait()

    def _what_is_wrong_with(self, partition: TopicPartition, records: Sequence[Record]) -> str:
        """Nothing: they are noted."""
        offsets, sent_count = self._offsets[partition], self._sent_count[partition.topic]()
        who = f"a reader of {partition.topic}/{partition.partition}"
        for record in records:
            number, offset = self._number_of(record), record.offset
            due = partition.partition + self._partitions_count * len(offsets)
            if number != due:
                return f"{who}: {number} at {offset}, and {due} was due, behind the offsets {offsets[-2:]}"
            if offsets and offset <= offsets[-1]:
                return f"{who}: {number} at {offset}, behind the offsets {offsets[-2:]}"
            if number >= sent_count + UNDER_WAY_COUNT:
                return f"{who}: {number} at {offset}, which nobody has sent"
            offsets.append(offset)
        return ""


@contextmanager
def read_along(reader: Reader) -> Iterator[Reader]:
    reader.start()
    try:
        yield reader
    finally:
        reader.close()
