"""Messages from a real NATS server into topics of real nodes, with leaders that move, die and come back."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import nats
import nats.errors
import pytest
from nats.aio.client import Client as NatsClient

from quorate.batch import Record, decode_records
from quorate.bench.cluster_processes import free_ports
from quorate.client import Cluster as KafkaCluster
from quorate.client.admin import create_topic
from quorate.core.entry import Kind, Partition
from quorate.node.client import Client
from quorate.node.requests import NatsStatus
from tests.cluster.growing import FIRST, GrowingCluster
from tests.cluster.support import expect_no_traceback, run

pytestmark = pytest.mark.cluster

TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 0.5
FETCH_BYTES = 1 << 26


class NatsServer:
    def __init__(self, output: Path) -> None:
        self.port, self._monitor = free_ports(2)
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        beside = Path(sys.executable).parent / "nats-server"
        binary = str(beside) if beside.exists() else shutil.which("nats-server")
        assert binary, "nats-server is not installed: `make setup` brings it"
        command = [binary, "-a", "127.0.0.1", "-p", str(self.port), "-m", str(self._monitor)]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def subscribers(self, subject: str) -> list[int]:
        """The nodes that are subscribed to it, by their connections' names."""
        with urlopen(f"http://127.0.0.1:{self._monitor}/connz?subs=1", timeout=TIMEOUT_S) as answer:
            connections = json.load(answer)["connections"]
        return sorted(
            int(connection["name"].split()[2])
            for connection in connections
            if connection.get("name", "").startswith("quorate node ")
            and subject in connection.get("subscriptions_list", ())
        )


@contextmanager
def nats_server(directory: Path) -> Iterator[NatsServer]:
    server = NatsServer(directory / "nats.log")
    server.start()
    try:
        yield server
    finally:
        server.kill()


class Fed(GrowingCluster):
    """Three nodes that know of a NATS server."""

    def __init__(self, directory: Path, server: NatsServer) -> None:
        super().__init__(directory)
        self.server = server
        for node in self.nodes.values():
            node.command = (*node.command, "--nats", server.url)

    async def create(self, client: Client, name: str, subject: str) -> Partition:
        """The topic's one partition, when its leader is subscribed."""

        def ask() -> None:
            with KafkaCluster(self.bootstrap, timeout_s=TIMEOUT_S) as cluster:
                create_topic(cluster, name, config={"quorate.nats.subject": subject})

        await asyncio.to_thread(ask)
        (topic,) = (await client.image(1, (name,), current=True)).topics
        (partition,) = topic.partitions()
        await self.until_subscribed(client, partition, subject)
        return partition

    async def until_subscribed(self, client: Client, partition: Partition, subject: str) -> int:
        """The leader, when it and nobody else is."""

        async def so() -> int | None:
            leader = await self.leader(client, partition)
            return leader if self.server.subscribers(subject) == [leader] else None

        return await self.until(so, f"the leader alone to be subscribed to {subject}")

    async def until_status(self, client: Client, node: int, *, connected: bool) -> NatsStatus:
        async def so() -> NatsStatus | None:
            status = (await client.status(node)).nats
            assert status is not None
            return status if (not status.why_not) == connected else None

        return await self.until(so, f"node {node} to be {'dis' * (not connected)}connected")


@asynccontextmanager
async def fed_cluster(directory: Path) -> AsyncIterator[tuple[Fed, Client, NatsClient]]:
    with nats_server(directory) as server, Fed(directory, server) as cluster:
        cluster.start()
        async with cluster.client() as client:
            await cluster.until_registered(client)
            await cluster.until_status(client, 1, connected=True)
            publisher = await nats.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0)
            try:
                yield cluster, client, publisher
            finally:
                await publisher.close()
        expect_no_traceback(*cluster.nodes.values())


async def records_upto(cluster: Fed, client: Client, partition: Partition, last: int) -> list[Record]:
    """When a leader shows as much: another one may lead by now, which does not know all that is settled at once."""

    async def shown() -> list[Record] | None:
        found = await records_in(client, await cluster.leader(client, partition), partition)
        return found if found and found[-1].offset >= last else None

    return await cluster.until(shown, f"a leader to show offset {last}")


async def records_in(client: Client, node: int, partition: Partition) -> list[Record]:
    found: list[Record] = []
    offset = 0
    while True:
        frames, commit = await client.fetch(node, partition, offset, FETCH_BYTES)
        for frame in frames:
            if frame.header.kind == Kind.RECORDS:
                found += decode_records(frame.payload)
            offset = frame.header.last + 1
        if offset > commit:
            return found


async def request(publisher: NatsClient, subject: str, content: bytes) -> dict[str, Any]:
    message = await publisher.request(subject, content, timeout=TIMEOUT_S)
    answer: dict[str, Any] = json.loads(message.data)
    return answer


@pytest.mark.behaviour("LB-4")
def test_the_leader_and_nobody_else_takes_messages_and_answers_where_they_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with fed_cluster(tmp_path) as (cluster, client, publisher):
            partition = await cluster.create(client, "events", "events.in")
            leader = await cluster.leader(client, partition)
            for number in range(100):
                await publisher.publish("events.in", b"quiet %d" % number)
            contents = [b"asked %d" % number for number in range(200)]
            answers = await asyncio.gather(
                *(request(publisher, "events.in", content) for content in contents)
            )
            epoch = (await client.status(leader)).replicas[-1].epoch
            assert {(answer["topic"], answer["partition"]) for answer in answers} == {("events", 0)}
            assert {answer["epoch"] for answer in answers} == {epoch}
            last = max(answer["offset"] for answer in answers)
            records = await records_upto(cluster, client, partition, last)
            assert [record.value for record in records] == [
                *(b"quiet %d" % number for number in range(100)),
                *contents,  # One connection's messages stay in order.
            ]
            by_offset = {record.offset: record.value for record in records}
            assert [by_offset[answer["offset"]] for answer in answers] == contents
            assert all(record.timestamp > 0 and record.headers == () for record in records)

            heir = next(node for node in FIRST if node != leader)
            client.expect_leader(partition, leader)
            await client.transfer(partition, heir)
            assert await cluster.until_subscribed(client, partition, "events.in") == heir
            assert (await request(publisher, "events.in", b"moved"))["epoch"] > epoch
            status = await cluster.until_status(client, heir, connected=True)
            assert status.subjects == ("events.in",)
            assert status.written_count == 1
            assert status.servers == f"127.0.0.1:{cluster.server.port}"

    run(main())


class Flow:
    """Messages that nobody else sends, each a request for an answer; those that nobody answers are given up."""

    def __init__(self, name: int, publisher: NatsClient, subject: str) -> None:
        self.answered: dict[bytes, dict[str, Any]] = {}
        self.open = True
        """Not ended by cancelling it: before Python 3.12 `wait_for` forgets that if an answer comes just then."""
        self._name = name
        self._publisher = publisher
        self._subject = subject

    async def run(self) -> None:
        number = 0
        while self.open:
            content = b"%d of flow %d" % (number, self._name)
            try:
                message = await self._publisher.request(self._subject, content, timeout=REQUEST_TIMEOUT_S)
                self.answered[content] = json.loads(message.data)
            except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
                await asyncio.sleep(0)
            number += 1

    @property
    def written(self) -> dict[bytes, int]:
        return {content: answer["offset"] for content, answer in self.answered.items() if "offset" in answer}

    async def more(self, cluster: Fed, count: int) -> None:
        wanted = len(self.written) + count

        async def so() -> bool | None:
            return len(self.written) >= wanted or None

        await cluster.until(so, f"{count} more answers")


@pytest.mark.proof
@pytest.mark.behaviour("LB-4")
def test_what_was_answered_is_in_the_log_once_whatever_leader_dies(tmp_path: Path) -> None:
    async def main() -> None:
        async with fed_cluster(tmp_path) as (cluster, client, publisher):
            partition = await cluster.create(client, "events", "events.in")
            flows = [Flow(name, publisher, "events.in") for name in range(8)]
            flowing = [asyncio.create_task(flow.run()) for flow in flows]
            for _ in range(2):
                leader = await cluster.until_subscribed(client, partition, "events.in")
                await flows[0].more(cluster, 50)
                cluster.nodes[leader].kill()
                others = [node for node in FIRST if node != leader]
                await cluster.leader(client, partition, among=others)
                await cluster.until_subscribed(client, partition, "events.in")
                await flows[0].more(cluster, 50)
                cluster.nodes[leader].start()
                await cluster.until_registered(client)
            for flow in flows:
                flow.open = False
            await asyncio.gather(*flowing)
            written = [item for flow in flows for item in flow.written.items()]
            last = max(offset for _, offset in written)
            records = await records_upto(cluster, client, partition, last)
            by_offset = {record.offset: record.value for record in records}
            assert len(set(by_offset.values())) == len(by_offset), "a message is in the log twice"
            assert len(written) >= 200
            assert [(by_offset[offset], offset) for _, offset in written] == written

    run(main())


def test_with_wildcards_a_record_keeps_the_subject_and_the_headers_of_its_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with fed_cluster(tmp_path) as (cluster, client, publisher):
            partition = await cluster.create(client, "orders", "orders.*.>")
            await publisher.publish("orders.eu.new", b"1", headers={"Trace": "é1", "nats.subject": "false"})
            await publisher.publish("orders.us", b"not meant")
            answer = await request(publisher, "orders.us.old.paid", b"2")
            records = await records_upto(cluster, client, partition, answer["offset"])
            assert [(record.value, dict(record.headers)) for record in records] == [
                (b"1", {"Trace": "é1".encode(), "nats.subject": b"orders.eu.new"}),
                (b"2", {"nats.subject": b"orders.us.old.paid"}),
            ]

    run(main())


def test_a_message_that_is_too_large_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with fed_cluster(tmp_path) as (cluster, client, publisher):
            await cluster.create(client, "events", "events.in")
            answer = await request(publisher, "events.in", bytes(1 << 20))
            assert answer["error"].startswith("not written: a message of 1048576 bytes is too large for max")
            assert "offset" in await request(publisher, "events.in", bytes(1 << 19))

    run(main())


def test_a_message_that_is_no_text_stops_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with fed_cluster(tmp_path) as (cluster, client, _):
            partition = await cluster.create(client, "events", "events.in")
            _, stranger = await asyncio.open_connection("127.0.0.1", cluster.server.port)
            stranger.write(b"CONNECT {}\r\nPUB events.in \xff\xfe 2\r\nhi\r\nPUB events.in 4\r\nread\r\n")
            leader = await cluster.leader(client, partition)

            async def read() -> list[Record] | None:
                return await records_in(client, leader, partition) or None

            assert [record.value for record in await cluster.until(read, "what came next")] == [b"read"]
            status = await cluster.until_status(client, leader, connected=True)
            assert (status.written_count, status.refused_count) == (1, 1)
            stranger.close()

    run(main())


@pytest.mark.proof
def test_a_server_that_comes_back_is_found_and_its_absence_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with fed_cluster(tmp_path) as (cluster, client, publisher):
            partition = await cluster.create(client, "events", "events.in")
            leader = await cluster.leader(client, partition)
            cluster.server.kill()
            status = await cluster.until_status(client, leader, connected=False)
            assert status.subjects == ("events.in",)
            cluster.server.start()
            await cluster.until_status(client, leader, connected=True)
            await cluster.until_subscribed(client, partition, "events.in")
            assert "offset" in await request(publisher, "events.in", b"after")
            shown = await asyncio.to_thread(quorate, "cluster", "status", "-b", cluster.bootstrap)
            assert shown.returncode == 0, shown.stderr
            words = " ".join(shown.stdout.split())
            assert (
                f"node {leader}, NATS: connected to 127.0.0.1:{cluster.server.port}; reads events.in" in words
            )

    run(main())


def quorate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quorate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.mark.parametrize(
    ("nats_arguments", "why"),
    [
        (("--nats", "a..b"), "words with dots between them"),
        (("--nats", "a.b c"), "words with dots between them"),
        (("--nats", "a.>.b"), "> is the last word"),
        (("--nats", "a.b*"), "whole words"),
        (("--nats", "a.b", "--partitions", "2"), "has one partition, not 2"),
        (("--nats", "a.b"), "this node was told of no NATS server; start nodes with --nats URL"),
    ],
)
def test_what_cannot_be_fed_is_refused_in_one_line(
    nats_arguments: tuple[str, ...], why: str, without_nats: str
) -> None:
    refused = quorate("topic", "create", "events", "-b", without_nats, *nats_arguments)
    assert refused.returncode == 2
    assert "quorate.nats.subject" in refused.stderr
    assert why in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def without_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster that knows of no NATS server."""
    with GrowingCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start()

        async def ready() -> None:
            async with cluster.client() as client:
                await cluster.until_registered(client)

        run(ready())
        yield cluster.bootstrap


@pytest.mark.parametrize(
    "url", ["127.0.0.1:4222", "http://127.0.0.1:4222", "nats://", "nats://me:secret@h:x"]
)
def test_an_address_that_is_none_is_refused_in_one_line(url: str, tmp_path: Path) -> None:
    refused = quorate("up", "--dir", str(tmp_path / "d"), "--nats", url)
    assert refused.returncode == 2
    assert "is no NATS server: write nats://HOST:PORT" in refused.stderr
    assert "secret" not in refused.stderr
    assert refused.stderr.count("\n") == 1
