"""The Kafka clients that are used here, each behind the same few methods, so that one test serves them all."""

from __future__ import annotations

import asyncio
import subprocess
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

with warnings.catch_warnings():
    # It reads its schemas in a way that Python 3.11 and 3.12 call old.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import (  # type: ignore[import-untyped]
        KafkaAdminClient,
        KafkaConsumer,
        KafkaProducer,
    )
    from kafka import TopicPartition as PythonTopicPartition
    from kafka.admin import NewTopic as PythonNewTopic  # type: ignore[import-untyped]

__all__ = ["KafkaConsumer", "KafkaProducer", "PythonTopicPartition"]

TIMEOUT_S = 30.0

Read = tuple[int, bytes]
"""A record's offset and value."""


class KafkaClient(ABC):
    """Everything is about partition 0 of a topic of three copies."""

    name: str
    compressions: tuple[str, ...]

    @abstractmethod
    def __init__(self, bootstrap: str) -> None: ...

    @abstractmethod
    def create(self, topic: str) -> None: ...

    @abstractmethod
    def produce(self, topic: str, values: list[bytes], compression: str) -> None: ...

    @abstractmethod
    def consume(self, topic: str, count: int) -> list[Read]: ...

    @abstractmethod
    def first_at(self, topic: str, time_ms: int) -> int | None: ...

    @abstractmethod
    def ends(self, topic: str) -> tuple[int, int]: ...

    @abstractmethod
    def delete(self, topic: str) -> None: ...


class Confluent(KafkaClient):
    name = "confluent-kafka"
    compressions = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, bootstrap: str) -> None:
        self.settings: dict[str, Any] = {"bootstrap.servers": bootstrap}
        self.admin = AdminClient(self.settings)

    def create(self, topic: str, *, partitions: int = 1, copies: int = 3, **config: str) -> None:
        named = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, partitions, copies, config=named)
        self.admin.create_topics([new])[topic].result(TIMEOUT_S)

    def producer(self, **settings: Any) -> Producer:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        return Producer(self.settings | named)

    def produce(self, topic: str, values: list[bytes], compression: str) -> None:
        failed: list[Any] = []
        producer = self.producer(enable_idempotence=True, compression_type=compression)
        for value in values:
            producer.produce(
                topic,
                value,
                partition=0,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert producer.flush(TIMEOUT_S) == 0
        assert failed == []

    def consumer(self, **settings: Any) -> Consumer:
        """Groups are not served: a name must be given, and nothing is asked of it."""
        named = {name.replace("_", "."): value for name, value in settings.items()}
        return Consumer(self.settings | {"group.id": "none", "enable.auto.commit": False} | named)

    def consume(self, topic: str, count: int) -> list[Read]:
        consumer = self.consumer()
        consumer.assign([TopicPartition(topic, 0, 0)])
        read: list[Read] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(read) < count and time.monotonic() < deadline:
            for message in consumer.consume(count, timeout=0.2):
                assert message.error() is None
                read.append((message.offset() or 0, message.value() or b""))
        consumer.close()
        return read

    def consume_to(self, topic: str, end: int) -> list[Read]:
        """All that lies below an offset, however little of it is left."""
        consumer = self.consumer(enable_partition_eof=True)
        consumer.assign([TopicPartition(topic, 0, 0)])
        read: list[Read] = []
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF", error
                break
            read.append((message.offset() or 0, message.value() or b""))
        consumer.close()
        return [each for each in read if each[0] < end]

    def first_at(self, topic: str, time_ms: int) -> int | None:
        consumer = self.consumer()
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, time_ms)], timeout=TIMEOUT_S)
        consumer.close()
        return int(found.offset) if found.offset >= 0 else None

    def ends(self, topic: str) -> tuple[int, int]:
        consumer = self.consumer()
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S)
        consumer.close()
        return low, high

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(TIMEOUT_S)


class Aiokafka(KafkaClient):
    name = "aiokafka"
    compressions = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        yield admin
        await admin.close()

    def create(self, topic: str) -> None:
        async def main() -> None:
            async with self._admin() as admin:
                answer = await admin.create_topics([AioNewTopic(topic, 1, 3)])
                assert [error for _, error, _ in answer.topic_errors] == [0]

        asyncio.run(main())

    def produce(self, topic: str, values: list[bytes], compression: str) -> None:
        async def main() -> None:
            async with AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                acks="all",
                enable_idempotence=True,
                compression_type=None if compression == "none" else compression,
            ) as producer:
                sent = [await producer.send(topic, value, partition=0) for value in values]
                await asyncio.wait_for(asyncio.gather(*sent), TIMEOUT_S)

        asyncio.run(main())

    def consume(self, topic: str, count: int) -> list[Read]:
        async def main() -> list[Read]:
            read: list[Read] = []
            partition = AioTopicPartition(topic, 0)
            async with AIOKafkaConsumer(bootstrap_servers=self.bootstrap, group_id=None) as consumer:
                consumer.assign([partition])
                consumer.seek(partition, 0)
                deadline = time.monotonic() + TIMEOUT_S
                while len(read) < count and time.monotonic() < deadline:
                    found = await consumer.getmany(partition, timeout_ms=200)
                    read += [(record.offset, record.value) for record in found.get(partition, [])]
            return read

        return asyncio.run(main())

    def first_at(self, topic: str, time_ms: int) -> int | None:
        async def main() -> int | None:
            partition = AioTopicPartition(topic, 0)
            async with AIOKafkaConsumer(bootstrap_servers=self.bootstrap, group_id=None) as consumer:
                consumer.assign([partition])
                found = (await consumer.offsets_for_times({partition: time_ms}))[partition]
                return found.offset if found else None

        return asyncio.run(main())

    def ends(self, topic: str) -> tuple[int, int]:
        async def main() -> tuple[int, int]:
            partition = AioTopicPartition(topic, 0)
            async with AIOKafkaConsumer(bootstrap_servers=self.bootstrap, group_id=None) as consumer:
                low = await consumer.beginning_offsets([partition])
                high = await consumer.end_offsets([partition])
                return low[partition], high[partition]

        return asyncio.run(main())

    def delete(self, topic: str) -> None:
        async def main() -> None:
            async with self._admin() as admin:
                answer = await admin.delete_topics([topic])
                assert [error for _, error in answer.topic_error_codes] == [0]

        asyncio.run(main())


class KafkaPython(KafkaClient):
    name = "kafka-python"
    # The other codecs need packages that nothing else here does.
    compressions = ("none", "gzip")

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap.split(",")

    def create(self, topic: str) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        admin.create_topics([PythonNewTopic(topic, 1, 3)])
        admin.close()

    def produce(self, topic: str, values: list[bytes], compression: str) -> None:
        chosen = None if compression == "none" else compression
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, acks="all", compression_type=chosen)
        sent = [producer.send(topic, value, partition=0) for value in values]
        for future in sent:
            future.get(TIMEOUT_S)
        producer.close()

    def _consumer(self) -> KafkaConsumer:
        return KafkaConsumer(bootstrap_servers=self.bootstrap, group_id=None)

    def consume(self, topic: str, count: int) -> list[Read]:
        read: list[Read] = []
        partition = PythonTopicPartition(topic, 0)
        consumer = self._consumer()
        consumer.assign([partition])
        consumer.seek(partition, 0)
        deadline = time.monotonic() + TIMEOUT_S
        while len(read) < count and time.monotonic() < deadline:
            found = consumer.poll(timeout_ms=200)
            read += [(record.offset, record.value) for record in found.get(partition, [])]
        consumer.close()
        return read

    def first_at(self, topic: str, time_ms: int) -> int | None:
        partition = PythonTopicPartition(topic, 0)
        consumer = self._consumer()
        consumer.assign([partition])
        found = consumer.offsets_for_times({partition: time_ms})[partition]
        consumer.close()
        return found.offset if found else None

    def ends(self, topic: str) -> tuple[int, int]:
        partition = PythonTopicPartition(topic, 0)
        consumer = self._consumer()
        low = consumer.beginning_offsets([partition])[partition]
        high = consumer.end_offsets([partition])[partition]
        consumer.close()
        return low, high

    def delete(self, topic: str) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        admin.delete_topics([topic])
        admin.close()


class Kcat(KafkaClient):
    """The command; it cannot create or delete, which confluent-kafka does for it."""

    name = "kcat"
    compressions = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = Confluent(bootstrap)

    def run(self, *arguments: str, given: bytes = b"") -> bytes:
        command = ["kcat", "-b", self.bootstrap, *arguments]
        done = subprocess.run(command, input=given, capture_output=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def create(self, topic: str) -> None:
        self._admin.create(topic)

    def produce(self, topic: str, values: list[bytes], compression: str) -> None:
        settings = ["-X", "acks=all", "-X", f"compression.codec={compression}"]
        self.run("-P", "-t", topic, "-p", "0", *settings, given=b"\n".join(values) + b"\n")

    def consume(self, topic: str, count: int) -> list[Read]:
        said = self.run("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", "%o %s\n")
        read = [line.split(b" ", 1) for line in said.splitlines()]
        return [(int(offset), value) for offset, value in read]

    def first_at(self, topic: str, time_ms: int) -> int | None:
        said = self.run("-Q", "-t", f"{topic}:0:{time_ms}")
        offset = int(said.split()[-1])
        return offset if offset >= 0 else None

    def ends(self, topic: str) -> tuple[int, int]:
        found = [self.first_at(topic, place) for place in (-2, -1)]
        assert found[0] is not None
        assert found[1] is not None
        return found[0], found[1]

    def delete(self, topic: str) -> None:
        self._admin.delete(topic)
