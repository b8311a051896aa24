"""Where the nodes are and who leads a group: Kafka's own question, asked by clients of tables."""

from __future__ import annotations

from typing import Any

from quorate.wire.entities import make
from quorate.wire.messages import Api, request_class

METADATA_VERSION = 12


def question(group: str) -> Any:
    values = {
        "topics": [{"topic_id": None, "name": group}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    return make(request_class(Api.METADATA, METADATA_VERSION), values)


def seen_in(answer: Any) -> tuple[dict[int, tuple[str, int]], int]:
    """The nodes' addresses, and who leads; 0: nobody, or the node that was asked does not know."""
    nodes = {int(broker.node_id): (str(broker.host), int(broker.port)) for broker in answer.brokers}
    leaders = [part.leader_id for topic in answer.topics for part in topic.partitions]
    return nodes, max([*map(int, leaders), 0])
