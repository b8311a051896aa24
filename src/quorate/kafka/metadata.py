"""Metadata: which nodes there are, which topics, and who leads which partition.

Clients ask often, and an answer costs several microseconds a partition: answers are kept, encoded, under
what was asked, until the image or a leader changes. Topics are created by asking for them only where the cluster
is set to do so, and the client wants it.

A node that hears none of the others does not know whether it still leads, and does not learn who does. So it names
the others, and not itself: a client that knows no better node than the one it is connected to asks somebody else.
So does one whose disk is full: it cannot take part, and soon does not know who leads.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from quorate import batch
from quorate.core.entry import partition_of
from quorate.core.isr import PartitionState
from quorate.kafka.call import Call
from quorate.kafka.settings import AUTO_CREATE, Refused
from quorate.kafka.topics import NAME_MAX, create_by_default, is_name
from quorate.machine.metadata import Topic
from quorate.node.config import Address
from quorate.wire.cursor import BadMessage
from quorate.wire.entities import make
from quorate.wire.messages import Api, decode_request, encode_response, response_class

if TYPE_CHECKING:
    from quorate.kafka.broker import Broker
    from quorate.node import Node

CACHE_BYTES_MAX = 16 << 20
REGISTERED_TIMEOUT_S = 5.0
"""After that a client hears what is known, if it is little: the metadata group may be away for longer."""
NAMELESS_FROM = 12
"""The first version whose answers can leave out a topic's name. Requests can already from 10 on."""
HIDDEN_FROM = 6
"""The first version in which a client hears that a leader is there, but not on the listener that it asked on."""
NOBODY = -1
CREATED_COUNT_MAX = 20
"""By one request; whoever wants more asks again."""
_HEAD = struct.Struct(">ii")


def handle(broker: Broker, call: Call) -> None:
    known = broker.node.metadata
    if not known.is_registered:
        wanted_topics(call)  # Whoever sends what cannot be read hears it in this turn, not in a task.
        call.door.run(_answer_when_registered(broker, call))
    elif known.image.cluster.config.get(AUTO_CREATE) == "true" and (missing := _missing(broker, call)):
        call.door.run(_answer_when_created(broker, call, missing))
    else:
        _answer(broker, call)


def _missing(broker: Broker, call: Call) -> list[str]:
    """Topics that are to be created because a client asks for them."""
    if not getattr(decode_request(call.frame).body, "allow_auto_topic_creation", True):
        return []
    names = [each.name for each in wanted_topics(call) or () if each.name is not None]
    return [name for name in dict.fromkeys(names) if name not in broker.node.metadata.image.topics]


async def _answer_when_created(broker: Broker, call: Call, names: list[str]) -> None:
    for name in names[:CREATED_COUNT_MAX]:
        try:
            await create_by_default(broker, name)
        except Refused as refused:
            broker.node.log(f"topic {name[:NAME_MAX]!r} was asked for and is not created: {refused.why}")
    broker.in_turn(lambda: _answer(broker, call))


async def _answer_when_registered(broker: Broker, call: Call) -> None:
    await broker.until_registered(REGISTERED_TIMEOUT_S)
    broker.in_turn(lambda: _answer(broker, call))


def _answer(broker: Broker, call: Call) -> None:
    rest = broker.metadata.answer(call)
    head = _HEAD.pack(len(rest) + 4, call.head.correlation)
    call.answer([head, rest], len(head) + len(rest))


def wanted_topics(call: Call) -> tuple[Any, ...] | None:
    """The topics that are asked for; None: all. Raises BadMessage."""
    wanted: tuple[Any, ...] | None = decode_request(call.frame).body.topics
    if wanted is not None and call.head.version < NAMELESS_FROM and any(each.name is None for each in wanted):
        raise BadMessage(f"topics are asked for by id alone only from version {NAMELESS_FROM} on")
    return None if call.head.version == 0 and not wanted else wanted


class MetadataCache:
    """Answers without their size and correlation, by listener, version and what was asked."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._answers: dict[tuple[str, int, bytes], bytes] = {}
        self._answers_bytes = 0
        self._of = (-1, -1, -1, False)

    def answer(self, call: Call) -> bytes:
        known = self._node.metadata
        of = (known.image.version, known.leaders_version, known.controller, self._sends_away())
        if of != self._of or self._answers_bytes > CACHE_BYTES_MAX:
            self._of = of
            self._answers.clear()
            self._answers_bytes = 0
        asked = bytes(call.frame[call.head.body_at :])
        key = (call.door.listener, call.head.version, asked)
        found = self._answers.get(key)
        if found is None:
            version = call.head.version
            body = make(response_class(Api.METADATA, version), self._values(call))
            found = encode_response(Api.METADATA, version, 0, body)[_HEAD.size :]
            self._answers[key] = found
            self._answers_bytes += len(found) + len(asked)
        return found

    def _values(self, call: Call) -> dict[str, Any]:
        node, image = self._node, self._node.metadata.image
        wanted = wanted_topics(call)
        known = self._found_on(call.door.listener)
        hidden = dict.fromkeys(
            image.nodes.keys() - known.keys(),
            ErrorCode.listener_not_found
            if call.head.version >= HIDDEN_FROM
            else ErrorCode.leader_not_available,
        )
        if self._sends_away() and len(known) > 1 and not self._leads_alone():
            del known[node.id]
            hidden[node.id] = ErrorCode.leader_not_available
        if wanted is None:
            topics = [self._topic(image.topics[name], hidden) for name in sorted(image.topics)]
        else:
            # Once, however often it is named, as Kafka does: twenty bytes may stand for thousands of partitions.
            once = {(each.name, getattr(each, "topic_id", None)): each for each in wanted}
            topics = [self._wanted(topic, hidden) for topic in once.values()]
        return {
            "throttle_time": timedelta(0),
            "error_code": ErrorCode.none,
            "brokers": self._listed(known),
            "cluster_id": node.config.cluster,
            "controller_id": self.controller(known),
            "topics": topics,
        }

    def nodes(self, listener: str) -> list[dict[str, Any]]:
        """Those that can be found from that listener."""
        return self._listed(self._found_on(listener))

    def controller(self, known: Collection[int]) -> int:
        """Any node takes what is meant for the controller: name one that the client can find in any case.

        librdkafka would wait for minutes until it hears of one.
        """
        node = self._node
        wanted = (node.metadata.controller, node.id)
        return next((number for number in wanted if number in known), min(known))

    def _listed(self, known: dict[int, Address]) -> list[dict[str, Any]]:
        racks = {info.node: info.rack for info in self._node.metadata.image.nodes.values() if info.rack}
        return [
            {"node_id": number, "host": address.host, "port": address.port, "rack": racks.get(number)}
            for number, address in sorted(known.items())
        ]

    def reachable(self, listener: str) -> dict[int, Address]:
        """The nodes that whoever asks there may be sent to, this one only if it may still lead something."""
        known = self._found_on(listener)
        if self._sends_away() and len(known) > 1 and not self._leads_alone():
            del known[self._node.id]
        return known

    def _found_on(self, listener: str) -> dict[int, Address]:
        """Where nodes are for whoever asks there; those that have no such listener cannot be found from there."""
        node = self._node
        # A node that has just started knows of nobody yet, and an answer without nodes is none to librdkafka.
        known = {node.id: node.config.all_listeners()[listener].advertised}
        for info in node.metadata.image.nodes.values():
            address = info.on_listener(listener)
            if address is not None:
                known[info.node] = Address(*address)
        return known

    def _sends_away(self) -> bool:
        """Whether others know better."""
        return self._node.is_cut_off or self._node.fullness.lately

    def _leads_alone(self) -> bool:
        """Whether something is led here that needs no other node: the only copy, or the only one in sync."""
        image, me = self._node.metadata.image, self._node.id
        for topic in image.topics.values():
            for partition, ensemble in zip(topic.partitions(), topic.ensembles, strict=True):
                stored = image.shard(partition)
                if stored is not None and isinstance(stored.shard, PartitionState):
                    ensemble = stored.shard.isr
                if [member.node for member in ensemble] == [me]:
                    return True
        return False

    def _wanted(self, wanted: Any, hidden: dict[int, ErrorCode]) -> dict[str, Any]:
        """By name, or by id where no name is given."""
        image = self._node.metadata.image
        name, topic_id = wanted.name, getattr(wanted, "topic_id", None)
        if name is not None:
            found, error = image.topics.get(name), ErrorCode.unknown_topic_or_partition
        else:
            found, error = image.by_id.get(topic_id.bytes if topic_id else b""), ErrorCode.unknown_topic_id
        if found is not None:
            return self._topic(found, hidden)
        if name is not None and not is_name(name):
            error = ErrorCode.invalid_topic_exception
        return {
            "error_code": error,
            "name": name,
            "topic_id": topic_id,
            "is_internal": False,
            "partitions": (),
        }

    def _topic(self, topic: Topic, hidden: dict[int, ErrorCode]) -> dict[str, Any]:
        """`hidden`: leaders that the client could not find, and what it is told instead."""
        partitions = []
        for number, ensemble in enumerate(topic.ensembles):
            partition = partition_of(topic.id, number)
            leader, epoch = self._node.leader_of(partition)
            replicas = tuple(member.node for member in ensemble)
            stored = self._node.metadata.image.shard(partition)
            in_sync = replicas
            if stored is not None and isinstance(stored.shard, PartitionState):
                in_sync = tuple(member.node for member in stored.shard.isr)
            error = hidden.get(leader, ErrorCode.none) if leader else ErrorCode.leader_not_available
            partitions.append(
                {
                    "error_code": error,
                    "partition_index": number,
                    "leader_id": NOBODY if error else leader,
                    "leader_epoch": epoch & batch.LEADER_EPOCH_MASK,
                    "replica_nodes": replicas,
                    # Else a majority settles; which of the others follow closely is the leader's own business.
                    "isr_nodes": in_sync,
                    "offline_replicas": (),
                }
            )
        return {
            "error_code": ErrorCode.none,
            "name": topic.name,
            "topic_id": uuid.UUID(bytes=topic.id),
            "is_internal": topic.is_internal,
            "partitions": partitions,
        }
