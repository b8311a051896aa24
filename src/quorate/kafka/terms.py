"""What a topic asks of the batches that are written to it: looked up in its settings once, until they change."""

from __future__ import annotations

import msgspec

from quorate.machine.compactions import compacts
from quorate.machine.metadata import Topic

MESSAGE_BYTES_MAX = "max.message.bytes"
MESSAGE_BYTES_DEFAULT = 1_048_588
"""Kafka's default."""
FLUSH, FLUSH_QUORUM, FLUSH_LEADER = "quorate.flush", "quorum", "leader"
"""Who must have flushed a batch before it is acknowledged."""
TIMESTAMP_TYPE, CREATE_TIME, APPEND_TIME = "message.timestamp.type", "CreateTime", "LogAppendTime"
TOPICS_COUNT_MAX = 10_000
"""Kept; then they are looked up anew."""


class Terms(msgspec.Struct, frozen=True, gc=False):
    topic: Topic
    is_tables: bool
    is_internal: bool
    bytes_max: int
    """Of a batch."""
    gives_time: bool
    """Records have the time at which the log took them."""
    leader_is_enough: bool
    """A batch is acknowledged when the leader has flushed it."""
    is_looked_into: bool
    """Records must have keys."""


class TermsOf:
    """Those of all topics that are written to here."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, Terms] = {}

    def __call__(self, topic: Topic) -> Terms:
        """Every change of a topic is another object."""
        known = self._known.get(topic.name)
        if known is not None and known.topic is topic:
            return known
        if len(self._known) >= TOPICS_COUNT_MAX:
            self._known.clear()
        found = self._known[topic.name] = _terms(topic)
        return found


def _terms(topic: Topic) -> Terms:
    config = topic.config
    return Terms(
        topic,
        topic.is_tables,
        topic.is_internal,
        batch_bytes_max(topic),
        config.get(TIMESTAMP_TYPE, CREATE_TIME) == APPEND_TIME,
        config.get(FLUSH) == FLUSH_LEADER,
        compacts(config),
    )


def batch_bytes_max(topic: Topic) -> int:
    return int(topic.config.get(MESSAGE_BYTES_MAX, MESSAGE_BYTES_DEFAULT))
