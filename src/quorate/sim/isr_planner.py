"""Whoever orders something of controllers: other copies, other leaders. As hasty and wrong as planner.py.

It is fair in what counts here. What is settled is on as many copies as must be in sync, so fewer than that may be
unlucky; and of those who have everything, whoever is left is not only unlucky ones. Nobody is elected uncleanly:
that loses what is settled, and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from quorate.core.entry import Member
from quorate.core.isr.orders import ChangeReplicas, MoveLeader
from quorate.core.isr.state import PartitionState
from quorate.sim.faults import Fault
from quorate.sim.isr_answers import IsrAnswers
from quorate.sim.overseen import Order
from quorate.sim.planner import FAIR_TRIES, Planner
from quorate.sim.steward import HUNG

Swap = tuple[Member | None, Member | None]
"""Who goes, and who comes."""


class IsrPlanner(Planner):
    answering = IsrAnswers

    def members(self, shard: int) -> tuple[int, ...]:
        if shard == self.world.setup.metadata:
            return self.world.setup.holders[shard]
        stored = self._state(shard)
        return tuple(member.node for member in stored.replicas) if stored is not None else ()

    def layout(self, shard: int) -> tuple[tuple[Member, ...], tuple[int, ...]]:
        """Of its replicas those are of the ensemble that were in sync once: a change ends when who is new is."""
        stored = self._state(shard)
        if stored is None:
            return (), ()
        once = {member for state in self.operators.history[shard] for member in state.isr}
        return tuple(member for member in stored.replicas if member in once), self.members(shard)

    def counted(self, shard: int) -> tuple[Member, ...]:
        """A replica that is to go is followed by the leader until it has gone."""
        return self.layout(shard)[0]

    def strike(self, fault: Fault) -> None:
        rng = Random(fault.chance)
        up = self.operators.up()
        if not up:
            return
        number, shard = rng.choice(up), rng.choice(self.world.setup.shards)
        view: PartitionState | None = self.operators.operator(number, shard).shard
        way = fault.kind.removeprefix("order-")
        if view is None:
            return
        if way not in _WAYS:  # Nothing here is under way that could be called off.
            self.toll.transfers += 1
            order = MoveLeader(self._next(), rng.choice((None, *view.replicas)))
            self._order(number, shard, order, "another leader")
            return
        for _ in range(FAIR_TRIES):
            swap = _WAYS[way](self, rng, shard, view)
            if swap is not None and (way == "nonsense" or self._keeps_enough(shard, view, swap)):
                self._change(number, shard, swap)
                return

    # --- what is asked for ---

    def _replace(self, rng: Random, shard: int, view: PartitionState) -> Swap | None:
        new = self._another(rng, shard, view)
        leads = rng.random() < 0.4
        return (view.leader if leads else rng.choice(view.replicas), new) if new is not None else None

    def _add(self, rng: Random, shard: int, view: PartitionState) -> Swap | None:
        new = self._another(rng, shard, view)
        return (None, new) if new is not None else None

    def _remove(self, rng: Random, shard: int, view: PartitionState) -> Swap | None:
        return rng.choice(view.replicas), None

    def _add_nobody(self, rng: Random, shard: int, view: PartitionState) -> Swap | None:
        """Somebody is to copy it who is not there, and never will be: another has to take its place."""
        new = self._another(rng, shard, view)
        return (None, Member(new.node, HUNG)) if new is not None else None

    def _wrongly(self, rng: Random, shard: int, view: PartitionState) -> Swap | None:
        member = rng.choice(view.replicas)
        stranger = Member(member.node, HUNG)
        return rng.choice(((None, member), (stranger, None), (stranger, member), (None, None)))

    def _take_back(self, rng: Random, shard: int, view: PartitionState) -> Swap | None:
        lost = [member for member in view.replicas if self.current(member.node, shard) != member]
        if not lost:
            return self._replace(rng, shard, view)
        old = rng.choice(lost)
        return old, self.current(old.node, shard)

    def _another(self, rng: Random, shard: int, view: PartitionState) -> Member | None:
        copying = {member.node for member in view.replicas}
        others = [node for node in self.world.setup.holders[shard] if node not in copying]
        return self.current(rng.choice(others), shard) if others else None

    def _keeps_enough(self, shard: int, view: PartitionState, swap: Swap) -> bool:
        old, new = swap
        left = [member for member in view.replicas if member != old]
        copies = left if new is None else [*left, new]
        having = [member for member in view.may_lead if member != old]
        sure = [
            member
            for member in having
            if member.node not in self.world.setup.unlucky and self.current(member.node, shard) == member
        ]
        return self._unlucky(tuple(copies)) < view.min_isr and bool(sure)

    # --- orders ---

    def _change(self, number: int, shard: int, swap: Swap) -> None:
        old, new = swap
        self.toll.changes += 1
        out = f" without n{old.node}/{old.incarnation}" if old is not None else ""
        into = f" with n{new.node}/{new.incarnation}" if new is not None else ""
        self._order(number, shard, ChangeReplicas(self._next(), old, new), f"change{out}{into}")

    def _count(self, order: Order) -> None:
        if isinstance(order, ChangeReplicas):
            self.toll.changes_settled += 1
        else:
            self.toll.transfers_settled += 1

    # --- after everything has healed ---

    def settle_down(self) -> Callable[[], list[str]]:
        """Whoever copies a shard gets in sync by itself; those who never will are replaced meanwhile (`begin`)."""
        return lambda: [
            f"p{shard} {self._state(shard)}"
            for shard in self.world.setup.shards
            if not self._is_at_rest(shard)
        ]

    def is_reconfiguring(self) -> bool:
        """Every change is one write."""
        return False

    def _is_at_rest(self, shard: int) -> bool:
        stored = self._state(shard)
        return stored is not None and stored.isr == stored.replicas

    def _renew(self, number: int, shard: int) -> None:
        view: PartitionState | None = self.operators.operator(number, shard).shard
        lost = [m for m in view.replicas if self.current(m.node, shard) != m] if view is not None else []
        if lost:
            old = self._rng.choice(lost)
            self._change(number, shard, (old, self.current(old.node, shard)))

    def _lost(self, shard: int) -> list[Member]:
        stored = self._state(shard)
        replicas = stored.replicas if stored is not None else ()
        return [member for member in replicas if self.current(member.node, shard) != member]

    def _state(self, shard: int) -> PartitionState | None:
        stored = self.operators.store.newest(shard)
        assert stored is None or isinstance(stored, PartitionState)
        return stored


_WAYS: dict[str, Callable[[IsrPlanner, Random, int, PartitionState], Swap | None]] = {
    "swap": IsrPlanner._replace,
    "expand": IsrPlanner._add,
    "contract": IsrPlanner._remove,
    "hang": IsrPlanner._add_nobody,
    "nonsense": IsrPlanner._wrongly,
    "renew": IsrPlanner._take_back,
}
