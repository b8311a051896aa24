"""Many requests on one connection: each gets its own answer, whoever stops waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quorate.client.aio_connection import UNANSWERED_COUNT_MAX, AsyncConnection

LATER = 1e9


class Wire(asyncio.Transport):
    """What was written, and nobody at the other end."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_aborted = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def abort(self) -> None:
        self.is_aborted = True


def answer(number: int, text: bytes = b"") -> bytes:
    return (4 + len(text)).to_bytes(4, "big") + number.to_bytes(4, "big") + text


def with_connection(test: Callable[[AsyncConnection, Wire], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        connection, wire = AsyncConnection(), Wire()
        connection.connection_made(wire)
        await test(connection, wire)

    asyncio.run(main())


def ask(connection: AsyncConnection, deadline: float = LATER) -> asyncio.Future[bytes]:
    return connection.send(lambda number: b"%d" % number, deadline)


def test_answers_come_in_order_in_pieces_of_any_size() -> None:
    async def test(connection: AsyncConnection, wire: Wire) -> None:
        waiting = [ask(connection) for _ in range(3)]
        assert wire.written == [b"1", b"2", b"3"]
        for byte in answer(1, b"one") + answer(2, b"two") + answer(3, b"three"):
            connection.data_received(bytes((byte,)))
        assert [(await each)[4:] for each in waiting] == [b"one", b"two", b"three"]

    with_connection(test)


def test_whoever_was_cancelled_leaves_its_answer_to_nobody() -> None:
    async def test(connection: AsyncConnection, wire: Wire) -> None:
        first, second, third = (ask(connection) for _ in range(3))
        second.cancel()
        connection.data_received(answer(1, b"one") + answer(2, b"two") + answer(3, b"three"))
        assert (await first)[4:] == b"one"
        assert (await third)[4:] == b"three"
        assert not wire.is_aborted

    with_connection(test)


@pytest.mark.parametrize("wrong", [answer(2), b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"])
def test_what_cannot_be_an_answer_ends_the_connection_for_everybody(wrong: bytes) -> None:
    async def test(connection: AsyncConnection, wire: Wire) -> None:
        waiting = [ask(connection), ask(connection)]
        connection.data_received(wrong)
        assert wire.is_aborted
        for each in waiting:
            with pytest.raises(ConnectionResetError):
                await each
        with pytest.raises(ConnectionResetError):
            await connection.room()

    with_connection(test)


def test_an_answer_that_nobody_asked_for_ends_it() -> None:
    async def test(connection: AsyncConnection, wire: Wire) -> None:
        connection.data_received(answer(1))
        assert wire.is_aborted

    with_connection(test)


def test_only_the_next_answer_says_whether_a_node_hangs() -> None:
    async def test(connection: AsyncConnection, wire: Wire) -> None:
        assert not connection.is_hung(5.0)
        patient, hasty = ask(connection, 10.0), ask(connection, 2.0)
        assert not connection.is_hung(3.0)
        assert connection.is_hung(10.0)
        connection.data_received(answer(1))
        assert connection.is_hung(3.0)
        connection.data_received(answer(2))
        assert not connection.is_hung(10.0)
        await asyncio.gather(patient, hasty)

    with_connection(test)


def test_requests_wait_for_room() -> None:
    async def test(connection: AsyncConnection, wire: Wire) -> None:
        waiting = [ask(connection) for _ in range(UNANSWERED_COUNT_MAX)]
        room = asyncio.ensure_future(connection.room())
        await asyncio.sleep(0)
        assert not room.done()
        connection.data_received(answer(1))
        await asyncio.wait_for(room, 10)
        connection.pause_writing()
        room = asyncio.ensure_future(connection.room())
        await asyncio.sleep(0)
        assert not room.done()
        connection.resume_writing()
        await asyncio.wait_for(room, 10)
        connection.abort("over")
        for each in waiting[1:]:
            with pytest.raises(ConnectionResetError, match="over"):
                await each

    with_connection(test)


def test_a_lost_connection_is_told_to_those_who_wait_for_room_too() -> None:
    async def test(connection: AsyncConnection, wire: Wire) -> None:
        connection.pause_writing()
        room = asyncio.ensure_future(connection.room())
        await asyncio.sleep(0)
        connection.connection_lost(None)
        with pytest.raises(ConnectionResetError, match="closed"):
            await asyncio.wait_for(room, 10)

    with_connection(test)
