"""Whoever commands the groups of a world: who counts, who leads. Badly informed, hasty, and sometimes wrong.

What is asked for is decided when the moment has come, from what the node that is asked believes. However wild it
is, it stays fair: unlucky nodes, whose copies may be lost for good, are fewer than half of every ensemble that
is asked for, so that they are fewer than half of every one that ever counts.

What a command is answered is checked:

- change-answer: a change that is said to be done is not what the settled log says there;
- transfer-answer: leadership is said to have moved to a node that never led.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member, Membership
from quorate.core.invariant import Violated
from quorate.sim.faults import LEADER, Fault
from quorate.sim.invariants import Invariants
from quorate.sim.world import World

if TYPE_CHECKING:
    from quorate.sim.chaos import Toll

Group = dict[int, Member]
"""Members by their node: nobody counts twice."""

HUNG = 1_000
"""An incarnation that never was: whoever waits for it waits in vain."""
NOBODY = 77
"""A node that there is not."""


class Steward:
    def __init__(self, world: World, toll: Toll, invariants: Invariants | None) -> None:
        self.world = world
        self.toll = toll
        self.invariants = invariants
        self.waiting: dict[int, tuple[int, int, str]] = {}
        """Commands that a node has and has not answered: (node, its life, what)."""
        self._commands = 0

    def unanswered(self) -> list[str]:
        return [
            f"{what} at n{node}"
            for node, life, what in self.waiting.values()
            if self.world.life(node) == life
        ]

    def members(self, partition: int) -> tuple[int, ...]:
        """The nodes that must have everything in the end."""
        if not self.world.setup.outsiders:
            return self.world.setup.holders[partition]
        assert self.invariants is not None
        members = self.invariants.membership(partition).members
        return tuple(sorted({member.node for member in members}))

    def layout(self, partition: int) -> tuple[tuple[Member, ...], tuple[int, ...]]:
        """Who is of the ensemble, by what is settled, and on which nodes copies are or are made."""
        assert self.invariants is not None
        return self.invariants.membership(partition).ensemble, self.members(partition)

    def counted(self, partition: int) -> tuple[Member, ...]:
        """Whose copies need everything, whatever becomes of changes."""
        return self.layout(partition)[0]

    # --- while everything goes wrong ---

    def begin(self) -> None:
        """Nothing is asked for before its time."""

    def strike(self, fault: Fault) -> None:
        rng = Random(fault.chance)
        partition = rng.randrange(len(self.world.partitions))
        node = self._whom(rng, fault, partition)
        if fault.kind == "transfer":
            self.transfer(node, partition, to=self._heir(rng, node, partition))
            return
        view = self._view(node, partition)
        asked = _WAYS[fault.kind.removeprefix("change-")](self, rng, partition, view, node)
        if asked is not None:
            ensemble, learners = asked
            self.change(node, partition, ensemble=members(ensemble), learners=members(learners))

    def _whom(self, rng: Random, fault: Fault, partition: int) -> int:
        holders = self.world.setup.holders[partition]
        (node,) = fault.nodes
        if node == LEADER:
            return rng.choice(self.world.leaders(partition) or holders)
        return node if node in holders else rng.choice(holders)

    def _heir(self, rng: Random, node: int, partition: int) -> int:
        if rng.random() < 0.1:
            return rng.choice((0, NOBODY, node, *self.world.setup.holders[partition]))
        return rng.choice(self._view(node, partition).ensemble).node

    def _view(self, node: int, partition: int) -> Membership:
        """Who counts, in the eyes of one node; of one that is down, who counted in the beginning."""
        hosted = self.world.hosted(node, partition)
        if hosted is not None:
            membership: Membership = hosted.replica.membership
            return membership
        return Membership(tuple(Member(voter, 1) for voter in self.world.setup.voters[partition]))

    # --- what is asked for: each gives an ensemble and learners, or nothing ---

    def _add(self, rng: Random, partition: int, view: Membership, node: int) -> tuple[Group, Group] | None:
        ensemble, learners = group(view.ensemble), group(view.learners)
        others = [other for other in self.world.setup.holders[partition] if other not in ensemble]
        for other in rng.sample(others, rng.randint(1, len(others)) if others else 0):
            ensemble[other] = self.current(other, partition)
            learners.pop(other, None)
        return self._fair(rng, ensemble, learners)

    def _remove(self, rng: Random, partition: int, view: Membership, node: int) -> tuple[Group, Group] | None:
        ensemble = group(view.ensemble)
        for other in rng.sample(sorted(ensemble), rng.randint(0, len(ensemble) - 1)):
            del ensemble[other]
        return self._fair(rng, ensemble, group(view.learners))

    def _replace(
        self, rng: Random, partition: int, view: Membership, node: int
    ) -> tuple[Group, Group] | None:
        ensemble, learners = group(view.ensemble), group(view.learners)
        others = [other for other in self.world.setup.holders[partition] if other not in ensemble]
        count = rng.randint(1, min(len(others), len(ensemble))) if others else 0
        for gone, other in zip(rng.sample(sorted(ensemble), count), rng.sample(others, count), strict=True):
            del ensemble[gone]
            ensemble[other] = self.current(other, partition)
            learners.pop(other, None)
        return self._fair(rng, ensemble, learners)

    def _any(self, rng: Random, partition: int, view: Membership, node: int) -> tuple[Group, Group] | None:
        holders = self.world.setup.holders[partition]
        chosen = rng.sample(holders, rng.randint(1, len(holders)))
        count = rng.randint(1, len(chosen)) if rng.random() < 0.3 else len(chosen)
        known = group(view.ensemble)
        ensemble = {other: known.get(other) or self.current(other, partition) for other in chosen[:count]}
        learners = {other: self.current(other, partition) for other in chosen[count:]}
        return self._fair(rng, ensemble, learners)

    def _promote(
        self, rng: Random, partition: int, view: Membership, node: int
    ) -> tuple[Group, Group] | None:
        """A learner becomes a voter; where there is none, somebody becomes a learner."""
        ensemble, learners = group(view.ensemble), group(view.learners)
        if learners:
            chosen = rng.choice(sorted(learners))
            ensemble[chosen] = learners.pop(chosen)
        else:
            others = [other for other in self.world.setup.holders[partition] if other not in ensemble]
            learners = {other: self.current(other, partition) for other in others[: rng.randint(1, 2)]}
        return self._fair(rng, ensemble, learners)

    def _demote(self, rng: Random, partition: int, view: Membership, node: int) -> tuple[Group, Group] | None:
        ensemble, learners = group(view.ensemble), group(view.learners)
        if len(ensemble) > 1:
            chosen = rng.choice(sorted(ensemble))
            learners[chosen] = ensemble.pop(chosen)
        return self._fair(rng, ensemble, learners)

    def _without_leader(
        self, rng: Random, partition: int, view: Membership, node: int
    ) -> tuple[Group, Group] | None:
        ensemble = group(view.ensemble)
        if rng.random() < 0.5:
            added = self._add(rng, partition, view, node)
            ensemble = added[0] if added is not None else ensemble
        if len(ensemble) > 1:
            ensemble.pop(node, None)
        learners = {other: member for other, member in group(view.learners).items() if other not in ensemble}
        return self._fair(rng, ensemble, learners)

    def _back(self, rng: Random, partition: int, view: Membership, node: int) -> tuple[Group, Group] | None:
        """To where an open change came from; if none is open, to where the world began."""
        if view.outgoing:
            return group(view.outgoing), {}
        first = {voter: self.current(voter, partition) for voter in self.world.setup.voters[partition]}
        return self._fair(rng, first, {})

    def _renew(self, rng: Random, partition: int, view: Membership, node: int) -> tuple[Group, Group] | None:
        """Whoever has come back with another disk counts as who it is now."""
        renewed = [
            {other: self.current(other, partition) for other in sorted(group(side))}
            for side in (view.ensemble, view.learners)
        ]
        if renewed == [group(view.ensemble), group(view.learners)]:
            return self._replace(rng, partition, view, node)
        return renewed[0], renewed[1]

    def _hang(self, rng: Random, partition: int, view: Membership, node: int) -> tuple[Group, Group] | None:
        """Somebody is to join who is not there, and never will be: another command has to give it up."""
        ensemble = group(view.ensemble)
        others = [other for other in self.world.setup.holders[partition] if other not in ensemble]
        if not others:
            return None
        chosen = rng.choice(others)
        ensemble[chosen] = Member(chosen, HUNG)
        return self._fair(rng, ensemble, {})

    def _nonsense(
        self, rng: Random, partition: int, view: Membership, node: int
    ) -> tuple[Group, Group] | None:
        ensemble = group(view.ensemble)
        return rng.choice((({}, {}), (ensemble, ensemble), ({}, ensemble)))

    def _fair(self, rng: Random, ensemble: Group, learners: Group) -> tuple[Group, Group] | None:
        """Leave out unlucky ones until they are fewer than half."""
        unlucky = [node for node in sorted(ensemble) if node in self.world.setup.unlucky]
        rng.shuffle(unlucky)
        while unlucky and 2 * len(unlucky) >= len(ensemble):
            del ensemble[unlucky.pop()]
        return (ensemble, learners) if ensemble else None

    def current(self, node: int, partition: int) -> Member:
        return current_member(self.world, self.invariants, node, partition)

    # --- commands ---

    def change(
        self, node: int, partition: int, *, ensemble: tuple[Member, ...], learners: tuple[Member, ...] = ()
    ) -> None:
        self.toll.changes += 1
        wanted = Membership(ensemble, learners)

        def done(reply: Reply) -> None:
            self.toll.changes_settled += 1
            self._check_change(partition, wanted, reply)

        answer = self._expect(node, f"p{partition} change to {wanted}", done)
        taken = self.world.change(node, partition, answer, ensemble=ensemble, learners=learners)
        self._forget_unless(taken)

    def transfer(self, node: int, partition: int, *, to: int) -> None:
        self.toll.transfers += 1

        def done(reply: Reply) -> None:
            self.toll.transfers_settled += 1
            led = self.invariants.leaders[partition] if self.invariants is not None else {}
            if self.invariants is not None and (reply.leader != to or to not in led.values()):
                raise Violated(
                    "transfer-answer", f"p{partition}: n{node} says that n{reply.leader} leads, not n{to}"
                )

        answer = self._expect(node, f"p{partition} transfer to n{to}", done)
        self._forget_unless(self.world.transfer(node, partition, answer, to=to))

    def _expect(self, node: int, what: str, done: Callable[[Reply], None]) -> Callable[[Reply], None]:
        self._commands += 1
        number = self._commands
        self.waiting[number] = (node, self.world.life(node), what)
        if self.world.trace is not None:
            self.world.trace.add(self.world.now, 0, "commanded", text=f"n{node}: {what}")

        def answer(reply: Reply) -> None:
            if self.waiting.pop(number, None) is None:
                raise Violated("change-answer", f"{what} at n{node} was answered twice")
            if reply.outcome is Outcome.SETTLED:
                done(reply)
            elif reply.outcome is Outcome.REFUSED and not reply.why:
                raise Violated("change-answer", f"{what} at n{node} was refused without a reason")

        return answer

    def _forget_unless(self, taken: bool) -> None:
        if not taken:
            self.waiting.pop(self._commands, None)

    def _check_change(self, partition: int, wanted: Membership, reply: Reply) -> None:
        if self.invariants is None:
            return
        found: Membership = self.invariants.membership(partition, reply.offset)
        if found != wanted:
            raise Violated(
                "change-answer",
                f"p{partition}: {wanted} is said to stand at {reply.offset}, but {found} does",
            )

    # --- after everything has healed ---

    def settle_down(self) -> Callable[[], list[str]]:
        """Changes go on by themselves, unless they wait for somebody who is not there any more.

        Returns what is not at rest yet.
        """
        for partition in range(len(self.world.partitions)):
            self._mend(partition)
        return lambda: [
            f"p{partition}: {self._settled(partition)}"
            for partition in range(len(self.world.partitions))
            if not is_at_rest(self._settled(partition))
        ]

    def _mend(self, partition: int) -> None:
        """Give up newcomers who never come, as often as it takes."""
        view = self._settled(partition)
        wanted = view.wanted
        if wanted is not None and not view.outgoing:
            newcomers = set(wanted.ensemble) - set(view.ensemble)
            lost = {member for member in newcomers if self.current(member.node, partition) != member}
            if lost:
                ensemble = tuple(member for member in wanted.ensemble if member not in lost)
                ensemble = self._enough(ensemble, view)
                counting = group(ensemble)
                learners = tuple(member for member in wanted.learners if member.node not in counting)
                for node in self.world.leaders(partition):
                    self.change(node, partition, ensemble=ensemble, learners=learners)
        if not is_at_rest(view):
            self.world.after(5 * self.world.tunables.pace_s, self._mend, partition)

    def _enough(self, ensemble: tuple[Member, ...], view: Membership) -> tuple[Member, ...]:
        """Without those who are lost the unlucky ones may be too many: then all stays as it was."""
        unlucky = sum(member.node in self.world.setup.unlucky for member in ensemble)
        return ensemble if 2 * unlucky < len(ensemble) else view.ensemble

    def renew(self) -> Callable[[], list[str]]:
        """Whoever came back as another is taken in as who it is now. Returns whoever is not yet."""

        def lost(partition: int) -> bool:
            view = self._settled(partition)
            return any(self.current(member.node, partition) != member for member in view.members)

        def act(partition: int) -> None:
            if not lost(partition):
                return
            view = self._settled(partition)
            for node in self.world.leaders(partition) if is_at_rest(view) else ():
                ensemble, learners = (
                    {member.node: self.current(member.node, partition) for member in side}
                    for side in (view.ensemble, view.learners)
                )
                self.change(node, partition, ensemble=members(ensemble), learners=members(learners))
            self.world.after(5 * self.world.tunables.pace_s, act, partition)

        partitions = range(len(self.world.partitions))
        for partition in partitions:
            act(partition)
        return lambda: [
            f"p{partition}: {self._settled(partition)}" for partition in partitions if lost(partition)
        ]

    def _settled(self, partition: int) -> Membership:
        assert self.invariants is not None
        membership: Membership = self.invariants.membership(partition)
        return membership


_WAYS: dict[str, Callable[[Steward, Random, int, Membership, int], tuple[Group, Group] | None]] = {
    "add": Steward._add,
    "remove": Steward._remove,
    "replace": Steward._replace,
    "any": Steward._any,
    "promote": Steward._promote,
    "demote": Steward._demote,
    "without-leader": Steward._without_leader,
    "back": Steward._back,
    "renew": Steward._renew,
    "hang": Steward._hang,
    "nonsense": Steward._nonsense,
}


def current_member(world: World, invariants: Invariants | None, node: int, partition: int) -> Member:
    """Who a node is now; where every copy of its state was unreadable, it gave itself a new incarnation."""
    hosted = world.hosted(node, partition)
    if hosted is not None:
        me: Member = hosted.replica.me
        return me
    known = invariants.shadows.get((node, partition)) if invariants is not None else None
    if known is not None and known.replica is not None:
        last: Member = known.replica.me
        return last
    return Member(node, world.nodes[node].incarnation)


def group(side: tuple[Member, ...]) -> Group:
    return {member.node: member for member in side}


def members(chosen: dict[int, Any]) -> tuple[Member, ...]:
    return tuple(sorted(chosen.values()))


def is_at_rest(membership: Membership) -> bool:
    return not membership.outgoing and membership.wanted is None
