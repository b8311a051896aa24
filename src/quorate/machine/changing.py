"""Who copies a partition, where that is to change: the arithmetic of what is wanted, and of what is reached."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from quorate.core.entry import EntryId, Member

if TYPE_CHECKING:
    from quorate.machine.metadata import Topic


class Change(msgspec.Struct, frozen=True):
    """A partition's copies are to be others than they are: what is wanted, until the group has got there."""

    wanted: tuple[Member, ...]
    """The preferred leader first."""
    at: int
    """The offset of the command that wanted it: no two changes are taken for each other."""
    others: tuple[Member, ...] = ()
    """Wanted by an earlier command that did not get there. Until this one does, they may count."""


class Start(msgspec.Struct, frozen=True, gc=False):
    """Where a partition's log may start: nothing up to this entry has to be kept any longer."""

    entry: EntryId
    checksum: int
    """Of its frame. A copy that has to begin anew starts behind it, and knows what must follow."""
    first: int
    """The first offset that readers see; somebody may have wanted them to see less than is kept."""


def wanted(
    topic: Topic, number: int, nodes: tuple[int, ...], present: Collection[Member], offset: int
) -> Topic | None:
    """The topic with these nodes wanted for a partition; None: that is so already. `present` hold it now."""
    settled, change = topic.ensembles[number], topic.changes.get(number)
    known = {member.node: member for member in reversed(tuple(present))}
    members = tuple(known.get(node) or Member(node, offset) for node in nodes)
    if members == (settled if change is None else change.wanted):
        return None
    topic = msgspec.structs.replace(topic, changed={**topic.changed, number: offset})
    if change is None and set(members) == set(settled):  # Only another one is preferred.
        return with_copies(topic, number, members, None)
    others = set(topic.holders(number)).difference(settled, members)
    return with_copies(topic, number, settled, Change(members, offset, tuple(sorted(others))))


def started(topic: Topic, number: int, start: Start) -> Topic | None:
    """The topic where a partition's log may start there; None: it may already. A start never falls."""
    before = topic.starts.get(number)
    if before is not None and before.entry.offset > start.entry.offset:
        start = msgspec.structs.replace(before, first=max(before.first, start.first))
    elif before is not None and before.first > start.first:
        start = msgspec.structs.replace(start, first=before.first)
    if start == before:
        return None
    return msgspec.structs.replace(topic, starts={**topic.starts, number: start})


def reached(topic: Topic, number: int, at: int) -> Topic | None:
    """The topic where a partition has the copies that were wanted at that offset; None: others are by now."""
    change = topic.changes.get(number)
    if change is None or change.at != at:
        return None
    return with_copies(topic, number, change.wanted, None)


def with_copies(topic: Topic, number: int, ensemble: tuple[Member, ...], change: Change | None) -> Topic:
    """A topic with this for one of its partitions."""
    ensembles = (*topic.ensembles[:number], ensemble, *topic.ensembles[number + 1 :])
    changes = {**topic.changes, number: change} if change is not None else dict(topic.changes)
    if change is None:
        changes.pop(number, None)
    return msgspec.structs.replace(topic, ensembles=ensembles, changes=changes)
