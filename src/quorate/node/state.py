"""The cluster as a node sees it, as JSON: what its `Status` and its image say, by the names that people know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from quorate.core.entry import Partition, partition_of
from quorate.machine.metadata import METADATA, NodeInfo, Topic
from quorate.node.ensembles import settled_membership
from quorate.node.reports import called
from quorate.node.requests import ReplicaStatus

if TYPE_CHECKING:
    from quorate.node.node import Node


def why_not_ready(node: Node) -> str:
    """Why clients are better sent elsewhere; empty: they may come."""
    if node.is_leaving:
        return "this node is stopping"
    if not node.config.voters:
        return ""
    metadata = node.metadata
    if not metadata.is_registered:
        return "not registered with the metadata group yet"
    if not metadata.is_current:
        return "it is not known yet what was settled before this node started"
    if not metadata.controller:
        return "nobody is known to lead the metadata group: what this node knows may be old"
    return ""


def state(node: Node) -> bytes:
    status, why_not = node.status(), why_not_ready(node)
    told: dict[str, Any] = {
        "cluster": node.config.cluster,
        "node": node.id,
        "incarnation": node.incarnation,
        "ready": not why_not,
        "why_not_ready": why_not,
        "connected": status.connected,
        "dropped_parcels": status.dropped_count,
        "disk_full": node.host.store.is_full,
        "nats": status.nats,
    }
    if node.config.voters:
        image, membership = node.metadata.image, settled_membership(node.host.hosted[METADATA])
        told |= {
            "metadata": {
                "leader": status.metadata_leader,
                "version": image.version,
                "voters": [member.node for member in membership.ensemble],
                "learners": [member.node for member in membership.learners],
            },
            "feature_level": image.cluster.level,
            "config": image.cluster.config,
            "nodes": [_node(node, info) for _, info in sorted(image.nodes.items())],
            "topics": [_topic(node, topic) for _, topic in sorted(image.topics.items())],
        }
    told["replicas"] = [_replica(node, replica) for replica in status.replicas]
    return msgspec.json.encode(told)


def _node(node: Node, info: NodeInfo) -> dict[str, Any]:
    said: dict[str, Any] = msgspec.to_builtins(info)
    said["registered_at"] = node.metadata.image.life_of(info.node)
    return said | {"connected": info.node == node.id or info.node in node.connected}


def _topic(node: Node, topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": topic.id.hex(),
        "replication": topic.replication,
        "config": topic.config,
        "partitions": [_partition(node, topic, number) for number in range(len(topic.ensembles))],
    }


def _partition(node: Node, topic: Topic, number: int) -> dict[str, Any]:
    leader, epoch = node.leader_of(partition_of(topic.id, number))
    copies = [member.node for member in topic.ensembles[number]]
    said = {"partition": number, "leader": leader, "epoch": epoch, "copies": copies}
    if number in topic.changes:
        said["wanted"] = [member.node for member in topic.wanted(number)]
    return said


def _replica(node: Node, replica: ReplicaStatus) -> dict[str, Any]:
    """All that is said of it, and by which protocol it agrees."""
    said: dict[str, Any] = msgspec.to_builtins(replica)
    hosted = node.host.hosted[Partition(replica.partition)]
    said["partition"] = called(node, Partition(replica.partition))
    return said | {"protocol": hosted.record.protocol, "purpose": hosted.record.purpose}
