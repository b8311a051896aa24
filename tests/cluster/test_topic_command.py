"""`quorate topic` against a real cluster, as a person uses it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from quorate.cli.demo_cluster import DemoCluster

pytestmark = pytest.mark.cluster


def topic(*arguments: str, servers: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quorate", "topic", *arguments, "-b", servers]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_topics_are_created_listed_and_deleted() -> None:
    with DemoCluster(keep=False) as cluster:
        cluster.start()
        servers = cluster.bootstrap
        assert "There are no topics" in topic("list", servers=servers).stdout
        created = topic("create", "events", "--partitions", "2", servers=servers)
        assert (created.returncode, created.stdout) == (0, "topic events is created: 2 partitions\n")
        listed = topic("list", servers=servers).stdout.splitlines()
        assert sum("events" in line for line in listed) == 2
        for arguments, why in {
            ("create", "events"): "topic 'events' is there already",
            (
                "create",
                "a",
                "--replication",
                "hearsay",
            ): "is unknown; there are: raft, coordinated, isr, confirm",
            ("create", "a", "--replicas", "9"): "there are 3 nodes",
            ("create", "a", "--config", "retention.ms=-5"): "retention.ms=-5; from -1 to",
            ("create", "no/name"): "is no topic name",
            ("delete", "a"): "there is no topic 'a'",
        }.items():
            refused = topic(*arguments, servers=servers)
            assert refused.returncode == 2, arguments
            assert why in refused.stderr
            assert refused.stderr.count("\n") == 1
        assert topic("delete", "events", servers=servers).stdout == "topic events is deleted\n"
        assert "There are no topics" in topic("list", servers=servers).stdout


@pytest.mark.parametrize(
    ("arguments", "servers", "why"),
    [
        (("list",), "127.0.0.1:1", "connection refused"),
        (("list",), "nowhere", "is no address of a node"),
        (("create", "t", "--config", "x"), "127.0.0.1:1", "write KEY=VALUE"),
        (
            ("create", "t", "--nats", "a.b", "--config", "quorate.nats.subject=c.d"),
            "127.0.0.1:1",
            "give one of them",
        ),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments: tuple[str, ...], servers: str, why: str) -> None:
    refused = topic(*arguments, servers=servers)
    assert refused.returncode == 2
    assert why in refused.stderr
    assert refused.stderr.count("\n") == 1
