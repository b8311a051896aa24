"""Consumer groups from outside: which there are, who is in them, how far they have got, and that it be
otherwise.

Each group has a coordinator, which any node names. It may be another one a moment later: then it is looked for
anew, until the time is over. What is asked here may be asked twice, as it says what is to be, not what is to be
added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic, sleep
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from quorate.client.cluster import NO_LEADER, Cluster, in_words
from quorate.client.errors import NobodyThere, Refused, UnknownConsumers, UnknownTopic, Unreachable
from quorate.wire.consumers import CONSUMER, assigned
from quorate.wire.cursor import BadMessage
from quorate.wire.entities import make
from quorate.wire.messages import Api, request_class

FIND_VERSION, LIST_VERSION, DESCRIBE_VERSION = 4, 4, 5
FETCH_VERSION, COMMIT_VERSION, DELETE_VERSION, DROP_VERSION = 8, 8, 2, 0
PAUSE_MIN_S, PAUSE_MAX_S = 0.02, 0.5
TRY_S = 5.0
HOME = "__consumer_offsets"
GROUP, TRANSACTION = 0, 1
"""Kafka's types of key, for whoever has a coordinator."""
NOBODY = -1
AGAIN = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.unstable_offset_commit,
)

Positions = dict[tuple[str, int], int]
"""By topic and partition: the next offset that a group wants."""


class Listed(NamedTuple):
    name: str
    state: str
    """As Kafka has it: Stable, Empty, PreparingRebalance, CompletingRebalance."""
    kind: str
    """Of the protocol: `consumer`, or empty where nobody was ever in it."""


class Member(NamedTuple):
    id: str
    instance: str | None
    client_id: str
    host: str
    partitions: dict[str, list[int]] | None
    """None: it speaks a protocol that only its own kind understands."""


class Described(NamedTuple):
    name: str
    state: str
    kind: str
    protocol: str
    coordinator: int
    members: tuple[Member, ...]


def list_groups(cluster: Cluster) -> list[Listed]:
    """Every group: whoever leads a part of their home knows those that live there. Raises Unreachable."""
    found: dict[str, Listed] = {}

    def ask() -> ErrorCode:
        try:
            home = cluster.topics([HOME])[HOME]
        except UnknownTopic:
            return ErrorCode.none
        found.clear()
        for node in sorted({each.leader for each in home.partitions}):
            if node == NO_LEADER:
                return ErrorCode.coordinator_not_available
            answer = _ask_node(cluster, node, Api.LIST_GROUPS, LIST_VERSION, {"states_filter": ()})
            if answer.error_code != ErrorCode.none:
                return ErrorCode(answer.error_code)
            for each in answer.groups:
                found[each.group_id] = Listed(each.group_id, each.group_state, each.protocol_type)
        return ErrorCode.none

    _until_done(cluster, "the groups", ask)
    return sorted(found.values())


def describe_group(cluster: Cluster, name: str) -> Described:
    """Raises UnknownConsumers, Refused, Unreachable."""
    values = {"groups": [name], "include_authorized_operations": False}
    coordinator, answer = of_coordinator(
        cluster,
        name,
        Api.DESCRIBE_GROUPS,
        DESCRIBE_VERSION,
        values,
        lambda answer: [answer.groups[0].error_code],
    )
    group = answer.groups[0]
    if group.group_state == "Dead":
        raise UnknownConsumers(name)
    members = tuple(
        Member(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            _assigned(group.protocol_type, member.member_assignment),
        )
        for member in group.members
    )
    return Described(
        name, group.group_state, group.protocol_type, group.protocol_data, coordinator, tuple(sorted(members))
    )


def positions_of(cluster: Cluster, name: str) -> Positions:
    """How far a group has got, in all that it has read; raises Refused, Unreachable."""
    values = {"groups": [{"group_id": name, "topics": None}], "require_stable": True}

    def errors(answer: Any) -> list[int]:
        group = answer.groups[0]
        return [group.error_code, *(each.error_code for topic in group.topics for each in topic.partitions)]

    _, answer = of_coordinator(cluster, name, Api.OFFSET_FETCH, FETCH_VERSION, values, errors)
    return {
        (topic.name, each.partition_index): each.committed_offset
        for topic in answer.groups[0].topics
        for each in topic.partitions
        if each.committed_offset >= 0
    }


def set_positions(cluster: Cluster, name: str, positions: Mapping[tuple[str, int], int]) -> None:
    """Let a group without members go on from there; raises Refused, Unreachable."""
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        each = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": NOBODY,
            "committed_metadata": None,
        }
        by_topic.setdefault(topic, []).append(each)
    values = {
        "group_id": name,
        "generation_id_or_member_epoch": NOBODY,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": some} for topic, some in by_topic.items()],
    }
    of_coordinator(cluster, name, Api.OFFSET_COMMIT, COMMIT_VERSION, values, _of_partitions)


def delete_group(cluster: Cluster, name: str) -> None:
    """Raises UnknownConsumers, Refused where somebody is in it, Unreachable."""
    values = {"groups_names": [name]}
    of_coordinator(
        cluster,
        name,
        Api.DELETE_GROUPS,
        DELETE_VERSION,
        values,
        lambda answer: [answer.results[0].error_code],
    )


def forget_positions(cluster: Cluster, name: str, partitions: Sequence[tuple[str, int]]) -> None:
    """As if the group had never read these; raises Refused where one of its members reads the topic."""
    by_topic: dict[str, list[dict[str, int]]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append({"partition_index": partition})
    values = {
        "group_id": name,
        "topics": [{"name": topic, "partitions": some} for topic, some in by_topic.items()],
    }
    of_coordinator(
        cluster,
        name,
        Api.OFFSET_DELETE,
        DROP_VERSION,
        values,
        lambda answer: [answer.error_code, *_of_partitions(answer)],
    )


# ---- asking ----


def of_coordinator(
    cluster: Cluster,
    name: str,
    api: Api,
    version: int,
    values: dict[str, Any],
    errors: Callable[[Any], Sequence[int]],
    *,
    key_type: int = GROUP,
) -> tuple[int, Any]:
    """Who coordinates it, and what that one answered; raises UnknownConsumers, Refused, Unreachable."""
    answered: list[Any] = []

    def ask() -> ErrorCode:
        found = _coordinator(cluster, name, key_type)
        if found.error_code != ErrorCode.none:
            return ErrorCode(found.error_code)
        answer = _ask_node(cluster, found.node_id, api, version, values)
        wrong = [ErrorCode(error) for error in errors(answer) if error != ErrorCode.none]
        answered[:] = [found.node_id, answer]
        return wrong[0] if wrong else ErrorCode.none

    _until_done(cluster, f"{'group' if key_type == GROUP else 'transactional id'} {name}", ask)
    coordinator, answer = answered
    return int(coordinator), answer


def _coordinator(cluster: Cluster, name: str, key_type: int) -> Any:
    wanted = {"key_type": key_type, "coordinator_keys": [name]}
    body = make(request_class(Api.FIND_COORDINATOR, FIND_VERSION), wanted)
    try:
        deadline = monotonic() + min(2 * TRY_S, cluster.timeout_s)
        answer = cluster.ask_anybody(Api.FIND_COORDINATOR, FIND_VERSION, body, deadline)
    except ConnectionRefusedError as error:
        raise NobodyThere(f"nobody listens at {cluster.bootstrap} (connection refused)") from error
    return answer.coordinators[0]


def _ask_node(cluster: Cluster, node: int, api: Api, version: int, values: dict[str, Any]) -> Any:
    deadline = monotonic() + min(TRY_S, cluster.timeout_s)
    return cluster.ask_node(node, api, version, make(request_class(api, version), values), deadline)


def _until_done(cluster: Cluster, what: str, ask: Callable[[], ErrorCode]) -> None:
    end = monotonic() + cluster.timeout_s
    pause_s, trouble = 0.0, ""
    while True:
        try:
            error = ask()
            if error == ErrorCode.none:
                return
            trouble = error.name.replace("_", " ")
            if error == ErrorCode.group_id_not_found:
                raise UnknownConsumers(what.removeprefix("group "))
            if error not in AGAIN:
                raise Refused(f"{what}: {_WORDS.get(error, trouble)}")
        except (OSError, BadMessage) as error:
            trouble = in_words(error)
        pause_s = min(max(2 * pause_s, PAUSE_MIN_S), PAUSE_MAX_S)
        if monotonic() + pause_s >= end:
            raise Unreachable(
                f"{what}: no answer from {cluster.bootstrap} within {cluster.timeout_s:g} s ({trouble}); "
                "is a majority of the nodes up?"
            )
        sleep(pause_s)


_WORDS = {
    ErrorCode.unknown_member_id: "somebody is in it; stop its members first",
    ErrorCode.non_empty_group: "somebody is in it; stop its members first",
    ErrorCode.group_subscribed_to_topic: "a member of it reads the topic; stop its members first",
    ErrorCode.unknown_topic_or_partition: "there is no such topic, or no such partition",
}


def _of_partitions(answer: Any) -> list[int]:
    return [each.error_code for topic in answer.topics for each in topic.partitions]


def _assigned(kind: str, assignment: bytes) -> dict[str, list[int]] | None:
    if kind != CONSUMER:
        return None
    try:
        return {topic: sorted(numbers) for topic, numbers in sorted(assigned(assignment).items())}
    except BadMessage:
        return None
