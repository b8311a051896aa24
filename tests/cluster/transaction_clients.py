"""Transactions by each client that has them: what it writes into two partitions, and whether that is to count."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import warnings
from collections.abc import Callable

from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer

from tests.cluster.kafka_clients import TIMEOUT_S
from tests.cluster.other_clients import Kafkajs, NotThere

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer  # type: ignore[import-untyped]

Transaction = tuple[list[bytes], bool]
"""Values, for partition 0 and 1 in turns, and whether they are to be committed."""


def by_confluent(bootstrap: str, topic: str, transactions: list[Transaction]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"id-{topic}"})
    producer.init_transactions(TIMEOUT_S)
    for values, commit in transactions:
        producer.begin_transaction()
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % 2)
        producer.flush(TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S) if commit else producer.abort_transaction(TIMEOUT_S)


def by_aiokafka(bootstrap: str, topic: str, transactions: list[Transaction]) -> None:
    async def main() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"id-{topic}")
        await producer.start()
        try:
            for values, commit in transactions:
                await producer.begin_transaction()
                for number, value in enumerate(values):
                    await producer.send_and_wait(topic, value, partition=number % 2)
                await (producer.commit_transaction() if commit else producer.abort_transaction())
        finally:
            await producer.stop()

    asyncio.run(main())


def by_kafka_python(bootstrap: str, topic: str, transactions: list[Transaction]) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), transactional_id=f"id-{topic}")
    producer.init_transactions()
    for values, commit in transactions:
        producer.begin_transaction()
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % 2).get(TIMEOUT_S)
        producer.commit_transaction() if commit else producer.abort_transaction()
    producer.close(TIMEOUT_S)


def by_kafkajs(bootstrap: str, topic: str, transactions: list[Transaction]) -> None:
    """Raises NotThere."""
    told = [([value.decode() for value in values], commit) for values, commit in transactions]
    Kafkajs(bootstrap).run(topic=topic, transactions=told, id=f"id-{topic}")


Write = Callable[[str, str, list[Transaction]], None]

PRODUCERS: dict[str, Write] = {
    "confluent-kafka": by_confluent,
    "aiokafka": by_aiokafka,
    "kafka-python": by_kafka_python,
    "kafkajs": by_kafkajs,
}


def by_kcat(bootstrap: str, topic: str, values: list[bytes]) -> None:
    """All that it is given is one transaction, which is committed at the end. Raises NotThere."""
    if shutil.which("kcat") is None:
        raise NotThere("kcat is not on the PATH; on Debian: apt-get install kcat")
    told = ["-b", bootstrap, "-P", "-t", topic, "-p", "0", "-X", f"transactional.id=id-{topic}"]
    subprocess.run(
        ["kcat", *told], input=b"\n".join(values), check=True, capture_output=True, timeout=2 * TIMEOUT_S
    )
