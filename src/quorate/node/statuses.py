"""How a node and its replicas are, for people and tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.core import isr
from quorate.core.entry import Member, Membership
from quorate.core.isr.leader import Leader as IsrLeader
from quorate.core.leading import Leading
from quorate.host import Hosted
from quorate.node.requests import ReplicaStatus, Status

if TYPE_CHECKING:
    from quorate.node.node import Node

FAULTY_NAMED_MAX = 100
"""Of a log that is damaged everywhere, so many places are named."""


def status_of(node: Node) -> Status:
    known = node.connected, node.links.dropped_count, tuple(map(replica_status, node.host.hosted.values()))
    if not node.config.voters:
        return Status(node.id, *known, nats=node.nats_status())
    image = node.metadata.image
    nodes = tuple(sorted(image.nodes)) if node.metadata.is_registered else ()
    return Status(node.id, *known, node.metadata.controller, nodes, len(image.topics), node.nats_status())


def replica_status(hosted: Hosted) -> ReplicaStatus:
    replica = hosted.replica
    return ReplicaStatus(
        hosted.partition,
        replica.role.name if replica.is_voter else "learner",
        replica.leader,
        replica.epoch,
        replica.log.head,
        hosted.commit,
        hosted.tally.counts.digest,
        replica.me,
        membership_of(hosted),
        lags(replica),
        protocol=hosted.record.protocol,
        base=replica.log.base.offset,
        in_sync=in_sync(replica, membership_of(hosted).ensemble),
        faulty=tuple((span.first_offset, span.last.offset) for span in replica.log.faulty[:FAULTY_NAMED_MAX]),
    )


def membership_of(hosted: Hosted) -> Membership:
    """Who counts, as the replica knows it; of one that somebody oversees, who was to count at its birth."""
    born = Membership(hosted.record.voters, hosted.record.learners)
    membership: Membership = getattr(hosted.replica, "membership", born)
    return membership


def lags(replica: Any) -> dict[int, int]:
    """How many offsets each other node has not confirmed, if this is the leader."""
    head = replica.log.head.offset
    return {node: head - flushed for node, flushed in sorted(_flushed(replica).items())}


def in_sync(replica: Any, ensemble: tuple[Member, ...]) -> tuple[int, ...]:
    """Who has everything that is settled, as the leader knows; where there is an ISR, that."""
    if not isinstance(replica.role, Leading):
        return ()
    if isinstance(replica, isr.Replica):
        assert replica.told is not None, "a leader was told to lead"
        return tuple(member.node for member in replica.told.isr)
    flushed = {**_flushed(replica), replica.me.node: replica.durable.offset}
    counting = [member.node for member in ensemble]
    return tuple(node for node in counting if flushed.get(node, -1) >= replica.commit)


def _flushed(replica: Any) -> dict[int, int]:
    """By node: the last offset that each follower has said to have on its disk; only a leader knows."""
    role = replica.role
    if isinstance(role, IsrLeader):
        return {node: follower.flushed for node, follower in role.followers.items()}
    if isinstance(role, Leading):
        return {node: cursor.matched for node, cursor in role.cursors.items()}
    return {}
