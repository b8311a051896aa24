"""What people order of a cluster, through any connection: other copies, another leader, a read.

Where only the leader can do it, whoever else is asked says who leads, and the client asks there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from quorate.core.effects import Outcome, Reply
from quorate.core.entry import TOPIC_ID_BYTES, Member, Partition
from quorate.core.events import ReadLevel
from quorate.machine.metadata import METADATA
from quorate.node.ensembles import learners_of_metadata
from quorate.node.metadata import BadChange, NoMetadata, UnknownTopic
from quorate.node.requests import Answered, Change, Read, Transfer

if TYPE_CHECKING:
    from quorate.node.node import Node

Answer = Callable[[Answered], None]
Run = Callable[[Coroutine[Any, Any, None]], None]


def read(node: Node, request: Read, answer: Answer) -> None:
    partition = Partition(request.partition)
    if not node.holds(partition) or (
        request.level is not ReadLevel.AT_OFFSET and not node.is_leader(partition)
    ):
        answer(_elsewhere(node, partition))
    else:
        node.read(partition, request.level, lambda reply: answer(_answered(reply)), offset=request.offset)


def transfer(node: Node, request: Transfer, answer: Answer) -> None:
    partition = Partition(request.partition)
    if node.is_leader(partition):
        node.transfer(partition, lambda reply: answer(_answered(reply)), to=request.to)
    else:
        answer(_elsewhere(node, partition))


def change(node: Node, request: Change, answer: Answer, run: Run) -> None:
    """`run` is for what takes several turns."""
    partition = Partition(request.partition)
    if not node.config.voters:
        answer(_refused("there is no metadata group here, and nobody to note a change"))
    elif partition != METADATA:
        run(_change_topic(node, partition, request, answer))
    elif not node.is_leader(METADATA):
        answer(_elsewhere(node, METADATA))
    else:
        _change_voters(node, request.nodes, answer)


async def _change_topic(node: Node, partition: Partition, request: Change, answer: Answer) -> None:
    topic_id, number = partition[:TOPIC_ID_BYTES], int.from_bytes(partition[TOPIC_ID_BYTES:], "big")
    try:
        await node.metadata.change_ensemble(topic_id, number, request.nodes, seen=request.seen)
    except (BadChange, UnknownTopic) as wrong:
        answer(_refused(str(wrong)))
    except NoMetadata as error:
        answer(Answered(Outcome.UNKNOWN, -1, 0, 0, str(error)))
    else:
        answer(Answered(Outcome.SETTLED, -1, 0, 0))


def _change_voters(node: Node, nodes: tuple[int, ...], answer: Answer) -> None:
    registered = node.metadata.image.nodes
    unknown = [number for number in nodes if number not in registered]
    if not nodes:
        answer(_refused("the last voter of the metadata group cannot be removed"))
    elif unknown:
        known = ", ".join(map(str, sorted(registered)))
        answer(_refused(f"there is no node {unknown[0]}; there are: {known}"))
    elif len(set(nodes)) < len(nodes):
        answer(_refused("a node is named twice"))
    else:
        ensemble = tuple(Member(number, registered[number].incarnation) for number in sorted(nodes))
        learners = learners_of_metadata(node, ensemble)
        node.change(METADATA, lambda reply: answer(_answered(reply)), ensemble=ensemble, learners=learners)


def _answered(reply: Reply) -> Answered:
    return Answered(reply.outcome, reply.offset, reply.epoch, reply.leader, reply.why)


def _refused(why: str) -> Answered:
    return Answered(Outcome.REFUSED, -1, 0, 0, why)


def _elsewhere(node: Node, partition: Partition) -> Answered:
    leader, epoch = node.leader_of(partition)
    return Answered(Outcome.NOT_LEADER, -1, epoch, leader if leader != node.id else 0)
