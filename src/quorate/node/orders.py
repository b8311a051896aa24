"""What people order of a cluster, through any connection: other copies, another leader, a read.

Where only the leader can do it, whoever else is asked says who leads, and the client asks there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from quorate.core import isr
from quorate.core.coordinated import orders as operator
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import TOPIC_ID_BYTES, Member, Membership, Partition, Wanted, number_of
from quorate.core.events import ReadLevel
from quorate.core.isr import orders as controller
from quorate.machine import shards
from quorate.machine.metadata import METADATA, ForgetNode, command_batch
from quorate.node.ensembles import learners_of_metadata
from quorate.node.farewell import heir
from quorate.node.metadata import BadChange, NoMetadata, UnknownTopic, no_such_node
from quorate.node.requests import Answered, Change, Forget, Read, Transfer

if TYPE_CHECKING:
    from quorate.node.node import Node

Answer = Callable[[Answered], None]
Run = Callable[[Coroutine[Any, Any, None]], None]

CHANGED_MEANWHILE = "was changed by somebody else at the same time; look, and order again"
NAMED_COUNT_MAX = 3
"""Of many partitions, so many are named in a line for a person."""


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
    topic = node.metadata.image.by_id.get(partition[:TOPIC_ID_BYTES]) if node.config.voters else None
    if topic is not None and topic.is_overseen(number_of(partition)):
        _move_leader(node, partition, request.to, answer)
    elif not node.is_leader(partition):
        answer(_elsewhere(node, partition))
    elif to := request.to or heir(node, node.host.hosted[partition]):
        node.transfer(partition, lambda reply: answer(_answered(reply)), to=to)
    else:
        answer(_refused("nobody else who could lead can be reached"))


def _move_leader(node: Node, partition: Partition, to: int, answer: Answer) -> None:
    """Whoever oversees the partition says who leads; and it is where the metadata group is led."""
    stored = node.metadata.image.shard(partition)
    if not node.is_leader(METADATA):
        answer(_elsewhere(node, METADATA))
    elif stored is None or (order := _order_to_move(stored.shard, to)) is None:
        answer(_busy(node))
    elif isinstance(order, Answered):
        answer(order)
    elif not node.overseers.command(partition, order, lambda reply: answer(_moved(reply))):
        answer(_busy(node))


def _order_to_move(shard: shards.State, to: int) -> Callable[[int], Any] | Answered | None:
    """What to order of whoever oversees this; or what to say at once. None: nobody knows who leads just now."""
    if shard.leader is None:
        return None
    if to == shard.leader.node:
        return msgspec.structs.replace(_done(), leader=to)
    if not isinstance(shard, isr.PartitionState):
        if to:
            return _refused("an operator chooses who leads, by what is in their logs; name nobody with --to")
        return operator.MoveLeader
    found = [member for member in shard.replicas if member.node == to]
    if to and not found:
        return _refused(f"node {to} does not hold this partition")
    return partial(controller.MoveLeader, to=found[0] if found else None)


def _moved(reply: Reply) -> Answered:
    """An election may end where it began: that is not what was wanted."""
    if reply.outcome is Outcome.SETTLED and reply.why:
        return Answered(Outcome.TIMED_OUT, -1, 0, reply.leader, reply.why)
    return _answered(reply)


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
        _change_voters(node, request, answer)


async def _change_topic(node: Node, partition: Partition, request: Change, answer: Answer) -> None:
    topic_id, number = partition[:TOPIC_ID_BYTES], int.from_bytes(partition[TOPIC_ID_BYTES:], "big")
    try:
        await node.metadata.change_ensemble(topic_id, number, request.nodes, seen=request.seen)
    except (BadChange, UnknownTopic) as wrong:
        answer(_refused(str(wrong)))
    except NoMetadata as error:
        answer(Answered(Outcome.UNKNOWN, -1, 0, 0, str(error)))
    else:
        answer(_done())


def _change_voters(node: Node, request: Change, answer: Answer) -> None:
    nodes, image, now = request.nodes, node.metadata.image, node.host.hosted[METADATA].replica.membership
    unknown = [number for number in nodes if number not in image.nodes]
    if not node.leads_with_all(METADATA) or node.metadata.forgetting.intersection(nodes):
        answer(_busy(node))
    elif not nodes:
        answer(_refused("the last voter of the metadata group cannot be removed"))
    elif unknown:
        answer(_refused(no_such_node(unknown[0], image)))
    elif len(set(nodes)) < len(nodes):
        answer(_refused("a node is named twice"))
    else:
        ensemble = tuple(Member(number, image.nodes[number].incarnation) for number in sorted(nodes))
        wanted = voters_wanted(now, ensemble, learners_of_metadata(node, ensemble))
        if request.seen is not None and wanted.version > request.seen + 1:
            answer(_refused(f"who votes {CHANGED_MEANWHILE}"))
            return
        node.change(
            METADATA,
            lambda reply: answer(_answered(reply)),
            ensemble=wanted.ensemble,
            learners=wanted.learners,
            version=wanted.version,
        )


def voters_wanted(now: Membership, ensemble: tuple[Member, ...], learners: tuple[Member, ...]) -> Wanted:
    """What is to be ordered of the metadata group: one version above what is, or what was ordered already.

    Whoever hears nothing orders again, and does not take the place of its own order.
    """
    last = _wanted(now)
    return last if last.ensemble == ensemble else Wanted(ensemble, learners, now.version + 1)


def forget(node: Node, request: Forget, answer: Answer, run: Run) -> None:
    """`run` is for what takes several turns."""
    if not node.config.voters:
        answer(_refused("there is no metadata group here"))
    elif not node.is_leader(METADATA):
        answer(_elsewhere(node, METADATA))
    else:
        run(_forget(node, request, answer))


async def _forget(node: Node, request: Forget, answer: Answer) -> None:
    number, known = request.node, node.metadata
    # A leader that was replaced, and has not noticed, would say no for reasons that are gone.
    if not await _still_leads(node) or number in known.forgetting:
        answer(_busy(node))
    elif known.image.is_forgotten(number):  # Whoever heard nothing orders again.
        answer(_done())
    elif why_not := why_not_forgotten(node, number):
        answer(_refused(why_not))
    else:
        # Nothing gets into the log between that look at who votes and this command.
        known.forgetting.add(number)
        command = command_batch(ForgetNode(number, request.seen))
        node.begin_turn()
        node.propose(METADATA, [command], partial(_proposed, node, number, answer))
        node.end_turn()


async def _still_leads(node: Node) -> bool:
    """Whether this node leads the metadata group, and its image has all that was settled before it was asked."""
    reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def answered(found: Reply) -> None:
        if not reply.done():  # Whoever waited may have gone.
            reply.set_result(found)

    node.begin_turn()
    node.read(METADATA, ReadLevel.LINEARIZABLE, answered)
    node.end_turn()
    return (await reply).outcome is Outcome.SETTLED and node.is_leader(METADATA)


def why_not_forgotten(node: Node, number: int) -> str:
    """Why nobody can say that this node is gone for good; empty if somebody can."""
    image, membership = node.metadata.image, node.host.hosted[METADATA].replica.membership
    if number not in image.nodes:
        return no_such_node(number, image)
    if any(member.node == number for member in (*membership.voters, *_wanted(membership).ensemble)):
        return (
            f"it votes in the metadata group; first take its vote away with "
            f"`quorate cluster remove {number}`, or give it to another with "
            f"`quorate cluster replace {number} --with NEW`"
        )
    if held := image.held_by(number):
        more = f" and {len(held) - NAMED_COUNT_MAX} more" if len(held) > NAMED_COUNT_MAX else ""
        return (
            f"it has copies, or is to have them: {', '.join(held[:NAMED_COUNT_MAX])}{more}; first move them "
            f"with `quorate cluster replace {number} --with NEW`, or take them away with `quorate topic remove`"
        )
    return ""


def _proposed(node: Node, number: int, answer: Answer, reply: Reply) -> None:
    def decided(_: object = None) -> None:
        """In a turn of its own."""
        node.metadata.forgetting.discard(number)
        is_forgotten = node.metadata.image.is_forgotten(number)
        node.begin_turn()
        answer(_done() if is_forgotten else _refused(f"it {CHANGED_MEANWHILE}"))
        node.end_turn()

    if reply.outcome is Outcome.SETTLED:
        node.metadata.until_applied(reply.offset).add_done_callback(decided)
    else:
        # Where the outcome is unknown, a later leader finds it in its log: see `leads_with_all`.
        node.metadata.forgetting.discard(number)
        answer(_answered(reply))


def _wanted(now: Membership) -> Wanted:
    """Where the open change is to end; what is, where none is open."""
    return now.wanted or Wanted(now.ensemble, now.learners, now.version)


def _answered(reply: Reply) -> Answered:
    return Answered(reply.outcome, reply.offset, reply.epoch, reply.leader, reply.why)


def _done() -> Answered:
    return Answered(Outcome.SETTLED, -1, 0, 0)


def _busy(node: Node) -> Answered:
    """Whoever asks tries again."""
    return Answered(Outcome.BUSY, -1, 0, node.id)


def _refused(why: str) -> Answered:
    return Answered(Outcome.REFUSED, -1, 0, 0, why)


def _elsewhere(node: Node, partition: Partition) -> Answered:
    leader, epoch = node.leader_of(partition)
    return Answered(Outcome.NOT_LEADER, -1, epoch, leader if leader != node.id else 0)
