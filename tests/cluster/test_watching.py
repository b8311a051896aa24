"""`quorate node --config node.toml` as it is run for good: told from three sides, and watched over HTTP."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorate.bench.cluster_processes import POLL_S, START_TIMEOUT_S, free_ports
from quorate.node.child import NodeChild
from quorate.node.config import Address
from tests.unit.node.exposition_reading import Exposition

pytestmark = pytest.mark.cluster

QUORATE = (sys.executable, "-m", "quorate")
NODES = (1, 2, 3)
PROTOCOLS = ("raft", "coordinated", "isr", "confirm")
CONFIG = """
cluster = "watched"
directory = "n{node}"
listen = "127.0.0.1:{port}"
voters = [1, 2, 3]
rack = "taken by nobody"

[raft]
election_timeout_s = 0.5
heartbeat_s = 0.1
"""


class WatchedNode(NodeChild):
    """What it is told stands in a file, but for its number, its peers and where it is watched."""

    def __init__(self, directory: Path, node: int, ports: dict[int, int], window: int) -> None:
        config = directory / f"n{node}.toml"
        config.write_text(CONFIG.format(node=node, port=ports[node]), encoding="utf-8")
        super().__init__(
            node, Address("127.0.0.1", ports[node]), config=config, output=directory / f"n{node}.log"
        )
        self.window = window
        self.environment = {
            "QUORATE_NODE": str(node),
            "QUORATE_RACK": f"rack {node}",
            "QUORATE_PEERS": ",".join(f"{peer}=127.0.0.1:{ports[peer]}" for peer in NODES if peer != node),
        }
        self.command = (*QUORATE, "node", "--http", f"127.0.0.1:{window}", "--log-format", "json")

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.window, timeout=START_TIMEOUT_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def status(self, path: str) -> int:
        """0: nobody answers."""
        try:
            return self.get(path)[0]
        except (OSError, http.client.HTTPException):
            return 0

    def is_ready(self) -> bool:
        return self.status("/ready") == 200

    def metrics(self) -> Exposition:
        status, page = self.get("/metrics")
        assert status == 200
        return Exposition(page)

    def state(self) -> dict[str, Any]:
        told: dict[str, Any] = msgspec.json.decode(self.get("/state")[1])
        return told


@contextmanager
def watched(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, WatchedNode]]:
    """Nodes whose directories are made, and none of which runs."""
    ports = dict(zip(NODES, free_ports(3), strict=True))
    nodes = {
        node: WatchedNode(directory, node, ports, window)
        for node, window in zip(NODES, free_ports(3), strict=True)
    }
    for node in nodes.values():
        with monkeypatch.context() as environment:
            for name, value in node.environment.items():
                environment.setenv(name, value)
            command = [*QUORATE, "format", "--config", str(node.config)]
            made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert made.returncode == 0, made.stderr
    try:
        yield nodes
    finally:
        for node in nodes.values():
            if node.process is not None:
                node.kill()


def start(node: WatchedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as environment:
        for name, value in node.environment.items():
            environment.setenv(name, value)
        node.start()


def until(holds: Callable[[], object], what: str, *nodes: NodeChild) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not holds():
        said = "\n".join(node.said() for node in nodes)
        assert time.monotonic() < deadline, f"waited {START_TIMEOUT_S} s for {what}\n{said}"
        time.sleep(POLL_S)


def write(servers: dict[str, Any], topics: tuple[str, ...], count: int) -> None:
    failed: list[object] = []
    producer = Producer(servers | {"acks": "all", "message.timeout.ms": int(START_TIMEOUT_S * 1000)})
    for number in range(count):
        for topic in topics:
            producer.produce(
                topic, b"%d" % number, on_delivery=lambda error, _: failed.append(error) if error else None
            )
    assert producer.flush(START_TIMEOUT_S) == 0
    assert failed == []


def read(servers: dict[str, Any], topic: str, count: int) -> None:
    consumer = Consumer(servers | {"group.id": "-", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    deadline, found_count = time.monotonic() + START_TIMEOUT_S, 0
    try:
        while found_count < count:
            assert time.monotonic() < deadline, f"{found_count} of {count} messages of {topic}"
            message = consumer.poll(0.1)
            found_count += message is not None and message.error() is None
    finally:
        consumer.close()


def test_a_cluster_told_from_three_sides_is_watched_over_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(tmp_path, monkeypatch) as nodes:
        first, *others = nodes.values()
        start(first, monkeypatch)
        until(lambda: first.status("/health") == 200, "the first to live", first)
        status, why = first.get("/ready")
        assert (status, why) == (503, "not registered with the metadata group yet\n")
        assert first.metrics().value("quorate_ready") == 0
        assert first.state()["why_not_ready"] == why.strip()

        for other in others:
            start(other, monkeypatch)
        for node in nodes.values():
            until(node.is_ready, f"node {node.node} to be ready", node)
        servers: dict[str, Any] = {
            "bootstrap.servers": ",".join(str(node.address) for node in nodes.values())
        }
        new = [NewTopic(name, 1, 3, config={"quorate.replication": name}) for name in PROTOCOLS]
        admin = AdminClient(servers)  # Held: where nobody has it any more, its requests are given up.
        for made in admin.create_topics(new).values():
            made.result(START_TIMEOUT_S)
        write(servers, PROTOCOLS, 50)
        for topic in PROTOCOLS:
            read(servers, topic, 50)

        expect_counted(nodes)
        expect_known(nodes)
        expect_events(nodes)

        first.kill()
        assert first.status("/health") == 0
        second = others[0]
        until(lambda: second.metrics().value("quorate_peers_connected") == 1, "its link to be gone", second)
        until(second.is_ready, "the others to be ready without it", second)
        start(first, monkeypatch)
        until(first.is_ready, "it to be ready again", first)
        until(lambda: second.metrics().value("quorate_peers_connected") == 2, "the link to it", second)
        for node in nodes.values():
            assert node.stop() == 0
            assert "Traceback" not in node.output.read_text(encoding="utf-8")


def expect_counted(nodes: dict[int, WatchedNode]) -> None:
    """What was written to every protocol was counted and timed where it is led."""
    pages = [node.metrics() for node in nodes.values()]

    def total(name: str) -> float:
        return sum(sum(page.by(name).values()) for page in pages)

    for protocol in PROTOCOLS:
        counts = [page.by("quorate_commit_seconds_count") for page in pages]
        assert sum(each.get((("protocol", protocol),), 0) for each in counts) > 0, protocol
        led = [
            page.by("quorate_replicas").get((("protocol", protocol), ("role", "leader")), 0) for page in pages
        ]
        # Consumers' groups may have a home by now, which is of raft.
        assert sum(led) >= 1 if protocol == "raft" else sum(led) == 1, protocol
    assert total("quorate_produce_bytes_total") > 4 * 50
    assert total("quorate_fetch_bytes_total") > 4 * 50
    assert total("quorate_produce_batches_total") >= 4
    assert all(page.value("quorate_flush_seconds_count") > 0 for page in pages)
    assert all(page.value("quorate_connections", kind="peer") == 2 for page in pages)
    assert all(page.value("quorate_info", **_who(page)) == 1 for page in pages)
    leaders = [page.value("quorate_metadata_leader") for page in pages]
    assert leaders[0] in NODES
    assert len(set(leaders)) == 1
    leader = pages[int(leaders[0]) - 1]
    assert set(leader.by("quorate_follower_lag_offsets")) >= {
        (("peer", str(node)),) for node in NODES if node != leaders[0]
    }


def _who(page: Exposition) -> dict[str, str]:
    ((labels, _),) = page.by("quorate_info").items()
    return dict(labels)


def expect_known(nodes: dict[int, WatchedNode]) -> None:
    for number, node in nodes.items():
        told = node.state()
        assert (told["cluster"], told["node"], told["ready"]) == ("watched", number, True)
        assert {each["node"]: each["rack"] for each in told["nodes"]} == {
            each: f"rack {each}" for each in NODES
        }
        known = {topic["name"]: topic["replication"] for topic in told["topics"]}
        assert _ours(known) == {name: name for name in PROTOCOLS}
        held = {replica["partition"]: replica["protocol"] for replica in told["replicas"]}
        assert _ours(held) == {"metadata": "raft"} | {f"{name}/0": name for name in PROTOCOLS}


def _ours(named: dict[str, str]) -> dict[str, str]:
    """Without the cluster's own homes, which a consumer brings about that asks for its coordinator."""
    return {name: of for name, of in named.items() if not name.startswith("__")}


def expect_events(nodes: dict[int, WatchedNode]) -> None:
    """Every line is an event, as JSON."""
    for number, node in nodes.items():
        events = [msgspec.json.decode(line) for line in node.output.read_bytes().splitlines()]
        assert {"time", "level", "node", "event"} <= set.intersection(*(set(event) for event in events))
        assert {event["node"] for event in events} == {number}
        assert any(event["event"] == "registered" for event in events)
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["time"]) for event in events)


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    for line, arguments, words in (
        (
            'hartbeat_s = "x"\n',
            (),
            f"quorate: {config}: raft.hartbeat_s: there is no such setting; did you mean raft.heartbeat_s?\n",
        ),
        ("", ("--set", "raft.heartbeat_s=x"), "quorate: --set raft.heartbeat_s: expected float, got 'x'\n"),
    ):
        config.write_text(CONFIG.format(node=1, port=1) + line, encoding="utf-8")
        command = [*QUORATE, "node", "--config", str(config), *arguments]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert refused.returncode == 2
        assert refused.stderr.startswith(words)
        assert refused.stderr.count("\n") == 1


def test_a_window_that_is_taken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(tmp_path, monkeypatch) as nodes:
        first, second = nodes[1], nodes[2]
        start(first, monkeypatch)
        until(lambda: first.status("/health") == 200, "the first to live", first)
        second.command = (*QUORATE, "node", "--http", f"127.0.0.1:{first.window}")
        start(second, monkeypatch)
        assert second.wait(START_TIMEOUT_S) == 2
        assert f"port {first.window} is taken" in second.last_words()
        assert "let `http` name another port" in second.last_words()
