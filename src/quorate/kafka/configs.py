"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: what topics and the cluster are set to, and that it be
otherwise. The older AlterConfigs says all that is to be set: whatever it does not name is as by default afterwards.

What is set for the cluster, as for a node without a name, is what new topics are. Nodes are set by their own
configuration, which nobody changes from outside: of one node nothing is described, and nothing altered. Only that
its throttles be lifted is taken, as Kafka's tool for reassignments asks for it in the end: there are none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from quorate.kafka.call import Call
from quorate.kafka.settings import (
    REPLICATION,
    SETTINGS,
    UNKNOWN,
    Refused,
    check_altered,
    check_cluster,
    cluster_described,
    described,
    is_settled,
    without_effect,
)
from quorate.kafka.topics import NOT_REGISTERED
from quorate.machine.metadata import Topic
from quorate.node.metadata import BadChange, NoMetadata, TooNew, UnknownTopic
from quorate.wire.messages import decode_request

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

REGISTERED_TIMEOUT_S = 5.0
THROTTLES = {
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}
"""Of a node of Kafka's."""

Meant = Callable[["Broker", Any], dict[str, str | None]]
"""What each setting is to be, as a resource of a request has it; None: as by default. Raises Refused."""


class Resource(IntEnum):
    """What settings are of, in Kafka's numbers."""

    TOPIC = 2
    NODE = 4


class Operation(IntEnum):
    """What becomes of a setting, in Kafka's numbers."""

    SET = 0
    DELETE = 1


# ---- describing ----


def handle_describe(broker: Broker, call: Call) -> None:
    call.door.run(_describe_all(broker, call, decode_request(call.frame).body))


async def _describe_all(broker: Broker, call: Call, request: Any) -> None:
    knows_cluster = await _is_current(broker)
    results = []
    once = {(each.resource_type, each.resource_name): each for each in request.resources}
    for wanted in once.values():  # Twenty bytes stand for kilobytes: what is named twice is described once.
        error, why, configs = ErrorCode.none, None, []
        try:
            if not knows_cluster:
                raise Refused(ErrorCode.not_controller, NOT_REGISTERED)
            configs = _described(broker, wanted)
        except Refused as refused:
            error, why = refused.error, refused.why
        if wanted.configuration_keys is not None:
            configs = [each for each in configs if each["name"] in wanted.configuration_keys]
        if not request.include_synonyms:
            configs = [{**each, "synonyms": []} for each in configs]
        if not getattr(request, "include_documentation", False):
            configs = [{**each, "documentation": None} for each in configs]
        results.append({**_answer(wanted, error, why), "configs": configs})
    values = {"throttle_time": timedelta(0), "results": results}
    broker.in_turn(lambda: call.answer_with(values))


def _described(broker: Broker, wanted: Any) -> list[dict[str, Any]]:
    if _is_cluster(wanted):
        return cluster_described(broker.node.metadata.image)
    if wanted.resource_type == Resource.NODE:
        if wanted.resource_name not in map(str, broker.node.metadata.image.nodes):
            raise Refused(ErrorCode.invalid_request, f"there is no node {wanted.resource_name}")
        return []
    return described(_topic(broker, wanted))


# ---- altering ----


def handle_alter(broker: Broker, call: Call) -> None:
    call.door.run(_alter_all(broker, call, decode_request(call.frame).body, _altered))


def handle_replace(broker: Broker, call: Call) -> None:
    call.door.run(_alter_all(broker, call, decode_request(call.frame).body, _replaced))


async def _alter_all(broker: Broker, call: Call, request: Any, meant: Meant) -> None:
    knows_cluster = await _is_current(broker)
    times_named = Counter((wanted.resource_type, wanted.resource_name) for wanted in request.resources)
    responses = []
    for wanted in request.resources:
        error, why = ErrorCode.none, None
        try:
            if not knows_cluster:
                raise Refused(ErrorCode.not_controller, NOT_REGISTERED)
            if times_named[(wanted.resource_type, wanted.resource_name)] > 1:
                why = f"{wanted.resource_name} is there twice in one request"
                raise Refused(ErrorCode.invalid_request, why)
            await _alter(broker, wanted, meant, validate_only=request.validate_only)
            why = without_effect(each.name for each in wanted.configs)
        except Refused as refused:
            error, why = refused.error, refused.why
        responses.append(_answer(wanted, error, why))
    values = {"throttle_time": timedelta(0), "responses": responses}
    broker.in_turn(lambda: call.answer_with(values))


async def _alter(broker: Broker, wanted: Any, meant: Meant, *, validate_only: bool) -> None:
    if wanted.resource_type == Resource.NODE and not _is_cluster(wanted):
        if meant is _altered and _lifts_throttles(_altered(broker, wanted)):
            return
        why = "a node is set by its own configuration: change its file, and restart it"
        raise Refused(ErrorCode.invalid_request, why)
    altered = meant(broker, wanted)
    try:
        if _is_cluster(wanted):
            check_cluster(altered)
            if not validate_only:
                await broker.node.metadata.alter_cluster(altered)
            return
        topic = _topic(broker, wanted)
        possible = check_altered(topic, altered)
        to = possible.pop(REPLICATION, None)
        if validate_only:
            return
        if to is not None:  # That it is wanted is known then; it takes as long as it takes.
            await broker.node.metadata.turn_topic(topic.id, to)
        if possible:
            await broker.node.metadata.alter_topic(topic.id, possible)
    except UnknownTopic as error:
        raise Refused(ErrorCode.unknown_topic_or_partition, str(error)) from None
    except TooNew as error:
        raise Refused(ErrorCode.unsupported_version, str(error)) from None
    except BadChange as error:
        raise Refused(ErrorCode.invalid_config, str(error)) from None
    except NoMetadata as error:
        # Rule 9: it may have been done.
        raise Refused(ErrorCode.request_timed_out, str(error)) from None


def _lifts_throttles(altered: dict[str, str | None]) -> bool:
    return bool(altered) and altered.keys() <= THROTTLES and set(altered.values()) == {None}


def _altered(_: Broker, wanted: Any) -> dict[str, str | None]:
    """What each setting that is named is to be; None: as by default. Raises Refused."""
    altered: dict[str, str | None] = {}
    for each in wanted.configs:
        if each.name in altered:
            raise Refused(ErrorCode.invalid_request, f"{each.name} is there twice in one request")
        if each.config_operation == Operation.DELETE:
            altered[each.name] = None
        elif each.config_operation == Operation.SET and each.value is not None:
            altered[each.name] = each.value
        else:
            why = f"{each.name}: a setting is set to a value or deleted; nothing is appended or subtracted"
            raise Refused(ErrorCode.invalid_request, why)
    return altered


def _replaced(broker: Broker, wanted: Any) -> dict[str, str | None]:
    """What is set is to be this and nothing else; but what a topic is from its creation on need not be repeated."""
    for name, times in Counter(each.name for each in wanted.configs).items():
        if times > 1:
            raise Refused(ErrorCode.invalid_request, f"{name} is there twice in one request")
    if _is_cluster(wanted):
        given: Mapping[str, str] = broker.node.metadata.image.cluster.config
    else:
        topic = _topic(broker, wanted)
        kept = {name for name in topic.config if is_settled(name, SETTINGS.get(name, UNKNOWN), topic)}
        given = {name: value for name, value in topic.config.items() if name not in kept}
    return {**dict.fromkeys(given), **{each.name: each.value for each in wanted.configs}}


# ---- both ----


async def _is_current(broker: Broker) -> bool:
    """What was altered a moment ago, elsewhere, is so here too; or nobody of the metadata group answers."""
    if not await broker.until_registered(REGISTERED_TIMEOUT_S):
        return False
    await broker.node.metadata.catch_up()
    return True


def _is_cluster(wanted: Any) -> bool:
    return bool(wanted.resource_type == Resource.NODE and wanted.resource_name == "")


def _topic(broker: Broker, wanted: Any) -> Topic:
    if wanted.resource_type != Resource.TOPIC:
        why = f"settings are of topics (2) and of nodes (4), not of resources of type {wanted.resource_type}"
        raise Refused(ErrorCode.invalid_request, why)
    topic = broker.node.metadata.image.topics.get(wanted.resource_name)
    if topic is None:
        raise Refused(ErrorCode.unknown_topic_or_partition, f"there is no topic {wanted.resource_name}")
    return topic


def _answer(wanted: Any, error: ErrorCode, why: str | None) -> dict[str, Any]:
    return {
        "error_code": error,
        "error_message": why,
        "resource_type": wanted.resource_type,
        "resource_name": wanted.resource_name,
    }
