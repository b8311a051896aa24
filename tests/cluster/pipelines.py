"""Who transacts and who reads in a group while a cluster is worked on, and knows exactly what must be there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Self

from aiokafka.errors import KafkaError as AioError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.cluster.fault_support import DELIVERY_MS, PARTITIONS_COUNT, REQUEST_MS, everything
from tests.cluster.group_support import AiokafkaReader, ConfluentReader, Reader
from tests.cluster.kafka_clients import TIMEOUT_S
from tests.cluster.support import until

ABORTED_EVERY = 3
PUT_INTO_EACH_COUNT = 2
MORE_COUNT = 5


class Transacting:
    """Transactions of numbers, some into each partition, one after the other in a thread; some are aborted."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.committed: list[int] = []
        self._begun_count = 0
        self._failed: BaseException | None = None
        self._is_over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"into-{topic}",
                "transaction.timeout.ms": DELIVERY_MS,
                "message.timeout.ms": DELIVERY_MS,
                "socket.timeout.ms": REQUEST_MS + 1_000,
                "request.timeout.ms": REQUEST_MS,
                "topic.metadata.refresh.interval.ms": 1_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def values_of(self, number: int, partition: int) -> list[bytes]:
        return [b"%d.%d.%d" % (number, partition, each) for each in range(PUT_INTO_EACH_COUNT)]

    def wanted(self) -> dict[int, list[bytes]]:
        """What a reader of committed records must see, in its order, and nothing besides."""
        return {
            partition: [value for number in self.committed for value in self.values_of(number, partition)]
            for partition in range(PARTITIONS_COUNT)
        }

    async def go_on(self) -> None:
        """Until more are committed that were not begun before."""
        first = self._begun_count

        def more() -> bool:
            assert self._failed is None, self._failed
            return sum(number >= first for number in tuple(self.committed[-MORE_COUNT:])) >= MORE_COUNT

        await until(more, f"{MORE_COUNT} more transactions into {self.topic}")

    def close(self) -> None:
        """It is known what came of each."""
        self._is_over.set()
        self._thread.join(DELIVERY_MS / 1000)
        assert not self._thread.is_alive()
        assert self._failed is None, self._failed

    def _run(self) -> None:
        try:
            self._again(lambda: self._producer.init_transactions(DELIVERY_MS / 1000))
            while not self._is_over.is_set():
                self._transact(self._begun_count)
        except BaseException as error:
            self._failed = error

    def _transact(self, number: int) -> None:
        self._begun_count += 1
        self._producer.begin_transaction()
        try:
            for partition in range(PARTITIONS_COUNT):
                for value in self.values_of(number, partition):
                    self._producer.produce(self.topic, value, partition=partition)
            self._producer.flush(DELIVERY_MS / 1000)
            if number % ABORTED_EVERY:
                self._again(self._producer.commit_transaction)
                self.committed.append(number)
                return
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        self._again(self._producer.abort_transaction)

    def _again(self, call: Callable[[], object]) -> None:
        """A call that can be made again is, until it is known what came of it."""
        while True:
            try:
                call()
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return


class Member(Reader):
    """The only one of its group: what it has committed as read does not come again, and nothing is left out."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        super().__init__(bootstrap, group, topic, **settings)
        self._read: dict[int, list[int]] = {number: [] for number in range(PARTITIONS_COUNT)}
        """The offsets, as they are now known."""
        self._values: dict[tuple[int, int], bytes] = {}
        self._pending: dict[int, int] = {}
        """Read since partitions were last given to it, and not committed."""

    def __exit__(self, *_: object) -> None:
        """Nobody waits for it here: this loop may be what lets nodes talk to each other."""
        self._closing.set()

    def _noted(self, read: list[tuple[int, int, bytes]]) -> None:
        for partition, offset, value in read:
            committed, offsets = self.committed.get(partition, 0), self._read[partition]
            where = f"{self.group}: {offset} of partition {partition}"
            assert offset >= committed, f"{where} again, and {committed} is committed"
            assert self._values.setdefault((partition, offset), value) == value, f"{where} is another now"
            while offsets and offsets[-1] >= offset:  # Given to it once more, as its commit was not heard.
                offsets.pop()
            offsets.append(offset)

    def _turn(self) -> None:
        read = self.poll()
        self._noted(read)
        self._pending |= {partition: offset + 1 for partition, offset, _ in read}
        if self._pending and self.commit(self._pending):
            self.committed |= self._pending
            self._pending = {}

    def _got(self, partitions: list[Any]) -> None:
        super()._got(partitions)
        self._pending = {}  # It goes on from where the group is.

    async def go_on(self) -> None:
        """Until it has committed that it has read more."""
        before = sum(self.committed.values())

        def more() -> bool:
            assert self.failed is None, self.failed
            return sum(self.committed.values()) > before

        await until(more, f"{self.group} to commit more of {self.topic}")

    async def expect_exact(self) -> None:
        """It has read what whoever reads anew finds, in that order, and the group knows how far it is."""
        placed = await asyncio.to_thread(everything, self.bootstrap, self.topic)
        wanted = {
            partition: [offset for where, _, offset in placed if where == partition]
            for partition in range(PARTITIONS_COUNT)
        }
        await until(
            lambda: all(
                self.committed.get(partition, 0) > offsets[-1] for partition, offsets in wanted.items()
            ),
            f"{self.group} to commit all of {self.topic}: {self.committed}",
        )
        assert self._read == wanted
        await asyncio.to_thread(self.close)
        assert await asyncio.to_thread(self._position) == self.committed

    def _position(self) -> dict[int, int]:
        """Of the group, as the cluster says it."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group, "log_level": 0})
        asked = [TopicPartition(self.topic, number) for number in range(PARTITIONS_COUNT)]
        found = {each.partition: each.offset for each in consumer.committed(asked, TIMEOUT_S)}
        consumer.close()
        return found


class AskingMember(Member, ConfluentReader):
    """Whenever another leads, librdkafka asks that one where the epoch ended in which it has read."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        super().__init__(bootstrap, group, topic, socket_timeout_ms=REQUEST_MS + 1_000)


class TrustingMember(Member, AiokafkaReader):
    """Never asks that. Leaders of earlier releases sent back whoever did, and their coordinators, as long as they
    load, make this client give up: it begins anew where its group is."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        super().__init__(bootstrap, group, topic, request_timeout_ms=REQUEST_MS + 1_000)

    def _turn(self) -> None:
        try:
            super()._turn()
        except AioError as error:
            if "GroupLoadInProgress" not in str(error):
                raise
            self.end()
            self.open()
