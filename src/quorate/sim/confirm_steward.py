"""Whoever commands `confirm` groups: as steward.py, with orders that only these take, and a person who looks after
them.

It orders rollbacks, promotions and demotions, sets groups read-only, cuts replicas loose, and gives quorums other
sizes; at the leader, and where that makes no sense. A forced rollback can take back what was acknowledged, and is
left to scenarios.

Whatever it orders, it stays fair. What is settled is on as many copies as a commit quorum has: so unlucky ones, who
are the only ones to be cut loose, are fewer than that, and the others can commit and promote without them.

The *person* looks now and then: lets loose replicas be joined again, and where nothing is automatic promotes
somebody if nobody leads (TT-12). After everything has healed it makes good all that was ordered.

- order-answer: an order is said to be done, and is not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from quorate.core import commands
from quorate.core.confirm.config import CUTTING_LOOSE, TOO_NEW
from quorate.core.effects import Reply
from quorate.core.entry import Member, Membership, Quorums
from quorate.core.invariant import Violated
from quorate.sim.chance import stream
from quorate.sim.faults import Fault
from quorate.sim.invariants import Invariants
from quorate.sim.steward import Steward
from quorate.sim.upgrade import is_first_everywhere, level_of
from quorate.sim.world import World

if TYPE_CHECKING:
    from quorate.sim.chaos import Toll

LOOKS_PACES = 3.0
"""The person looks once in so many election time-outs, more or less."""
HELPS = 0.3
"""How often it does something about a loose replica that it finds, while everything goes wrong."""

Make = Callable[[int], commands.Command]
"""Makes an order out of the number of its request."""


class ConfirmSteward(Steward):
    def __init__(self, world: World, toll: Toll, invariants: Invariants | None) -> None:
        super().__init__(world, toll, invariants)
        self.healed = False
        self._rng = stream(world.setup.seed, "person")
        self._read_only: dict[tuple[int, int], int] = {}
        """By partition and node: the epoch in which a leader was set read-only."""
        self.too_new_count = 0
        """Orders that were refused because not every node knew of them yet (TT-41)."""
        self.newer_count = 0
        """Orders that were carried out and that the first version did not know."""

    # --- while everything goes wrong ---

    def begin(self) -> None:
        pause = self.world.tunables.pace_s * LOOKS_PACES * (0.5 + self._rng.random())
        self.world.after(pause, self._look, None)

    def strike(self, fault: Fault) -> None:
        if not fault.kind.startswith("act-"):
            super().strike(fault)
            return
        rng = Random(fault.chance)
        partition = rng.randrange(len(self.world.partitions))
        node = self._whom(rng, fault, partition)
        _ACTS[fault.kind.removeprefix("act-")](self, rng, partition, node)

    # --- orders ---

    def _roll_one_back(self, rng: Random, partition: int, node: int) -> None:
        self.roll_back(node, partition)

    def _promote_one(self, rng: Random, partition: int, node: int) -> None:
        """Anybody, and whoever leads already."""
        self.promote(rng.choice((node, *self.world.setup.holders[partition])), partition)

    def _demote_leader(self, rng: Random, partition: int, node: int) -> None:
        self.demote(node, partition)

    def _set_read_only(self, rng: Random, partition: int, node: int) -> None:
        self.set_read_only(node, partition, read_only=rng.random() < 0.6)

    def _cut_one_loose(self, rng: Random, partition: int, node: int) -> None:
        holders = self.world.setup.holders[partition]
        unlucky = [other for other in holders if other in self.world.setup.unlucky]
        if unlucky:
            self.cut_loose(rng.choice(unlucky), partition)

    def _join_one_again(self, rng: Random, partition: int, node: int) -> None:
        self.join_again(rng.choice(self.world.setup.holders[partition]), partition)

    def roll_back(self, node: int, partition: int) -> None:
        self.order(node, partition, "roll back", commands.RollBack)

    def demote(self, node: int, partition: int) -> None:
        self.order(node, partition, "demote", commands.Demote, self._demoted)

    def promote(self, node: int, partition: int) -> None:
        def done(reply: Reply) -> None:
            led = self.invariants.leaders[partition] if self.invariants is not None else {}
            if self.invariants is not None and led.get(reply.epoch) != node:
                raise Violated("order-answer", f"p{partition}: n{node} did not lead in e{reply.epoch}")

        self.order(node, partition, "promote", commands.Promote, done)

    def _demoted(self, reply: Reply) -> None:
        if reply.leader:
            raise Violated("order-answer", f"demoted, and n{reply.leader} is said to lead")

    def set_read_only(self, node: int, partition: int, *, read_only: bool) -> None:
        def done(reply: Reply) -> None:
            if read_only:
                self._read_only[partition, node] = reply.epoch
            else:
                self._read_only.pop((partition, node), None)

        def make(request: int) -> commands.Command:
            return commands.SetReadOnly(request, read_only)

        self.order(node, partition, f"read-only {'on' if read_only else 'off'}", make, done)

    def cut_loose(self, node: int, partition: int) -> None:
        self.order(
            node, partition, "cut loose", commands.CutLoose, partial(self._check_loose, node, partition)
        )

    def join_again(self, node: int, partition: int) -> None:
        self.order(node, partition, "join again", commands.JoinAgain)

    def _expect(self, node: int, what: str, done: Callable[[Reply], None]) -> Callable[[Reply], None]:
        expected = super()._expect(node, what, done)

        def answer(reply: Reply) -> None:
            if reply.why == TOO_NEW:
                self.too_new_count += 1
                if all(level_of(self.world, other) >= CUTTING_LOOSE for other in self.world.nodes):
                    raise Violated("order-answer", f"{what} at n{node}: said to be too new, and is not")
            expected(reply)

        return answer

    def _was_newer(self, node: int, what: str) -> None:
        """An order is done that nodes of the first version do not know (TT-41)."""
        self.newer_count += 1
        if level_of(self.world, node) < CUTTING_LOOSE:
            raise Violated("order-answer", f"{what} at n{node}: done, and not every node knows of it")

    def _check_loose(self, node: int, partition: int, reply: Reply) -> None:
        self._was_newer(node, f"p{partition} cut loose")
        hosted = self.world.hosted(node, partition)
        if hosted is not None and hosted.replica.loose and hosted.replica.log.head.offset < reply.offset:
            raise Violated("order-answer", f"p{partition} n{node} gave up more than {reply.offset}")

    def order(
        self, node: int, partition: int, what: str, make: Make, done: Callable[[Reply], None] | None = None
    ) -> None:
        self.toll.orders += 1

        def settled(reply: Reply) -> None:
            self.toll.orders_settled += 1
            if done is not None:
                done(reply)

        answer = self._expect(node, f"p{partition} {what}", settled)
        self._forget_unless(self.world.command(node, partition, make, answer))

    # --- who counts, and how many are enough ---

    def change(
        self,
        node: int,
        partition: int,
        *,
        ensemble: tuple[Member, ...],
        learners: tuple[Member, ...] = (),
        quorums: Quorums | None = None,
    ) -> None:
        """Every change names its quorums: those of the ensemble before may be unfair in the next one."""
        self.toll.changes += 1
        quorums = quorums or self._quorums(ensemble, self._view(node, partition))
        wanted = Membership(ensemble, learners, quorums=quorums)

        def done(reply: Reply) -> None:
            self.toll.changes_settled += 1
            if quorums is not None:
                self._was_newer(node, f"p{partition} change of quorums")
            self._check_change(partition, wanted, reply)

        answer = self._expect(node, f"p{partition} change to {wanted}", done)
        taken = self.world.change(
            node, partition, answer, ensemble=ensemble, learners=learners, quorums=quorums
        )
        self._forget_unless(taken)

    def _quorums(self, ensemble: tuple[Member, ...], view: Membership) -> Quorums | None:
        if view.outgoing and ensemble == view.outgoing and self._rng.random() < 0.8:
            # Back to where it came from. Whoever names none goes there, too, if it is another ensemble.
            former = view.outgoing_quorums
            named = former is not None or ensemble == view.ensemble
            return Quorums(*sizes(former, len(ensemble))) if named else None
        if is_first_everywhere(self.world) and self._rng.random() < 0.8:
            return None  # Who has heard of the old nodes names none: they would be refused.
        count = len(ensemble)
        if count and self._rng.random() < 0.05:
            return self._nonsensical(count)
        unlucky = sum(member.node in self.world.setup.unlucky for member in ensemble)
        return draw_quorums(self._rng, count, unlucky)

    def _nonsensical(self, count: int) -> Quorums:
        """Refused, whoever is asked (D10)."""
        half = count // 2
        return self._rng.choice(
            (Quorums(count, half), Quorums(count - half, half), Quorums(count + 1, count))
        )

    def _check_change(self, partition: int, wanted: Membership, reply: Reply) -> None:
        quorums = wanted.quorums
        if quorums is not None and not is_safe(quorums, len(wanted.ensemble)):
            raise Violated("change-answer", f"p{partition}: {wanted} with {quorums} was taken (D10)")
        if self.invariants is not None:
            found = self.invariants.membership(partition, reply.offset)
            count = len(wanted.ensemble)
            # Who names none gets what was there before; and majorities can be said in two ways.
            if quorums is None or sizes(found.quorums, count) == sizes(quorums, count):
                wanted = msgspec.structs.replace(wanted, quorums=found.quorums)
        super()._check_change(partition, wanted, reply)

    # --- the person ---

    def _look(self, _: None) -> None:
        self.begin()
        for partition in self.world.setup.shards:
            self._see_to(partition)

    def _see_to(self, partition: int) -> None:
        leaders = self.world.leaders(partition)
        if not leaders and not self.world.tunables.host.confirm.automatic:
            up = self._up(partition)
            if up:
                self.promote(self._rng.choice(up), partition)
        for node in self.loose_nodes(partition):
            if self.healed or self._rng.random() < HELPS:
                self.join_again(node, partition)
        if self.healed:
            for node in leaders:
                if (partition, node) in self._read_only:
                    self.set_read_only(node, partition, read_only=False)

    def _up(self, partition: int) -> list[int]:
        """Whoever could lead, by what it believes itself."""
        found = []
        for node in self.world.setup.holders[partition]:
            hosted = self.world.hosted(node, partition)
            if hosted is not None and (hosted.replica.is_voter or hosted.replica.is_leaving):
                found.append(node)
        return found

    def loose_nodes(self, partition: int) -> list[int]:
        found = []
        for node in self.world.setup.holders[partition]:
            hosted = self.world.hosted(node, partition)
            if hosted is not None and hosted.replica.loose:
                found.append(node)
        return found

    # --- after everything has healed ---

    def still_loose(self) -> list[str]:
        """Members that are not joined again."""
        return [
            f"p{partition} n{node}"
            for partition in self.world.setup.shards
            for node in self.loose_nodes(partition)
            if node in self.members(partition)
        ]


_ACTS: dict[str, Callable[[ConfirmSteward, Random, int, int], None]] = {
    "roll-back": ConfirmSteward._roll_one_back,
    "promote": ConfirmSteward._promote_one,
    "demote": ConfirmSteward._demote_leader,
    "read-only": ConfirmSteward._set_read_only,
    "cut-loose": ConfirmSteward._cut_one_loose,
    "join-again": ConfirmSteward._join_one_again,
}


def draw_quorums(rng: Random, count: int, unlucky: int) -> Quorums | None:
    """Sizes that are safe (D10), of so many, and fair: without the unlucky ones there are enough, and what is
    settled is not on them alone."""
    enough = count - unlucky
    safe = [
        Quorums(commit, promote)
        for commit in range(unlucky + 1, enough + 1)
        for promote in range(count // 2 + 1, enough + 1)
        if is_safe(Quorums(commit, promote), count)
    ]
    return rng.choice(safe) if safe else None


def sizes(quorums: Quorums | None, count: int) -> tuple[int, int]:
    """How many of so many are enough, to commit and to promote."""
    half = count // 2 + 1
    return (half, half) if quorums is None else (quorums.commit, quorums.promote)


def is_safe(quorums: Quorums, count: int) -> bool:
    sizes = (quorums.commit, quorums.promote)
    possible = all(1 <= size <= count for size in sizes)
    return possible and 2 * quorums.promote > count and sum(sizes) > count


def place_quorums(seed: int, voters: tuple[tuple[int, ...], ...], unlucky: tuple[int, ...]) -> Any:
    """Those of each partition at birth; in half of all worlds majorities, as where nobody says anything."""
    rng = stream(seed, "quorums")
    if rng.random() < 0.5:
        return ()
    return tuple(draw_quorums(rng, len(group), sum(node in unlucky for node in group)) for group in voters)
