"""CreateTopics, CreatePartitions and DeleteTopics: commands for the metadata group, given on any node.

A new topic is answered when this node's image has it and its partitions have leaders, because clients write at
once; or when the client's time is over, and then it is there all the same.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.errors import ErrorCode

from quorate.core.entry import Partition, partition_of
from quorate.ingest import SUBJECT
from quorate.kafka.call import Call
from quorate.kafka.settings import (
    BY_DEFAULT,
    REPLICATION,
    REPLICATION_DEFAULT,
    Refused,
    check_config,
    check_subject,
    described,
    with_defaults,
)
from quorate.machine.metadata import Topic
from quorate.machine.purpose import HOMES, KIND, TABLES
from quorate.node.metadata import (
    BadChange,
    BadReplication,
    BadTopic,
    NoMetadata,
    TooNew,
    TopicExists,
    UnknownTopic,
    default_replicas,
)
from quorate.wire.messages import decode_request

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

NAME_MAX = 249
POLL_S = 0.01
LEADERS_TIMEOUT_S_MAX = 60.0
UNASKED_TIMEOUT_S = 5.0
"""Of whoever did not say for how long it waits."""
NOT_REGISTERED = "this node does not know its cluster yet: ask another, or ask again"
"""Said with an error that clients try again after."""

_NAME = re.compile(r"[a-zA-Z0-9._-]+")

# ---- creating ----


def handle_create(broker: Broker, call: Call) -> None:
    call.door.run(_create_all(broker, call, decode_request(call.frame).body))


async def _create_all(broker: Broker, call: Call, request: Any) -> None:
    deadline = asyncio.get_running_loop().time() + seconds(request.timeout)
    knows_cluster = await broker.until_registered(seconds(request.timeout))
    if knows_cluster:
        await (
            broker.node.metadata.catch_up()
        )  # What new topics are may have been altered just now, elsewhere.
    times_named = Counter(topic.name for topic in request.topics)
    answers = []
    for wanted in request.topics:
        try:
            if not knows_cluster:
                raise Refused(ErrorCode.not_controller, NOT_REGISTERED)
            if times_named[wanted.name] > 1:
                raise Refused(ErrorCode.invalid_request, f"{wanted.name} is there twice in one request")
            topic = await _create(broker, wanted, validate_only=request.validate_only)
            if not request.validate_only:
                await _leaders_known(broker, topic, deadline)
            answers.append(_created(topic))
        except Refused as refused:
            answers.append(
                {
                    "name": wanted.name,
                    "topic_id": None,
                    "error_code": refused.error,
                    "error_message": refused.why,
                    "configs": (),
                }
            )
    values = {"throttle_time": timedelta(0), "topics": answers}
    broker.in_turn(lambda: call.answer_with(values))


async def _create(broker: Broker, wanted: Any, *, validate_only: bool) -> Topic:
    check_name(wanted.name)
    if wanted.name in HOMES.values():
        why = f"{wanted.name} is the cluster's own, and is made when it is needed"
        raise Refused(ErrorCode.invalid_topic_exception, why)
    image = broker.node.metadata.image
    config = with_defaults(image, {setting.name: setting.value or "" for setting in wanted.configs})
    replication = config.pop(REPLICATION, REPLICATION_DEFAULT)
    ensembles = _assigned(wanted)
    if ensembles is None:
        if wanted.num_partitions != BY_DEFAULT and wanted.num_partitions < 1:
            raise Refused(ErrorCode.invalid_partitions, f"{wanted.num_partitions} partitions; at least 1")
        copies = wanted.replication_factor
        if copies != BY_DEFAULT and not 1 <= copies <= len(image.nodes):
            why = f"replication factor {copies}; there are {len(image.nodes)} nodes"
            raise Refused(ErrorCode.invalid_replication_factor, why)
    else:
        copies = min(map(len, ensembles))
    if copies == BY_DEFAULT:
        copies = default_replicas(image, len(image.nodes))
    check_config(config, copies, replication=replication)
    partitions_count = wanted.num_partitions if ensembles is None else len(ensembles)
    if partitions_count == BY_DEFAULT and (SUBJECT in config or config.get(KIND) == TABLES):
        partitions_count = 1
    if SUBJECT in config:
        check_subject(config[SUBJECT], partitions_count, has_server=bool(broker.node.config.nats))
    if config.get(KIND) == TABLES and (partitions_count != 1 or SUBJECT in config):
        raise Refused(ErrorCode.invalid_config, "a group of tables has one partition, and no NATS subject")
    try:
        return await broker.node.metadata.create_topic(
            wanted.name,
            ensembles,
            partitions_count=partitions_count,
            replicas_count=wanted.replication_factor,
            replication=replication,
            config=config,
            validate_only=validate_only,
        )
    except TopicExists as error:
        raise Refused(ErrorCode.topic_already_exists, str(error)) from None
    except TooNew as error:
        raise Refused(ErrorCode.unsupported_version, str(error)) from None
    except BadReplication as error:
        raise Refused(ErrorCode.invalid_config, str(error)) from None
    except BadTopic as error:
        assigned = ErrorCode.invalid_replica_assignment
        raise Refused(ErrorCode.invalid_partitions if ensembles is None else assigned, str(error)) from None
    except NoMetadata as error:
        # Rule 9: it may have been created.
        raise Refused(ErrorCode.request_timed_out, str(error)) from None


class Unspecified(NamedTuple):
    """A topic of which a client says no more than its name."""

    name: str
    num_partitions: int = BY_DEFAULT
    replication_factor: int = BY_DEFAULT
    assignments: tuple[Any, ...] = ()
    configs: tuple[Any, ...] = ()


async def create_by_default(broker: Broker, name: str) -> None:
    """As the cluster says that new topics are; raises Refused. What somebody else has just made is there, too."""
    deadline = asyncio.get_running_loop().time() + UNASKED_TIMEOUT_S
    try:
        topic = await _create(broker, Unspecified(name), validate_only=False)
    except Refused as refused:
        if refused.error != ErrorCode.topic_already_exists:
            raise
        await broker.node.metadata.catch_up()
    else:
        await _leaders_known(broker, topic, deadline)


async def _leaders_known(broker: Broker, topic: Topic, deadline: float) -> None:
    """Until every partition has a leader that this node knows of, or the client's time is over."""
    loop = asyncio.get_running_loop()
    missing = {partition_of(topic.id, number) for number in range(len(topic.ensembles))}
    while True:
        missing = {partition for partition in missing if not _can_be_written(broker, partition)}
        if not missing or loop.time() >= deadline:
            return
        await asyncio.sleep(POLL_S)


def _can_be_written(broker: Broker, partition: Partition) -> bool:
    """A new leader refuses producers with ids until it has settled something; of others nobody knows here."""
    node = broker.node
    leader, _ = node.leader_of(partition)
    return node.is_settled_leader(partition) if leader == node.id else leader != 0


def _assigned(wanted: Any) -> list[list[int]] | None:
    """The ensembles that the client chose; None: it leaves that to us."""
    if not wanted.assignments:
        return None
    if wanted.num_partitions != BY_DEFAULT or wanted.replication_factor != BY_DEFAULT:
        raise Refused(
            ErrorCode.invalid_request, "with an assignment, partitions and replication factor are both -1"
        )
    chosen = {given.partition_index: list(given.broker_ids) for given in wanted.assignments}
    if sorted(chosen) != list(range(len(wanted.assignments))):
        why = "an assignment names every partition from 0 on, each once"
        raise Refused(ErrorCode.invalid_replica_assignment, why)
    return [chosen[number] for number in range(len(chosen))]


def _created(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": uuid.UUID(bytes=topic.id),
        "error_code": ErrorCode.none,
        "error_message": None,
        "num_partitions": len(topic.ensembles),
        "replication_factor": len(topic.ensembles[0]),
        "configs": described(topic),
    }


# ---- more partitions ----


def handle_create_partitions(broker: Broker, call: Call) -> None:
    call.door.run(_add_to_all(broker, call, decode_request(call.frame).body))


async def _add_to_all(broker: Broker, call: Call, request: Any) -> None:
    deadline = asyncio.get_running_loop().time() + seconds(request.timeout)
    knows_cluster = await broker.until_registered(seconds(request.timeout))
    times_named = Counter(topic.name for topic in request.topics)
    answers = []
    for wanted in request.topics:
        error, why = ErrorCode.none, None
        try:
            if not knows_cluster:
                raise Refused(ErrorCode.not_controller, NOT_REGISTERED)
            if times_named[wanted.name] > 1:
                raise Refused(ErrorCode.invalid_request, f"{wanted.name} is there twice in one request")
            topic = await _add_to(broker, wanted, validate_only=request.validate_only)
            if not request.validate_only:
                await _leaders_known(broker, topic, deadline)
        except Refused as refused:
            error, why = refused.error, refused.why
        answers.append({"name": wanted.name, "error_code": error, "error_message": why})
    values = {"throttle_time": timedelta(0), "results": answers}
    broker.in_turn(lambda: call.answer_with(values))


async def _add_to(broker: Broker, wanted: Any, *, validate_only: bool) -> Topic:
    await broker.node.metadata.catch_up()
    topic = broker.node.metadata.image.topics.get(wanted.name)
    if topic is None:
        raise Refused(ErrorCode.unknown_topic_or_partition, f"there is no topic {wanted.name}")
    if SUBJECT in topic.config:
        why = f"a topic with a NATS subject has one partition, not {wanted.count}"
        raise Refused(ErrorCode.invalid_partitions, why)
    ensembles = None
    if wanted.assignments is not None:
        ensembles = [list(given.broker_ids) for given in wanted.assignments]
        if len(ensembles) != wanted.count - len(topic.ensembles):
            why = f"{len(ensembles)} assignments for {wanted.count - len(topic.ensembles)} more partitions"
            raise Refused(ErrorCode.invalid_replica_assignment, why)
    try:
        return await broker.node.metadata.add_partitions(
            topic.id, wanted.count, ensembles, validate_only=validate_only
        )
    except UnknownTopic as error:
        raise Refused(ErrorCode.unknown_topic_or_partition, str(error)) from None
    except TooNew as error:
        raise Refused(ErrorCode.unsupported_version, str(error)) from None
    except BadChange as error:
        raise Refused(ErrorCode.invalid_partitions, str(error)) from None
    except BadTopic as error:
        raise Refused(ErrorCode.invalid_replica_assignment, str(error)) from None
    except NoMetadata as error:
        raise Refused(ErrorCode.request_timed_out, str(error)) from None


# ---- deleting ----


def handle_delete(broker: Broker, call: Call) -> None:
    call.door.run(_delete_all(broker, call, decode_request(call.frame).body))


async def _delete_all(broker: Broker, call: Call, request: Any) -> None:
    if call.head.version >= 6:
        wanted = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        wanted = [(name, None) for name in request.topic_names]
    if await broker.until_registered(seconds(request.timeout)):
        answers = [await _delete(broker, name, topic_id) for name, topic_id in wanted]
    else:
        error = {"error_code": ErrorCode.not_controller, "error_message": NOT_REGISTERED}
        answers = [{"name": name, "topic_id": topic_id, **error} for name, topic_id in wanted]
    values = {"throttle_time": timedelta(0), "responses": answers}
    broker.in_turn(lambda: call.answer_with(values))


async def _delete(broker: Broker, name: str | None, topic_id: uuid.UUID | None) -> dict[str, Any]:
    await broker.node.metadata.catch_up()  # A topic that has just been created elsewhere is there.
    image = broker.node.metadata.image
    error, why = ErrorCode.none, None
    if name is not None:
        topic, unknown = image.topics.get(name), ErrorCode.unknown_topic_or_partition
    else:
        topic, unknown = image.by_id.get(topic_id.bytes if topic_id else b""), ErrorCode.unknown_topic_id
    if topic is None:
        error, why = unknown, f"there is no topic {name or topic_id}"
    else:
        name, topic_id = topic.name, uuid.UUID(bytes=topic.id)
        try:
            await broker.node.metadata.delete_topic(topic.id)
        except BadChange as bad:
            error, why = ErrorCode.policy_violation, str(bad)
        except UnknownTopic as gone:
            error, why = unknown, str(gone)
        except NoMetadata as none:
            error, why = ErrorCode.request_timed_out, str(none)
    return {"name": name, "topic_id": topic_id, "error_code": error, "error_message": why}


# ---- what a topic may be ----


def is_name(name: str) -> bool:
    return name not in (".", "..") and len(name) <= NAME_MAX and _NAME.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Kafka's rules; raises Refused."""
    if not is_name(name):
        why = f"{name[:NAME_MAX]!r} is no topic name: 1 to {NAME_MAX} of a-z A-Z 0-9 . _ -, not . or .."
        raise Refused(ErrorCode.invalid_topic_exception, why)


def seconds(timeout: timedelta) -> float:
    return min(max(timeout.total_seconds(), 0.0), LEADERS_TIMEOUT_S_MAX)
