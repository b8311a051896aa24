"""Fetch sessions: a consumer names, and hears of, only what changes; and truncation that a fetch detects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kio.schema.errors import ErrorCode
from msgspec import structs

from quorate.batch import encode_records
from quorate.kafka.sessions import Room, Sessions
from quorate.wire import fetch
from quorate.wire.fetch import FetchRequest, WantedPartition, WantedTopic
from quorate.wire.messages import Api, decode_response
from tests.unit.kafka.harness import Connection, Served, serve, until
from tests.unit.kafka.test_door import broker_of

VERSION = 12


class Told(NamedTuple):
    """An answer: its error, the session, and of each partition its number and how many bytes it has."""

    error: int
    session: int
    partitions: list[tuple[int, int]]


async def ask(
    connection: Connection,
    session: int,
    epoch: int,
    wanted: dict[int, int],
    *,
    forgotten: Sequence[int] = (),
    last_epoch: int = -1,
) -> Told:
    """`wanted`: offsets by partition of topic `t`."""
    parts = [WantedPartition(number, offset, 1 << 20, -1, last_epoch) for number, offset in wanted.items()]
    topics = [WantedTopic("t", bytes(16), parts)] if parts else []
    gone = [("t", bytes(16), list(forgotten))] if forgotten else []
    request = FetchRequest(0, 1, 1 << 20, topics, 0, session, epoch, gone)
    await connection.send(fetch.encode_request(VERSION, 1, "test", request))
    _, body = decode_response(Api.FETCH, VERSION, await connection.receive())
    parts_told = [
        (part.partition_index, len(part.records or b""))
        for topic in body.responses
        for part in topic.partitions
    ]
    return Told(body.error_code, body.session_id, parts_told)


def test_only_what_changed_is_named_and_told(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("t", partitions=3)
            batch = encode_records([(None, b"value")])
            error, session, told = await ask(connection, 0, 0, {0: 1, 1: 1, 2: 1})
            assert (error, told) == (0, [(0, 0), (1, 0), (2, 0)])
            assert session > 0
            assert await ask(connection, session, 1, {}) == Told(0, session, [])
            assert (await connection.produce("t", batch, partition=1)).error_code == 0
            assert await ask(connection, session, 2, {}) == Told(0, session, [(1, len(batch))])
            # The client goes on behind it; of another it hears no more.
            assert (await connection.produce("t", batch, partition=2)).error_code == 0
            assert await ask(connection, session, 3, {1: 2}, forgotten=[2]) == Told(0, session, [])
            assert await ask(connection, session, 4, {2: 1}) == Told(0, session, [(2, len(batch))])

    serve(tmp_path, test)


def test_who_got_something_waits_behind_the_others(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("t", partitions=2)
            session = (await ask(connection, 0, 0, {0: 1, 1: 1})).session
            for number in (0, 1):
                await connection.produce("t", encode_records([(None, b"value")]), partition=number)
            assert [number for number, _ in (await ask(connection, session, 1, {})).partitions] == [0, 1]
            await connection.produce("t", encode_records([(None, b"more")]), partition=0)
            (told,) = (await ask(connection, session, 2, {1: 2})).partitions
            assert told[0] == 0
            found = await ask(connection, session, 3, {1: 1})
            assert [number for number, _ in found.partitions] == [1, 0]

    serve(tmp_path, test)


def test_who_got_something_waits_behind_the_others_though_the_client_names_nothing_new(
    tmp_path: Path,
) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("t", partitions=2)
            session = (await ask(connection, 0, 0, {0: 1, 1: 1})).session
            for epoch, (number, order) in enumerate(((0, [0]), (1, [1, 0])), start=1):
                await connection.produce("t", encode_records([(None, b"value")]), partition=number)
                found = await ask(connection, session, epoch, {})
                assert [each for each, _ in found.partitions] == order

    serve(tmp_path, test)


def test_a_session_that_is_not_there_or_a_request_out_of_turn_is_an_error_of_the_whole(
    tmp_path: Path,
) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection, await served.connect() as other:
            await connection.create("t")
            session = (await ask(connection, 0, 0, {0: 1})).session
            unknown, wrong = ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch
            assert await ask(connection, session + 1, 1, {}) == Told(unknown, 0, [])
            assert await ask(other, session, 1, {}) == Told(unknown, 0, [])
            assert await ask(connection, session, 2, {}) == Told(wrong, 0, [])
            assert await ask(connection, session, 1, {}) == Told(0, session, [])
            again = (await ask(connection, session, 0, {0: 1})).session
            assert again not in (0, session)
            assert await ask(connection, again, -1, {0: 1}) == Told(0, 0, [(0, 0)])
            assert await ask(connection, again, 1, {}) == Told(unknown, 0, [])

    serve(tmp_path, test)


def test_a_connection_that_ends_gives_its_room_back(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.create("t", partitions=4)
            before = broker_of(served).session_room.left
            await ask(connection, 0, 0, {0: 1, 1: 1, 2: 1})
            assert broker_of(served).session_room.left == before - 3
        await until(lambda: broker_of(served).session_room.left == before)

    serve(tmp_path, test)


def test_where_there_is_no_room_a_client_is_answered_without_a_session() -> None:
    def request(session: int, epoch: int, *numbers: int) -> FetchRequest:
        parts = [WantedPartition(number, 0, 1) for number in numbers]
        return FetchRequest(0, 1, 1, [WantedTopic("t", bytes(16), parts)], 0, session, epoch)

    room = Room(partitions_count=3)
    one, two = Sessions(room), Sessions(room)
    error, session = one.asked(request(0, 0, 0, 1))
    assert (error, session is not None, room.left) == (0, True, 1)
    assert two.asked(request(0, 0, 0, 1)) == (0, None)
    assert room.left == 1
    assert session is not None
    assert one.asked(request(session.number, 1, 5, 6))[0] == ErrorCode.fetch_session_id_not_found
    assert room.left == 3


def test_a_consumer_that_read_what_is_not_here_hears_where_its_epoch_ended(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            topic = await connection.create("t")
            await connection.produce("t", encode_records([(None, b"value")] * 4))
            (partition,) = served.node.metadata.image.by_id[topic.topic_id.bytes].partitions()
            epoch = served.node.leader_of(partition)[1]
            part = WantedPartition(0, 3, 1 << 20, -1, epoch)
            for last_epoch, diverging in ((epoch, None), (-1, None), (epoch - 1, (epoch - 1, 0))):
                wanted = WantedTopic("t", bytes(16), [structs.replace(part, last_epoch=last_epoch)])
                request = FetchRequest(0, 1, 1 << 20, [wanted])
                await connection.send(fetch.encode_request(VERSION, 1, "test", request))
                _, body = decode_response(Api.FETCH, VERSION, await connection.receive())
                (found,) = body.responses[0].partitions
                assert found.error_code == 0
                end = found.diverging_epoch
                if diverging is None:
                    assert found.records
                    assert end.end_offset == -1
                else:
                    assert not found.records
                    assert (end.epoch, end.end_offset) == diverging

    serve(tmp_path, test)
