"""OffsetCommit, OffsetFetch and OffsetDelete: how far a group has got.

A position is written down before anybody hears that it is. It is read as of everything that was settled when
the read began, wherever that was: a node that coordinates no more and has not noticed must not send a group
back to where it was. A position belongs to one creation of a topic; in another one of the same name it is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from quorate.core.effects import Outcome, Reply
from quorate.host.querying import Consistency
from quorate.kafka.call import Call
from quorate.kafka.group_coordinator import Refused, error_of
from quorate.kafka.group_member import Stage
from quorate.machine.groups import CommitOffsets, DropOffsets, Group, Groups, Position
from quorate.machine.metadata import Topic
from quorate.wire.cursor import BadMessage
from quorate.wire.messages import decode_request

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

METADATA_BYTES_MAX = 4096
"""Of what a client notes beside a position; as in Kafka."""
COMMIT_BYTES_MAX = 1 << 20
"""Of all that is noted in one request: it becomes one entry."""
MANY_GROUPS_FROM = 8
ALL_FROM = 2
"""The first version that can ask for all positions; and, before 8, has an error for the whole answer."""
NOWHERE = -1
GROUPS_COUNT_MAX = 1000
"""In one request."""


# ---- committing ----


def handle_commit(broker: Broker, call: Call) -> None:
    request = decode_request(call.frame).body
    image = broker.node.metadata.image
    if all(topic.name in image.topics for topic in request.topics):
        Committing(broker, call, request).start()
    else:
        call.door.run(_commit_later(broker, call, request))


async def _commit_later(broker: Broker, call: Call, request: Any) -> None:
    """Some topic is not known here: it may have been created a moment ago, elsewhere."""
    await broker.node.metadata.catch_up()
    broker.in_turn(Committing(broker, call, request).start)


class Committing:
    """One request: what can be taken is one command."""

    def __init__(self, broker: Broker, call: Call, request: Any) -> None:
        self._broker = broker
        self._call = call
        self._request = request
        self._errors: dict[tuple[str, int], ErrorCode] = {}

    def start(self) -> None:
        broker, request = self._broker, self._request
        generation = request.generation_id_or_member_epoch
        instance = getattr(request, "group_instance_id", None)
        try:
            led = broker.groups.find(request.group_id)
            error = broker.groups.may_commit(led, request.group_id, request.member_id, instance, generation)
        except Refused as refused:
            error = refused.error
        if error:
            self._answer(error)
            return
        noted_bytes = sum(
            len(each.committed_metadata or "") for topic in request.topics for each in topic.partitions
        )
        if noted_bytes > COMMIT_BYTES_MAX:
            self._answer(ErrorCode.invalid_commit_offset_size)
            return
        positions = self._positions()
        if positions:
            broker.groups.write(led, CommitOffsets(request.group_id, positions), self._answer)
        else:
            self._answer(ErrorCode.none)

    def _positions(self) -> dict[str, dict[int, Position]]:
        now_ms = time.time_ns() // 1_000_000
        positions: dict[str, dict[int, Position]] = {}
        for wanted in self._request.topics:
            topic = self._broker.node.metadata.image.topics.get(wanted.name)
            for each in wanted.partitions:
                metadata = each.committed_metadata or ""
                error = _why_not(topic, each.partition_index, metadata, each.committed_offset)
                self._errors[wanted.name, each.partition_index] = error
                if topic is None or error:
                    continue
                position = Position(
                    each.committed_offset,
                    getattr(each, "committed_leader_epoch", NOWHERE),
                    metadata,
                    topic.id,
                    now_ms,
                )
                positions.setdefault(wanted.name, {})[each.partition_index] = position
        return positions

    def _answer(self, error: ErrorCode) -> None:
        """`error` is of all that was not refused by itself."""
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": each.partition_index,
                        "error_code": self._errors.get((topic.name, each.partition_index)) or error,
                    }
                    for each in topic.partitions
                ],
            }
            for topic in self._request.topics
        ]
        self._call.answer_with({"throttle_time": timedelta(0), "topics": topics})


def _why_not(topic: Topic | None, partition: int, metadata: str, offset: int) -> ErrorCode:
    if topic is None or not 0 <= partition < len(topic.ensembles):
        return ErrorCode.unknown_topic_or_partition
    if len(metadata.encode()) > METADATA_BYTES_MAX:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none if offset >= 0 else ErrorCode.invalid_commit_offset_size


# ---- fetching ----


def handle_fetch(broker: Broker, call: Call) -> None:
    Fetching(broker, call, decode_request(call.frame).body)


class Fetching:
    """One request, which may ask for several groups, and is answered when the last of them is known."""

    def __init__(self, broker: Broker, call: Call, request: Any) -> None:
        self._broker = broker
        self._call = call
        self._is_stable_wanted = bool(getattr(request, "require_stable", False))
        wanted = request.groups if call.head.version >= MANY_GROUPS_FROM else [request]
        if len(wanted) > GROUPS_COUNT_MAX:
            raise BadMessage(f"{len(wanted)} groups in one request; {GROUPS_COUNT_MAX} are the most")
        if len({each.group_id for each in wanted}) < len(wanted):
            raise BadMessage("a group is there twice in one request")
        self._answers: list[dict[str, Any]] = [{} for _ in wanted]
        self._missing_count = len(wanted)
        for place, each in enumerate(wanted):
            self._ask(place, each.group_id, each.topics)
        if not wanted:
            self._say()

    def _ask(self, place: int, group: str, topics: Any) -> None:
        try:
            led = self._broker.groups.find(group)
        except Refused as refused:
            self._found(place, group, topics, Reply(0, Outcome.SETTLED), (refused.error, None))
            return

        def ask(machine: Groups, _: Any) -> tuple[ErrorCode, Any]:
            return ErrorCode.none, self._look(machine.groups.get(group) or Group(), topics)

        answer = partial(self._found, place, group, topics)
        self._broker.node.query(led.partition, ask, answer, consistency=Consistency.LINEARIZABLE)

    def _look(self, group: Group, topics: Any) -> list[dict[str, Any]]:
        """What is known of these topics, or of all; nothing but positions in topics that are still the same."""
        by_name = self._broker.node.metadata.image.topics
        wanted: Iterable[tuple[str, Iterable[int]]]
        if topics is None:
            names = dict.fromkeys((*group.positions, *_pending_topics(group)))
            wanted = [(name, sorted(_partitions(group, name))) for name in names]
        else:
            # Once, however often it is named: four bytes stand for all that was noted beside a position.
            wanted = [(topic.name, dict.fromkeys(topic.partition_indexes)) for topic in topics]
        found = []
        for name, numbers in wanted:
            topic = by_name.get(name)
            there = group.positions.get(name, {})
            partitions = []
            for number in numbers:
                position = there.get(number)
                if position is not None and not self._is_of(topic, position):
                    position = None
                is_unstable = self._is_stable_wanted and group.is_pending(name, number)
                if topics is None and position is None and not is_unstable:
                    continue
                partitions.append(
                    _partition(number, None if is_unstable else position, is_unstable=is_unstable)
                )
            if partitions or topics is not None:
                found.append({"name": name, "partitions": partitions})
        return found

    def _is_of(self, topic: Topic | None, position: Position) -> bool:
        """Whether a position is in the topic that has its name now; one that is not known here may be new."""
        if topic is not None:
            return topic.id == position.topic_id
        return not self._broker.node.metadata.image.is_deleted(position.topic_id)

    def _found(
        self, place: int, group: str, topics: Any, reply: Reply, found: tuple[ErrorCode, Any] | None
    ) -> None:
        error, listed = (error_of(reply), None) if found is None else found
        is_whole = self._call.head.version >= ALL_FROM
        if error:
            listed = [] if is_whole or topics is None else _refused(topics, error)
        self._answers[place] = {"group_id": group, "topics": listed, "error_code": error}
        self._missing_count -= 1
        if not self._missing_count:
            self._say()

    def _say(self) -> None:
        values: dict[str, Any] = {"throttle_time": timedelta(0)}
        if self._call.head.version >= MANY_GROUPS_FROM:
            values["groups"] = self._answers
        else:
            values |= self._answers[0]
        self._call.answer_with(values)


def _pending_topics(group: Group) -> Iterable[str]:
    return [topic for each in group.pending.values() for topic in each.positions]


def _partitions(group: Group, topic: str) -> set[int]:
    pending = [each.positions.get(topic, {}) for each in group.pending.values()]
    return {number for some in (group.positions.get(topic, {}), *pending) for number in some}


def _partition(number: int, position: Position | None, *, is_unstable: bool) -> dict[str, Any]:
    return {
        "partition_index": number,
        "committed_offset": NOWHERE if position is None else position.offset,
        "committed_leader_epoch": NOWHERE if position is None else position.leader_epoch,
        "metadata": "" if position is None else position.metadata,
        "error_code": ErrorCode.unstable_offset_commit if is_unstable else ErrorCode.none,
    }


def _refused(topics: Any, error: ErrorCode) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "partitions": [
                _partition(number, None, is_unstable=False) | {"error_code": error}
                for number in topic.partition_indexes
            ],
        }
        for topic in topics
    ]


# ---- deleting ----


def handle_delete(broker: Broker, call: Call) -> None:
    request = decode_request(call.frame).body

    def answer(error: ErrorCode, refused: dict[str, ErrorCode]) -> None:
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": each.partition_index, "error_code": refused.get(topic.name, error)}
                    for each in topic.partitions
                ],
            }
            for topic in request.topics
        ]
        is_whole = bool(error)
        values = {"throttle_time": timedelta(0), "error_code": error, "topics": [] if is_whole else topics}
        call.answer_with(values)

    _delete(broker, request, answer)


def _delete(broker: Broker, request: Any, answer: Callable[[ErrorCode, dict[str, ErrorCode]], None]) -> None:
    """Nothing is taken from a group that reads the topic."""
    try:
        led = broker.groups.find(request.group_id)
    except Refused as refused:
        answer(refused.error, {})
        return
    stage = led.stage_of(request.group_id)
    if stage is Stage.DEAD:
        answer(ErrorCode.group_id_not_found, {})
        return
    read = broker.groups.topics_read(led, request.group_id)
    refused_topics = {
        topic.name: ErrorCode.group_subscribed_to_topic
        for topic in request.topics
        if read is None or topic.name in read
    }
    partitions = {
        topic.name: tuple(each.partition_index for each in topic.partitions)
        for topic in request.topics
        if topic.name not in refused_topics
    }
    if partitions:
        done = partial(_deleted, answer, refused_topics)
        broker.groups.write(led, DropOffsets(request.group_id, partitions), done)
    else:
        answer(ErrorCode.none, refused_topics)


def _deleted(
    answer: Callable[[ErrorCode, dict[str, ErrorCode]], None],
    refused: dict[str, ErrorCode],
    error: ErrorCode,
) -> None:
    answer(error, refused)
