"""A node's replicas follow the metadata group's image: they come and go with topics, and with places in them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from msgspec import UNSET

from quorate.core.entry import TOPIC_ID_BYTES
from quorate.host import ReplicaRecord
from quorate.host.replicas import MACHINES, PROTOCOLS
from quorate.machine.cluster import moving_rate
from quorate.machine.metadata import Topic
from quorate.node.compaction import compact_log
from quorate.node.ensembles import is_superseded
from quorate.node.retention import shape_log, start_log

if TYPE_CHECKING:
    from quorate.node.node import Node


class Following:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._version = -1
        """Of the image that the replicas here follow, or are about to."""
        self._topics: dict[bytes, Topic] = {}
        """Its topics: those that have not changed since need not be looked at again."""

    def noticed(self) -> None:
        """The image may be another. It is followed in a turn of its own, not inside of the host's."""
        version = self._node.metadata.image.version
        if version != self._version:
            self._version = version
            asyncio.get_running_loop().call_soon(self.follow)

    def follow(self) -> None:
        """Hold what the image wants held here, and let go of what it says is held elsewhere, or deleted.

        Not before the image is current: what was removed here must not be made again, as if it had promised
        nothing, because an old image still knew of it.
        """
        node = self._node
        if node.is_over or node.fail_if_replaced():
            return
        image = node.metadata.image
        node.metadata.know(image.nodes.values())
        node.metadata.forget(image.forgotten())
        node.begin_turn()
        node.host.pace(time.monotonic(), moving_rate(image.cluster.config))
        node.end_turn()
        if node.metadata.is_current:
            node.begin_turn()
            for topic in image.topics.values():
                if self._topics.get(topic.id) is not topic:
                    self._follow_topic(topic)
            self._topics = dict(image.by_id)
            for partition in tuple(node.host.hosted):
                if image.is_deleted(partition[:TOPIC_ID_BYTES]):
                    node.let_go(partition)
            node.end_turn()
        node.metadata.leaders_version += 1
        for door in tuple(node.doors):  # Those that came before the image was known.
            why = node.unwanted.why(door.hello) if door.hello is not None else ""
            if why:
                door.abort(why)

    def _follow_topic(self, topic: Topic) -> None:
        node = self._node
        protocols = {topic.replication, *map(topic.protocol, topic.turned)}
        for what, known in (*((each, PROTOCOLS) for each in protocols), (topic.purpose, MACHINES)):
            if what not in known:  # A newer node made it; this one can only leave it alone.
                node.log(f"topic {topic.name}: {what} is not built here; not held")
                return
        for number, partition in enumerate(topic.partitions()):
            mine = [member for member in topic.holders(number) if member.node == node.id]
            hosted = node.host.hosted.get(partition)
            if hosted is not None and (not mine or is_superseded(hosted.record.me, mine, node.incarnation)):
                node.let_go(partition)
                hosted = None
            if hosted is None and mine and node.metadata.image.is_of_this_life(mine[0]):
                ensemble = topic.ensembles[number]
                voters, preferred = tuple(sorted(ensemble)), ensemble[0].node
                turned = topic.turned.get(number)
                record = ReplicaRecord(
                    topic.protocol(number),
                    mine[0],
                    voters,
                    purpose=topic.purpose,
                    preferred=preferred,
                    generation=UNSET if turned is None else turned.generation,
                    voids=UNSET if turned is None or not turned.voids else True,
                )
                node.host.add(time.monotonic(), partition, record)
            if partition in node.host.hosted:
                node.host.count(time.monotonic(), partition, topic.ensembles[number])
                holders = {member.node for member in topic.holders(number)}
                node.host.pacer.keep(partition, holders)
                shape_log(node, topic, partition)
                start_log(node, topic, number)
                compact_log(node, topic, number)
