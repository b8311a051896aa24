"""What changes a cluster is asked for once: whoever was asked may have done it (rule 9)."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from quorate.client import Cluster, NobodyThere, Unreachable
from quorate.client.admin import add_partitions, alter_topic, create_topic, delete_topic, find_nodes
from quorate.wire.messages import Api
from tests.unit.client.scripted import ScriptedNode

CHANGES: dict[Api, Callable[[Cluster], object]] = {
    Api.CREATE_TOPICS: lambda cluster: create_topic(cluster, "events"),
    Api.DELETE_TOPICS: lambda cluster: delete_topic(cluster, "events"),
    Api.INCREMENTAL_ALTER_CONFIGS: lambda cluster: alter_topic(
        cluster, "events", {"max.message.bytes": None}
    ),
    Api.CREATE_PARTITIONS: lambda cluster: add_partitions(cluster, "events", 3),
}


@pytest.mark.parametrize("api", CHANGES)
def test_a_change_whose_answer_is_lost_is_not_asked_for_again(api: Api) -> None:
    with ScriptedNode(lambda _: None) as first, ScriptedNode(lambda _: None) as second:
        both = f"{first.bootstrap},{second.bootstrap}"
        with Cluster(both, timeout_s=5) as cluster, pytest.raises(Unreachable, match="no answer from"):
            CHANGES[api](cluster)
        assert (first.asked, second.asked) == ([api], [])


def test_a_node_that_is_down_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        down = f"127.0.0.1:{nobody.getsockname()[1]}"
    with ScriptedNode(lambda _: None) as node:
        with Cluster(f"{down},{node.bootstrap}", timeout_s=5) as cluster, pytest.raises(Unreachable):
            create_topic(cluster, "events")
        assert node.asked == [Api.CREATE_TOPICS]


def test_where_nobody_listens_it_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        down = f"127.0.0.1:{nobody.getsockname()[1]}"
    with Cluster(f"{down},{down}", timeout_s=5) as cluster:
        for ask in (find_nodes, *CHANGES.values()):
            with pytest.raises(NobodyThere, match="connection refused"):
                ask(cluster)
