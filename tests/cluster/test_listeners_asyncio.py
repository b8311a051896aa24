"""The client for asyncio with TLS, passwords and certificates, asked as the other one is, and answered alike."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorate.client import AsyncTableGroup, ClientError, Cluster, NotLetIn, Security, TableGroup, Unreachable
from quorate.client.tables import create_group
from quorate.tables import Add, Column, CreateTable, Insert, Table, Type, Update
from tests.cluster.secured import SecuredCluster, needs_openssl
from tests.cluster.test_listeners import ANN, PASSWORD, quorate, security

pytestmark = [pytest.mark.cluster, needs_openssl]

GROUP = "bank"
TASKS_COUNT = 20
SHORT_S = 2.0
"""For what never comes about."""
LONG_S = 30.0
"""For what does, on a machine that is busy: hashing a password takes a while."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with SecuredCluster(tmp_path_factory.mktemp("secured"), count=1) as cluster:
        cluster.start()
        assert quorate(cluster, "user", "add", ANN, given=f"{PASSWORD}\n").returncode == 0
        with Cluster(cluster.bootstrap, security=security(cluster)) as client:
            create_group(client, GROUP, replication="raft")
        with TableGroup(cluster.bootstrap, GROUP, security=security(cluster)) as bank:
            bank.execute(
                CreateTable(Table("counts", (Column("id", Type.STR), Column("count", Type.INT)), ("id",)))
            )
        yield cluster


async def counted(bootstrap: str, name: str, how: Security) -> object:
    """A row that many tasks have counted up, over the connection that they share."""
    async with AsyncTableGroup(bootstrap, GROUP, security=how) as bank:
        await bank.execute(Insert("counts", (name, 0)))
        one_more = Update("counts", (name,), (Add("count", 1),))
        await asyncio.gather(*(bank.execute(one_more) for _ in range(TASKS_COUNT)))
        row = await bank.get("counts", (name,))
        return row and row.values[1]


async def asked(bootstrap: str, how: Security | None, timeout_s: float) -> None:
    async with AsyncTableGroup(bootstrap, GROUP, security=how, timeout_s=timeout_s) as bank:
        await bank.describe()


def refusals(bootstrap: str, how: Security | None, kind: type[ClientError]) -> tuple[str, str]:
    """What the synchronous client says, and what the one for asyncio does; in neither there is a password."""
    timeout_s = SHORT_S if kind is Unreachable else LONG_S
    with (
        TableGroup(bootstrap, GROUP, security=how, timeout_s=timeout_s) as bank,
        pytest.raises(kind) as one,
    ):
        bank.describe()
    with pytest.raises(kind) as other:
        asyncio.run(asked(bootstrap, how, timeout_s))
    for raised in (one, other):
        told = "".join(traceback.format_exception(raised.value)) + repr(raised.value) + repr(how)
        assert how is None or not how.password or how.password not in told
    return str(one.value), str(other.value)


def at_certified(cluster: SecuredCluster) -> str:
    return f"127.0.0.1:{cluster.shown_ports[1]}"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_many_tasks_share_a_connection_with_tls_and_a_password(
    cluster: SecuredCluster, mechanism: str
) -> None:
    how = security(cluster, mechanism=mechanism)
    assert asyncio.run(counted(cluster.bootstrap, mechanism, how)) == TASKS_COUNT


def test_a_certificate_is_shown_where_one_is_asked_for(cluster: SecuredCluster) -> None:
    own = cluster.authority.sign("a-client")
    how = Security(tls=True, ca=cluster.authority.ca, cert=own["cert"], key=own["key"])
    assert asyncio.run(counted(at_certified(cluster), "certified", how)) == TASKS_COUNT


def test_without_that_certificate_nothing_is_answered(cluster: SecuredCluster) -> None:
    """Nor why: the node hangs up."""
    for said in refusals(at_certified(cluster), Security(tls=True, ca=cluster.authority.ca), Unreachable):
        assert f"{GROUP}: nothing came of it within {SHORT_S:g} s" in said


def test_a_wrong_password_is_refused_in_the_same_words_and_not_repeated(cluster: SecuredCluster) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        wrong = security(cluster, password="battery staple", mechanism=mechanism)
        one, other = refusals(cluster.bootstrap, wrong, NotLetIn)
        assert one == other
        assert "does not let 'ann' in: authentication failed: a wrong password, or" in other


def test_a_node_that_is_not_trusted_is_told_no_password(cluster: SecuredCluster) -> None:
    stranger = Security(tls=True, ca=cluster.nodes_authority.ca, user=ANN, password=PASSWORD)
    one, other = refusals(cluster.bootstrap, stranger, NotLetIn)
    assert one == other
    assert "127.0.0.1 shows a certificate that is not trusted" in other


def test_files_that_are_not_there_are_named(cluster: SecuredCluster, tmp_path: Path) -> None:
    missing = Security(tls=True, ca=str(tmp_path / "missing.pem"))
    one, other = refusals(cluster.bootstrap, missing, NotLetIn)
    assert one == other
    assert "missing.pem) cannot be used: No such file" in other


def test_a_password_where_nobody_asks_for_one_is_said_so(cluster: SecuredCluster) -> None:
    own = cluster.authority.sign("another-client")
    how = Security(
        tls=True, ca=cluster.authority.ca, cert=own["cert"], key=own["key"], user=ANN, password=PASSWORD
    )
    one, other = refusals(at_certified(cluster), how, NotLetIn)
    assert one == other
    assert "asks nobody for a password" in other


def test_without_tls_the_call_ends_in_time(cluster: SecuredCluster) -> None:
    for said in refusals(cluster.bootstrap, None, Unreachable):
        assert f"{GROUP}: nothing came of it within {SHORT_S:g} s" in said


def test_a_client_that_is_closed_while_it_is_let_in_leaves_nothing_open() -> None:
    """Whoever answers there accepts, and says nothing."""

    async def main() -> None:
        arrived: asyncio.Future[asyncio.StreamReader] = asyncio.get_running_loop().create_future()
        left = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            arrived.set_result(reader)
            await reader.read()
            writer.close()
            left.set()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with server, asyncio.timeout(10 * SHORT_S):
            port = server.sockets[0].getsockname()[1]
            bank = AsyncTableGroup(f"127.0.0.1:{port}", GROUP, security=Security(user=ANN, password=PASSWORD))
            asking = asyncio.create_task(bank.describe())
            await arrived
            await bank.close()
            with pytest.raises(Unreachable, match="closed"):
                await asking
            await left.wait()

    asyncio.run(main())
