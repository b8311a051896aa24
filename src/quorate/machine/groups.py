"""What must not be forgotten of consumer groups: their members as of the last round, and their positions.

One of these is made from each partition of the groups' home; the node that leads the partition coordinates the
groups that live there. Who is just joining, who has been heard of lately, and who waits for what is known to
that node only (kafka/group_live.py): where another one takes over, members of the last round go on as if
nothing had happened, and those that had not got so far join again.

So a command says what has become of a group, not how: that was decided by whoever led. It is checked here only
for what an order that was overtaken could spoil: a generation never falls, nobody deletes a group that has
members.

Positions that are part of a transaction are *pending* under its producer until `EndOffsets` says how it ended.
Nobody is shown them before, but `is_pending` says that there are some, for readers who want to wait
(`require_stable`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from quorate.machine.commanded import Commanded

GROUPS_COUNT_MAX = 10_000
"""In one partition of their home."""
POSITIONS_COUNT_MAX = 100_000
"""Of one group, pending ones included."""
ALL_POSITIONS_COUNT_MAX = 1_000_000
"""Of all groups of one partition of their home: they are in memory, and in every snapshot."""
ENDED_COUNT_MAX = 10_000
"""Producers whose last transaction is remembered."""


class Result(StrEnum):
    """What came of a command."""

    DONE = "done"
    FENCED = "fenced"
    """Somebody newer was first."""
    NO_GROUP = "no group"
    NOT_EMPTY = "not empty"
    TOO_MANY = "too many"
    """Groups, or positions of one."""


class Member(msgspec.Struct, frozen=True):
    """Somebody in a group, as it joined the last round."""

    id: str
    instance: str | None
    """Static members have a name of their own, by which they are known when they come back."""
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """How it can share out partitions, and what it says to that: bytes that only clients understand."""
    assignment: bytes = b""


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Up to where a group has got in one partition: the next offset that it wants."""

    offset: int
    leader_epoch: int
    """Of the last record that it has read; -1: not known."""
    metadata: str
    topic_id: bytes
    """Of the topic at that time: one that was made anew is another, and there this is no position."""
    at_ms: int


Positions = dict[str, dict[int, Position]]
"""By topic and partition."""


class Pending(msgspec.Struct):
    """Positions of a transaction that has not ended."""

    epoch: int
    """Of its producer."""
    positions: Positions = {}


class Group(msgspec.Struct):
    protocol_type: str = ""
    """Empty: nobody ever joined; positions are all that is known."""
    generation: int = 0
    protocol: str = ""
    leader: str = ""
    members: dict[str, Member] = {}
    since_ms: int = 0
    """When its members were said last."""
    positions: Positions = {}
    pending: dict[int, Pending] = {}
    """By producer id."""

    def is_pending(self, topic: str, partition: int) -> bool:
        return any(partition in each.positions.get(topic, ()) for each in self.pending.values())

    def positions_count(self) -> int:
        kept = sum(map(len, self.positions.values()))
        return kept + sum(len(some) for each in self.pending.values() for some in each.positions.values())


# --- commands ---


class PutGroup(msgspec.Struct, frozen=True, tag="put group"):
    """A round is over, or somebody came back or left: these are its members now."""

    group: str
    protocol_type: str
    generation: int
    protocol: str
    leader: str
    members: tuple[Member, ...]
    at_ms: int


class CommitOffsets(msgspec.Struct, frozen=True, tag="commit offsets"):
    """The group has got so far."""

    group: str
    positions: Positions
    producer_id: int = -1
    """From 0 on: pending until its transaction ends."""
    producer_epoch: int = -1
    number: int = -1
    """Which of the producer's transactions this is part of: where that has ended, it comes too late."""


class EndOffsets(msgspec.Struct, frozen=True, tag="end offsets"):
    """A producer's transaction has ended: what is pending under it, in all groups here, stands or never was."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    number: int = -1
    """Which of its transactions: one that ended before is not ended again, with what is pending of the next."""


class DropOffsets(msgspec.Struct, frozen=True, tag="drop offsets"):
    """Forget these positions."""

    group: str
    partitions: dict[str, tuple[int, ...]]


class DeleteGroup(msgspec.Struct, frozen=True, tag="delete group"):
    group: str


class Expire(msgspec.Struct, frozen=True, tag="expire"):
    """Forget positions of deleted topics, and those of groups without members that are older than that."""

    older_than_ms: int
    deleted: tuple[bytes, ...] = ()
    """Ids of topics."""


Command = PutGroup | CommitOffsets | EndOffsets | DropOffsets | DeleteGroup | Expire


class _State(msgspec.Struct):
    groups: dict[str, Group] = {}
    ended: dict[int, int] = {}
    """The last transaction that ended here, by producer; whoever ended one longest ago comes first."""


class Groups(Commanded):
    """Whoever reads it leaves it as it is: only commands and snapshots change it."""

    def __init__(self) -> None:
        super().__init__(Command, _State)
        self._state = _State()
        self._count = 0
        """Of all positions, pending ones included."""

    @property
    def groups(self) -> Mapping[str, Group]:
        return self._state.groups

    def has_older(self, older_than_ms: int) -> bool:
        """Whether `Expire` with that time would forget something for its age."""
        return any(
            _is_left(group, older_than_ms)
            and not group.pending
            and (not group.positions or any(_old(some, older_than_ms) for some in group.positions.values()))
            for group in self._state.groups.values()
        )

    def state(self) -> _State:
        return self._state

    def become(self, state: _State) -> None:
        self._state = state
        self._count = sum(group.positions_count() for group in state.groups.values())

    def apply(self, command: Command) -> Result:
        if isinstance(command, CommitOffsets):
            return self._commit(command)
        if isinstance(command, PutGroup):
            return self._put(command)
        if isinstance(command, EndOffsets):
            return self._end(command)
        if isinstance(command, Expire):
            return self._expire(command)
        group = self._state.groups.get(command.group)
        if group is None:
            return Result.NO_GROUP
        if isinstance(command, DropOffsets):
            for topic, partitions in command.partitions.items():
                self._count -= _drop(group.positions, topic, partitions)
            return Result.DONE
        if group.members:
            return Result.NOT_EMPTY
        self._count -= group.positions_count()
        del self._state.groups[command.group]
        return Result.DONE

    def _made(self, name: str) -> Group | None:
        """That group; None: it is not there, and there is no room for one more."""
        groups = self._state.groups
        if name not in groups and len(groups) < GROUPS_COUNT_MAX:
            groups[name] = Group()
        return groups.get(name)

    def _put(self, command: PutGroup) -> Result:
        group = self._made(command.group)
        if group is None:
            return Result.TOO_MANY
        if command.generation < group.generation:
            return Result.FENCED
        group.protocol_type, group.protocol = command.protocol_type, command.protocol
        group.generation, group.leader = command.generation, command.leader
        group.members = {member.id: member for member in command.members}
        group.since_ms = command.at_ms
        return Result.DONE

    # --- positions ---

    def _commit(self, command: CommitOffsets) -> Result:
        known = self._state.groups.get(command.group) or Group()
        if command.producer_id < 0:
            more = _new_count(known.positions, command.positions)
        else:
            more = sum(map(len, command.positions.values()))
        is_room = known.positions_count() + more <= POSITIONS_COUNT_MAX
        group = (
            self._made(command.group) if is_room and self._count + more <= ALL_POSITIONS_COUNT_MAX else None
        )
        if group is None:
            return Result.TOO_MANY
        before = group.positions_count()
        result = self._merged(group, command)
        self._count += group.positions_count() - before
        return result

    def _merged(self, group: Group, command: CommitOffsets) -> Result:
        if command.producer_id < 0:
            _merge(group.positions, command.positions)
            return Result.DONE
        if self._state.ended.get(command.producer_id, -1) >= command.number >= 0:
            return Result.FENCED
        pending = group.pending.get(command.producer_id)
        if pending is None or pending.epoch < command.producer_epoch:
            pending = group.pending[command.producer_id] = Pending(command.producer_epoch)
        if command.producer_epoch < pending.epoch:
            return Result.FENCED
        _merge(pending.positions, command.positions)
        return Result.DONE

    def _end(self, command: EndOffsets) -> Result:
        ended = self._state.ended
        before = ended.pop(command.producer_id, -1)
        ended[command.producer_id] = max(before, command.number)
        if len(ended) > ENDED_COUNT_MAX:
            del ended[next(iter(ended))]
        if before >= command.number >= 0:
            return Result.DONE
        for group in self._state.groups.values():
            pending = group.pending.get(command.producer_id)
            if pending is None or pending.epoch > command.producer_epoch:
                continue
            self._count -= group.positions_count()
            del group.pending[command.producer_id]
            if command.is_commit:
                _merge(group.positions, pending.positions)
            self._count += group.positions_count()
        return Result.DONE

    def _expire(self, command: Expire) -> Result:
        """A group without members, positions and transactions is nothing any more."""
        deleted = frozenset(command.deleted)
        for name, group in tuple(self._state.groups.items()):
            is_left = _is_left(group, command.older_than_ms)
            for topic, positions in tuple(group.positions.items()):
                gone = [number for number, position in positions.items() if position.topic_id in deleted]
                old = _old(positions, command.older_than_ms) if is_left else []
                self._count -= _drop(group.positions, topic, (*gone, *old))
            if is_left and not group.positions and not group.pending:
                del self._state.groups[name]
        return Result.DONE


def _is_left(group: Group, older_than_ms: int) -> bool:
    """Nobody has been in it for so long."""
    return not group.members and group.since_ms < older_than_ms


def _old(positions: dict[int, Position], older_than_ms: int) -> list[int]:
    return [number for number, position in positions.items() if position.at_ms < older_than_ms]


def _merge(into: Positions, newer: Positions) -> None:
    for topic, positions in newer.items():
        into.setdefault(topic, {}).update(positions)


def _new_count(there: Positions, newer: Positions) -> int:
    return sum(partition not in there.get(topic, ()) for topic, some in newer.items() for partition in some)


def _drop(positions: Positions, topic: str, partitions: Iterable[int]) -> int:
    """How many there were."""
    there = positions.get(topic)
    if there is None:
        return 0
    count = len(there)
    for partition in partitions:
        there.pop(partition, None)
    if not there:
        del positions[topic]
    return count - len(there)
