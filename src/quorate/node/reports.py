"""What replicas report, passed on to people, of a partition by the name that they know it by; damage is counted."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from quorate.core import effects, events
from quorate.core.entry import TOPIC_ID_BYTES, Partition, Span
from quorate.host import Hosted
from quorate.machine.metadata import METADATA
from quorate.node.logs import WARNING

if TYPE_CHECKING:
    from quorate.node.node import Node

METADATA_NAME = "metadata"
TOLD_MAX = 10
"""A log that is read entry by entry is found damaged entry by entry, too: so many lines for a partition,"""
TELL_AFRESH_S = 60.0
"""within so long a time."""


class Reports:
    """Watches the replicas of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._told: dict[Partition, tuple[float, int]] = {}
        """Since when, and in how many lines, damage of a partition has been told of: oldest first, and of late."""

    def stepped(
        self, now: float, node: int, hosted: Hosted, event: events.Event, ordered: list[effects.Effect]
    ) -> None:
        """Damage is rare, and told of when it is there: how much there was, and how much is whole again."""
        if type(event) is events.Damaged:
            self._node.metrics.damaged += 1
            self._cannot_be_read(hosted.partition, (event.span,))
        elif type(event) is events.Started:
            # Mended before anybody looks: without a line nobody would hear of it. Not counted: it may be what
            # was found before, or a log that was being filled in.
            self._cannot_be_read(hosted.partition, event.recovered.faulty)
        elif type(event) is events.Received:
            for effect in ordered:
                if type(effect) is effects.Repair:
                    self._node.metrics.mended_offsets += sum(header.count for header in effect.headers)

    def _cannot_be_read(self, partition: Partition, spans: Iterable[Span]) -> None:
        now = time.monotonic()
        while self._told and now - next(iter(self._told.values()))[0] >= TELL_AFRESH_S:
            del self._told[next(iter(self._told))]
        for span in spans:
            since, count = self._told.get(partition, (now, 0))
            self._told[partition] = since, count + 1
            if count >= TOLD_MAX:
                continue
            name = called(self._node, partition)
            line = f"partition {name}: offsets {span.first_offset}..{span.last.offset} cannot be read here; "
            line += "other copies are asked for them"
            line += "; if there are more, the rest is not told one by one" * (count + 1 == TOLD_MAX)
            self._node.log(line, level=WARNING, partition=name)

    def reported(self, now: float, node: int, partition: Partition, report: effects.Report) -> None:
        where = f", {report.span}" if report.span is not None else ""
        name = called(self._node, partition)
        self._node.log(f"partition {name}: {report.what}{where}", level=WARNING, partition=name)


def called(node: Node, partition: Partition) -> str:
    """events/3; where the topic is not known, as its files are.

    No topic is known while the first replicas start: what is found then must not need the metadata group's.
    """
    if partition == METADATA:
        return METADATA_NAME
    topic_id, number = partition[:TOPIC_ID_BYTES], int.from_bytes(partition[TOPIC_ID_BYTES:], "big")
    has_image = bool(node.config.voters) and METADATA in node.host.hosted
    topic = node.metadata.image.by_id.get(topic_id) if has_image else None
    return f"{topic.name}/{number}" if topic is not None else f"{topic_id.hex()}-{number}"
