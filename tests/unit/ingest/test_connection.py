"""The library's client, where it is not as we want it, with a server that is played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from nats.aio.msg import Msg

from quorate.ingest.connection import Connection, Unencrypted, Unreadable
from tests.unit.ingest.fake_server import FakeServer, until


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 20))


async def connected(client: Connection, url: str, errors: list[Exception]) -> None:
    async def failed(error: Exception) -> None:
        errors.append(error)

    await client.connect([url], allow_reconnect=False, connect_timeout=5, error_cb=failed)


def test_tls_is_insisted_on_before_a_password_is_sent() -> None:
    async def story() -> None:
        async with FakeServer(auth_required=True) as server:
            client = Connection()
            with pytest.raises(Unencrypted):
                await connected(client, f"tls://user:secret@{server.address}", [])
            await client.close()
            await until(lambda: server.first_bytes == [b""], "nothing to be said")

    run(story())


def test_without_tls_a_server_that_only_offers_it_is_spoken_to_in_clear() -> None:
    async def story() -> None:
        async with FakeServer(tls_available=True) as server:
            client = Connection()
            await connected(client, f"nats://{server.address}", [])
            assert server.first_bytes == [b"C"]
            await client.close()

    run(story())


@pytest.mark.parametrize(
    "unreadable",
    [
        b"MSG a 1 \xff\xfe 2\r\nhi\r\n",
        b"HMSG a 1 3 5\r\nNATxx\r\n",
        b"HMSG a 1 18 20\r\nNATS/1.0 \xff\xfe\xfd a\r\n\r\nhi\r\n",
    ],
    ids=["reply", "short headers", "status"],
)
def test_a_message_that_cannot_be_read_is_told_and_stops_nobody(unreadable: bytes) -> None:
    async def story() -> None:
        heard: list[bytes] = []
        errors: list[Exception] = []

        async def hear(message: Msg) -> None:
            heard.append(message.data)

        async with FakeServer() as server:
            client = Connection()
            await connected(client, f"nats://{server.address}", errors)
            await client.subscribe("a", cb=hear)
            await client.flush()
            server.say(unreadable)
            server.deliver("a", b"next")
            await until(lambda: heard == [b"next"], "the next message")
            assert list(map(type, errors)) == [Unreadable]
            await client.close()

    run(story())
