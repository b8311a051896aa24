"""Which copies of a partition count, which of them are away and why, and where what is left can never be led again.

Whoever tells of copies, or orders others, judges by this: `quorate cluster status`, `quorate doctor`, and commands
that move copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.cli.orders import leader_status, listed
from quorate.cli.topic_copies import is_under_way
from quorate.core.coordinated.shard import Shard
from quorate.core.entry import Member, partition_of
from quorate.core.isr import PartitionState
from quorate.core.quorum import has_majority
from quorate.machine.metadata import Topic
from quorate.machine.shards import Stored
from quorate.node.requests import Image, ReplicaStatus, Status

if TYPE_CHECKING:
    from quorate.cli.topic_view import Found

DISK_LOST = "disk lost"
MADE_ANEW = "on a new disk, being made"
NO_ANSWER = "does not answer"
NO_COPY = "has no copy"
OUT_OF_SYNC = "out of sync"

Statuses = dict[int, Status]


def counting(
    topic: Topic, number: int, leader: ReplicaStatus | None, stored: Stored | None
) -> tuple[Member, ...]:
    """Who counts: by what is stored, where somebody oversees it; else as its leader says, or as was settled."""
    if stored is not None:
        shard = stored.shard
        return shard.replicas if isinstance(shard, PartitionState) else shard.ensemble
    return leader.membership.ensemble if leader is not None else topic.ensembles[number]


def standing(topic: Topic, number: int, leader: ReplicaStatus, stored: Stored | None) -> list[Member]:
    """Who counts, but for what an open change adds and is not in sync yet: in `isr` it is stored from the start."""
    nodes = {member.node for member in topic.ensembles[number]}.union(leader.in_sync)
    return [member for member in counting(topic, number, leader, stored) if member.node in nodes]


# ---- away ----


def missing_copy(image: Image, statuses: Statuses, topic: Topic, number: int, node: int) -> str:
    """Why a copy is not there though it counts; empty if it is there."""
    if any((topic.name, number, node) in lost for lost in (image.lost, image.lost_now)):
        return DISK_LOST
    return "" if node in statuses else NO_ANSWER


def why_away(found: Found, topic: Topic, number: int, node: int, earlier: Found | None = None) -> str:
    """Why a copy that counts is not there, or not in sync, and was not at an earlier look either; empty: it is.

    One that is only behind is there.
    """
    if is_under_way(found.image, topic, number, old=node, new=node):
        return MADE_ANEW
    if why := missing_copy(found.image, found.statuses, topic, number, node):
        return why
    partition, looks = partition_of(topic.id, number), (found, earlier or found)
    leaders = [leader for look in looks if (leader := look.leader(partition)) is not None]
    if len(leaders) < len(looks):
        return ""
    if leaders[0].protocol == "isr":
        return "" if any(node in leader.in_sync for leader in leaders) else OUT_OF_SYNC
    return "" if any(node in look.held(partition) for look in looks) else NO_COPY


# ---- lost for good ----


class LostForGood(NamedTuple):
    nodes: tuple[int, ...]
    """Whose copies it would take to lead it, and are lost."""
    why: str


def lost_for_good(image: Image, topic: Topic, number: int, statuses: Statuses) -> LostForGood | None:
    """Of a partition that nobody can ever lead again; None: somebody leads it, or may.

    Whoever leads knows better than an image, which may be a moment old.
    """
    lost, partition = lost_copies(image, topic, number), partition_of(topic.id, number)
    if not lost or leader_status(statuses, partition) is not None:
        return None
    stored = image.stored.get(partition)
    shard, counts = stored.shard if stored is not None else None, counting(topic, number, None, stored)
    if topic.protocol(number) == "isr":
        # Each of these has all that was acknowledged, and is enough; of no other it is known.
        may_lead = shard.may_lead if isinstance(shard, PartitionState) else counts
        nodes = tuple(member.node for member in may_lead)
        return None if set(may_lead) - lost else LostForGood(nodes, f"{_disks(nodes)}, {NOBODY_HAS_ALL}")
    left = set(counts) - lost
    if shard.has_fenced(left) if isinstance(shard, Shard) else has_majority(left, counts):
        return None
    nodes = tuple(member.node for member in counts if member in lost)
    return LostForGood(nodes, f"{_disks(nodes)}, {len(nodes)} of {len(counts)}: {NO_MAJORITY}")


NOBODY_HAS_ALL = "and no other is known to have all that was acknowledged: nobody can lead it"
NO_MAJORITY = "without a majority nobody can lead it"


def lost_copies(image: Image, topic: Topic, number: int) -> set[Member]:
    """Those on disks that are gone, of the copies that count and of those that are to."""
    sides = (image.lost_now, topic.ensembles[number]), (image.lost, topic.wanted(number))
    return {
        member for lost, members in sides for member in members if (topic.name, number, member.node) in lost
    }


def _disks(nodes: tuple[int, ...]) -> str:
    if len(nodes) == 1:
        return f"the disk of its copy on node {nodes[0]} is lost"
    return f"the disks of its copies on nodes {listed(nodes)} are lost"
