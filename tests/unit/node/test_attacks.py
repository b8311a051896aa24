"""Well-formed letters that say the wrong things, to a real node: it refuses them, and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import get_args

import msgspec
import pytest
from kio.schema.errors import ErrorCode

from quorate.core.entry import FORMAT_VERSION
from quorate.host.parcel import Leads, Ping
from quorate.machine.metadata import METADATA, REPLICATIONS
from quorate.node.codec import SPOKEN, Hello, Message, Welcome, decode_greeting, encode_greeting
from quorate.node.letters import PREFACE, seal
from quorate.node.requests import Propose, Request
from tests.unit.kafka.harness import Connection, Served, serve
from tests.unit.kafka.test_produce import BATCH
from tests.unit.node.made_up import Maker

LETTERS_COUNT = 400
PEER = 2
AGAIN = (ErrorCode.not_leader_or_follower, ErrorCode.not_enough_replicas)
"""Somebody may have told it to hand over."""
REQUESTS = get_args(Request)
EVERYTHING = get_args(Message)

encode = msgspec.msgpack.Encoder().encode
Letter = Callable[[Random, Maker, list[bytes]], bytes]


def request(rng: Random, maker: Maker, partitions: list[bytes]) -> bytes:
    kind = rng.choice(REQUESTS)
    content = maker.one_of(kind)
    attached = b""
    if kind is Propose and rng.random() < 0.7:
        attached = rng.choice((BATCH, BATCH[:-1], rng.randbytes(100)))
        content |= {"partition": rng.choice(partitions), "sizes": [len(attached)]}
    return seal(encode([rng.randrange(100), content]), len(attached)) + attached


def parcel(rng: Random, maker: Maker, partitions: list[bytes]) -> bytes:
    """Of one protocol to a replica, or whoever oversees it, of another; or for nobody. (Who lies in the protocol
    that is spoken there is no node of ours: certificates keep such out, and assertions.)"""
    meant = dict(zip(partitions, ("raft", *REPLICATIONS), strict=True))
    kind = rng.choice((*EVERYTHING, Leads, Ping))
    others = [each for each, protocol in meant.items() if kind not in SPOKEN[protocol]]
    partition = None if kind in (Leads, Ping) else rng.choice((*others, b"x" * 20, b"short"))
    sender = rng.choice((PEER, PEER, PEER, -PEER))
    to_overseer, generation = rng.random() < 0.5, rng.choice((0, 0, 0, 1))
    envelope = [partition, sender, rng.choice((1, 1, 1, 2, 0)), FORMAT_VERSION, maker.one_of(kind)]
    return seal(encode([*envelope, 0, 0, 0, to_overseer, generation]))


async def greeted(served: Served, node: int) -> Connection:
    connection = await served.connect()
    await connection.send(PREFACE + encode_greeting(Hello("test", node, 1, incarnation=1)))
    answer = decode_greeting(await connection.receive())
    assert isinstance(answer, Welcome), answer
    return connection


@pytest.mark.parametrize(("node", "made"), [(0, request), (PEER, parcel)], ids=["client", "peer"])
@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_said_a_node_goes_on(tmp_path: Path, node: int, made: Letter, seed: int) -> None:
    rng = Random(seed)

    async def test(served: Served) -> None:
        async with await served.connect() as client:
            for kind in REPLICATIONS:
                assert (await client.create(kind, copies=1, quorate_replication=kind)).error_code == 0
            topics = served.node.metadata.image.topics
            partitions = [bytes(METADATA), *(bytes(topics[kind].partitions()[0]) for kind in REPLICATIONS)]
            maker = Maker(rng, partitions)
            connection = await greeted(served, node)
            for _ in range(LETTERS_COUNT):
                with suppress(ConnectionError):
                    await connection.send(made(rng, maker, partitions))
                await asyncio.sleep(0)
                if connection.writer.is_closing() or connection.reader.at_eof():
                    connection = await greeted(served, node)
            connection.writer.close()
            await expect_well(served, client)

    serve(tmp_path, test, peers={PEER: "127.0.0.1:1"} if node else {})


async def expect_well(served: Served, client: Connection) -> None:
    bugs = [line for line in served.said if "Traceback" in line]
    assert not bugs, bugs[0]
    for kind in REPLICATIONS:
        assert (await client.produce(kind, BATCH)).error_code in (0, *AGAIN), kind
