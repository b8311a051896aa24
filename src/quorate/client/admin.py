"""Creating, altering and deleting topics, and finding nodes. Any node takes such a request.

A creation or deletion whose answer is lost may have happened (rule 9), so it is not sent twice: whoever asked
hears that nobody answered, and can look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from time import monotonic, sleep
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from quorate.client.cluster import Cluster, in_words
from quorate.client.errors import NobodyThere, Refused, UnknownTopic, Unreachable
from quorate.wire.cursor import BadMessage
from quorate.wire.entities import make
from quorate.wire.messages import Api, request_class

CREATE_VERSION, DELETE_VERSION, METADATA_VERSION = 7, 5, 12
ALTER_VERSION, ADD_VERSION, PRODUCER_VERSION, DESCRIBE_VERSION = 1, 3, 4, 4
PAUSE_S = 0.05
TOPIC, NODE, SET, RESET = 2, 4, 0, 1
"""Kafka's numbers for what settings are of, and for what is done to them."""
EVERY_NODE = ""
OF_TOPIC = 1
"""Who gave a setting: whoever made the topic, or the cluster in their place."""
NODE_SHARE = 0.8
"""Of our patience: a node's word that its time is over says more than its silence."""


class Created(NamedTuple):
    """What a new topic has become."""

    partitions_count: int
    replicas_count: int
    config: dict[str, str]


def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions_count: int = -1,
    replicas_count: int = -1,
    config: Mapping[str, str] | None = None,
) -> Created:
    """It is there, with a leader for each partition, when this returns; -1: as the cluster sees fit.

    Raises Refused, and Unreachable where nobody knows whether it is there now.
    """
    topic = {
        "name": name,
        "num_partitions": partitions_count,
        "replication_factor": replicas_count,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in (config or {}).items()],
    }
    values = {"topics": [topic], "timeout": _timeout(cluster), "validate_only": False}
    answer = _ask(cluster, cluster.ask_once, Api.CREATE_TOPICS, CREATE_VERSION, values)
    _judge(answer.topics, name)
    made = answer.topics[0]
    given = {each.name: each.value or "" for each in made.configs or () if each.config_source == OF_TOPIC}
    return Created(int(made.num_partitions), int(made.replication_factor), given)


def delete_topic(cluster: Cluster, name: str) -> None:
    """Raises UnknownTopic, and Unreachable where nobody knows whether it is gone now."""
    values = {"topic_names": [name], "timeout": _timeout(cluster)}
    answer = _ask(cluster, cluster.ask_once, Api.DELETE_TOPICS, DELETE_VERSION, values)
    _judge(answer.responses, name)


def alter_topic(cluster: Cluster, name: str, settings: Mapping[str, str | None]) -> None:
    """Let these settings be so, None as by default.

    Raises UnknownTopic, Refused, and Unreachable where nobody knows whether they are so now.
    """
    _alter(cluster, TOPIC, name, settings)


def alter_cluster(cluster: Cluster, settings: Mapping[str, str | None]) -> None:
    """Let new topics be so where nobody says, None as by default.

    Raises Refused, and Unreachable where nobody knows whether it is so now.
    """
    _alter(cluster, NODE, EVERY_NODE, settings)


def _alter(cluster: Cluster, resource: int, name: str, settings: Mapping[str, str | None]) -> None:
    configs = [
        {"name": key, "value": value, "config_operation": RESET if value is None else SET}
        for key, value in settings.items()
    ]
    altered = {"resource_type": resource, "resource_name": name, "configs": configs}
    values = {"resources": [altered], "validate_only": False}
    answer = _ask(cluster, cluster.ask_once, Api.INCREMENTAL_ALTER_CONFIGS, ALTER_VERSION, values)
    _judge(answer.responses, name)


def settings_of(cluster: Cluster, topic: str) -> dict[str, str]:
    """All that are known of a topic, given or not; raises UnknownTopic, Refused and Unreachable."""
    asked = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": None}
    values = {"resources": [asked], "include_synonyms": False, "include_documentation": False}
    answer = _ask(cluster, cluster.ask_anybody, Api.DESCRIBE_CONFIGS, DESCRIBE_VERSION, values)
    _judge(answer.results, topic)
    return {str(config.name): str(config.value) for each in answer.results for config in each.configs}


def add_partitions(cluster: Cluster, name: str, count: int) -> None:
    """Let it have so many partitions; the new ones have leaders when this returns.

    Raises UnknownTopic, Refused, and Unreachable where nobody knows whether they are there now.
    """
    topic = {"name": name, "count": count, "assignments": None}
    values = {"topics": [topic], "timeout": _timeout(cluster), "validate_only": False}
    answer = _ask(cluster, cluster.ask_once, Api.CREATE_PARTITIONS, ADD_VERSION, values)
    _judge(answer.results, name)


def find_nodes(cluster: Cluster) -> tuple[str, dict[int, tuple[str, int]]]:
    """The cluster's id, and where its nodes are; raises Unreachable."""
    values = {"topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    answer = _ask(cluster, cluster.ask_anybody, Api.METADATA, METADATA_VERSION, values)
    nodes = {int(broker.node_id): (str(broker.host), int(broker.port)) for broker in answer.brokers}
    return str(answer.cluster_id), dict(sorted(nodes.items()))


def new_producer_id(cluster: Cluster) -> int:
    """A number under which nobody else writes; raises Refused and Unreachable."""
    values = {
        "transactional_id": None,
        "transaction_timeout": timedelta(0),
        "producer_id": -1,
        "producer_epoch": -1,
    }
    deadline = monotonic() + cluster.timeout_s
    while True:
        answer = _ask(cluster, cluster.ask_anybody, Api.INIT_PRODUCER_ID, PRODUCER_VERSION, values)
        if answer.error_code == ErrorCode.none:
            return int(answer.producer_id)
        said = answer.error_code.name.replace("_", " ")
        if not answer.error_code.retriable:
            raise Refused(f"a producer id: {said}")
        if monotonic() >= deadline:
            raise Unreachable(f"a producer id: {said}; is a majority of the nodes up?")
        sleep(PAUSE_S)


def _timeout(cluster: Cluster) -> timedelta:
    return timedelta(seconds=cluster.timeout_s * NODE_SHARE)


def _ask(
    cluster: Cluster,
    how: Callable[[Api, int, Any, float], Any],
    api: Api,
    version: int,
    values: dict[str, Any],
) -> Any:
    body = make(request_class(api, version), values)
    try:
        return how(api, version, body, monotonic() + cluster.timeout_s)
    except ConnectionRefusedError as error:
        raise NobodyThere(f"nobody listens at {cluster.bootstrap} (connection refused)") from error
    except (OSError, BadMessage) as error:
        raise Unreachable(
            f"no answer from {cluster.bootstrap} ({in_words(error)}); is a majority of the nodes up?"
        ) from error


def _judge(answers: Any, name: str) -> None:
    for answer in answers:
        if answer.error_code == ErrorCode.unknown_topic_or_partition:
            raise UnknownTopic(name)
        if answer.error_code != ErrorCode.none:
            raise Refused(answer.error_message or f"{name}: {answer.error_code.name.replace('_', ' ')}")
