"""What orders to controllers of `isr` ask for, and how the store shows it (answers.py).

Every change is one write, so nothing is ever under way. Who copies a partition changes by orders only; and nobody
is elected uncleanly, by the controllers' own doing, without an order that was not denied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from quorate.core.entry import Member
from quorate.core.isr.orders import ChangeReplicas, ElectUncleanly, MoveLeader, Order
from quorate.core.isr.state import PartitionState
from quorate.sim.answers import Answers

Change = tuple[Literal["replicas"], Member | None, Member | None] | tuple[Literal["unclean"], Member]
"""Who goes and who comes, or who leads uncleanly."""


class IsrAnswers(Answers):
    def asked(self, order: Order) -> Change | None:
        if isinstance(order, ChangeReplicas):
            return "replicas", order.old, order.new
        return ("unclean", order.to) if isinstance(order, ElectUncleanly) else None

    def done(self, earlier: PartitionState, later: PartitionState) -> list[Change]:
        done: list[Change] = []
        old = next((member for member in earlier.replicas if member not in later.replicas), None)
        new = next((member for member in later.replicas if member not in earlier.replicas), None)
        if old is not None or new is not None:
            done.append(("replicas", old, new))
        if later.unclean is not None and later.unclean != earlier.unclean:
            done.append(("unclean", later.unclean.leader))
        return done

    def is_true(
        self, order: Order, *, since: Sequence[PartitionState], known: Sequence[PartitionState]
    ) -> bool:
        if isinstance(order, ChangeReplicas):
            return any(
                (order.new is None or order.new in stored.replicas) and order.old not in stored.replicas
                for stored in since
            )
        before = known[0]
        later = [stored for stored in known if stored.leader_epoch > before.leader_epoch]
        if isinstance(order, MoveLeader):
            return any(
                stored.leader == order.to if order.to is not None else stored.leader != before.leader
                for stored in later
            )
        return any(
            stored.unclean is not None
            and stored.unclean.leader == order.to
            and stored.unclean.leader_epoch > before.leader_epoch
            for stored in later
        )
