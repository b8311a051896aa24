"""How a node and its replicas are, for people and tools."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from quorate.core import isr
from quorate.core.entry import Member, Membership
from quorate.core.isr.leader import Leader as IsrLeader
from quorate.core.leading import Leading
from quorate.host import Hosted
from quorate.machine.shards import State, Stored
from quorate.node.health import health_of
from quorate.node.held_back import HoldsBack, coordinated_by
from quorate.node.requests import ReplicaStatus, Status

if TYPE_CHECKING:
    from quorate.node.node import Node

FAULTY_NAMED_MAX = 100
"""Of a log that is damaged everywhere, so many places are named."""


def status_of(node: Node) -> Status:
    now = time.monotonic()
    has_image = bool(node.config.voters)
    replicas = tuple(
        replica_status(
            each,
            node.metadata.image.shard(each.partition) if has_image else None,
            unsettled_s=node.unsettled.age_s(each.partition, now),
            held_back=node.held_back.of(each.partition, now),
        )
        for each in node.host.hosted.values()
    )
    status = Status(
        node.id,
        node.connected,
        node.links.dropped_count,
        replicas,
        nats=node.nats_status(),
        health=health_of(node),
        transactions=coordinated_by(node),
    )
    if not has_image:
        return status
    image = node.metadata.image
    return msgspec.structs.replace(
        status,
        metadata_leader=node.metadata.controller,
        registered=tuple(sorted(image.nodes)) if node.metadata.is_registered else (),
        topics_count=len(image.topics),
    )


def replica_status(
    hosted: Hosted,
    stored: Stored | None = None,
    *,
    unsettled_s: float = 0.0,
    held_back: HoldsBack | None = None,
) -> ReplicaStatus:
    """`stored`: what whoever oversees it has written of it."""
    replica, membership = hosted.replica, membership_of(hosted, stored)
    return ReplicaStatus(
        hosted.partition,
        replica.role.name if replica.is_voter else "learner",
        replica.leader,
        replica.epoch,
        replica.log.head,
        hosted.commit,
        hosted.tally.counts.digest,
        replica.me,
        membership,
        lags(replica),
        protocol=hosted.record.protocol,
        base=replica.log.base.offset,
        in_sync=in_sync(replica, membership.ensemble),
        faulty=tuple((span.first_offset, span.last.offset) for span in replica.log.faulty[:FAULTY_NAMED_MAX]),
        unsettled_s=unsettled_s,
        halted=hosted.halted or "",
        compacted=replica.log.compacted,
        held_back=held_back,
        barrier=replica.barrier.entry.offset if replica.barrier is not None else -1,
    )


def membership_of(hosted: Hosted, stored: Stored | None = None) -> Membership:
    """Who counts, as the replica knows it; of one that somebody oversees, as that is stored."""
    born = Membership(hosted.record.voters, hosted.record.learners)
    if stored is not None:
        born = Membership(ensemble_of(stored.shard))
    membership: Membership = getattr(hosted.replica, "membership", born)
    return membership


def ensemble_of(state: State) -> tuple[Member, ...]:
    return state.replicas if isinstance(state, isr.PartitionState) else state.ensemble


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
