"""What holds for a whole cluster: what new topics are, its feature level, and leaders on all of its nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quorate.cli.demo_cluster import DemoCluster
from quorate.machine.cluster import KNOWN_LEVEL
from tests.cluster.person import Operator
from tests.cluster.support import sampled

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def person() -> Iterator[Operator]:
    with DemoCluster(keep=False) as cluster:
        cluster.start()
        yield Operator(cluster.bootstrap)


@pytest.mark.proof
def test_new_topics_are_what_the_cluster_says_where_nobody_else_does(person: Operator) -> None:
    person.does("topic create before")
    settings = "num.partitions=4", "default.replication.factor=2", "quorate.replication=coordinated"
    person.does(f"cluster alter {' '.join(f'--config {setting}' for setting in settings)}")
    try:
        person.does("topic create by-default")
        person.does("topic create told --partitions 1 --replicas 3 --replication isr")
        person.does("table create bank/accounts id:int --key id")
        described = {
            name: person.shows(f"topic describe {name}") for name in ("by-default", "told", "before")
        }
        made = {
            name: (shown["replication"], len(shown["partitions"]), len(shown["partitions"][0]["nodes"]))
            for name, shown in described.items()
        }
        assert made == {
            "by-default": ("coordinated", 4, 2),
            "told": ("isr", 1, 3),
            "before": ("raft", 1, 3),
        }
        bank = person.shows("topic describe bank")
        assert (bank["replication"], len(bank["partitions"])) == ("confirm", 1)
        assert "new topics: default.replication.factor=2" in person.does("cluster status")
    finally:
        resets = [setting.split("=")[0] for setting in settings]
        altered = person.shows(f"cluster alter {' '.join(f'--reset {name}' for name in resets)}")
    assert altered["config"] == {}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("cluster alter", "nothing is to be altered"),
        ("cluster alter --config num.partitions=0", "num.partitions=0; from 1 to"),
        ("cluster alter --config quorate.kind=tables", "quorate.kind is not a setting of clusters here"),
        ("cluster alter --config num.partitions=2 --reset num.partitions", "both name num.partitions"),
        ("cluster alter --feature-level 1", "never falls"),
        (f"cluster alter --feature-level {KNOWN_LEVEL + 1}", f"node 1 knows {KNOWN_LEVEL}"),
        ("topic create odd --config num.partitions=2", "num.partitions is not a setting of topics"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(person: Operator, line: str, why: str) -> None:
    assert why in person.is_refused(line)


def test_a_new_cluster_goes_by_the_newest_feature_level(person: Operator) -> None:
    shown = person.shows("cluster status")
    assert shown["feature_level"] == KNOWN_LEVEL
    assert {node["knows"] for node in shown["nodes"]} == {KNOWN_LEVEL}
    assert len({node["registered_at"] for node in shown["nodes"]}) == 3
    assert person.shows(f"cluster alter --feature-level {KNOWN_LEVEL}")["feature_level"] == KNOWN_LEVEL


@pytest.mark.parametrize("protocol", sampled("isr"))
def test_every_node_leads_some_partitions_of_a_new_topic(person: Operator, protocol: str) -> None:
    person.does(f"topic create many-{protocol} --partitions 6 --replication {protocol}")
    topics = {topic["topic"]: topic for topic in person.shows("topic list")["topics"]}
    # Two each, where the machine is not so busy that somebody else stands first.
    assert {part["leader"] for part in topics[f"many-{protocol}"]["partitions"]} == {1, 2, 3}
