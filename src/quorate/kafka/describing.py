"""DescribeCluster, DescribeQuorum and DescribeLogDirs: which nodes there are, how the metadata group stands, and
how much of each log a node has on its disk.

Any node answers for the cluster and for the metadata group, whose log clients know by Kafka's name for it; how much
is on a disk only the node itself says.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from quorate import batch
from quorate.core.entry import Partition, partition_of
from quorate.kafka.call import Call
from quorate.machine.metadata import Topic
from quorate.node.health import health_of
from quorate.node.requests import ReplicaStatus
from quorate.wire.messages import decode_request

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

METADATA_LOG = "__cluster_metadata"
BROKERS = 1
"""The kind of nodes that clients may ask for; there are no controllers of their own."""
UNKNOWN_OPERATIONS = -(1 << 31)
NO_LAG = 0


# ---- the cluster ----


def handle_cluster(broker: Broker, call: Call) -> None:
    request = decode_request(call.frame).body
    kind = getattr(request, "endpoint_type", BROKERS)
    found = broker.metadata.nodes(call.door.listener)
    error, why = ErrorCode.none, None
    if kind != BROKERS:
        error, why = (
            ErrorCode.unsupported_endpoint_type,
            "every node is a broker (1) here, and some vote, too",
        )
    brokers = [
        {"broker_id": each["node_id"], "host": each["host"], "port": each["port"], "rack": each["rack"]}
        for each in found
    ]
    call.answer_with(
        {
            "throttle_time": timedelta(0),
            "error_code": error,
            "error_message": why,
            "endpoint_type": kind,
            "cluster_id": broker.node.config.cluster,
            "controller_id": broker.metadata.controller([each["node_id"] for each in found]),
            "brokers": brokers if not error else (),
            "cluster_authorized_operations": UNKNOWN_OPERATIONS,
        }
    )


# ---- the metadata group ----


def handle_quorum(broker: Broker, call: Call) -> None:
    call.door.run(_describe_quorum(broker, call, decode_request(call.frame).body))


async def _describe_quorum(broker: Broker, call: Call, request: Any) -> None:
    leader = await broker.node.metadata.leader_status()
    topics = [
        {
            "topic_name": topic.topic_name,
            "partitions": [
                _quorum(leader, each.partition_index, is_known=topic.topic_name == METADATA_LOG)
                for each in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    nodes = [
        {
            "node_id": info.node,
            "listeners": [
                # Java's client takes no name in small letters.
                {"name": name.upper(), "host": host, "port": port}
                for name, (host, port) in sorted(
                    (info.listeners or {"client": (info.host, info.port)}).items()
                )
            ],
        }
        for info in broker.node.metadata.image.nodes.values()
    ]
    values = {"error_code": ErrorCode.none, "error_message": None, "topics": topics, "nodes": nodes}
    broker.in_turn(lambda: call.answer_with(values))


def _quorum(leader: ReplicaStatus | None, number: int, *, is_known: bool) -> dict[str, Any]:
    values: dict[str, Any] = {
        "partition_index": number,
        "error_code": ErrorCode.none,
        "error_message": None,
        "leader_id": -1,
        "leader_epoch": -1,
        "high_watermark": -1,
        "current_voters": (),
        "observers": (),
    }
    if not is_known or number:
        why = f"only {METADATA_LOG}, partition 0, has a quorum to describe; see `quorate topic describe` for others"
        return values | {"error_code": ErrorCode.unknown_topic_or_partition, "error_message": why}
    if leader is None:
        why = "nobody leads the metadata group just now, or its leader does not answer"
        return values | {"error_code": ErrorCode.leader_not_available, "error_message": why}
    end = leader.head.offset + 1

    def states(nodes: Iterator[int]) -> list[dict[str, Any]]:
        return [
            {
                "replica_id": node,
                "replica_directory_id": None,
                "log_end_offset": end if node == leader.me.node else end - leader.lags.get(node, end),
                "last_fetch_timestamp": -1,
                "last_caught_up_timestamp": -1,
            }
            for node in nodes
        ]

    return values | {
        "leader_id": leader.me.node,
        "leader_epoch": leader.epoch & batch.LEADER_EPOCH_MASK,
        "high_watermark": leader.commit + 1,
        "current_voters": states(member.node for member in leader.membership.ensemble),
        "observers": states(member.node for member in leader.membership.learners),
    }


# ---- this node's disk ----


def handle_log_dirs(broker: Broker, call: Call) -> None:
    """The one directory that a node has, and what is in it of the topics that are asked for."""
    wanted = decode_request(call.frame).body.topics
    image = broker.node.metadata.image
    named: list[tuple[Topic | None, list[int]]]
    if wanted is None:
        named = [(topic, list(range(len(topic.ensembles)))) for _, topic in sorted(image.topics.items())]
    else:
        named = [(image.topics.get(each.topic), list(dict.fromkeys(each.partitions))) for each in wanted]
    health = health_of(broker.node)
    result = {
        "error_code": ErrorCode.none,
        "log_dir": health.directory,
        "topics": [
            {"name": topic.name, "partitions": _on_disk(broker, topic, numbers)}
            for topic, numbers in named
            if topic is not None
        ],
        "total_bytes": health.disk_total_bytes,
        "usable_bytes": health.disk_free_bytes,
    }
    call.answer_with({"throttle_time": timedelta(0), "error_code": ErrorCode.none, "results": [result]})


def _on_disk(broker: Broker, topic: Topic, numbers: list[int]) -> list[dict[str, Any]]:
    there = range(len(topic.ensembles))
    held = [
        number for number in numbers if number in there and broker.node.holds(partition_of(topic.id, number))
    ]
    return [
        {
            "partition_index": number,
            "partition_size": _size(broker, partition_of(topic.id, number)),
            "offset_lag": NO_LAG,  # Of a log that is to replace this one; there are no such logs here.
            "is_future_key": False,
        }
        for number in held
    ]


def _size(broker: Broker, partition: Partition) -> int:
    return sum(stretch.size for stretch in broker.node.host.store.stretches(partition))
