"""Sees to it that the groups which this node leads get to the ensembles that the image wants for them.

A change of a topic's partition is a command to the metadata group; from then on it is wanted, whatever happens
to whoever wanted it. Every node that is in the old ensemble or in the new one holds a replica. Whichever node
leads the partition orders the change of its group (joint consensus, core/raft), again after every failure and by
every new leader, and says to the metadata group when the group has got there. Only then do those who are no
longer in the ensemble let go of their replicas.

Where somebody oversees a partition, that one is ordered to change it, step by step (node/moves.py), on the node
where it lives: the one that leads the metadata group.

A leader whose image is behind must not act on it: where its group counts somebody of whom this image knows
nothing, it waits; and every order carries the offset at which it was wanted as its version, so that a group never
goes back to what was wanted before. The metadata group itself keeps what it wants in its own log. Its leader adds
every registered node to the learners, and lets those go that were forgotten.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member, Membership, Partition, partition_of
from quorate.core.isr import PartitionState
from quorate.host import Hosted
from quorate.machine.changing import Change
from quorate.machine.metadata import ADDED_MAX, METADATA, NoteReached, Topic
from quorate.node.logs import WARNING
from quorate.node.metadata import NoMetadata
from quorate.node.moves import Rest, next_step
from quorate.node.reports import called
from quorate.node.statuses import ensemble_of

if TYPE_CHECKING:
    from quorate.node.node import Node

LOOK_EVERY_S = 0.1
ORDER_AGAIN_S = 1.0
"""After an order that came to nothing."""
UNDER_WAY_COUNT_MAX = 16
"""Changes with newcomers that one node drives at once: those copy whole logs."""
STUCK_S = 10.0
"""An order that was not seen to get on for so long holds up no others, until it is seen to again."""
UNSEEN_S = 600.0
"""So long, where it cannot be seen: another node leads, which tells nobody how far its newcomers are. A copy that
takes longer goes on, and others begin beside it; one that a full disk holds up looks just the same."""


class _Order(msgspec.Struct):
    """What was last ordered of a group."""

    at: int
    moved: float
    """When it was seen to get on last."""
    far: object = None
    """How far it was seen then."""
    again: float = float("inf")
    """When it may be repeated: not while it is under way."""


class Ensembles:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._orders: dict[Partition, _Order] = {}
        self._heard: frozenset[int] = frozenset()
        """Nodes, lately."""
        self._copying_count = 0
        """Orders with newcomers that get on."""
        self._said = ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            reached = self._look()
            if reached:
                try:
                    await self._node.metadata.command(*reached)
                except NoMetadata as error:
                    what = f"the metadata group does not hear that ensembles are reached: {error}"
                    self._node.log(what, level=WARNING)

    def _look(self) -> list[NoteReached]:
        """Order what is to be ordered; what has been reached."""
        node, now = self._node, time.monotonic()
        reached = []
        changing = {
            partition_of(topic.id, number): (topic, number)
            for topic in node.metadata.image.topics.values()
            for number in topic.changes
        }
        for partition in [each for each in self._orders if each not in changing and each != METADATA]:
            del self._orders[partition]
        self._heard = frozenset(node.heard)
        self._copying_count = sum(
            self._gets_on(partition, new, now, is_overseen=topic.is_overseen(number))
            for partition, (topic, number) in changing.items()
            if partition in self._orders and (new := newcomers(topic, number))
        )
        for partition, (topic, number) in changing.items():
            change = topic.changes[number]
            if topic.is_overseen(number):
                if self._oversee(partition, topic, number, now):
                    reached.append(NoteReached(topic.id, number, change.at))
            elif not node.is_leader(partition):
                self._orders.pop(partition, None)
            elif is_reached(node.host.hosted[partition], change):
                reached.append(NoteReached(topic.id, number, change.at))
            elif self._knows_all(partition, topic, number) and self._may_order(partition, topic, number, now):
                self._order(partition, change.at, now, ensemble=change.wanted)
        self._teach_everybody(now)
        return reached

    def _oversee(self, partition: Partition, topic: Topic, number: int, now: float) -> bool:
        """Order the next step of whoever oversees it, if that one lives here; whether no step is left."""
        change, before = topic.changes[number], topic.ensembles[number]
        stored = self._node.metadata.image.shard(partition)
        if stored is None or not self._node.overseers.oversees(partition):
            self._orders.pop(partition, None)
            return False
        step = next_step(stored.shard, change.wanted, before)
        if not isinstance(step, Rest) and self._may_order(partition, topic, number, now):
            order = self._begun(partition, change.at, now)
            self._node.overseers.command(partition, step, partial(self._answered, partition, order))
        return step is Rest.REACHED

    def _knows_all(self, partition: Partition, topic: Topic, number: int) -> bool:
        membership = self._node.host.hosted[partition].replica.membership
        return bool(membership.voters.issubset(topic.holders(number)))

    def _may_order(self, partition: Partition, topic: Topic, number: int, now: float) -> bool:
        if partition in self._orders:
            return self._is_due(partition, topic.changes[number].at, now)
        is_copying = bool(newcomers(topic, number))
        if is_copying and self._copying_count >= UNDER_WAY_COUNT_MAX:
            return False
        self._copying_count += is_copying
        return True

    def _is_due(self, partition: Partition, at: int, now: float) -> bool:
        order = self._orders.get(partition)
        return order is None or order.at != at or now >= order.again

    def _gets_on(self, partition: Partition, new: set[Member], now: float, *, is_overseen: bool) -> bool:
        """Whether it counts among those that are under way: it has moved, or may have, and not too long ago."""
        order = self._orders[partition]
        far = self._stored(partition, new) if is_overseen else self._seen(partition, new)
        # What waits for its turn by the rate will have it.
        if far != order.far or (not is_overseen and self._node.host.pacer.waits(partition)):
            order.far, order.moved = far, now
        is_unseen = is_overseen and self._is_led(partition) and all(each.node in self._heard for each in new)
        return now - order.moved < (UNSEEN_S if is_unseen else STUCK_S)

    def _seen(self, partition: Partition, new: set[Member]) -> object:
        """What differs as soon as newcomers get on, where this node leads."""
        if not self._node.is_leader(partition):
            return None
        cursors = self._node.host.hosted[partition].replica.role.cursors.values()
        return tuple((each.matched, each.snapshot_at) for each in cursors if each.member in new)

    def _stored(self, partition: Partition, new: set[Member]) -> object:
        """What differs with every step, where somebody oversees it; that somebody else falls behind is none."""
        stored = self._node.metadata.image.shard(partition)
        if stored is None:
            return None
        in_sync = stored.shard.isr if isinstance(stored.shard, PartitionState) else ()
        return ensemble_of(stored.shard), new.intersection(in_sync)

    def _is_led(self, partition: Partition) -> bool:
        """Whether who should lead is there, and says that it does: nobody else gives newcomers anything."""
        stored = self._node.metadata.image.shard(partition)
        leader = stored.shard.leader if stored is not None else None
        if leader is None or leader.node not in self._heard:
            return False
        return self._node.says_so(leader.node, partition)

    def _begun(self, partition: Partition, at: int, now: float) -> _Order:
        """What is ordered once more has not got on by that."""
        before = self._orders.get(partition)
        is_again = before is not None and before.at == at
        order = _Order(at, before.moved, before.far) if before is not None and is_again else _Order(at, now)
        self._orders[partition] = order
        return order

    def _order(
        self,
        partition: Partition,
        at: int,
        now: float,
        *,
        ensemble: tuple[Member, ...],
        learners: tuple[Member, ...] = (),
    ) -> None:
        order = self._begun(partition, at, now)
        self._node.begin_turn()
        answer = partial(self._answered, partition, order)
        self._node.change(partition, answer, ensemble=ensemble, learners=learners, version=at)
        self._node.end_turn()

    def _answered(self, partition: Partition, order: _Order, reply: Reply) -> None:
        is_done = reply.outcome is Outcome.SETTLED  # Another step may follow.
        order.again = time.monotonic() + ORDER_AGAIN_S * (not is_done)
        if reply.outcome is Outcome.REFUSED and self._orders.get(partition) is order:
            name = called(self._node, partition)
            line = f"partition {name}: its ensemble is not changed yet: {reply.why}"
            if line != self._said:
                self._said = line
                self._node.log(line, level=WARNING, partition=name)

    # --- the metadata group ---

    def _teach_everybody(self, now: float) -> None:
        """Whoever is registered and does not vote follows the metadata group as a learner."""
        node = self._node
        membership = node.host.hosted[METADATA].replica.membership
        if not node.leads_with_all(METADATA) or membership.wanted is not None or membership.is_joint:
            return
        learners = learners_of_metadata(node, membership.ensemble)
        version = membership.version  # As it is: who votes is not changed by it.
        if learners != tuple(sorted(membership.learners)) and self._is_due(METADATA, version, now):
            self._order(METADATA, version, now, ensemble=membership.ensemble, learners=learners)


def learners_of_metadata(node: Node, ensemble: tuple[Member, ...]) -> tuple[Member, ...]:
    """Everybody who is registered, or was a learner and is not forgotten, and is not in this ensemble.

    A node whose former incarnation is in there, and whose disk is lost, still follows in that one's place.
    """
    image, members = node.metadata.image, node.host.hosted[METADATA].replica.membership.members
    known = {member.node: member for member in members if not image.is_forgotten(member.node)}
    known |= {info.node: Member(info.node, info.incarnation) for info in image.nodes.values()}
    voting = {member.node for member in ensemble}
    return tuple(sorted(member for member in known.values() if member.node not in voting))


def newcomers(topic: Topic, number: int) -> set[Member]:
    """Who has to get a copy before this change is done."""
    return set(topic.changes[number].wanted).difference(topic.ensembles[number])


def is_reached(hosted: Hosted, change: Change) -> bool:
    """Whether the group is at rest with what this very change wanted, and that is settled.

    That it has the same ensemble is not enough: it may have had that before, and a leader of then not know better.
    """
    return all(
        membership.wanted is None and membership.version == change.at
        for membership in (hosted.replica.membership, settled_membership(hosted))
    )


def settled_membership(hosted: Hosted) -> Membership:
    at_birth = Membership(hosted.record.voters, hosted.record.learners)
    return hosted.standing.membership or at_birth


def is_superseded(held: Member, mine: list[Member], life: int) -> bool:
    """Whether a replica here is one that had left the ensemble before this node was added again.

    One whose incarnation nobody gave out is left alone: its record was lost, and it counts no more (rule 4).
    """
    was_given = held.incarnation == life or held.incarnation < ADDED_MAX
    return was_given and held not in mine and mine[0].incarnation < ADDED_MAX
