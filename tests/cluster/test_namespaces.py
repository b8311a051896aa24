"""Clients in different networks are told the addresses that they can reach: of the listener they asked on.

Nodes live in a network namespace of their own with one cable to each of two others; nobody in either of those has
a way to the other cable's addresses. Needs root, and `ip`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.cluster.kafka_clients import TIMEOUT_S
from tests.cluster.secured import ListeningCluster

pytestmark = pytest.mark.cluster

CLIENT = """
import json, sys
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

bootstrap, topic, value = sys.argv[1:]
settings = {"bootstrap.servers": bootstrap}
admin = AdminClient(settings)
if topic not in admin.list_topics(timeout=30).topics:
    admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(30)
producer = Producer(settings)
failed = []
for partition in range(3):
    producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: error and failed.append(error))
assert producer.flush(30) == 0 and not failed, failed
consumer = Consumer(settings | {"group.id": "none", "enable.auto.commit": False})
consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
read = set()
while len([each for each in read if each[1] == value]) < 3:
    for message in consumer.consume(10, timeout=1):
        assert message.error() is None, message.error()
        read.add((message.partition(), message.value().decode()))
brokers = sorted(f"{each.host}:{each.port}" for each in admin.list_topics(timeout=30).brokers.values())
print(json.dumps({"brokers": brokers, "read": sorted(read)}))
"""


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextmanager
def networks() -> Iterator[tuple[str, str, str]]:
    """The nodes' namespace, and two others; skips where they cannot be made."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and `ip`")
    nodes, left, right = names = tuple(f"q{os.getpid()}{which}" for which in ("n", "l", "r"))
    made = []
    try:
        try:
            for name in names:
                ip("netns", "add", name)
                made.append(name)
                ip("-n", name, "link", "set", "lo", "up")
            for number, other in enumerate((left, right), 1):
                ip(
                    "-n",
                    nodes,
                    "link",
                    "add",
                    f"to{number}",
                    "type",
                    "veth",
                    "peer",
                    "name",
                    "eth0",
                    "netns",
                    other,
                )
                ip("-n", nodes, "addr", "add", f"10.77.{number}.1/24", "dev", f"to{number}")
                ip("-n", other, "addr", "add", f"10.77.{number}.2/24", "dev", "eth0")
                ip("-n", nodes, "link", "set", f"to{number}", "up")
                ip("-n", other, "link", "set", "eth0", "up")
        except OSError as error:
            pytest.skip(f"network namespaces do not work here: {error}")
        yield nodes, left, right
    finally:
        for name in made:
            ip("netns", "del", name)


def test_clients_are_told_the_addresses_of_the_network_they_ask_from(tmp_path: Path) -> None:
    with networks() as (inner, left, right):
        listeners = [
            {
                "nodes": {"bind": f"127.0.0.1:{9000 + node}"},
                "left": {"bind": f"10.77.1.1:{9100 + node}"},
                "right": {"bind": f"0.0.0.0:{9200 + node}", "advertise": f"10.77.2.1:{9200 + node}"},
            }
            for node in (1, 2, 3)
        ]
        peers = {node: f"127.0.0.1:{9000 + node}" for node in (1, 2, 3)}
        inside = dict.fromkeys(peers, ("ip", "netns", "exec", inner))
        with ListeningCluster(tmp_path, listeners, peers, inside, insecure=True) as cluster:
            cluster.start()
            for name, number, value in ((left, 1, "from the left"), (right, 2, "from the right")):
                bootstrap = f"10.77.{number}.1:{9000 + 100 * number + 2}"
                command = [
                    "ip",
                    "netns",
                    "exec",
                    name,
                    sys.executable,
                    "-c",
                    CLIENT,
                    bootstrap,
                    "shared",
                    value,
                ]
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=3 * TIMEOUT_S
                )
                assert done.returncode == 0, done.stderr
                told = msgspec.json.decode(done.stdout)
                assert told["brokers"] == [
                    f"10.77.{number}.1:{9000 + 100 * number + node}" for node in (1, 2, 3)
                ]
                assert [0, value] in told["read"]
            assert [0, "from the left"] in told["read"]
            for node in cluster.nodes.values():
                assert node.stop() == 0
