"""Requests of every kind and version, made up by their schemas and then spoiled: a node outlives them all.

Each is answered, or its connection is closed with a line that says why. A traceback is a bug of ours.
"""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, get_args, get_origin

import pytest
from crc32c import crc32c

from quorate.batch import HEAD_BYTES, encode_records
from quorate.wire.entities import without_none
from quorate.wire.messages import VERSIONS, Api, encode_request, request_class
from tests.unit.kafka.harness import Served, serve

REQUESTS_COUNT = 1500
ANSWER_S = 0.3
"""A fetch may wait for longer than that, and acks=0 is never answered: then the next one is sent."""
SETTINGS = ("quorate.replication", "max.message.bytes", "min.insync.replicas", "retention.ms")
WORDS = (*SETTINGS, "a", "b", "", ".", "x" * 250, "x" * 32767, "\0", "\u00e9" * 16000, "1", "-1", "raft")
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


class Maker:
    """Values that are likely to hurt, for whatever field."""

    def __init__(self, seed: int, ids: list[uuid.UUID]) -> None:
        self.rng = Random(seed)
        self.ids = ids

    def request(self) -> bytes:
        """Any of those that are served; Produce below version 3 has no schema any more."""
        rng = self.rng
        api = rng.choice(list(Api))
        least, greatest = VERSIONS[api]
        version = rng.randint(max(least, 3) if api == Api.PRODUCE else least, greatest)
        message = bytearray(encode_request(api, version, 1, "any", self.entity(request_class(api, version))))
        for _ in range(rng.choice((0, 0, 1, 4))):
            message[rng.randrange(12, len(message))] = rng.randrange(256)
        return bytes(message)

    def entity(self, schema: type[Any]) -> Any:
        return schema(**{field.name: self.field(field) for field in dataclasses.fields(schema)})

    def field(self, field: dataclasses.Field[Any]) -> Any:
        kind, nullable = without_none(field.type)
        if get_origin(kind) is not tuple:
            return self.value(field, kind, nullable)
        element, also_nullable = without_none(get_args(kind)[0])
        if (nullable or also_nullable) and self.rng.random() < 0.2:
            return None
        return tuple(self.value(field, element, False) for _ in range(self.rng.choice((0, 1, 1, 2, 3))))

    def value(self, field: dataclasses.Field[Any], kind: Any, nullable: bool) -> Any:
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            return self.entity(kind)
        rng, name = self.rng, field.metadata["kafka_type"]
        if nullable and rng.random() < 0.2:
            return None
        if name in BITS:
            edge = 1 << BITS[name] - 1
            return rng.choice((0, 1, 2, -1, -2, -3, edge - 1, -edge))
        makers: dict[str, Callable[[], Any]] = {
            "string": lambda: rng.choice(WORDS),
            "bool": lambda: rng.random() < 0.5,
            "uuid": lambda: rng.choice((None, uuid.UUID(int=5), *self.ids)),
            "timedelta_i64": lambda: timedelta(milliseconds=rng.choice((0, 1, 50, 1 << 40))),
            "timedelta_i32": lambda: timedelta(milliseconds=rng.choice((0, 1, 50, -1))),
            "records": self.batch,
            "bytes": self.token,
            "float64": lambda: rng.choice((0.0, -1.5, float("inf"), float("nan"))),
        }
        return makers[name]()

    def token(self) -> bytes:
        return self.rng.choice((b"", b"n,,n=a,r=b", b"\0a\0b", bytes(100)))

    def batch(self) -> bytes:
        """Whole and with the right checksum, but perhaps with something else wrong."""
        rng = self.rng
        made = bytearray(
            encode_records(
                [(None, b"value")] * rng.randint(1, 3),
                producer_id=rng.choice((-1, -1, 0, 1, (1 << 63) - 1)),
                producer_epoch=rng.choice((-1, 0, 3)),
                base_sequence=rng.choice((-1, 0, 1, (1 << 31) - 1)),
            )
        )
        if rng.random() < 0.5:
            made[rng.randrange(HEAD_BYTES, len(made))] = rng.randrange(256)
            made[HEAD_BYTES - 4 : HEAD_BYTES] = crc32c(bytes(made[HEAD_BYTES:])).to_bytes(4, "big")
        return bytes(made[: rng.choice((len(made), len(made), rng.randrange(len(made))))])


@pytest.mark.parametrize("seed", range(2))
def test_a_node_outlives_any_request(tmp_path: Path, seed: int) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            ids = [(await connection.create(name, partitions=2)).topic_id for name in ("a", "b")]
        maker = Maker(seed, ids)
        answered_count = 0
        for _ in range(REQUESTS_COUNT):
            async with await served.connect() as connection:
                await connection.send(maker.request())
                try:
                    async with asyncio.timeout(ANSWER_S):
                        answered_count += await connection.reader.read(1) != b""
                except (TimeoutError, ConnectionError):
                    continue
        assert answered_count > REQUESTS_COUNT // 3
        assert [line for line in served.said if "Traceback" in line] == []
        async with await served.connect() as connection:
            assert (await connection.produce("a", encode_records([(None, b"still here")]))).error_code in (
                0,
                3,
            )

    serve(tmp_path, test)
