"""Whoever orders something of operators: swaps, expansions, contractions, other leaders, and to call things off.

It asks any operator that runs, by what that operator believes, and is as hasty and wrong as raft's steward
(steward.py). As fair, too: unlucky nodes, whose copies may be lost for good, are fewer than half of every ensemble
that it asks for, and of every one on the way there.

It also sees to those whose disk was wiped: they come back as another incarnation, and count again when the old one
was swapped for the new one (reliability rule 4).

What an order is answered is checked (answers.py).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from quorate.core.coordinated import Shard, Status
from quorate.core.coordinated.orders import CallOff, MoveLeader, Reconfigure
from quorate.core.coordinated.shard import Kind, Phase, Reconfiguration
from quorate.core.effects import Outcome, Reply
from quorate.core.entry import Member
from quorate.sim.answers import Answers, Given
from quorate.sim.chance import stream
from quorate.sim.faults import Fault
from quorate.sim.invariants import Invariants
from quorate.sim.operator_answers import Change, OperatorAnswers
from quorate.sim.operators import Operators
from quorate.sim.overseen import Order
from quorate.sim.steward import HUNG, current_member

if TYPE_CHECKING:
    from quorate.sim.chaos import Toll

RENEWED_PACES = 6.0
"""A wiped node waits so long for somebody to see to it, or some times that."""

FAIR_TRIES = 8


class Planner:
    answering: type[Answers] = OperatorAnswers

    def __init__(self, operators: Operators, toll: Toll, invariants: Invariants | None) -> None:
        self.world = operators.world
        self.operators = operators
        self.toll = toll
        self.invariants = invariants
        self.answers = self.answering(operators.history)
        self._requests = 0
        self._rng = stream(self.world.setup.seed, "planner")
        self._told, operators.store.on_written = operators.store.on_written, self._wrote

    def _wrote(self, shard: int, version: int, content: Shard) -> None:
        self._told(shard, version, content)
        self.answers.wrote(shard)

    def unanswered(self) -> list[str]:
        """Orders that an operator has, still lives with, and has not answered."""
        return [
            str(given)
            for given in self.answers.given
            if given.reply is None and self.operators.life(given.operator) == given.life
        ]

    def members(self, shard: int) -> tuple[int, ...]:
        """The nodes that must have everything in the end."""
        if shard == self.world.setup.metadata:
            return self.world.setup.holders[shard]
        stored = self.operators.store.newest(shard)
        return tuple(member.node for member in stored.ensemble) if stored is not None else ()

    def layout(self, shard: int) -> tuple[tuple[Member, ...], tuple[int, ...]]:
        """Who is of the ensemble, by what is stored, and on which nodes copies are or are made."""
        stored = self.operators.store.newest(shard)
        if stored is None:
            return (), ()
        change = stored.reconfiguration
        copies = stored.ensemble if change is None else change.applied_to(stored.ensemble)
        return stored.ensemble, tuple(member.node for member in (*stored.ensemble, *copies))

    def counted(self, shard: int) -> tuple[Member, ...]:
        """Whose copies need everything: not that of a node whose acknowledgements count no more as it is to go."""
        stored = self._stored(shard)
        if stored is None:
            return ()
        change = stored.reconfiguration
        return tuple(member for member in stored.ensemble if change is None or member != change.old)

    # --- while everything goes wrong ---

    def begin(self) -> None:
        """Look after the wiped ones for as long as the world lasts."""
        self._renew_some(None)

    def _renew_some(self, _: None) -> None:
        pause = self.world.tunables.pace_s * RENEWED_PACES * (0.5 + self._rng.random())
        self.world.after(pause, self._renew_some, None)
        for shard in self.world.setup.shards:
            up = self.operators.up()
            if up and self._lost(shard):
                self._renew(self._rng.choice(up), shard)

    def strike(self, fault: Fault) -> None:
        rng = Random(fault.chance)
        up = self.operators.up()
        if not up:
            return
        number, shard = rng.choice(up), rng.choice(self.world.setup.shards)
        operator = self.operators.operator(number, shard)
        view = operator.shard if operator is not None else None
        if view is None:
            return
        if fault.kind == "order-call-off":
            self._call_off(number, shard)
        elif fault.kind == "order-move":
            self.toll.transfers += 1
            self._order(number, shard, MoveLeader(self._next()), "another leader")
        else:
            self._strike(rng, fault.kind.removeprefix("order-"), number, shard, view)

    def _strike(self, rng: Random, way: str, number: int, shard: int, view: Shard) -> None:
        for _ in range(FAIR_TRIES):
            change = _WAYS[way](self, rng, shard, view)
            if change is not None and (way == "nonsense" or self._is_fair(view, change)):
                self._reconfigure(number, shard, change)
                return

    # --- what is asked for ---

    def _swap(self, rng: Random, shard: int, view: Shard) -> Change | None:
        new = self._newcomer(rng, shard, view)
        if new is None:
            return None
        leads = view.leader is not None and rng.random() < 0.4
        old = view.leader if leads else rng.choice(view.ensemble)
        return Kind.SWAP, old, new

    def _expand(self, rng: Random, shard: int, view: Shard) -> Change | None:
        new = self._newcomer(rng, shard, view)
        return (Kind.EXPAND, None, new) if new is not None else None

    def _contract(self, rng: Random, shard: int, view: Shard) -> Change | None:
        return Kind.CONTRACT, rng.choice(view.ensemble), None

    def _hang(self, rng: Random, shard: int, view: Shard) -> Change | None:
        """Somebody is to join who is not there, and never will be: it has to be called off."""
        new = self._newcomer(rng, shard, view)
        return (Kind.EXPAND, None, Member(new.node, HUNG)) if new is not None else None

    def _nonsense(self, rng: Random, shard: int, view: Shard) -> Change | None:
        member = rng.choice(view.ensemble)
        stranger = Member(member.node, HUNG)
        return rng.choice(
            ((Kind.EXPAND, None, member), (Kind.CONTRACT, stranger, None), (Kind.SWAP, stranger, member))
        )

    def _renewal(self, rng: Random, shard: int, view: Shard) -> Change | None:
        lost = [member for member in view.ensemble if self.current(member.node, shard) != member]
        if not lost:
            return self._swap(rng, shard, view)
        old = rng.choice(lost)
        return Kind.SWAP, old, self.current(old.node, shard)

    def _newcomer(self, rng: Random, shard: int, view: Shard) -> Member | None:
        counting = {member.node for member in view.ensemble}
        others = [node for node in self.world.setup.holders[shard] if node not in counting]
        return self.current(rng.choice(others), shard) if others else None

    def _is_fair(self, view: Shard, change: Change) -> bool:
        """Unlucky ones stay fewer than half, also of those who are fenced while it is under way."""
        wanted = Reconfiguration(change[0], Phase.COMMIT, change[1], change[2])
        final = wanted.applied_to(view.ensemble)
        fenced = tuple({*view.ensemble, *final})
        return all(2 * self._unlucky(ensemble) < len(ensemble) for ensemble in (final, fenced) if ensemble)

    def _unlucky(self, ensemble: tuple[Member, ...]) -> int:
        return sum(member.node in self.world.setup.unlucky for member in ensemble)

    def current(self, node: int, shard: int) -> Member:
        return current_member(self.world, self.invariants, node, shard)

    # --- orders ---

    def _next(self) -> int:
        self._requests += 1
        return self._requests

    def _reconfigure(self, number: int, shard: int, change: Change) -> None:
        kind, old, new = change
        self.toll.changes += 1
        out = f" without n{old.node}" if old is not None else ""
        into = f" with n{new.node}/{new.incarnation}" if new is not None else ""
        self._order(number, shard, Reconfigure(self._next(), kind, old, new), f"{kind}{out}{into}")

    def _call_off(self, number: int, shard: int) -> None:
        self._order(number, shard, CallOff(self._next()), "call off")

    def _order(self, number: int, shard: int, order: Order, what: str) -> None:
        if self.world.trace is not None:
            self.world.trace.add(self.world.now, 0, "commanded", text=f"operator {number}: p{shard} {what}")
        self.order(number, shard, order)

    def order(self, number: int, shard: int, order: Order) -> Given | None:
        """What is returned says what becomes of it; None: the operator does not run, or stands still."""
        operator = self.operators.operator(number, shard)
        if operator is None:
            return None
        life = self.operators.life(number)
        given = self.answers.give(order, shard, operator=number, life=life, known=operator.version)

        def answer(reply: Reply) -> None:
            self.answers.answer(given, reply)
            if reply.outcome is Outcome.SETTLED:
                self._count(order)

        if self.operators.command(number, shard, order, answer):
            return given
        self.answers.given.remove(given)
        return None

    def _count(self, order: Order) -> None:
        if isinstance(order, Reconfigure):
            self.toll.changes_settled += 1
        elif isinstance(order, MoveLeader):
            self.toll.transfers_settled += 1

    # --- after everything has healed ---

    def settle_down(self) -> Callable[[], list[str]]:
        """What was begun ends by itself, unless it waits for somebody who never comes.

        Returns what is not at rest yet.
        """
        for shard in self.world.setup.shards:
            self._mend(shard)
        return lambda: [
            f"p{shard} {self._stored(shard)}"
            for shard in self.world.setup.shards
            if not self._is_at_rest(shard)
        ]

    def _mend(self, shard: int) -> None:
        if self._is_at_rest(shard):
            return
        stored = self._stored(shard)
        change = stored.reconfiguration if stored is not None else None
        new = change.new if change is not None and change.phase in (Phase.WANTED, Phase.PREPARE) else None
        if new is not None and self.current(new.node, shard) != new:
            for number in self.operators.up():
                self._call_off(number, shard)
        self.world.after(5 * self.world.tunables.pace_s, self._mend, shard)

    def renew(self) -> Callable[[], list[str]]:
        """Whoever came back as another is taken in as who it is now; `begin` sees to it. Returns whoever is not."""
        return lambda: [
            f"p{shard} {self._stored(shard)}" for shard in self.world.setup.shards if self._lost(shard)
        ]

    def _renew(self, number: int, shard: int) -> None:
        operator = self.operators.operator(number, shard)
        view = operator.shard if operator is not None else None
        lost = (
            [member for member in view.ensemble if self.current(member.node, shard) != member] if view else []
        )
        if lost:
            old = self._rng.choice(lost)
            self._reconfigure(number, shard, (Kind.SWAP, old, self.current(old.node, shard)))

    def _stored(self, shard: int) -> Shard | None:
        stored: Shard | None = self.operators.store.newest(shard)
        return stored

    def _lost(self, shard: int) -> list[Member]:
        stored = self._stored(shard)
        ensemble = stored.ensemble if stored is not None else ()
        return [member for member in ensemble if self.current(member.node, shard) != member]

    def is_reconfiguring(self) -> bool:
        """Whether any reconfiguration is still in the store."""
        stored = [self._stored(shard) for shard in self.world.setup.shards]
        return any(shard is not None and shard.reconfiguration is not None for shard in stored)

    def _is_at_rest(self, shard: int) -> bool:
        stored = self._stored(shard)
        return stored is not None and stored.status is Status.STEADY and stored.reconfiguration is None


_WAYS: dict[str, Callable[[Planner, Random, int, Shard], Change | None]] = {
    "swap": Planner._swap,
    "expand": Planner._expand,
    "contract": Planner._contract,
    "hang": Planner._hang,
    "nonsense": Planner._nonsense,
    "renew": Planner._renewal,
}
