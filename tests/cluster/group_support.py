"""Consumers in groups, by the clients that people have, each in a thread of its own and behind the same methods."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.abc import ConsumerRebalanceListener as AioListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.errors import KafkaError as AioError
from aiokafka.structs import OffsetAndMetadata as AioPosition
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.cluster.kafka_clients import TIMEOUT_S

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import ConsumerRebalanceListener as PythonListener  # type: ignore[import-untyped]
    from kafka import KafkaConsumer
    from kafka import TopicPartition as PythonTopicPartition
    from kafka.errors import KafkaError as PythonError  # type: ignore[import-untyped]
    from kafka.structs import OffsetAndMetadata as PythonPosition  # type: ignore[import-untyped]

__all__ = ["KafkaConsumer", "PythonError", "PythonTopicPartition"]

POLL_S = 0.1
SESSION_S = 20
POSITION_KEPT = "note"


class Reader(ABC):
    """Reads, notes what it has read, says how far it is, and so on, until it is told to close."""

    kind: str

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        self.bootstrap, self.group, self.topic = bootstrap, group, topic
        self.settings = settings
        self.values: list[bytes] = []
        self.committed: dict[int, int] = {}
        """The highest position in each partition that was acknowledged."""
        self.assigned: frozenset[int] = frozenset()
        self.revoked: list[frozenset[int]] = []
        """What was taken away each time, before it was closed."""
        self.failed: BaseException | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{self.kind} in {group}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self._thread.name} does not end"
        if self.failed is not None:
            raise self.failed

    def _run(self) -> None:
        try:
            self.open()
            try:
                while not self._closing.is_set():
                    self._turn()
            finally:
                self.end()
        except BaseException as error:
            self.failed = error

    def _turn(self) -> None:
        read = self.poll()
        self.values += [value for _, _, value in read]
        ends = {partition: offset + 1 for partition, offset, _ in read}
        if ends and self.commit(ends):
            for partition, offset in ends.items():
                self.committed[partition] = max(offset, self.committed.get(partition, 0))

    def _got(self, partitions: list[Any]) -> None:
        self.assigned |= {each.partition for each in partitions}

    def _lost(self, partitions: list[Any]) -> None:
        gone = frozenset(each.partition for each in partitions)
        self.assigned -= gone
        if gone and not self._closing.is_set():
            self.revoked.append(gone)

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def poll(self) -> list[tuple[int, int, bytes]]:
        """Partition, offset and value of what is there now."""

    @abstractmethod
    def commit(self, ends: dict[int, int]) -> bool:
        """Whether it was acknowledged; whoever was called back is told that it was not."""

    @abstractmethod
    def end(self) -> None: ...


class ConfluentReader(Reader):
    kind = "confluent-kafka"

    def open(self) -> None:
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_S * 1000,
            "heartbeat.interval.ms": 500,
        }
        named = {name.replace("_", "."): value for name, value in self.settings.items()}
        self._consumer = Consumer(settings | named)
        self._consumer.subscribe(
            [self.topic],
            on_assign=lambda _, partitions: self._got(partitions),
            on_revoke=lambda _, partitions: self._lost(partitions),
            on_lost=lambda _, partitions: self._lost(partitions),
        )

    def poll(self) -> list[tuple[int, int, bytes]]:
        messages: list[Any] = self._consumer.consume(500, timeout=POLL_S)
        return [(each.partition(), each.offset(), each.value()) for each in messages if each.error() is None]

    def commit(self, ends: dict[int, int]) -> bool:
        positions = [
            TopicPartition(self.topic, partition, offset, metadata=POSITION_KEPT)
            for partition, offset in ends.items()
        ]
        try:
            self._consumer.commit(offsets=positions, asynchronous=False)
        except KafkaException:
            return False
        return True

    def end(self) -> None:
        self._consumer.close()


class KafkaPythonReader(Reader):
    kind = "kafka-python"

    def open(self) -> None:
        reader = self

        class Listener(PythonListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: list[Any]) -> None:
                reader.assigned = frozenset()
                reader._got(assigned)

            def on_partitions_revoked(self, revoked: list[Any]) -> None:
                reader._lost(revoked)

        self._consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap.split(","),
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_S * 1000,
            heartbeat_interval_ms=500,
            **self.settings,
        )
        self._consumer.subscribe([self.topic], listener=Listener())

    def poll(self) -> list[tuple[int, int, bytes]]:
        try:
            read = self._consumer.poll(timeout_ms=int(POLL_S * 1000))
        except PythonError:  # It says so when it asked a node that is down, and asks another one next time.
            return []
        return [(each.partition, each.offset, each.value) for some in read.values() for each in some]

    def commit(self, ends: dict[int, int]) -> bool:
        positions = {
            PythonTopicPartition(self.topic, partition): PythonPosition(offset, POSITION_KEPT, -1)
            for partition, offset in ends.items()
        }
        try:
            self._consumer.commit(positions)
        except PythonError:
            return False
        return True

    def end(self) -> None:
        self._consumer.close()


class AiokafkaReader(Reader):
    kind = "aiokafka"

    def open(self) -> None:
        reader = self

        class Listener(AioListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Any) -> None:
                reader._got(list(assigned))

            def on_partitions_revoked(self, revoked: Any) -> None:
                reader._lost(list(revoked))

        async def start() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap,
                group_id=self.group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=SESSION_S * 1000,
                heartbeat_interval_ms=500,
                partition_assignment_strategy=(AioRange,),
                **self.settings,
            )
            consumer.subscribe([self.topic], listener=Listener())
            await consumer.start()
            return consumer

        self._loop = asyncio.new_event_loop()
        self._consumer = self._loop.run_until_complete(start())

    def poll(self) -> list[tuple[int, int, bytes]]:
        read = self._loop.run_until_complete(self._consumer.getmany(timeout_ms=int(POLL_S * 1000)))
        return [(each.partition, each.offset, each.value or b"") for some in read.values() for each in some]

    def commit(self, ends: dict[int, int]) -> bool:
        positions = {
            AioTopicPartition(self.topic, partition): AioPosition(offset, POSITION_KEPT)
            for partition, offset in ends.items()
        }
        try:
            self._loop.run_until_complete(self._consumer.commit(positions))
        except (AioError, ValueError):
            return False
        return True

    def end(self) -> None:
        with suppress(AioError):
            self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


READERS: list[type[Reader]] = [ConfluentReader, KafkaPythonReader, AiokafkaReader]


def until(holds: Callable[[], bool], what: str, *readers: Reader, timeout_s: float = 2 * TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        for reader in readers:
            if reader.failed is not None:
                raise reader.failed
        said = [(reader.kind, sorted(reader.assigned), len(reader.values)) for reader in readers]
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}; {said}"
        time.sleep(POLL_S / 5)


def have_shared(count: int, *readers: Reader) -> bool:
    """Whether these have all of so many partitions, each of them some, none two of them."""
    everything = sorted(partition for reader in readers for partition in reader.assigned)
    return everything == list(range(count)) and all(reader.assigned for reader in readers)
