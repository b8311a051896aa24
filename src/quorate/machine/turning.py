"""How the copies of a partition agree, where that has changed: what the metadata group knows of turns (017).

A turn is wanted for a topic, and each of its partitions takes it by itself. When a partition's old protocol has
ended with a barrier, its leader says so, and what it says decides everything at once: which entry ends the old
protocol, which one begins above it, and with what, where somebody oversees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from quorate.core import coordinated, isr
from quorate.core.entry import EntryId, Member, Partition, number_of
from quorate.core.quorum import has_majority
from quorate.machine.shards import State, Stored

if TYPE_CHECKING:
    from quorate.machine.metadata import Topic

PROTOCOLS: tuple[str, ...] = ("raft", "coordinated", "isr", "confirm")
MIN_ISR = "min.insync.replicas"
TOPIC = -1
"""Instead of a partition's number: the topic as a whole."""
FRESH_EPOCHS = 1
"""So far above the epoch in which the old protocol's barrier was settled every copy begins."""
VOIDING = "confirm"
"""The protocol in which records may turn out to be void: they are for good."""


class Turning(msgspec.Struct, frozen=True):
    """A topic's copies are to agree in another way."""

    to: str
    at: int
    """The offset of the command that wanted it: no two turns are taken for each other."""


class Turned(msgspec.Struct, frozen=True):
    """How a partition's copies agree from a barrier on: the same for everybody."""

    generation: int
    """The turn that it began with."""
    protocol: str
    barrier: EntryId
    epoch: int
    """The old protocol's, in which the barrier was settled."""
    leader: int
    """The node that said so. It has everything, and is to stand first."""
    voids: bool = False
    """The log has been of `confirm`."""


class TurnTopic(msgspec.Struct, frozen=True, tag="turn topic"):
    """Let the copies of a topic agree like that; back to what they do calls it off, where they still do."""

    id: bytes
    to: str
    seen: int | None = None
    """The version of the image that whoever wants it has seen. Where another turn was wanted since, nothing is
    done. None: in any case."""


class NoteBarrier(msgspec.Struct, frozen=True, tag="note barrier"):
    """A partition's old protocol is over: this entry is settled by it, and these have flushed it."""

    partition: Partition
    at: int
    """The turn that the barrier is of."""
    barrier: EntryId
    epoch: int
    """In which it was settled."""
    leader: Member
    whole: tuple[Member, ...]


def is_whole(note: NoteBarrier, ensemble: tuple[Member, ...]) -> bool:
    """Whether nobody can lead in any protocol without somebody who has the barrier.

    Where few in sync are enough to settle it, that is not so by itself: a majority without it could choose.
    """
    return has_majority(note.whole, ensemble)


def is_of(protocol: str, state: State) -> bool:
    """Whether such a state is of that protocol: whoever oversaw another one before writes no more."""
    return protocol == ("isr" if isinstance(state, isr.PartitionState) else "coordinated")


def epoch_of(stored: State) -> int:
    """In which somebody leads by what is stored, or is to."""
    return stored.leader_epoch if isinstance(stored, isr.PartitionState) else stored.epoch


def first_state(
    protocol: str, note: NoteBarrier, ensemble: tuple[Member, ...], *, min_isr: int
) -> State | None:
    """With what whoever oversees the partition begins; None: nobody does."""
    members = tuple(sorted(ensemble))
    if protocol == "coordinated":
        return coordinated.Shard(note.epoch + FRESH_EPOCHS, coordinated.Status.ELECTION, members)
    if protocol == "isr":
        in_sync = tuple(member for member in members if member in note.whole)
        leader = note.leader if note.leader in in_sync else in_sync[0]
        epoch = note.epoch + FRESH_EPOCHS + 1  # Above what its copies begin with: it is led anew.
        return isr.PartitionState(1, epoch, leader, members, in_sync, min_isr=min(min_isr, len(members)))
    return None


# --- what commands make of a topic ---


def wanted(topic: Topic, command: TurnTopic, offset: int) -> Topic | None:
    """The topic with that turn wanted; None: it may not be, or is already.

    Homes stay as they are (decision 021). Not while copies are to be others: who counts must not move under it.
    Where no partition is left to turn, it was called off, and nothing is wanted any more.
    """
    if command.to not in PROTOCOLS or topic.changes or topic.is_internal:
        return None
    if command.seen is not None and topic.changed.get(TOPIC, -1) > command.seen:
        return None
    if command.to == (topic.turning.to if topic.turning is not None else topic.replication):
        return None
    changed = {**topic.changed, TOPIC: offset}
    return _finished(msgspec.structs.replace(topic, turning=Turning(command.to, offset), changed=changed))


def noted(topic: Topic, note: NoteBarrier, stored: Stored | None) -> tuple[Topic, State | None] | None:
    """The topic with a partition of another generation, and with what its overseer begins; None: not by this.

    The barrier ends the old protocol, whatever becomes of the turn that it was written for. So a partition goes on
    with what is wanted now: with what it was, if that was called off meanwhile.
    """
    number = number_of(note.partition)
    if number >= len(topic.ensembles) or note.at <= topic.generation(number):
        return None
    ensemble, before = topic.ensembles[number], topic.protocol(number)
    if not is_whole(note, ensemble):
        return None
    if stored is not None and epoch_of(stored.shard) > note.epoch:
        return None  # Somebody else leads by now, or is to: that one will say so.
    to = topic.turning.to if topic.turning is not None else before
    voids = before == VOIDING or (number in topic.turned and topic.turned[number].voids)
    turned = Turned(note.at, to, note.barrier, note.epoch, note.leader.node, voids)
    topic = _finished(msgspec.structs.replace(topic, turned={**topic.turned, number: turned}))
    return topic, first_state(to, note, ensemble, min_isr=min_isr(topic, number))


def _finished(topic: Topic) -> Topic:
    """Without the turn, if all have taken it."""
    turning = topic.turning
    if turning is None or any(topic.protocol(number) != turning.to for number in range(len(topic.ensembles))):
        return topic
    return msgspec.structs.replace(topic, replication=turning.to, turning=None)


def min_isr(topic: Topic, number: int) -> int:
    """How many must be in sync for anything to be settled: a majority, unless the topic says otherwise."""
    copies_count = len(topic.ensembles[number])
    asked = topic.config.get(MIN_ISR)
    return min(int(asked), copies_count) if asked is not None else copies_count // 2 + 1
