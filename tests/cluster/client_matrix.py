"""Whole records through each client: keys, values, headers and times, written and read with its own means."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from importlib.metadata import version as installed
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from uuid import uuid4

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, TopicPartition, libversion

from quorate.spark.session import local_session
from tests.cluster import kafka_clients as clients
from tests.cluster.kafka_clients import TIMEOUT_S, Confluent, Kcat
from tests.cluster.other_clients import JavaTools, Kafkajs, NotThere, jars, version_of

CREATED, APPENDED = 0, 1
HEADER = ("kind", "test")


class Sent(NamedTuple):
    """Of every record the same header, `HEADER`."""

    key: str
    value: str


class Got(NamedTuple):
    key: str
    value: str
    headers: tuple[tuple[str, str], ...]
    time_ms: int
    kind: int | None
    """Who gave the time; None: this client does not say."""


class Whole(ABC):
    """Everything is about partition 0 of a topic that is there."""

    name: str
    version: str

    @abstractmethod
    def __init__(self, bootstrap: str) -> None:
        """Raises NotThere."""

    @abstractmethod
    def write(self, topic: str, records: list[Sent]) -> None: ...

    @abstractmethod
    def read(self, topic: str, count: int) -> list[Got]: ...


def _text(headers: Any) -> tuple[tuple[str, str], ...]:
    return tuple((name, value.decode()) for name, value in headers or ())


class WholeConfluent(Whole):
    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        self._client = Confluent(bootstrap)
        self.version = f"{installed('confluent-kafka')} (librdkafka {libversion()[0]})"

    def write(self, topic: str, records: list[Sent]) -> None:
        failed: list[Any] = []
        producer = self._client.producer(enable_idempotence=True, compression_type="lz4")
        for key, value in records:
            producer.produce(
                topic,
                value,
                key,
                partition=0,
                headers=[HEADER],
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert producer.flush(TIMEOUT_S) == 0
        assert failed == []

    def read(self, topic: str, count: int) -> list[Got]:
        consumer: Consumer = self._client.consumer()
        consumer.assign([TopicPartition(topic, 0, 0)])
        read: list[Got] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(read) < count and time.monotonic() < deadline:
            for message in consumer.consume(count, timeout=0.2):
                assert message.error() is None
                kind, time_ms = message.timestamp()
                key, value = message.key() or b"", message.value() or b""
                headers = _text(message.headers())
                read.append(
                    Got(_str(key), _str(value), headers, time_ms, kind - 1)
                )  # librdkafka counts from 1.
        consumer.close()
        return read


def _str(content: str | bytes) -> str:
    return content if isinstance(content, str) else content.decode()


class WholeAiokafka(Whole):
    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.version = installed("aiokafka")

    def write(self, topic: str, records: list[Sent]) -> None:
        async def main() -> None:
            async with AIOKafkaProducer(
                bootstrap_servers=self._bootstrap, enable_idempotence=True, compression_type="zstd"
            ) as producer:
                headers = [(HEADER[0], HEADER[1].encode())]
                sent = [
                    await producer.send(topic, value.encode(), key.encode(), partition=0, headers=headers)
                    for key, value in records
                ]
                await asyncio.wait_for(asyncio.gather(*sent), TIMEOUT_S)

        asyncio.run(main())

    def read(self, topic: str, count: int) -> list[Got]:
        async def main() -> list[Got]:
            read: list[Got] = []
            partition = AioTopicPartition(topic, 0)
            async with AIOKafkaConsumer(bootstrap_servers=self._bootstrap, group_id=None) as consumer:
                consumer.assign([partition])
                consumer.seek(partition, 0)
                deadline = time.monotonic() + TIMEOUT_S
                while len(read) < count and time.monotonic() < deadline:
                    for record in (await consumer.getmany(partition, timeout_ms=200)).get(partition, []):
                        headers = _text(record.headers)
                        told = (record.timestamp, record.timestamp_type)
                        read.append(Got(record.key.decode(), record.value.decode(), headers, *told))
            return read

        return asyncio.run(main())


class WholeKafkaPython(Whole):
    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap.split(",")
        self.version = installed("kafka-python")

    def write(self, topic: str, records: list[Sent]) -> None:
        producer = clients.KafkaProducer(
            bootstrap_servers=self._bootstrap, acks="all", compression_type="gzip"
        )
        headers = [(HEADER[0], HEADER[1].encode())]
        sent = [
            producer.send(topic, value.encode(), key.encode(), headers, partition=0) for key, value in records
        ]
        for future in sent:
            future.get(TIMEOUT_S)
        producer.close()

    def read(self, topic: str, count: int) -> list[Got]:
        partition = clients.PythonTopicPartition(topic, 0)
        consumer = clients.KafkaConsumer(bootstrap_servers=self._bootstrap, group_id=None)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        read: list[Got] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(read) < count and time.monotonic() < deadline:
            for record in consumer.poll(timeout_ms=200).get(partition, []):
                headers = _text(record.headers)
                told = (record.timestamp, record.timestamp_type)
                read.append(Got(record.key.decode(), record.value.decode(), headers, *told))
        consumer.close()
        return read


class WholeKcat(Whole):
    name = "kcat"

    def __init__(self, bootstrap: str) -> None:
        if shutil.which("kcat") is None:
            raise NotThere("kcat is not on the PATH; on Debian: apt-get install kcat")
        self._kcat = Kcat(bootstrap)
        said = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"Version (\S+) .*librdkafka (\S+)", said)
        self.version = f"{found[1]} (librdkafka {found[2]})" if found else "unknown"

    def write(self, topic: str, records: list[Sent]) -> None:
        given = "".join(f"{key}:{value}\n" for key, value in records).encode()
        header = "=".join(HEADER)
        self._kcat.run("-P", "-t", topic, "-p", "0", "-K", ":", "-H", header, "-z", "snappy", given=given)

    def read(self, topic: str, count: int) -> list[Got]:
        format_ = "%k\t%s\t%h\t%T\n"
        said = self._kcat.run("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", format_)
        read = []
        for line in said.decode().splitlines():
            key, value, headers, time_ms = line.split("\t")
            name, _, content = headers.partition("=")
            read.append(Got(key, value, ((name, content),), int(time_ms), None))
        return read


class WholeKafkajs(Whole):
    name = "kafkajs"

    def __init__(self, bootstrap: str) -> None:
        self._client = Kafkajs(bootstrap)
        self.version = self._client.version

    def write(self, topic: str, records: list[Sent]) -> None:
        self._client.run(topic=topic, records=[(*record, dict([HEADER])) for record in records])

    def read(self, topic: str, count: int) -> list[Got]:
        """It reads in groups only."""
        said = json.loads(self._client.run(topic=topic, count=count, group=f"kafkajs-{uuid4()}"))
        return [
            Got(key, value, tuple((name, content) for name, content in headers), time_ms, None)
            for key, value, headers, time_ms in said
        ]


class WholeJava(Whole):
    """The Java client, by Kafka's console producer and consumer."""

    name = "Kafka's own tools (Java)"

    def __init__(self, bootstrap: str) -> None:
        self._tools = JavaTools(bootstrap)
        self.version = self._tools.version

    def write(self, topic: str, records: list[Sent]) -> None:
        header = ":".join(HEADER)
        given = "".join(f"{header}\t{key}\t{value}\n" for key, value in records)
        properties = ("--property", "parse.key=true", "--property", "parse.headers=true")
        sure = ("--producer-property", "acks=all", "--producer-property", "enable.idempotence=true")
        self._tools.run("ConsoleProducer", "--topic", topic, *properties, *sure, given=given)

    def read(self, topic: str, count: int) -> list[Got]:
        shown = [f"print.{what}=true" for what in ("timestamp", "headers", "key")]
        properties = [each for what in shown for each in ("--property", what)]
        where = ("--topic", topic, "--partition", "0", "--offset", "earliest")
        until = ("--max-messages", str(count), "--timeout-ms", str(int(TIMEOUT_S * 1000)))
        said = self._tools.run("consumer.ConsoleConsumer", *where, *until, *properties)
        kinds = {"CreateTime": CREATED, "LogAppendTime": APPENDED}
        read = []
        for line in said.splitlines():
            told, headers, key, value = line.split("\t")
            kind, _, time_ms = told.partition(":")
            name, _, content = headers.partition(":")
            read.append(Got(key, value, ((name, content),), int(time_ms), kinds[kind]))
        return read


class WholeSpark(Whole):
    """Spark's own connector: the batch sink writes one half, the streaming sink the other, and both sources
    read all of it."""

    name = 'Spark\'s format("kafka")'

    def __init__(self, bootstrap: str) -> None:
        found = jars("spark")
        self._settings = {"spark.jars": ",".join(map(str, found))}
        self._options = {"kafka.bootstrap.servers": bootstrap, "includeHeaders": "true"}
        connector = version_of(found, "spark-sql-kafka-0-10_2.13")
        self.version = f"{connector}, in Spark {installed('pyspark')}"

    def write(self, topic: str, records: list[Sent]) -> None:
        header = [(HEADER[0], bytearray(HEADER[1].encode()))]
        rows = [(bytearray(key.encode()), bytearray(value.encode()), header, 0) for key, value in records]
        kinds = "key binary, value binary, headers array<struct<key: string, value: binary>>, partition int"
        half = len(rows) // 2
        with (
            local_session("sink", master="local[1]", settings=self._settings) as spark,
            TemporaryDirectory() as scratch,
        ):
            first = spark.createDataFrame(rows[:half], kinds).coalesce(1)
            first.write.format("kafka").options(**self._options, topic=topic).save()
            spark.createDataFrame(rows[half:], kinds).coalesce(1).write.parquet(f"{scratch}/rows")
            stream = spark.readStream.schema(kinds).parquet(f"{scratch}/rows")
            sink = stream.writeStream.format("kafka").options(**self._options, topic=topic)
            query = (
                sink.option("checkpointLocation", f"{scratch}/checkpoint").trigger(availableNow=True).start()
            )
            assert query.awaitTermination(int(3 * TIMEOUT_S))

    def read(self, topic: str, count: int) -> list[Got]:
        wanted = {**self._options, "subscribe": topic, "startingOffsets": "earliest"}
        what = ("key", "value", "headers", "unix_millis(timestamp)", "timestampType")
        with local_session("source", master="local[1]", settings=self._settings) as spark:
            stream = spark.readStream.format("kafka").options(**wanted).load()
            into = stream.writeStream.format("memory").queryName("read").trigger(availableNow=True)
            assert into.start().awaitTermination(int(3 * TIMEOUT_S))
            rows = spark.table("read").orderBy("offset").selectExpr(*what).collect()
            batch = spark.read.format("kafka").options(**wanted).load()
            assert batch.orderBy("offset").selectExpr(*what).collect() == rows
        return [
            Got(
                bytes(key).decode(),
                bytes(value).decode(),
                tuple((name, bytes(content).decode()) for name, content in headers or ()),
                time_ms,
                kind,
            )
            for key, value, headers, time_ms, kind in rows
        ]


CLIENTS: tuple[type[Whole], ...] = (
    WholeConfluent,
    WholeAiokafka,
    WholeKafkaPython,
    WholeKcat,
    WholeKafkajs,
    WholeJava,
    WholeSpark,
)
