"""Saying who one is, on a real node's listener: both versions of the handshake, and what ends a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from quorate.bench.cluster_processes import free_ports
from quorate.cli.user import put_user
from quorate.client import Cluster, NotLetIn, Security
from quorate.client.admin import find_nodes
from quorate.client.introduction import after
from quorate.client.security import Conversation
from quorate.kafka import door
from quorate.kafka.sasl import session
from quorate.kafka.sasl.session import MECHANISMS
from quorate.machine.users import RemoveUser
from quorate.node.listeners import ListenerConfig
from quorate.wire.messages import Api
from tests.unit.kafka.harness import Connection, Served, serve, until

PASSWORD = "correct horse"
VERSIONS_ASKED = {"client_software_name": "test", "client_software_version": "1"}
ALL_TOPICS = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
}


def asking(port: int) -> dict[str, ListenerConfig]:
    return {
        "nodes": ListenerConfig(f"127.0.0.1:{free_ports(1)[0]}"),
        "client": ListenerConfig(f"127.0.0.1:{port}", sasl=True, connections_max=3),
    }


def serve_ann(directory: Path, test: Callable[[Served], Coroutine[Any, Any, None]]) -> None:
    async def with_ann(served: Served) -> None:
        await served.node.metadata.command(put_user("ann", PASSWORD))
        await test(served)

    serve(directory, with_ann, asking)


async def handshake(connection: Connection, mechanism: str, version: int = 1) -> Any:
    return await connection.ask(Api.SASL_HANDSHAKE, {"mechanism": mechanism}, version)


async def authenticate(connection: Connection, token: bytes, version: int = 2) -> Any:
    return await connection.ask(Api.SASL_AUTHENTICATE, {"auth_bytes": token}, version)


async def expect_served(connection: Connection) -> None:
    answer = await connection.ask(Api.METADATA, ALL_TOPICS)
    assert [broker.node_id for broker in answer.brokers] == [1]


def security(mechanism: str, password: str = PASSWORD) -> Security:
    return Security(user="ann", password=password, mechanism=mechanism)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_our_client_is_let_in_with_the_password_and_only_with_it(tmp_path: Path, mechanism: str) -> None:
    async def test(served: Served) -> None:
        def found(password: str) -> tuple[str, dict[int, tuple[str, int]]]:
            address = f"127.0.0.1:{served.port}"
            with Cluster(address, security=security(mechanism, password)) as cluster:
                return find_nodes(cluster)

        assert await asyncio.to_thread(found, PASSWORD) == ("test", {1: ("127.0.0.1", served.port)})
        with pytest.raises(NotLetIn, match="does not let 'ann' in: authentication failed"):
            await asyncio.to_thread(found, PASSWORD + "!")
        assert served.said[-1].endswith("not authenticated: a wrong password, or no such user; disconnected")

    serve_ann(tmp_path, test)


@pytest.mark.parametrize("version", range(3))
def test_plain_in_every_version(tmp_path: Path, version: int) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.ask(Api.API_VERSIONS, VERSIONS_ASKED)
            answer = await handshake(connection, "PLAIN")
            assert (answer.error_code, answer.mechanisms) == (ErrorCode.none, MECHANISMS)
            answer = await authenticate(connection, b"\0ann\0" + PASSWORD.encode(), version)
            assert (answer.error_code, answer.auth_bytes) == (ErrorCode.none, b"")
            await expect_served(connection)
            again = await handshake(connection, "PLAIN")
            assert again.error_code == ErrorCode.illegal_sasl_state
            again = await authenticate(connection, b"\0ann\0x", version)
            assert again.error_code == ErrorCode.illegal_sasl_state
            await expect_served(connection)
        async with await served.connect() as connection:
            await handshake(connection, "PLAIN")
            answer = await authenticate(connection, b"\0ann\0wrong", version)
            assert answer.error_code == ErrorCode.sasl_authentication_failed
            assert answer.error_message == "authentication failed: a wrong password, or no such user"
            assert await connection.is_closed()

    serve_ann(tmp_path, test)


class Bare:
    """Tokens behind their sizes, as after version 0 of the handshake."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def told(self, tokens: Conversation) -> None:
        token = next(tokens, None)
        while token is not None:
            await self.connection.send(len(token).to_bytes(4, "big") + token)
            token = after(tokens, await self.connection.receive())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_oldest_handshake_is_followed_by_bare_tokens(tmp_path: Path, mechanism: str) -> None:
    async def test(served: Served) -> None:
        for password in (PASSWORD, "wrong"):
            async with await served.connect() as connection:
                assert (await handshake(connection, mechanism, 0)).error_code == ErrorCode.none
                told = Bare(connection).told(security(mechanism, password).tokens())
                if password == PASSWORD:
                    await told
                    await expect_served(connection)
                else:
                    with pytest.raises(asyncio.IncompleteReadError):
                        await told

    serve_ann(tmp_path, test)


def test_what_nobody_may_ask_ends_the_connection(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await connection.send(connection.request(Api.METADATA, ALL_TOPICS))
            assert await connection.is_closed()
        assert "request 3: nobody has authenticated here" in served.said[-1]
        async with await served.connect() as connection:
            answer = await handshake(connection, "GSSAPI")
            assert (answer.error_code, answer.mechanisms) == (
                ErrorCode.unsupported_sasl_mechanism,
                MECHANISMS,
            )
            assert await connection.is_closed()
        assert "wants to authenticate with 'GSSAPI', which is not offered" in served.said[-1]
        async with await served.connect() as connection:
            answer = await authenticate(connection, b"\0ann\0" + PASSWORD.encode())
            assert answer.error_code == ErrorCode.illegal_sasl_state
            await handshake(connection, "SCRAM-SHA-256")
            await connection.send(connection.request(Api.METADATA, ALL_TOPICS))
            assert await connection.is_closed()
        async with await served.connect() as connection:
            await connection.send((session.REQUEST_BYTES_MAX + 1).to_bytes(4, "big"))
            assert await connection.is_closed()
        assert "a request of 65537 bytes; at most 65536 are taken" in served.said[-1]
        async with await served.connect() as connection:
            await connection.send(b"QRT1" + bytes(12))
            assert b"this listener is for Kafka clients" in await connection.receive()
            assert await connection.is_closed()

    serve_ann(tmp_path, test)


def test_nothing_is_served_while_a_password_is_looked_at(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            await handshake(connection, "PLAIN")
            token = connection.request(Api.SASL_AUTHENTICATE, {"auth_bytes": b"\0ann\0" + PASSWORD.encode()})
            await connection.send(token + connection.request(Api.METADATA, ALL_TOPICS))
            assert await connection.is_closed()
        assert "request 3: nobody has authenticated here" in served.said[-1]

    serve_ann(tmp_path, test)


def test_who_is_removed_or_has_another_password_is_disconnected(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        for command in (put_user("ann", "another one"), RemoveUser("ann")):
            await served.node.metadata.command(put_user("ann", PASSWORD), put_user("bob", PASSWORD))
            async with await served.connect() as ann, await served.connect() as bob:
                for connection, name in ((ann, b"ann"), (bob, b"bob")):
                    await handshake(connection, "PLAIN")
                    await authenticate(connection, b"\0%s\0%s" % (name, PASSWORD.encode()))
                await served.node.metadata.command(command)
                assert await ann.is_closed()
                assert "ann at 127.0.0.1:" in served.said[-1]
                assert served.said[-1].endswith("its password was changed, or it was removed; disconnected")
                await expect_served(bob)

    serve_ann(tmp_path, test)


def test_time_to_say_who_one_is_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "TIMEOUT_S", 0.2)

    async def test(served: Served) -> None:
        async with await served.connect() as connection, await served.connect() as other:
            await connection.ask(Api.API_VERSIONS, VERSIONS_ASKED)
            await handshake(other, "PLAIN")
            await authenticate(other, b"\0ann\0" + PASSWORD.encode())
            assert await connection.is_closed()
            assert served.said[-1].endswith("did not say who it is in time; disconnected")
            await expect_served(other)

    serve_ann(tmp_path, test)


def test_time_for_a_first_request_is_short_and_later_ones_may_take_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "FIRST_REQUEST_TIMEOUT_S", 0.2)

    async def test(served: Served) -> None:
        async with await served.connect() as slow, await served.connect() as later:
            request = slow.request(Api.API_VERSIONS, VERSIONS_ASKED)
            await slow.send(request[:-1])
            await later.ask(Api.API_VERSIONS, VERSIONS_ASKED)
            second = later.request(Api.API_VERSIONS, VERSIONS_ASKED)
            await later.send(second[:-1])
            assert await slow.is_closed()
            assert served.said[-1].endswith("no whole request in time; disconnected")
            await later.send(second[-1:])
            await later.receive()

    serve(tmp_path, test)


def test_a_listener_that_asks_for_no_password_says_so(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        async with await served.connect() as connection:
            assert (await handshake(connection, "PLAIN")).error_code == ErrorCode.illegal_sasl_state
            assert (await authenticate(connection, b"")).error_code == ErrorCode.illegal_sasl_state
            await expect_served(connection)

        def found() -> None:
            with Cluster(f"127.0.0.1:{served.port}", security=security("PLAIN")) as cluster:
                find_nodes(cluster)

        with pytest.raises(NotLetIn, match="asks nobody for a password; leave user and password out"):
            await asyncio.to_thread(found)

    serve(tmp_path, test)


def test_a_listener_has_room_for_so_many(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        inside = [await served.connect() for _ in range(3)]
        for connection in inside:
            await connection.ask(Api.API_VERSIONS, VERSIONS_ASKED)
        async with await served.connect() as turned_away:
            assert await turned_away.is_closed()
        assert "listener client: 127.0.0.1:" in served.said[-1]
        assert served.said[-1].endswith("turned away, 3 are connected")
        for connection in inside:
            async with connection:
                pass

        async def is_let_in() -> bool:
            async with await served.connect() as connection:
                try:
                    await connection.ask(Api.API_VERSIONS, VERSIONS_ASKED)
                except (asyncio.IncompleteReadError, ConnectionError):
                    return False
                return True

        async with asyncio.timeout(10):
            while not await is_let_in():
                pass

    serve_ann(tmp_path, test)


def test_clients_hear_the_address_of_the_listener_that_they_ask_on(tmp_path: Path) -> None:
    other = free_ports(1)[0]

    def both(port: int) -> dict[str, ListenerConfig]:
        return {
            "left": ListenerConfig(f"127.0.0.1:{port}"),
            "right": ListenerConfig(f"127.0.0.2:{other}", advertise="right.example:77"),
        }

    async def test(served: Served) -> None:
        async with await served.connect() as left:
            (broker,) = (await left.ask(Api.METADATA, ALL_TOPICS)).brokers
            assert (broker.host, broker.port) == ("127.0.0.1", served.port)
        reader, writer = await asyncio.open_connection("127.0.0.2", other)
        async with Connection(reader, writer) as right:
            (broker,) = (await right.ask(Api.METADATA, ALL_TOPICS)).brokers
            assert (broker.host, broker.port) == ("right.example", 77)
        info = served.node.metadata.image.nodes[1]
        assert info.listeners == {"left": ("127.0.0.1", served.port), "right": ("right.example", 77)}
        assert (info.host, info.port) == ("127.0.0.1", served.port)
        await until(lambda: served.node.metadata.is_registered)

    serve(tmp_path, test, both)
