"""DeleteRecords: let a partition's log start at an offset, because somebody says so.

It is what retention does by itself (node/retention.py), and the same command. Readers see nothing below the offset
from then on; the entry that holds it stays as a whole, and so does the rest of its segment's file.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.errors import ErrorCode

from quorate.core.entry import Partition
from quorate.kafka.call import Call
from quorate.machine.changing import Start
from quorate.machine.compactions import compacts
from quorate.machine.metadata import LetStart
from quorate.machine.purpose import TOPIC
from quorate.node.metadata import NoMetadata, TooNew
from quorate.node.retention import start_before
from quorate.wire.messages import decode_request

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker

HIGH_WATERMARK = -1
NOWHERE = -1


class Wanted(NamedTuple):
    """A partition that a client named: why not, or where it is to start."""

    error: int
    partition: Partition
    start: Start | None = None


def handle(broker: Broker, call: Call) -> None:
    call.door.run(_delete_all(broker, call, decode_request(call.frame).body))


async def _delete_all(broker: Broker, call: Call, request: Any) -> None:
    times_named = Counter(topic.name for topic in request.topics)
    found: list[list[Wanted]] = []
    for topic in request.topics:
        wanted = [await _wanted(broker, topic.name, each) for each in topic.partitions]
        if times_named[topic.name] > 1:
            wanted = [each._replace(error=ErrorCode.invalid_request, start=None) for each in wanted]
        found.append(wanted)
    starts = tuple(
        (each.partition, each.start) for wanted in found for each in wanted if each.start is not None
    )
    failed = ErrorCode.none
    if starts:
        try:
            await broker.node.metadata.command(LetStart(starts))
        except NoMetadata:  # Rule 9: it may have been done.
            failed = ErrorCode.request_timed_out
        except TooNew:
            failed = ErrorCode.unsupported_version
    topics = [
        {
            "name": topic.name,
            "partitions": [
                _result(broker, each.partition_index, place, failed)
                for each, place in zip(topic.partitions, wanted, strict=True)
            ],
        }
        for topic, wanted in zip(request.topics, found, strict=True)
    ]
    values = {"throttle_time": timedelta(0), "topics": topics}
    broker.in_turn(lambda: call.answer_with(values))


async def _wanted(broker: Broker, name: str, asked: Any) -> Wanted:
    node = broker.node
    topic = node.metadata.image.topics.get(name)
    error, partition = broker.find(topic, asked.partition_index)
    if error:
        return Wanted(error, partition)
    if topic is not None and (topic.purpose != TOPIC or compacts(topic.config)):
        return Wanted(ErrorCode.policy_violation, partition)
    first, end = node.log_base(partition) + 1, node.commit(partition) + 1
    offset = end if asked.offset == HIGH_WATERMARK else asked.offset
    if not 0 <= offset <= end:
        return Wanted(ErrorCode.offset_out_of_range, partition)
    if offset <= first:
        return Wanted(ErrorCode.none, partition)
    start = await start_before(node, partition, offset)
    if start is None:
        return Wanted(ErrorCode.kafka_storage_error, partition)
    return Wanted(ErrorCode.none, partition, start)


def _result(broker: Broker, number: int, place: Wanted, failed: ErrorCode) -> dict[str, Any]:
    error = place.error or (failed if place.start is not None else ErrorCode.none)
    if not error and not broker.node.holds(place.partition):
        error = ErrorCode.not_leader_or_follower
    low = NOWHERE if error else broker.node.log_base(place.partition) + 1
    return {"partition_index": number, "low_watermark": low, "error_code": ErrorCode(error)}
