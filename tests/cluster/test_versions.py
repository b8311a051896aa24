"""A newer version, installed on one node after the other: what it brings waits until everybody knows it."""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from quorate.bench.cluster_processes import POLL_S, START_TIMEOUT_S, Cluster
from quorate.machine.cluster import KNOWN_LEVEL
from tests.cluster.person import Operator
from tests.cluster.support import QUICK_RAFT
from tests.cluster.test_upgrade import code_of
from tools import previous

pytestmark = pytest.mark.cluster

OLDER = (sys.executable, str(Path(__file__).with_name("older_node.py")))
NEWER = (sys.executable, "-m", "quorate.kafka")
BEFORE = KNOWN_LEVEL - 1


def until_known(person: Operator, known: dict[int, int]) -> None:
    """Every node is up, with a version that knows so much."""
    deadline = monotonic() + START_TIMEOUT_S
    while True:
        looked = person.types("cluster status --json")
        if looked.returncode == 0:
            nodes = person.shows("cluster status")["nodes"]
            if {node["node"]: node["knows"] for node in nodes if node["state"] == "up"} == known:
                return
        assert monotonic() < deadline, looked.stdout + looked.stderr
        sleep(POLL_S)


@pytest.mark.proof
@pytest.mark.parametrize("is_real", [True, False], ids=["of a previous release", "told to know less"])
def test_what_is_new_waits_until_every_node_knows_it(tmp_path: Path, is_real: bool) -> None:
    if is_real:
        assert previous.NEWEST.level == BEFORE, (
            "a release of the level before this one is to be told of there"
        )
    older = code_of(previous.NEWEST, tmp_path) if is_real else OLDER
    with Cluster(tmp_path, partitions=0, metadata_voters=3, raft=QUICK_RAFT) as cluster:
        for node in cluster.nodes.values():
            node.command = older
        cluster.start()
        person = Operator(",".join(str(node.address) for node in cluster.nodes.values()))
        until_known(person, dict.fromkeys(cluster.nodes, BEFORE))
        new, raised = (
            "topic create orders --config cleanup.policy=compact",
            f"cluster alter --feature-level {KNOWN_LEVEL}",
        )
        person.does("topic create events")
        # Real nodes of before do not know what it is, and say that.
        why = "cleanup.policy" if is_real else f"this needs feature level {KNOWN_LEVEL}"
        assert why in person.is_refused(new)
        known = dict.fromkeys(cluster.nodes, BEFORE)
        for number, node in cluster.nodes.items():
            assert f"node {number} knows {BEFORE}" in person.is_refused(raised)
            assert node.stop() == 0
            node.command = NEWER
            node.start()
            known[number] = KNOWN_LEVEL
            until_known(person, known)
            refused = person.is_refused(new)
            assert "feature level" in refused or (is_real and why in refused)
        assert f"every node knows {KNOWN_LEVEL}" in person.does("cluster status")
        assert person.shows(raised)["feature_level"] == KNOWN_LEVEL
        person.does(new)

        third = cluster.nodes[3]
        assert third.stop() == 0
        third.command = older
        third.start()
        assert third.wait(START_TIMEOUT_S) == 1
        assert f"this cluster goes by feature level {KNOWN_LEVEL}" in third.said()
        assert "Traceback" not in third.said()
