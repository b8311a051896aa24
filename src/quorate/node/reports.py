"""What replicas report, passed on to people, of a partition by the name that they know it by; damage is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core import effects, events
from quorate.core.entry import TOPIC_ID_BYTES, Partition
from quorate.host import Hosted
from quorate.machine.metadata import METADATA
from quorate.node.logs import WARNING

if TYPE_CHECKING:
    from quorate.node.node import Node

METADATA_NAME = "metadata"


class Reports:
    """Watches the replicas of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def stepped(
        self, now: float, node: int, hosted: Hosted, event: events.Event, ordered: list[effects.Effect]
    ) -> None:
        """Damage is rare, and told of when it is there: how much there was, and how much is whole again."""
        if type(event) is events.Damaged:
            self._node.metrics.damaged += 1
        elif type(event) is events.Received:
            for effect in ordered:
                if type(effect) is effects.Repair:
                    self._node.metrics.mended_offsets += sum(header.count for header in effect.headers)

    def reported(self, now: float, node: int, partition: Partition, report: effects.Report) -> None:
        where = f", {report.span}" if report.span is not None else ""
        name = called(self._node, partition)
        self._node.log(f"partition {name}: {report.what}{where}", level=WARNING, partition=name)


def called(node: Node, partition: Partition) -> str:
    """events/3; where the topic is not known, as its files are."""
    if partition == METADATA:
        return METADATA_NAME
    topic_id, number = partition[:TOPIC_ID_BYTES], int.from_bytes(partition[TOPIC_ID_BYTES:], "big")
    topic = node.metadata.image.by_id.get(topic_id) if node.config.voters else None
    return f"{topic.name}/{number}" if topic is not None else f"{topic_id.hex()}-{number}"
