"""Topics of all four protocols in one cluster, administered as a person does it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import pytest

from quorate.bench.cluster_processes import POLL_S, START_TIMEOUT_S
from quorate.cli.demo_cluster import DemoCluster
from tests.cluster.kafka_clients import Confluent
from tests.cluster.person import Operator
from tests.cluster.support import sampled

pytestmark = pytest.mark.cluster

OVERSEEN = ("coordinated", "isr")


@pytest.fixture(scope="module")
def cluster() -> Iterator[DemoCluster]:
    with DemoCluster(keep=False) as cluster:
        cluster.start()
        yield cluster


@pytest.fixture
def person(cluster: DemoCluster) -> Operator:
    return Operator(cluster.bootstrap)


def until_whole(person: Operator, name: str) -> dict[str, Any]:
    """What is shown of a topic, once every copy has everything."""
    deadline = monotonic() + START_TIMEOUT_S
    while True:
        shown: dict[str, Any] = person.shows(f"topic describe {name}")
        copies = [copy for partition in shown["partitions"] for copy in partition["copies"]]
        if all(copy.get("in_sync") and not copy["lag"] for copy in copies):
            return shown
        assert monotonic() < deadline, shown
        sleep(POLL_S)


@pytest.mark.parametrize("protocol", sampled("coordinated"))
def test_a_topic_is_made_described_altered_and_led_by_others(
    cluster: DemoCluster, person: Operator, protocol: str
) -> None:
    name = f"orders-{protocol}"
    made = person.shows(f"topic create {name} --partitions 2 --replicas 3 --replication {protocol}")
    assert (made["topic"], made["partitions"]) == (name, 2)
    values = [b"%d" % number for number in range(20)]
    Confluent(cluster.bootstrap).produce(name, values, "none")
    shown = until_whole(person, name)
    assert (shown["replication"], len(shown["partitions"])) == (protocol, 2)
    for partition in shown["partitions"]:
        assert (partition["nodes"], len(partition["copies"])) == ([1, 2, 3], 3)
        assert sorted(partition["preferred"]) == [1, 2, 3]
        roles = {copy["node"]: copy["role"] for copy in partition["copies"]}
        assert roles.pop(partition["leader"]) == "leader"
        assert set(roles.values()) == {"follower"}
        for copy in partition["copies"]:
            assert (copy["state"], copy["first"], copy["epoch"]) == ("up", 0, partition["epoch"])
        assert ("stored" in partition) == (protocol in OVERSEEN)
        if protocol in OVERSEEN:
            assert partition["stored"]["shard"]["leader"]["node"] == partition["leader"]
    written = sum(partition["copies"][0]["head"] for partition in shown["partitions"])
    assert written >= len(values)
    assert {partition["preferred"][0] for partition in shown["partitions"]} != {1}, (
        "who leads first is spread"
    )
    table = person.does(f"topic describe {name}")
    assert f"Topic {name}, {protocol}" in table
    for partition in shown["partitions"]:
        assert f" {', '.join(map(str, partition['preferred']))} " in table

    altered = person.does(f"topic alter {name} --config max.message.bytes=2000 --partitions 3")
    assert altered == f"topic {name}: max.message.bytes is 2000, it has 3 partitions\n"
    assert person.shows(f"topic describe {name}")["config"] == {"max.message.bytes": "2000"}
    person.does(f"topic alter {name} --reset max.message.bytes --partitions 3")
    assert person.shows(f"topic describe {name}")["config"] == {}
    assert "more can be added, and none removed" in person.is_refused(f"topic alter {name} --partitions 2")

    (led,) = person.shows(f"topic describe {name}/0")["partitions"]
    other = next(node for node in (1, 2, 3) if node != led["leader"])
    until_whole(person, name)
    if protocol == "coordinated":
        assert "leave --to out" in person.is_refused(f"topic transfer {name}/0 --to {other}")
        person.brings_about(f"topic transfer {name}/0")
    else:
        said = person.brings_about(f"topic transfer {name}/0 --to {other}")
        assert said.startswith(f"{name}/0 is led by node {other}")
    assert until_whole(person, f"{name}/0")["partitions"][0]["leader"] != led["leader"]


@pytest.mark.parametrize("protocol", sampled("isr"))
def test_copies_are_moved(person: Operator, protocol: str) -> None:
    name = f"moved-{protocol}"
    person.does(f"topic create {name} --replication {protocol}")
    (where,) = person.shows(f"topic remove {name} --node 3")["partitions"]
    assert sorted(where["nodes"]) == [1, 2]
    assert person.does(f"topic add {name} --node 3").startswith(f"{name}/0 is on nodes ")
    assert until_whole(person, name)["partitions"][0]["nodes"] == [1, 2, 3]


@pytest.mark.parametrize("protocol", sampled("coordinated"))
def test_a_copy_takes_the_place_of_another(person: Operator, protocol: str) -> None:
    name = f"replaced-{protocol}"
    person.does(f"topic create {name} --replicas 2 --replication {protocol}")
    led = until_whole(person, name)["partitions"][0]
    other = next(node for node in (1, 2, 3) if node not in led["nodes"])
    said = person.brings_about(f"topic replace {name} --node {led['leader']} --with {other}")
    assert said.startswith(f"{name}/0 is on nodes ")
    now = until_whole(person, name)["partitions"][0]
    assert set(now["nodes"]) == {other, *led["nodes"]} - {led["leader"]}
    assert now["leader"] in now["nodes"]


@pytest.mark.proof
def test_a_topic_of_isr_keeps_as_many_copies_as_must_be_in_sync(person: Operator) -> None:
    person.does("topic create kept --replication isr")
    (partition,) = until_whole(person, "kept")["partitions"]
    gone = partition["nodes"][0]
    person.brings_about(f"topic remove kept --node {gone}")
    refused = person.is_refused(f"topic remove kept --node {partition['nodes'][1]}")
    assert "2 copies must be in sync for anything to be written" in refused


def test_as_many_copies_are_waited_for_as_a_topic_of_isr_is_told(person: Operator) -> None:
    person.does("topic create all-three --replication isr --config min.insync.replicas=3")
    (partition,) = until_whole(person, "all-three")["partitions"]
    assert partition["stored"]["shard"]["min_isr"] == 3
    refused = person.is_refused("topic create four --replication isr --config min.insync.replicas=4")
    assert "min.insync.replicas=4; from 1 to 3 is possible" in refused


def test_how_many_must_be_in_sync_is_altered_as_the_refusal_says(person: Operator) -> None:
    person.does("topic create tight --replication isr --config min.insync.replicas=3")
    refused = person.is_refused("topic alter tight --config min.insync.replicas=1")
    assert "min.insync.replicas of topic tight is 3, and stays so while it is replicated by isr" in refused
    advised = re.findall("`quorate ([^`]+)`", refused)
    assert len(advised) == 3
    for line in advised:
        person.brings_about(line)
    (partition,) = until_whole(person, "tight")["partitions"]
    assert partition["stored"]["shard"]["min_isr"] == 1
    assert "make another topic" in person.is_refused("topic alter tight --config min.insync.replicas=3")


def test_the_cluster_is_shown_to_programs_and_where_it_is_may_be_said_once(
    person: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = person.shows("cluster status")
    assert [node["node"] for node in shown["nodes"]] == [1, 2, 3]
    assert {node["state"] for node in shown["nodes"]} == {"up"}
    assert (shown["metadata"]["voters"], shown["is_current"]) == ([1, 2, 3], True)
    assert shown["metadata"]["leader"] in (1, 2, 3)
    assert shown["leaderless"] == []
    monkeypatch.setenv("QUORATE_BOOTSTRAP", person.servers)
    assert Operator("").shows("cluster status")["cluster"] == shown["cluster"]
