"""Requests as real clients send them, for the fuzz: `python -m tests.unit.kafka.recording` writes them anew.

A node in this process serves confluent-kafka, aiokafka and kafka-python for a moment. Of every kind and version of
request the first few that differ in length are kept, each with who sent it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from quorate.kafka.door import Door
from quorate.wire.cursor import Buffer
from quorate.wire.messages import read_head
from tests.cluster.kafka_clients import Aiokafka, Confluent, KafkaClient, KafkaPython
from tests.unit.kafka.harness import Served, serve

FILE = Path(__file__).parents[2] / "data" / "kafka_requests.json"
KEPT_COUNT = 3
"""Of each kind and version, by each client."""
BYTES_MAX = 1000


class Recorded(NamedTuple):
    client: str
    api: int
    version: int
    frame: str
    """In hexadecimal, without its size."""


def load() -> list[Recorded]:
    return msgspec.json.decode(FILE.read_bytes(), type=list[Recorded])


def record(directory: Path) -> list[Recorded]:
    kept: dict[tuple[str, int, int], dict[int, Recorded]] = {}

    async def test(served: Served) -> None:
        request = Door._request
        client = ""

        def noted(door: Door, frame: Buffer) -> None:
            head = read_head(frame)
            ours = kept.setdefault((client, head.api, head.version), {})
            if len(frame) <= BYTES_MAX and len(ours) < KEPT_COUNT:
                ours.setdefault(len(frame), Recorded(client, head.api, head.version, bytes(frame).hex()))
            request(door, frame)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Door, "_request", noted)
            for kind in (Confluent, Aiokafka, KafkaPython):
                client = kind.name
                await asyncio.to_thread(_use, kind(f"127.0.0.1:{served.port}"))

    serve(directory, test)
    return [each for _, ours in sorted(kept.items()) for _, each in sorted(ours.items())]


def _use(client: KafkaClient) -> None:
    topic = client.name
    Confluent.create(Confluent(_bootstrap(client)), topic, copies=1)
    client.produce(topic, [b"some value"] * 5, "none")
    client.produce(topic, [b"some value"] * 50, "gzip")
    assert len(client.consume(topic, 55)) == 55
    client.first_at(topic, 1)
    client.ends(topic)
    client.delete(topic)


def _bootstrap(client: KafkaClient) -> str:
    given = client.settings["bootstrap.servers"] if isinstance(client, Confluent) else client.bootstrap  # type: ignore[attr-defined]
    return given if isinstance(given, str) else ",".join(given)


if __name__ == "__main__":
    logging.disable()
    with tempfile.TemporaryDirectory() as scratch:
        found = record(Path(scratch))
    FILE.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    sys.stderr.write(f"{len(found)} requests of {len({each[:3] for each in found})} kinds in {FILE.name}\n")
