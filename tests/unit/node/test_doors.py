"""Letters that clients bring: what they may cost a node together."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from quorate.node import doors
from quorate.node.codec import Hello, Welcome, decode_greeting, encode_greeting
from quorate.node.letters import PREFACE
from tests.unit.kafka.harness import Connection, Served, serve, until

UNFINISHED = (50_000).to_bytes(4, "big") + bytes(5_996)


async def greeted(served: Served) -> Connection:
    connection = await served.connect()
    await connection.send(PREFACE + encode_greeting(Hello("test")))
    assert isinstance(decode_greeting(await connection.receive()), Welcome)
    return connection


def test_unfinished_letters_are_bounded_over_all_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "RECEIVING_BYTES_MAX", 10_000)

    async def test(served: Served) -> None:
        async with await greeted(served) as first, await greeted(served) as second:
            await first.send(UNFINISHED)
            await until(lambda: served.node.receiving_bytes == len(UNFINISHED))
            await second.send(UNFINISHED)
            assert await second.is_closed()
            await until(lambda: served.node.receiving_bytes == len(UNFINISHED))
            assert "more than 10000 bytes of unfinished letters are here already" in served.said[-1]
        await until(lambda: served.node.receiving_bytes == 0)

    serve(tmp_path, test)


def test_a_client_whose_machine_is_gone_is_noticed_by_the_system(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await greeted(served):
            door = served.node.doors[-1]
            assert door._transport is not None
            its_socket = door._transport.get_extra_info("socket")
            assert its_socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1

    serve(tmp_path, test)
