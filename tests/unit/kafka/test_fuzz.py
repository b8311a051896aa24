"""Requests of real clients, and of every other kind and version, joint transactions included, spoiled and sent to a
node that serves.

A node outlives them all, and each costs only its own connection. What is answered is answered to whoever asked, in
order, and can be read; what is not ends the connection, with one line in the log. When all have gone, nothing of
them is left.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from quorate.batch import encode_records
from quorate.kafka.broker import Broker
from quorate.kafka.call import Call
from quorate.kafka.sessions import PARTITIONS_COUNT_MAX
from quorate.node import logs
from quorate.wire import joint
from quorate.wire.messages import VERSIONS, Api, decode_response, encode_request, is_served, request_class
from tests.unit.kafka.harness import Connection, Served, serve, until
from tests.unit.kafka.recording import load
from tests.unit.kafka.test_any_request import Maker
from tests.unit.kafka.test_door import broker_of
from tests.unit.wire.making import KIO_FROM

AT_ONCE = 16
"""Connections."""
ANSWER_S = 0.2
"""A fetch may wait for longer than that, and acks=0 is never answered: then the client leaves."""
SIZE, HEAD, CORRELATION_AT = 4, 8, 4
EDGES = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\1\x86\xa0")
CLOSED = "disconnected"


class Fuzz:
    """The same inputs for the same seed."""

    def __init__(self, seed: int, maker: Maker, topic_ids: list[bytes]) -> None:
        self.rng = Random(seed)
        self._topic_ids = topic_ids
        self._recorded = [bytes.fromhex(each.frame) for each in load()]
        self._made = {
            (api, version): maker
            for api, (least, greatest) in VERSIONS.items()
            for version in range(max(least, KIO_FROM.get(api, 0)), greatest + 1)
        }

    def frame(self) -> bytes:
        """One that was recorded, or of any kind and version that is served."""
        if (kind := self.rng.random()) < 0.4:
            return self.rng.choice(self._recorded)
        if kind < 0.45:
            return joint.encode_request(self._joint(), 1, "fuzz")[SIZE:]
        (api, version), maker = self.rng.choice(list(self._made.items()))
        return encode_request(api, version, 1, "fuzz", maker.entity(request_class(api, version)))[SIZE:]

    def _joint(self) -> joint.Request:
        """Of a few apps and runs, so that some of it fits together."""
        rng = self.rng
        app, run, number = rng.choice("ab"), rng.choice("cd"), rng.choice((0, 1, 2, -1, 1 << 63))
        producer_id = rng.choice((0, 1, 1000, -1, 1 << 63))
        written = joint.Written(
            "a", rng.choice(self._topic_ids), rng.choice((0, 1, 9, -1)), rng.choice((0, 1))
        )
        parts = tuple(joint.Part(producer_id + each, (written,)) for each in range(rng.randrange(3)))
        return rng.choice(
            (
                joint.Open(app, number, run, rng.randrange(3), 0, rng.choice((0, 20, 60_000))),
                joint.Commit(app, number, run, parts, rng.choice((0, 100))),
                joint.Abort(app, number, run),
                joint.Renew(app, run, (producer_id,)),
                joint.AskLast(app),
            )
        )

    def spoiled(self, correlation: int) -> bytes:
        """With its size, and with a correlation of its own if that much is left of it."""
        frame = bytearray(self.frame())
        for _ in range(self.rng.choice((0, 1, 1, 2, 3, 6))):
            self.rng.choice((self._flip, self._flip, self._edge, self._cut, self._double, self._splice))(
                frame
            )
        if len(frame) >= CORRELATION_AT + 4:
            frame[CORRELATION_AT : CORRELATION_AT + 4] = correlation.to_bytes(4, "big")
        size = len(frame) if self.rng.random() < 0.97 else self.rng.choice((0, -1, len(frame) + 1, 1 << 30))
        return size.to_bytes(4, "big", signed=True) + bytes(frame)

    def _at(self, frame: bytearray) -> int:
        """Mostly behind the header, and mostly near it: that is where counts and lengths are."""
        end = len(frame)
        least = min(HEAD if self.rng.random() < 0.8 else 0, end)
        return (
            min(least + int(self.rng.expovariate(1 / 30)), end)
            if self.rng.random() < 0.7
            else self.rng.randint(0, end)
        )

    def _flip(self, frame: bytearray) -> None:
        if (at := self._at(frame)) < len(frame):
            frame[at] ^= 1 << self.rng.randrange(8)

    def _edge(self, frame: bytearray) -> None:
        at, edge = self._at(frame), self.rng.choice(EDGES)
        frame[at : at + len(edge)] = edge

    def _cut(self, frame: bytearray) -> None:
        del frame[self._at(frame) :]

    def _double(self, frame: bytearray) -> None:
        at = self._at(frame)
        frame[at:at] = frame[at : at + self.rng.randint(1, 60)] * self.rng.choice((1, 1, 20))

    def _splice(self, frame: bytearray) -> None:
        at, other = self._at(frame), self.frame()
        frame[at:] = other[min(at, len(other)) :]


class Outcomes:
    def __init__(self) -> None:
        self.answered = self.closed = 0


async def send_some(served: Served, inputs: Iterator[bytes], outcomes: Outcomes) -> None:
    """One client: a few requests on one connection, and what comes back."""
    sent = [message for _, message in zip(range(3), inputs, strict=False)]
    async with await served.connect() as connection:
        with suppress(ConnectionError):
            await connection.send(b"".join(sent))
        expected = [message[SIZE:] for message in sent]
        try:
            async with asyncio.timeout(ANSWER_S):
                while expected:
                    expect_answer(await receive(connection), expected)
                    outcomes.answered += 1
        except TimeoutError:
            return
        except (asyncio.IncompleteReadError, ConnectionError):
            outcomes.closed += 1


async def receive(connection: Connection) -> bytes:
    size = int.from_bytes(await connection.reader.readexactly(SIZE), "big")
    return await connection.reader.readexactly(size)


def expect_answer(answer: bytes, expected: list[bytes]) -> None:
    """It is of the next request that was sent on this connection, or behind one that wants no answer."""
    correlation = answer[:4]
    while expected and (len(expected[0]) < HEAD or expected[0][CORRELATION_AT:HEAD] != correlation):
        assert expected[0][:2] == Api.PRODUCE.to_bytes(2, "big"), "only acks=0 is not answered"
        expected.pop(0)
    assert expected, f"the answer {answer[:40].hex()} is of none of the requests that were sent here"
    head = expected.pop(0)
    api, version = int.from_bytes(head[:2], "big"), int.from_bytes(head[2:4], "big", signed=True)
    if api == joint.JOINT_API:
        joint.decode_answer(answer)
        return
    if api not in set(Api):
        return  # Of tables: they are tried elsewhere.
    if not is_served(api, version):
        assert api == Api.API_VERSIONS
        version = 0
    if api != Api.PRODUCE or version >= KIO_FROM[Api.PRODUCE]:
        decode_response(Api(api), version, answer)


def is_clean(broker: Broker) -> bool:
    return not (broker.doors or broker.receiving_bytes or broker._waiting) and (
        broker.session_room.left == PARTITIONS_COUNT_MAX
    )


def calls_count() -> int:
    gc.collect()
    return sum(isinstance(each, Call) for each in gc.get_objects())


def fuzz(directory: Path, seed: int, inputs_count: int) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            ids = [(await connection.create(name, partitions=2)).topic_id for name in ("a", "b")]
        broker = broker_of(served)
        await until(lambda: is_clean(broker))
        tasks_count = len(asyncio.all_tasks())
        made = Fuzz(seed, Maker(seed, ids), [each.bytes for each in ids])
        inputs = (made.spoiled(1000 + number) for number in range(inputs_count))
        outcomes = Outcomes()

        async def client() -> None:
            while (first := next(inputs, None)) is not None:
                await send_some(served, iter([first]), outcomes)
                await send_some(served, inputs, outcomes)

        async with asyncio.TaskGroup() as clients:
            for _ in range(AT_ONCE):
                clients.create_task(client())
        await until(lambda: is_clean(broker))
        await until(lambda: len(asyncio.all_tasks()) <= tasks_count)
        assert [line for line in served.said if "Traceback" in line] == []
        lines_count = sum(CLOSED in line for line in served.said)
        assert outcomes.closed <= lines_count, "whoever is disconnected, a line says why"
        assert outcomes.answered > inputs_count // 10
        assert outcomes.closed > inputs_count // 10
        await until(lambda: calls_count() == 0)  # A batch that was proposed is waited for.
        async with await served.connect() as connection:
            assert (await connection.create(f"still-here-{seed}", partitions=1)).error_code in (0, 37)
            answer = await connection.produce("a", encode_records([(None, b"still here")]))
            assert answer.error_code in (0, 3)

    serve(directory, test)


@pytest.fixture(autouse=True)
def _every_offence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers fill no log: a node leaves lines out where there are very many. Here each one is counted."""
    monkeypatch.setattr(logs, "OFFENCES_COUNT_MAX", sys.maxsize)
    monkeypatch.setattr(logs, "OFFENCE_AGAIN_S", 0.0)


def test_spoiled_requests_cost_only_their_own_connection(tmp_path: Path) -> None:
    fuzz(tmp_path, 0, 2_000)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(1, 9))
def test_very_many_spoiled_requests_cost_only_their_own_connection(tmp_path: Path, seed: int) -> None:
    """200,000 in all."""
    fuzz(tmp_path, seed, 25_000)
