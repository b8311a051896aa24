"""OffsetForLeaderEpoch: where an epoch ended, so that a consumer learns that what it has read is there no more.

A consumer that has read up to an offset in an epoch asks where that epoch ended in the leader's log. Below its own
place: what it read from there on was cut off, and it goes back (KIP-320). That never happens here, as only what is
settled is read, and whoever leads has all of that in its log. But a new leader does not know yet how far it is
settled: it answers by its log, not by its commit, or else each change of leaders would send readers back.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from quorate.batch import LEADER_EPOCH_MASK
from quorate.core.entry import EntryId, Partition
from quorate.kafka.call import Call
from quorate.wire.messages import decode_request

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker
    from quorate.node import Node

NO_EPOCH = -1
NOWHERE = -1


def handle(broker: Broker, call: Call) -> None:
    request = decode_request(call.frame).body
    topics = [
        {
            "topic": topic.topic,
            "partitions": [_answer(broker, topic.topic, wanted) for wanted in topic.partitions],
        }
        for topic in request.topics
    ]
    call.answer_with({"throttle_time": timedelta(0), "topics": topics})


def _answer(broker: Broker, name: str, wanted: Any) -> dict[str, Any]:
    topic = broker.node.metadata.image.topics.get(name)
    error, partition = broker.find(topic, wanted.partition)
    if not error:
        error = broker.judge_epoch(partition, wanted.current_leader_epoch)
    epoch, end = NO_EPOCH, NOWHERE
    if not error:
        epoch, end = end_of_epoch(broker.node, partition, wanted.leader_epoch)
    return {
        "error_code": ErrorCode(error),
        "partition": wanted.partition,
        "leader_epoch": epoch,
        "end_offset": end,
    }


def end_of_epoch(node: Node, partition: Partition, epoch: int) -> tuple[int, int]:
    """The greatest epoch up to that one that wrote something into this log, and the offset behind its last entry.

    Of one that is older than everything here: itself, and where the log starts. (-1, -1) of one that is yet to be.
    """
    log = node.host.hosted[partition].replica.log
    now = node.leader_of(partition)[1]
    whole = (now & ~LEADER_EPOCH_MASK) | epoch  # Clients know 31 bits of it.
    if epoch < 0 or whole > now:
        return NO_EPOCH, NOWHERE
    shared: EntryId = log.epochs.last_shared(EntryId(whole, log.head.offset), log.head)
    base = node.log_base(partition)
    if shared.offset <= base:
        return epoch, base + 1
    return shared.epoch & LEADER_EPOCH_MASK, shared.offset + 1
