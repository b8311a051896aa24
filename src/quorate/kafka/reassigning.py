"""Alter- and ListPartitionReassignments and ElectLeaders: who copies a partition, and who leads it.

A reassignment is answered when it is known to be wanted; the partition's leader then takes its group there
(node/ensembles.py), and it is listed until it has arrived. One is cancelled by wanting again what was before.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from quorate.core.entry import partition_of
from quorate.kafka.call import Call
from quorate.kafka.settings import Refused
from quorate.kafka.topics import NOT_REGISTERED, seconds
from quorate.machine.metadata import Metadata, Topic
from quorate.node.metadata import BadChange, NoMetadata, UnknownTopic
from quorate.wire.messages import decode_request

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

REGISTERED_TIMEOUT_S = 5.0
ELECTIONS_COUNT_MAX = 16
"""At once."""


class Election(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


# ---- other copies ----


def handle_alter(broker: Broker, call: Call) -> None:
    call.door.run(_alter_all(broker, call, decode_request(call.frame).body))


async def _alter_all(broker: Broker, call: Call, request: Any) -> None:
    is_current = await _is_current(broker)
    may_resize = getattr(request, "allow_replication_factor_change", True)
    responses = []
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            error, why = ErrorCode.none, None
            try:
                if not is_current:
                    raise Refused(ErrorCode.not_controller, NOT_REGISTERED)
                await _alter(broker, topic.name, wanted, may_resize=may_resize)
            except Refused as refused:
                error, why = refused.error, refused.why
            partitions.append(
                {"partition_index": wanted.partition_index, "error_code": error, "error_message": why}
            )
        responses.append({"name": topic.name, "partitions": partitions})
    values = {
        "throttle_time": timedelta(0),
        "allow_replication_factor_change": may_resize,
        "error_code": ErrorCode.none,
        "error_message": None,
        "responses": responses,
    }
    broker.in_turn(lambda: call.answer_with(values))


async def _alter(broker: Broker, name: str, wanted: Any, *, may_resize: bool) -> None:
    image, number = broker.node.metadata.image, wanted.partition_index
    topic = _found(image, name, number)
    settled = [member.node for member in topic.ensembles[number]]
    if wanted.replicas is None:
        if number not in topic.changes:
            why = f"partition {number} of {name} has all the copies that are wanted"
            raise Refused(ErrorCode.no_reassignment_in_progress, why)
        nodes = settled
    else:
        nodes = list(wanted.replicas)
        if not may_resize and len(nodes) != len(settled):
            why = f"{len(nodes)} copies in place of {len(settled)}, and their number was not to change"
            raise Refused(ErrorCode.invalid_replication_factor, why)
    try:
        await broker.node.metadata.change_ensemble(topic.id, number, nodes)
    except BadChange as error:
        raise Refused(ErrorCode.invalid_replica_assignment, str(error)) from None
    except UnknownTopic as error:
        raise Refused(ErrorCode.unknown_topic_or_partition, str(error)) from None
    except NoMetadata as error:  # Rule 9: it may be wanted by now.
        raise Refused(ErrorCode.request_timed_out, str(error)) from None


def handle_list(broker: Broker, call: Call) -> None:
    call.door.run(_list(broker, call, decode_request(call.frame).body))


async def _list(broker: Broker, call: Call, request: Any) -> None:
    error, why, topics = ErrorCode.none, None, []
    if await _is_current(broker):
        image = broker.node.metadata.image
        asked: dict[str, set[int] | None] = dict.fromkeys(sorted(image.topics))
        if request.topics is not None:
            asked = {topic.name: set(topic.partition_indexes) for topic in request.topics}
        topics = [
            {"name": name, "partitions": partitions}
            for name, numbers in asked.items()
            if name in image.topics and (partitions := _under_way(image.topics[name], numbers))
        ]
    else:
        error, why = ErrorCode.not_controller, NOT_REGISTERED
    values = {"throttle_time": timedelta(0), "error_code": error, "error_message": why, "topics": topics}
    broker.in_turn(lambda: call.answer_with(values))


def _under_way(topic: Topic, numbers: set[int] | None) -> list[dict[str, Any]]:
    found = []
    for number, change in sorted(topic.changes.items()):
        if numbers is not None and number not in numbers:
            continue
        before = [member.node for member in topic.ensembles[number]]
        wanted = [member.node for member in change.wanted]
        found.append(
            {
                "partition_index": number,
                "replicas": tuple(dict.fromkeys([*wanted, *before])),
                "adding_replicas": tuple(node for node in wanted if node not in before),
                "removing_replicas": tuple(node for node in before if node not in wanted),
            }
        )
    return found


# ---- other leaders ----


def handle_elect(broker: Broker, call: Call) -> None:
    call.door.run(_elect_all(broker, call, decode_request(call.frame).body))


async def _elect_all(broker: Broker, call: Call, request: Any) -> None:
    """All that are named; or of all that there are those that the preferred one does not lead."""
    error = ErrorCode.none if await _is_current(broker) else ErrorCode.not_controller
    image, timeout_s = broker.node.metadata.image, seconds(request.timeout)
    kind = getattr(request, "election_type", Election.PREFERRED)
    if request.topic_partitions is None:
        named = [(name, list(range(len(topic.ensembles)))) for name, topic in sorted(image.topics.items())]
    else:
        named = [(each.topic, list(each.partitions)) for each in request.topic_partitions]
    few = asyncio.Semaphore(ELECTIONS_COUNT_MAX)

    async def elected(name: str, number: int) -> dict[str, Any]:
        error, why = ErrorCode.none, None
        try:
            async with few:
                await _elect(broker, name, number, kind, timeout_s)
        except Refused as refused:
            error, why = refused.error, refused.why
        return {"partition_id": number, "error_code": error, "error_message": why}

    results = []
    for name, numbers in named if not error else ():
        found = await asyncio.gather(*(elected(name, number) for number in numbers))
        if request.topic_partitions is None:
            found = [each for each in found if each["error_code"] != ErrorCode.election_not_needed]
        if found:
            results.append({"topic": name, "partition_result": found})
    values = {"throttle_time": timedelta(0), "error_code": error, "replica_election_results": results}
    broker.in_turn(lambda: call.answer_with(values))


async def _elect(broker: Broker, name: str, number: int, kind: int, timeout_s: float) -> None:
    topic = _found(broker.node.metadata.image, name, number)
    partition, preferred = partition_of(topic.id, number), topic.ensembles[number][0].node
    leader, _ = broker.node.leader_of(partition)
    if kind == Election.UNCLEAN:
        if leader:
            raise Refused(ErrorCode.election_not_needed, f"node {leader} leads partition {number} of {name}")
        why = "nobody leads here who may lack what is settled; bring back the nodes that hold it"
        raise Refused(ErrorCode.eligible_leaders_not_available, why)
    if kind != Election.PREFERRED:
        raise Refused(ErrorCode.invalid_request, f"there is no election of kind {kind}")
    if leader == preferred:
        raise Refused(ErrorCode.election_not_needed, f"node {leader} leads already, and is preferred")
    if topic.is_operated(number):
        why = "an operator chooses who leads, by what is in their logs: nobody is preferred"
        raise Refused(ErrorCode.election_not_needed, why)
    try:
        await broker.node.metadata.let_lead(partition, preferred, timeout_s=timeout_s)
    except BadChange as error:
        raise Refused(ErrorCode.preferred_leader_not_available, str(error)) from None


# ---- both ----


async def _is_current(broker: Broker) -> bool:
    if not await broker.until_registered(REGISTERED_TIMEOUT_S):
        return False
    await broker.node.metadata.catch_up()
    return True


def _found(image: Metadata, name: str, number: int) -> Topic:
    topic = image.topics.get(name)
    if topic is None or not 0 <= number < len(topic.ensembles):
        why = f"there is no partition {number} of a topic {name}"
        raise Refused(ErrorCode.unknown_topic_or_partition, why)
    return topic
