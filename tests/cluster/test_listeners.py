"""Listeners in real processes: TLS and passwords for clients, certificates between nodes."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from quorate.client import Cluster, NotLetIn, Security, Unreachable
from quorate.client.tables import TableGroup, create_group
from quorate.node.codec import Hello, Refused, Welcome, decode_greeting, encode_greeting
from quorate.node.letters import PREFACE
from quorate.node.porch import NO_LETTERS
from quorate.tables import Column, CreateTable, Insert, Table, Type
from tests.cluster.kafka_clients import TIMEOUT_S, Confluent
from tests.cluster.secured import SecuredCluster, needs_openssl

pytestmark = [pytest.mark.cluster, needs_openssl]

ANN, PASSWORD = "ann", "correct horse"
HELLO = PREFACE + encode_greeting(Hello("secured"))
API_VERSIONS = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff"
METADATA = b"\0\0\0\x0e\0\3\0\1\0\0\0\1\xff\xff\0\0\0\0"
TLS_ALERT = 0x15
SOON_S = 0.05


class SecuredConfluent(Confluent):
    """It remembers what librdkafka complains of."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.errors: list[int] = []
        self.settings = settings | {"error_cb": lambda error: self.errors.append(error.code())}
        self.admin = AdminClient(self.settings)

    def until_complained(self, code: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while code not in self.errors:
            assert time.monotonic() < deadline, f"{code} is not in {self.errors}"
            with suppress(KafkaException):  # It connects again when it is asked something.
                self.admin.list_topics(timeout=10 * SOON_S)
            self.admin.poll(0)


def quorate(cluster: SecuredCluster, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quorate", "--access", str(cluster.access), *arguments]
    return subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with SecuredCluster(tmp_path_factory.mktemp("secured")) as cluster:
        cluster.start()
        added = quorate(cluster, "user", "add", ANN, given=f"{PASSWORD}\n")
        assert (added.returncode, added.stdout, added.stderr) == (0, "user ann is added\n", "")
        yield cluster
        for node in cluster.nodes.values():
            assert node.stop() == 0
            assert "Traceback" not in node.output.read_text(encoding="utf-8")


def security(cluster: SecuredCluster, user: str = ANN, password: str = PASSWORD, **more: Any) -> Security:
    return Security(tls=True, ca=cluster.authority.ca, user=user, password=password, **more)


# ---- clients ----


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_confluent_writes_and_reads_over_tls_with_a_password(cluster: SecuredCluster, mechanism: str) -> None:
    client = SecuredConfluent(cluster.client_settings(ANN, PASSWORD, mechanism))
    topic = f"with-{mechanism.lower()}"
    client.create(topic)
    values = [f"{number}".encode() for number in range(100)]
    client.produce(topic, values, "none")
    assert [value for _, value in client.consume(topic, 100)] == values
    brokers = client.admin.list_topics(timeout=TIMEOUT_S).brokers
    assert {broker.port for broker in brokers.values()} == set(cluster.ports.values())


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", [ANN, "nobody"])
def test_a_wrong_password_and_an_unknown_user_are_told_the_same(
    cluster: SecuredCluster, user: str, mechanism: str
) -> None:
    client = SecuredConfluent(cluster.client_settings(user, "wrong password", mechanism))
    client.until_complained(KafkaError._AUTHENTICATION)
    with Cluster(
        cluster.bootstrap, security=security(cluster, user, "wrong password", mechanism=mechanism)
    ) as other:
        with pytest.raises(
            NotLetIn, match=f"does not let '{user}' in: authentication failed: a wrong password, or"
        ):
            other.topics(["any"])
        assert "a wrong password, or no such user" in "".join(map(cluster.said, cluster.nodes))


def test_whoever_says_no_password_is_served_nothing(cluster: SecuredCluster) -> None:
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": cluster.authority.ca,
    }
    with pytest.raises(KafkaException):
        SecuredConfluent(settings).admin.list_topics(timeout=2)
    with outside(cluster) as connection:
        connection.sendall(API_VERSIONS)
        assert letter_of(connection).startswith(b"\0\0\0\1\0\0")  # That much anybody may ask.
        connection.sendall(METADATA)
        assert connection.recv(1) == b""
    cluster.until_said(1, "request 3: nobody has authenticated here; set SASL in the client; disconnected")


def test_a_large_request_of_nobody_is_not_waited_for(cluster: SecuredCluster) -> None:
    with outside(cluster) as connection:
        connection.sendall((70_000).to_bytes(4, "big"))
        assert connection.recv(1) == b""
    cluster.until_said(1, "a request of 70000 bytes; at most 65536 are taken; disconnected")


def test_plain_text_on_a_tls_port_is_not_answered(cluster: SecuredCluster) -> None:
    for ports in (cluster.ports, cluster.nodes_ports):
        for content in (API_VERSIONS, HELLO):
            with socket.create_connection(("127.0.0.1", ports[1]), timeout=TIMEOUT_S) as connection:
                connection.sendall(content)
                assert is_nothing(received(connection))
    cluster.until_said(1, "does it speak TLS?; disconnected")
    with pytest.raises(KafkaException):
        Confluent(cluster.bootstrap).admin.list_topics(timeout=2)


def test_noise_behind_a_handshake_ends_that_connection_alone(cluster: SecuredCluster) -> None:
    with outside(cluster) as good:
        for ports, certificate in ((cluster.ports, None), (cluster.nodes_ports, cluster.admin)):
            secured = outside(cluster) if ports is cluster.ports else inside(cluster, certificate)
            bare = socket.socket(fileno=secured.detach())
            bare.settimeout(TIMEOUT_S)
            with bare:
                bare.sendall(bytes(range(256)))
                received(bare)
        good.sendall(API_VERSIONS)
        assert letter_of(good).startswith(b"\0\0\0\1\0\0")


def test_a_client_does_not_speak_with_whom_it_does_not_trust(cluster: SecuredCluster) -> None:
    stranger = Security(tls=True, ca=cluster.nodes_authority.ca, user=ANN, password=PASSWORD)
    untrusted = pytest.raises(NotLetIn, match="shows a certificate that is not trusted")
    with Cluster(cluster.bootstrap, security=stranger) as client, untrusted:
        client.topics(["any"])


def test_a_removed_user_is_disconnected_and_not_let_in_again(cluster: SecuredCluster) -> None:
    def add(password: str) -> str:
        added = quorate(cluster, "user", "add", "bob", "--password-file", "-", given=f"{password}\n")
        assert (added.returncode, added.stderr) == (0, "")
        return added.stdout

    assert add("first password") == "user bob is added\n"
    client = SecuredConfluent(cluster.client_settings("bob", "first password"))
    client.create("bobs")
    assert add("second password") == "user bob has another password\n"
    client.until_complained(KafkaError._AUTHENTICATION)
    again = SecuredConfluent(cluster.client_settings("bob", "second password"))
    again.produce("bobs", [b"x"], "none")
    listed = quorate(cluster, "user", "list", "--json")
    assert msgspec.json.decode(listed.stdout) == {"users": ["ann", "bob"]}
    removed = quorate(cluster, "user", "remove", "bob")
    assert (removed.returncode, removed.stdout) == (0, "user bob is removed\n")
    again.until_complained(KafkaError._AUTHENTICATION)
    missing = quorate(cluster, "user", "remove", "bob")
    assert (missing.returncode, missing.stderr) == (2, "quorate: there is no user 'bob'; there is: ann\n")


def test_tables_and_topics_of_our_own_client(cluster: SecuredCluster) -> None:
    with Cluster(cluster.bootstrap, security=security(cluster, mechanism="PLAIN")) as client:
        create_group(client, "bank", replication="raft")
    with TableGroup(cluster.bootstrap, "bank", security=security(cluster)) as bank:
        bank.execute(CreateTable(Table("accounts", (Column("id", Type.INT),), ("id",))))
        bank.execute(Insert("accounts", (7,)))
        row = bank.get("accounts", (7,))
        assert row is not None
    cluster.write_access(user=ANN, password=PASSWORD, nodes=False)
    try:
        got = quorate(cluster, "table", "get", "bank/accounts", "7", "--json", "-b", cluster.bootstrap)
    finally:
        cluster.write_access()
    assert got.returncode == 0, got.stderr
    assert '"id": 7' in got.stdout


# ---- nodes ----


def test_nobody_without_a_nodes_certificate_hears_anything_where_nodes_speak(cluster: SecuredCluster) -> None:
    strangers = [None, cluster.authority.sign("stranger", "127.0.0.1")]
    for certificate in strangers:
        with pytest.raises((ssl.SSLError, ConnectionError)), inside(cluster, certificate) as connection:
            connection.sendall(HELLO)
            # TLS 1.3 lets the client finish first; what it hears then is that the connection ends.
            assert connection.recv(1 << 16) == b""
            raise ConnectionError("closed without a word")
    with inside(cluster, cluster.admin) as connection:
        connection.sendall(HELLO)
        assert decode_greeting(letter_of(connection)) == Welcome(1)


def test_each_listener_takes_only_what_it_is_for(cluster: SecuredCluster) -> None:
    with inside(cluster, cluster.admin) as connection:
        connection.sendall(API_VERSIONS)
        assert is_nothing(received(connection))
    with outside(cluster) as connection:
        connection.sendall(HELLO)
        assert decode_greeting(letter_of(connection)) == Refused(NO_LETTERS)


def test_commands_for_nodes_go_to_their_listener(cluster: SecuredCluster) -> None:
    shown = quorate(cluster, "cluster", "status")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.count(" up ") == 3
    cluster.write_access(user=ANN, password=PASSWORD, nodes=False)
    try:
        lost = quorate(cluster, "cluster", "status", "-b", cluster.bootstrap)
        assert lost.returncode == 2
        assert NO_LETTERS in lost.stderr
        assert lost.stderr.count("\n") == 1
        made = quorate(cluster, "topic", "create", "by-command", "-b", cluster.bootstrap)
        assert made.returncode == 0, made.stderr
        cluster.write_access(user=ANN, password="no such password", nodes=False)
        wrong = quorate(cluster, "topic", "delete", "by-command", "-b", cluster.bootstrap)
        assert wrong.returncode == 2
        assert "does not let 'ann' in" in wrong.stderr
    finally:
        cluster.write_access()


@pytest.mark.proof
def test_a_killed_node_comes_back_over_tls(cluster: SecuredCluster) -> None:
    client = SecuredConfluent(cluster.client_settings(ANN, PASSWORD, "SCRAM-SHA-512"))
    client.create("kept")
    client.produce("kept", [b"before"], "none")
    for node in cluster.nodes.values():
        node.kill()
        client.produce("kept", [f"without {node.node}".encode()], "none")
        said_before = cluster.said(node.node).count(": registered")
        node.start()
        deadline = time.monotonic() + TIMEOUT_S
        while cluster.said(node.node).count(": registered") == said_before:
            assert time.monotonic() < deadline, node.said()
            time.sleep(SOON_S)
    values = [value for _, value in client.consume("kept", 4)]
    assert values == [b"before", b"without 1", b"without 2", b"without 3"]


# ---- connections, byte by byte ----


def outside(cluster: SecuredCluster) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=cluster.authority.ca)
    connection = socket.create_connection(("127.0.0.1", cluster.ports[1]), timeout=TIMEOUT_S)
    return context.wrap_socket(connection, server_hostname="127.0.0.1")


def inside(cluster: SecuredCluster, certificate: dict[str, str] | None) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=cluster.nodes_authority.ca)
    if certificate is not None:
        context.load_cert_chain(certificate["cert"], certificate["key"])
    connection = socket.create_connection(("127.0.0.1", cluster.nodes_ports[1]), timeout=TIMEOUT_S)
    return context.wrap_socket(connection, server_hostname="127.0.0.1")


def received(connection: socket.socket) -> bytes:
    """Until the other side closes."""
    content = b""
    try:
        while piece := connection.recv(1 << 16):
            content += piece
    except TimeoutError:
        raise
    except OSError:  # Reset, or without the goodbye that TLS has.
        pass
    return content


def is_nothing(content: bytes) -> bool:
    """Or what OpenSSL says to whoever does not speak TLS: a few bytes of alert."""
    return not content or (content[0] == TLS_ALERT and len(content) < 10)


def letter_of(connection: socket.socket) -> bytes:
    """The next letter, or answer, without its length."""
    content = b""
    while len(content) < 4 or len(content) < 4 + int.from_bytes(content[:4], "big"):
        piece = connection.recv(1 << 16)
        assert piece, "closed without a letter"
        content += piece
    return content[4:]


def test_our_client_without_tls_says_so_in_time(cluster: SecuredCluster) -> None:
    with (
        Cluster(cluster.bootstrap, timeout_s=1.0) as client,
        pytest.raises(Unreachable, match=r"closed|reset"),
    ):
        client.topics(["any"])
