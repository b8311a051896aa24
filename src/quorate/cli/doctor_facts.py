"""What `quorate doctor` goes by, and what it says: facts from all nodes, and findings.

Findings are made from facts alone (doctor_nodes.py, doctor_partitions.py, doctor_settings.py), so that whatever can
be wrong can be shown to them without its happening.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cached_property

import msgspec

from quorate.cli.copies_there import LostForGood, lost_for_good
from quorate.cli.how_far import LET_THEM_GO_ON, STAND_STILL
from quorate.cli.topic_copies import is_under_way
from quorate.cli.topic_view import Found
from quorate.core.entry import Member, Partition, partition_of
from quorate.machine.metadata import METADATA, METADATA_TOPIC, NodeInfo, Topic
from quorate.node.health import Health
from quorate.node.requests import Image, Status

NAMED_COUNT_MAX = 5
"""Of many partitions, so many are named in a line."""
THE_METADATA_GROUP = "the metadata group"
GOES_ON = "wait; it goes on by itself"


class Severity(StrEnum):
    CRITICAL = "critical"
    """Something cannot be written or read, or is about to be lost."""
    WARNING = "warning"
    """It goes on, and one more thing may stop it; or something is not as it was asked for."""
    NOTE = "note"
    """To know."""


CRITICAL, WARNING, NOTE = Severity

KINDS: dict[str, str] = {
    "metadata-no-majority": "no majority of the metadata group's voters answers",
    "partition-lost": "so many copies of a partition were on disks that are lost that nobody can lead it",
    "every-copy-damaged": "something cannot be read on any copy",
    "partition-leaderless": "nobody leads a partition",
    "too-few-copies": "fewer copies are there, or in sync, than a write needs",
    "unsettled": "a transaction, or a write, waits for its quorum for long, and holds readers back",
    "transaction-open": "a transaction is open for long, and holds readers of committed records back",
    "disk-full": "a node's disk refuses to take more",
    "copy-stuck": "a copy cannot apply what is settled",
    "node-silent": "a node does not answer",
    "disk-lost": "a node came back with a new disk, which does not count yet",
    "nodes-apart": "a node does not hear another",
    "voters-away": "voters of the metadata group are away",
    "copies-away": "copies of a partition are away, or out of sync",
    "copy-behind": "a copy does not keep up with its leader",
    "copy-damaged": "something cannot be read on a copy, and is fetched from another",
    "disk-filling": "a node's disk has little room left",
    "clocks-apart": "nodes do not agree what time it is",
    "certificate-ends": "a certificate ends soon, or has ended",
    "versions-differ": "nodes run different versions",
    "levels-differ": "some nodes do not know the newest feature level that others know",
    "nats-silent": "messages of a NATS subject do not come in",
    "one-copy": "a topic has a single copy",
    "min-insync-all": "a topic needs all of its copies in sync",
    "min-insync-unheeded": "a topic asks for more copies in sync than a majority, where a majority settles",
    "defaults-contradict": "new topics are refused by what the cluster is set to",
    "retention-below-segment": "a topic keeps more than it is told to, as its segments are larger",
    "compaction-differs": "copies of a partition made different things of the same compaction",
    "compaction-held-up": "a partition is not compacted, as a copy has not made it ready",
    "racks-not-used": "copies lie in fewer racks than they could",
    "voters-few": "fewer nodes vote than could",
    "voters-even": "an even number of nodes votes",
    "two-copies": "a topic has two copies",
    "racks-unknown": "some nodes say where they stand, and others do not",
    "level-behind": "every node knows a newer feature level than the cluster goes by",
    "moving-rate": "copies that are made are sent to slowly, or not at all, as a setting says",
    "node-drained": "a node is to have no copies, and nothing moves any more",
    "change-open": "a change of copies or voters is under way",
    "node-restarted": "a node was started lately",
}
"""All that can be found, worst first where severities are alike; docs/OPERATIONS.md has a line for each."""


class Finding(msgspec.Struct, frozen=True):
    id: str
    severity: Severity
    where: str
    what: str
    """What is wrong, and what that means."""
    do: str
    commands: tuple[str, ...] = ()
    """To be pasted, in this order."""
    nodes: tuple[int, ...] = ()
    partitions: tuple[str, ...] = ()


class Clock(msgspec.Struct, frozen=True, gc=False):
    """The time here when a node was asked how it is, and when its answer was there."""

    asked_ms: int
    answered_ms: int


class Facts(msgspec.Struct, frozen=True, dict=True):
    image: Image
    statuses: dict[int, Status]
    """Of those that answered."""
    earlier: dict[int, Status] = {}
    """The same a while before: what is so in both lasts. Empty: nobody was asked."""
    clocks: dict[int, Clock] = {}
    silent: dict[int, str] = {}
    """Why others did not answer."""
    now_ms: int = 0

    @cached_property
    def found(self) -> Found:
        return Found(self.image, self.statuses)

    @cached_property
    def found_earlier(self) -> Found:
        return Found(self.image, self.earlier)

    @property
    def infos(self) -> dict[int, NodeInfo]:
        return {info.node: info for info in self.image.nodes}

    @property
    def silent_nodes(self) -> tuple[int, ...]:
        return tuple(node for node in self.infos if node not in self.statuses)

    @property
    def healths(self) -> dict[int, Health]:
        """Of those whose version says so."""
        return {node: each.health for node, each in sorted(self.statuses.items()) if each.health is not None}

    def voters(self) -> tuple[Member, ...]:
        """Of the metadata group: as its leader says, or as was settled."""
        leader = self.found.leader(METADATA)
        return (leader.membership if leader is not None else self.image.metadata).ensemble

    def wanted_voters(self) -> tuple[Member, ...]:
        """Who is to vote, where a change is open; else who does."""
        leader = self.found.leader(METADATA)
        membership = leader.membership if leader is not None else self.image.metadata
        return (membership.wanted or membership).ensemble

    def is_lost(self, place: Place, node: int) -> bool:
        """Whether a copy counts, and was on a disk that is gone."""
        return (place.topic.name, place.number, node) in self._lost_now

    def is_made_anew(self, place: Place, node: int) -> bool:
        """Such a copy, in whose place one on the node's new disk was ordered."""
        return is_under_way(self.image, place.topic, place.number, old=node, new=node)

    @cached_property
    def _lost_now(self) -> frozenset[tuple[str, int, int]]:
        return frozenset(self.image.lost_now)

    @cached_property
    def lost_for_good(self) -> dict[str, LostForGood]:
        """Partitions that nobody can ever lead again, by name."""
        return {
            place.name: lost
            for place in self.partitions()
            if self.is_leaderless(place)
            and (lost := lost_for_good(self.image, place.topic, place.number, self.statuses)) is not None
        }

    def is_leaderless(self, place: Place) -> bool:
        """And was so in the earlier look: it is no election."""
        if self.found.leader(place.partition) is not None:
            return False
        return not self.earlier or self.found_earlier.leader(place.partition) is None

    def places(self) -> list[Place]:
        """Every log: those of partitions, and the metadata group's, of which every node has a copy."""
        members = tuple(Member(node, info.incarnation) for node, info in sorted(self.infos.items()))
        return [*self.partitions(), Place(Topic(THE_METADATA_GROUP, METADATA_TOPIC, "raft", (members,)), 0)]

    def partitions(self) -> list[Place]:
        return [Place(topic, number) for topic in self.image.topics for number in range(len(topic.ensembles))]


class Place(msgspec.Struct, frozen=True):
    topic: Topic
    number: int

    @property
    def name(self) -> str:
        return THE_METADATA_GROUP if self.is_metadata else f"{self.topic.name}/{self.number}"

    @property
    def partition(self) -> Partition:
        return partition_of(self.topic.id, self.number)

    @property
    def is_metadata(self) -> bool:
        return self.topic.id == METADATA_TOPIC

    @property
    def look(self) -> str:
        """The command that shows its copies."""
        return "quorate cluster status" if self.is_metadata else f"quorate topic describe {self.name}"


def partitions_of(places: Iterable[Place]) -> tuple[str, ...]:
    """Their names, but the metadata group's, which is no topic's."""
    return tuple(place.name for place in places if not place.is_metadata)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    severities, kinds = list(Severity), list(KINDS)
    return sorted(findings, key=lambda each: (severities.index(each.severity), kinds.index(each.id)))


# ---- words ----


def named(names: Sequence[str]) -> str:
    more = len(names) - NAMED_COUNT_MAX
    return ", ".join(names[:NAMED_COUNT_MAX]) + (f" and {more:,} more" if more > 0 else "")


def nodes_named(nodes: Sequence[int]) -> str:
    """`node 3`, `nodes 1 and 3`."""
    if len(nodes) == 1:
        return f"node {nodes[0]}"
    *first, last = map(str, nodes)
    return f"nodes {', '.join(first)} and {last}"


def does(nodes: Sequence[int], one: str, several: str) -> str:
    return one if len(nodes) == 1 else several


def start_again(nodes: Sequence[int]) -> str:
    return f"start {nodes_named(nodes)} again, on {does(nodes, 'its machine', 'their machines')}"


def how_it_goes_on(*, is_held_up: bool, look: str) -> tuple[str, tuple[str, ...]]:
    """What to do about copies that are being made, and the commands."""
    if is_held_up:
        return f"let them go on: {STAND_STILL.split(';')[0]}", (LET_THEM_GO_ON, look)
    return GOES_ON, (look,)
